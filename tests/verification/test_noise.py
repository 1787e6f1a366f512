"""The keyed noise: its law, and that it depends on seed, row, position and token alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from outrider.errors import NonFiniteLogitsError
from outrider.verification.noise import keyed_choice, keyed_choices, keyed_noise, stream_key

V = 4096


def noise(seed=1, row=0, position=5, vocab=V):
    return keyed_noise(seed, row, position, vocab, "cpu")


def test_values_are_pinned():
    """Texts with a seed must not change from release to release."""
    assert stream_key(0, 0, 0) == PINNED_KEY
    assert noise(0, 0, 0, 4).tolist() == pytest.approx(PINNED_NOISE, abs=1e-6)


PINNED_KEY = 12035550249420947055
PINNED_NOISE = [1.9016413688659668, -1.2652519941329956, 1.1223968267440796, -0.845413088798523]


def test_law_is_gumbel():
    sample = torch.cat([noise(position=t) for t in range(50)]).numpy()
    assert stats.kstest(sample, "gumbel_r").pvalue > 0.01
    assert np.isfinite(sample).all()


@pytest.mark.parametrize("other", [dict(seed=2), dict(row=1), dict(position=6), dict(seed=1 + 2**32)])
def test_streams_are_independent(other):
    a, b = noise().numpy(), noise(**other).numpy()
    assert abs(stats.spearmanr(a, b).statistic) < 4 / V**0.5
    assert abs(stats.spearmanr(a[1:], b[:-1]).statistic) < 4 / V**0.5


def test_neighbouring_tokens_are_independent():
    a = noise().numpy()
    for lag in (1, 2, 3, 8, 64):
        assert abs(stats.spearmanr(a[lag:], a[:-lag]).statistic) < 4 / V**0.5


def test_padding_the_vocabulary_changes_nothing():
    assert torch.equal(noise(vocab=100), noise(vocab=1000)[:100])
    scores = torch.randn(100)
    padded = torch.cat([scores, torch.full((28,), -torch.inf)])
    assert [keyed_choice(scores, 3, 0, t) for t in range(50)] == [
        keyed_choice(padded, 3, 0, t) for t in range(50)
    ]


@settings(max_examples=200, deadline=None)
@given(
    st.integers(-(2**70), 2**70),
    st.integers(0, 40),
    st.sampled_from([2, 3, 17, 500, 512, 513, 1999]),
    st.sampled_from([0.0, 0.1, 1.0, 8.0, 60.0]),
    st.sampled_from([0.0, 0.5, 0.99]),
    st.sampled_from([0.0, 1e4, -3e5, 1e30]),
)
def test_fast_choice_is_the_full_argmax(seed, position, vocab, spread, forbidden, around):
    random = torch.Generator().manual_seed(position)
    scores = around + torch.randn(vocab, generator=random) * spread
    hidden = torch.rand(vocab, generator=random) < forbidden
    hidden[position % vocab] = False
    scores[hidden] = -torch.inf
    full = (scores.double() + noise(seed, 2, position, vocab).double()).argmax().item()
    assert keyed_choice(scores, seed, 2, position) == full
    assert keyed_choices(scores[None], [position], seed, 2) == [full]
    assert not hidden[full]


def test_choices_follow_softmax():
    scores = torch.tensor([0.0, 1.0, -1.0, 2.0, -torch.inf])
    drawn = np.bincount([keyed_choice(scores, 7, 0, t) for t in range(20_000)], minlength=5)
    assert drawn[4] == 0
    assert stats.chisquare(drawn[:4], 20_000 * scores[:4].double().softmax(-1).numpy()).pvalue > 0.01


@pytest.mark.parametrize("bad", [[1.0, float("nan")], [float("nan"), 1.0], [-torch.inf, -torch.inf]])
def test_nan_and_nothing_possible(bad):
    with pytest.raises(NonFiniteLogitsError):
        keyed_choice(torch.tensor(bad), 0, 0, 0)
    assert keyed_choices(torch.tensor([bad]), [0], 0, 0) == [-1]


@pytest.mark.parametrize("at", [0, 511, 512, 1300])
def test_nan_anywhere_and_infinity(at):
    scores = torch.randn(1301) - 200.0
    scores[5] = 0.0  # What no other token's noise can make up for.
    scores[at] = torch.nan
    with pytest.raises(NonFiniteLogitsError):
        keyed_choice(scores, 0, 0, 0)
    scores[at:] = torch.inf
    assert keyed_choice(scores, 0, 0, 0) == at

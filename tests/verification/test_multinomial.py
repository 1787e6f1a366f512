"""The fast draw is torch.multinomial's: its tokens, its errors, and the generator as it leaves it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.verification import multinomial as module
from outrider.verification.multinomial import multinomial


def pair(seed):
    return torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)


def plain(scores, random):
    return int(torch.multinomial(scores.softmax(-1), 1, generator=random))


def test_this_torch_is_known():
    assert module._knows_torch()


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**62),
    st.sampled_from([1, 2, 5, 311, 312, 313, 624, 2000]),
    st.sampled_from([0.0, 0.1, 1.0, 8.0, 60.0]),
    st.sampled_from([0.0, 0.5, 0.99]),
    st.sampled_from([0.0, 1e4, -3e5]),
    st.lists(st.integers(0, 1500), min_size=1, max_size=6),
)
def test_the_same_tokens_whatever_else_is_drawn(seed, vocab, spread, forbidden, around, others):
    ours, theirs = pair(seed)
    for number in others:
        scores = around + torch.randn(1, vocab, generator=torch.Generator().manual_seed(number)) * spread
        scores[:, 1:][torch.rand(1, vocab - 1) < forbidden] = -torch.inf
        assert multinomial(scores, ours) == plain(scores, theirs)
        assert torch.equal(ours.get_state(), theirs.get_state())
        torch.rand(number, generator=ours), torch.rand(number, generator=theirs)


def test_a_real_vocabulary_and_the_global_generator():
    scores = torch.randn(1, 151_936, generator=torch.Generator().manual_seed(3)) * 3
    torch.manual_seed(8)
    expected = [int(torch.multinomial(scores.softmax(-1), 1)) for _ in range(20)]
    torch.manual_seed(8)
    assert [multinomial(scores) for _ in range(20)] == expected
    assert len(set(expected)) > 10


def test_torch_itself_decides_what_is_near(monkeypatch):
    monkeypatch.setattr(module, "_race", lambda scores, random: -1)
    ours, theirs = pair(1)
    scores = torch.randn(1, 50)
    assert [multinomial(scores, ours) for _ in range(9)] == [plain(scores, theirs) for _ in range(9)]


def test_what_is_near_is_seen():
    """Of two scores that the race brings within `_NEAR`, neither is taken; further apart the first is."""
    clock = torch.empty(2).exponential_(generator=torch.Generator().manual_seed(5))
    for gap, expected in ((5e-5, -1), (3e-4, 0), (-5e-5, -1), (-3e-4, 1)):
        scores = clock.log() + torch.tensor([gap, 0.0])
        random, untouched = pair(5)
        assert module._race(scores, random) == expected
        assert torch.equal(random.get_state(), untouched.get_state()) == (expected < 0)


@pytest.mark.parametrize("at", [0, 311, 312, 900])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_errors_are_torchs(at, bad):
    scores = torch.zeros(1, 901)
    scores[0, at] = bad
    with pytest.raises(RuntimeError, match="probability tensor"):
        multinomial(scores, pair(0)[0])
    with pytest.raises(RuntimeError, match="probability tensor"):
        multinomial(torch.full((1, 901), -torch.inf), pair(0)[0])

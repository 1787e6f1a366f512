"""One token's probability without the others', and log(sum(exp)) of rows of every width, spread and dtype."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import LogitsProcessor

from outrider.cores import one_thread
from outrider.errors import NonFiniteLogitsError
from outrider.types import Candidates
from outrider.verification import available_verifiers, get_verifier
from outrider.verification.law import Law
from outrider.verification.total import log_total
from tests.verification.rows import make_row, new_tokens

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([1, 2, 511, 512, 513, 3000]),
    st.sampled_from([0.0, 1.0, 20.0, 300.0]),
    st.sampled_from([0.0, 0.5, 0.99]),
    st.sampled_from([0.0, 1e4, -3e4]),
    st.sampled_from(DTYPES),
)
def test_log_total_is_logsumexp(seed, vocab, spread, forbidden, around, dtype):
    random = torch.Generator().manual_seed(seed)
    scores = (around + torch.randn(vocab, generator=random) * spread).to(dtype)
    scores[1:][torch.rand(vocab - 1, generator=random) < forbidden] = -torch.inf
    expected = float(scores.double().logsumexp(-1))
    assert log_total(scores) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("rising", [1.0, -1.0])
def test_log_total_of_sorted_scores(rising):
    """Every piece far above, or far below, the one before."""
    scores = rising * torch.linspace(-900, 900, 5000)
    assert log_total(scores) == pytest.approx(float(scores.double().logsumexp(-1)), abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("at", [0, 511, 512, 999])
def test_what_is_not_finite_is_an_error(bad, at):
    scores = torch.randn(1000)
    scores[at] = bad
    assert not math.isfinite(log_total(scores))
    with pytest.raises(NonFiniteLogitsError):
        Law(scores, torch.float32)[3]
    with pytest.raises(NonFiniteLogitsError):
        Law(torch.full((1000,), -torch.inf), torch.float32)[3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("given_as", DTYPES)
def test_a_token_alone_has_its_share_of_the_whole(dtype, given_as):
    scores = (torch.randn(1, 700) * 4).to(given_as)
    scores[0, 5] = -torch.inf
    law = Law(scores, dtype)
    alone = torch.tensor([law[token] for token in range(700)], dtype=torch.float64)
    assert law[5] == 0.0
    assert torch.allclose(alone, law.full.double(), rtol=3e-6 if dtype == torch.float32 else 1e-12, atol=0)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", available_verifiers()[1:])
def test_half_precision_rows_are_verified_as_the_numbers_they_hold(name, dtype):
    """Read where they lie, or widened first: the same tokens from the same seed."""
    random = torch.Generator().manual_seed(0)
    for seed in range(20):
        logits, drafted = (torch.randn(size, 700, generator=random).mul(4).to(dtype) for size in (5, 4))
        found = []
        for widened in (False, True):
            rows = (logits.float(), drafted.float()) if widened else (logits, drafted)
            candidates = Candidates.chain(rows[0][:4].argmax(-1).tolist(), draft_logits=rows[1])
            row = make_row()
            path = get_verifier(name, do_sample=name != "greedy", seed=seed).verify(row, candidates, rows[0])
            found.append((path, new_tokens(row)))
        assert found[0] == found[1]


def test_block_looks_no_further_than_an_impossible_candidate():
    class Counting(LogitsProcessor):
        def __init__(self):
            self.lengths = []

        def __call__(self, input_ids, scores):
            self.lengths.append(input_ids.shape[1])
            return scores

    counting, row = Counting(), make_row()
    row.processors.append(counting)
    row.is_stateless = True
    logits = torch.zeros(9, 4)
    logits[:, 3] = -torch.inf
    candidates = Candidates.chain([1, 2, 3, 1, 1, 1, 1, 1], draft_logits=torch.zeros(8, 4))
    path = get_verifier("block", do_sample=True, seed=0).verify(row, candidates, logits)
    assert counting.lengths == [1, 2, 3]
    assert path == [0, 1]


def test_one_thread_gives_the_threads_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), one_thread():
            assert torch.get_num_threads() == 1
            _ = 1 / 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

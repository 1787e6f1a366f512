"""Prompt lookup against the scan that transformers does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.contract import get
from outrider.errors import OptionError
from outrider.types import Context
from tests.generators.helpers import decode

PromptLookup = get("prompt_lookup")


def propose(generator, ids, budget=10, **fields):
    return generator.propose(Context(np.asarray(ids, np.int64), len(ids), **fields), budget)


def scan_first(ids, max_ngram_size, num_tokens):
    for size in range(min(max_ngram_size, len(ids) - 1), 0, -1):
        for start in range(len(ids) - size):
            if ids[start : start + size] == ids[-size:] and start + size < len(ids):
                return ids[start + size : start + size + num_tokens]
    return []


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 3), max_size=40), size=st.integers(1, 3), budget=st.integers(0, 12))
def test_first_is_what_transformers_copies(ids, size, budget):
    candidates = propose(PromptLookup(max_ngram_size=size, order="first"), ids, budget)
    assert candidates.tokens.tolist() == scan_first(ids, size, min(10, budget))
    assert candidates.is_chain


def test_recent_takes_the_last_match_and_repeats_a_period():
    assert propose(PromptLookup(num_tokens=2), [1, 2, 7, 1, 2, 8, 1, 2]).tokens.tolist() == [8, 1]
    assert propose(PromptLookup(num_tokens=5), [5, 6, 5, 6]).tokens.tolist() == [5, 6, 5, 6, 5]


def test_nothing_after_eos():
    generator = PromptLookup(eos_token_ids=(9,))
    assert propose(generator, [1, 2, 9, 4, 1]).tokens.tolist() == [2, 9]


def test_empty_prompt_and_no_budget():
    assert len(propose(PromptLookup(), [])) == 0
    assert len(propose(PromptLookup(), [1, 1, 1], 0)) == 0


def test_encoder_ids_are_searched():
    generator = PromptLookup(max_ngram_size=2)
    encoder = np.array([4, 5, 6, 7])
    assert propose(generator, [1, 5], encoder_ids=encoder).tokens.tolist() == [6, 7]


def test_reset_forgets_and_fork_is_independent():
    generator = PromptLookup()
    propose(generator, [1, 2, 3, 1])
    fork = generator.fork()
    generator.reset(np.array([1]))
    assert len(propose(generator, [1])) == 0
    assert propose(fork, [7, 8, 7]).tokens[0] == 8
    assert len(propose(generator, [1])) == 0


def test_rejected_candidates_leave_no_trace():
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 5, 80)
    worked, fresh = PromptLookup(), PromptLookup()
    decode(worked, ids[:20], ids[20:])
    assert propose(worked, ids).tokens.tolist() == propose(fresh, ids).tokens.tolist()


def test_probabilities_are_learnt_by_match_length():
    text = np.tile(np.arange(12), 20)
    generator = PromptLookup()
    before = propose(generator, text[:30]).probabilities
    assert decode(generator, text[:30], text[30:]) < 25
    assert propose(generator, text[:30]).probabilities[0] > before[0]


def test_options_are_checked():
    with pytest.raises(OptionError):
        PromptLookup(order="last")
    with pytest.raises(OptionError):
        PromptLookup(max_ngram_size=0)

"""Guesses refine themselves, and what comes of it is found again."""

import numpy as np
import pytest

from outrider.contract import get
from outrider.errors import OptionError
from outrider.testing import check_generator
from outrider.types import Candidates, Verification
from tests.generators.helpers import decode

Lookahead = get("lookahead")


def top(ids):
    """A target whose next token depends on the last alone."""
    return np.array([(int(ids[-1]) * 7 + 3) % 50]), np.array([1.0])


def following(first, size):
    text = [first]
    while len(text) < size:
        text.append(int(top(text)[0][0]))
    return np.array(text)


def test_guesses_run_ahead_of_what_was_never_seen():
    text = following(1, 100)
    assert decode(Lookahead(window=8, ngram_size=3), text[:1], text[1:], budget=32, top=top) < 40
    other = np.random.default_rng(0).integers(0, 50, 60)
    assert decode(Lookahead(), other[:5], other[5:], budget=32) > 40


def test_ngrams_end_with_the_targets_own_token():
    generator = Lookahead(window=2, ngram_size=3, max_ngrams=2)
    generator.reset(np.array([4, 5]))
    candidates = Candidates.chain(generator._guesses)
    assert candidates.tokens.tolist() == [4, 5]
    generator.update(Verification(np.array([6]), 0, candidates, top_tokens=np.array([[6], [7], [8]])))
    assert {first: list(rest) for first, rest in generator._pool.items()} == {
        4: [(5, 6), (5, 8)],
        5: [(4, 7)],
    }
    assert generator._guesses.tolist() == [7, 8]
    for number in range(10):
        generator._keep([1, number, number])
    assert list(generator._pool[1]) == [(8, 8), (9, 9)]


def test_it_owes_the_loop_nothing():
    check_generator(Lookahead, max_new_tokens=12)
    with pytest.raises(OptionError, match="ngram_size"):
        Lookahead(ngram_size=1)

"""The n-gram index against a scan."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.index.ngram import NGramIndex

tokens = st.lists(st.integers(-1, 3), max_size=60)


def scan(ids, query, lengths, first):
    for length in reversed(lengths):
        wanted = query[-length:]
        if len(query) < length or min(wanted) < 0:
            continue
        ends = [
            end
            for end in range(length - 1, len(ids) - 1)
            if ids[end - length + 1 : end + 1] == wanted and ids[end + 1] >= 0
        ]
        if ends:
            return length, ends[0] if first else ends[-1]
    return 0, -1


@settings(max_examples=150, deadline=None)
@given(ids=tokens, query=tokens, cuts=st.lists(st.integers(1, 9), max_size=20), first=st.booleans())
def test_find_is_a_scan(ids, query, cuts, first):
    lengths = (1, 2, 3, 5)
    index, at = NGramIndex(lengths, keep_first=first), 0
    for cut in [*cuts, 100]:
        index.append(ids[at : at + cut])
        at += cut
    assert len(index) == len(ids)
    for wanted in (query, ids):
        assert index.find(wanted) == scan(ids, wanted, lengths, first)


def test_growth_keeps_everything():
    ids = np.random.default_rng(0).integers(0, 500, 5000)
    grown, at_once = NGramIndex((1, 2, 4)), NGramIndex((1, 2, 4))
    for token in ids:
        grown.append([token])
    at_once.append(ids)
    for end in range(100, 5000, 100):
        assert grown.find(ids[:end]) == at_once.find(ids[:end])
    assert (grown.previous[:4998] == at_once.previous[:4998]).all()


def test_sync_rebuilds_for_another_sequence():
    index = NGramIndex((1, 2))
    index.sync(np.array([1, 2, 3, 1]))
    index.sync(np.array([1, 2, 3, 1, 2]))
    assert index.find([1, 2]) == (2, 1)
    index.sync(np.array([9, 8, 7, 9, 8, 7]))
    assert index.find([1, 2]) == (0, -1)
    assert index.find([9, 8]) == (2, 4)
    assert len(index) == 6


def test_lengths_are_checked():
    with pytest.raises(ValueError, match="ascending"):
        NGramIndex((2, 1))

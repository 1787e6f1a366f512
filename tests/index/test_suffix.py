"""The suffix index against brute force."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.index import suffix
from outrider.index.suffix import LENGTHS, SuffixIndex


def levels_of(ids, query):
    """Per level: what followed the occurrences that match that long and no longer, last first."""
    found = {}
    for end in range(len(ids) - 2, -1, -1):
        match = 0
        while match <= end and match < len(query) and ids[end - match] == query[-1 - match] >= 0:
            match += 1
        if match and ids[end + 1] >= 0:
            level = max(i for i, length in enumerate(LENGTHS) if length <= match)
            found.setdefault(level, []).append(ids[end + 1])
    return found


def distribution(ids, query, counts):
    remaining, result = 1.0, {}
    found = levels_of(ids, query)
    for level in sorted(found, reverse=True):
        new = [token for token in found[level] if token not in result]
        if not new:
            continue
        kind = 0 if len(new) == 1 else 1 if len(set(new)) == 1 else 2
        confidence = counts[1, level, kind] / counts[0, level, kind]
        for i, token in enumerate(new):
            share = (2 if i == 0 else 1) / (len(new) + 1)
            result[token] = result.get(token, 0.0) + remaining * confidence * share
        remaining *= 1 - confidence
        if remaining < 0.03:
            break
    return result


@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(st.integers(-1, 3), max_size=16), query=st.lists(st.integers(0, 3), min_size=1, max_size=22)
)
def test_children_are_the_brute_force_distribution(ids, query):
    index = SuffixIndex()
    index.append(ids)
    tree = index.tree(np.array(query), 16, max_depth=1, least=1e-9)
    expected = distribution(ids, query, index.counts)
    assert dict(zip(tree.tokens.tolist(), tree.probabilities, strict=True)) == {
        token: np.float32(share) for token, share in expected.items()
    }
    assert (np.diff(tree.probabilities) <= 0).all()


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 2), min_size=1, max_size=15), budget=st.integers(0, 20))
def test_the_tree_is_the_best_of_all_paths(ids, budget):
    index = SuffixIndex()
    index.append(ids)
    tree = index.tree(np.array(ids), budget, max_depth=3, least=1e-6)
    everything, level = {}, {(): 1.0}
    for _ in range(3):
        level = {
            (*path, token): chance * share
            for path, chance in level.items()
            for token, share in distribution(ids, [*ids, *path], index.counts).items()
            if chance * share >= 1e-6
        }
        everything |= level
    paths = {}
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        above, chance = paths.get(parent, ((), 1.0))
        paths[node] = ((*above, token), chance * tree.probabilities[node])
        assert abs(everything[paths[node][0]] - paths[node][1]) < 1e-5
    best = sorted(everything.values(), reverse=True)[:budget]
    assert np.allclose(sorted((chance for _, chance in paths.values()), reverse=True), best, atol=1e-5)


def test_equals_are_taken_last_match_first():
    index = SuffixIndex()
    index.append([1, 5, 2, 1, 6, 2, 1, 7, 2])
    assert index.tree(np.array([1]), 3, max_depth=1).tokens.tolist() == [7, 6, 5]


def test_match_length_is_known():
    text = list(range(30))
    index = SuffixIndex()
    index.append([*text, 99])
    assert index.tree(np.array(text[:25]), 1).match_lengths.tolist() == [18]
    assert index.tree(np.array([77, 3, 4]), 1).match_lengths.tolist() == [2]


def test_levels_learn_how_often_they_are_right():
    index = SuffixIndex()
    before = index.counts[1] / index.counts[0]
    for _ in range(40):
        index.append([1, 2, 3, 4, 5, 6], learning=True)
    after = index.counts[1] / index.counts[0]
    assert (after[-1] > before[-1]).any()
    assert 0 < after.min() <= after.max() <= 1


def test_learning_does_not_change_what_is_held():
    ids = np.random.default_rng(0).integers(0, 4, 300)
    learnt, plain = SuffixIndex(), SuffixIndex()
    learnt.append(ids, learning=True)
    plain.append(ids)
    plain.counts = learnt.counts
    for one, other in zip(learnt.tree(ids, 30), plain.tree(ids, 30), strict=True):
        assert (one == other).all()


def test_stop_tokens_are_leaves():
    index = SuffixIndex()
    index.append([1, 2, 3, 1, 2, 3])
    tree = index.tree(np.array([1]), 8, stop_tokens=(3,))
    assert 3 in tree.tokens
    assert 3 not in tree.tokens[tree.parents[tree.parents >= 0]]


def test_memory_is_bounded_a_token():
    index = SuffixIndex()
    index.append(np.random.default_rng(0).integers(0, 30000, 100_000))
    assert index.ngrams.num_bytes / len(index) <= 150
    assert suffix.WIDTH >= 8

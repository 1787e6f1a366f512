"""Recycled logits, and the tree grown from all sources at once."""

import numpy as np

from outrider.index.adjacency import Adjacency
from outrider.index.blend import SOURCES, Blend

NONE = np.empty(0, np.int64)
TOP = np.array([[5, 6, 7]]), np.array([[4.0, 2.0, 0.0]])


def test_the_pair_speaks_before_the_token():
    table = Adjacency()
    table.store(np.array([1]), np.array([2]), *TOP)
    table.store(np.array([3]), np.array([2]), TOP[0] + 10, TOP[1])
    assert table.tree(1, 2, 1)[0].tolist() == [5]
    assert table.tree(9, 2, 1)[0].tolist() == [15]
    table.store(np.array([3]), np.array([5000]), *TOP)
    assert table.tree(1, 5000, 1)[0].tolist() == [5]
    table.clear()
    assert table.tree(1, 2, 1)[0].size == 0


def test_worth_is_learnt():
    table = Adjacency()
    table.store(np.array([1]), np.array([2]), *TOP)
    for _ in range(80):
        table.learn(1, 2, np.array([6]))
    assert table.tree(1, 2, 3, max_depth=1)[0][0] == 6


def test_a_blend_splices_its_sources():
    blend = Blend()
    blend.suffix.append([1, 2, 3, 4, 1])
    blend.adjacency.store(np.array([-1]), np.array([4]), np.array([[8, 9]]), np.array([[5.0, 0.0]]))
    tokens, parents, _, sources = blend.tree(np.array([1]), 12, np.array([7]), least=1e-4)
    named = dict(zip(tokens.tolist(), [SOURCES[i] for i in sources], strict=True))
    assert named[2] == "suffix"
    assert named[8] == "recycled"
    assert named[7] == "anchor"
    assert tokens[parents[tokens.tolist().index(8)]] == 4


def test_learning_holds_what_appending_holds():
    ids = np.random.default_rng(0).integers(0, 4, 200)
    learnt, plain = Blend(), Blend()
    for start in range(0, 200, 7):
        learnt.learn(ids[start : start + 7], NONE)
    plain.suffix.append(ids)
    assert (learnt.suffix.ngrams.previous[:198] == plain.suffix.ngrams.previous[:198]).all()
    assert learnt.kept[0][0].sum() > plain.kept[0][0].sum()

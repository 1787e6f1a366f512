"""Several sources in one tree, one after the other, and the default."""

import numpy as np
import pytest

from outrider.contract import CandidateGenerator, get
from outrider.errors import OptionError
from outrider.generators.composite import merge
from outrider.types import Candidates, Context, TopLogits, Verification
from tests.generators.helpers import check, decode

NAMES = ("anchors", "composite", "cascade", "auto")


class Says(CandidateGenerator):
    def __init__(self, tokens, chances):
        self.tokens, self.chances, self.asked, self.told = tokens, chances, 0, 0

    def propose(self, context, budget):
        self.asked += 1
        return Candidates.chain(self.tokens[:budget], self.chances[:budget])

    def update(self, verification):
        self.told += 1


def context(*ids):
    return Context(np.asarray(ids, np.int64), len(ids))


def top(ids):
    tokens = np.random.default_rng(int(ids[-1])).permutation(40)[:8]
    return tokens, np.array([9, 1, 0, 0, -1, -1, -2, -3])


def test_equal_paths_are_one_node_and_chances_combine():
    tree = merge(
        {"a": Candidates.chain([1, 2], [0.5, 0.5]), "b": Candidates.chain([1, 3], [0.5, 0.9])}, budget=10
    )
    check(tree, 10)
    assert tree.tokens.tolist() == [1, 2, 3]
    assert tree.parents.tolist() == [-1, 0, 0]
    assert np.allclose(tree.probabilities, [0.75, 0.5, 0.9])
    assert tree.sources == ("a+b", "a", "b")
    assert merge({"a": tree}, 2).tokens.tolist() == [1, 3]
    assert len(merge({"a": Candidates.empty()}, 2)) == 0


def test_cascade_asks_the_second_only_where_the_first_has_nothing():
    first, second = Says([1, 2], [0.9, 0.9]), Says([3], [0.2])
    cascade = get("cascade")([first, second])
    assert cascade.propose(context(1), 5).tokens.tolist() == [1, 2]
    assert second.asked == 0
    first.tokens = first.chances = []
    assert cascade.propose(context(1), 5).tokens.tolist() == [3]
    cascade.update(Verification(np.array([3]), 0))
    assert first.told == second.told == 1


def test_anchors_are_the_runners_up_continued():
    generator = get("anchors")()
    generator.reset(np.array([5, 6, 7, 1]))
    tops = np.array([[9, 5, 8]])
    generator.update(Verification(np.array([9]), 0, top_tokens=tops, top_logits=np.zeros((1, 3), np.float32)))
    tree = generator.propose(context(5, 6, 7, 1, 9), 6)
    check(tree, 6)
    assert tree.tokens[:2].tolist() == [5, 8]
    assert 6 in tree.tokens[tree.parents == 0]


def test_needs_are_the_union():
    assert get("auto")().needs == {TopLogits(8)}
    assert get("composite")(["suffix"]).needs == frozenset()


@pytest.mark.parametrize("name", NAMES)
def test_contract(name):
    generator = get(name)()
    assert len(generator.propose(context(), 8)) == 0
    text = np.tile(np.arange(15), 12)
    rounds = decode(generator, text[:30], text[30:], budget=16, top=top)
    assert rounds < (150 if name == "anchors" else 75)
    fork = generator.fork()
    assert decode(fork, text[:1], text[1:60], top=top) <= 59
    generator.reset(np.array([1]))
    assert len(generator.propose(context(1), 0)) == 0
    assert len(generator.propose(context(39), 8)) == 0


@pytest.mark.parametrize("name", ["composite", "cascade"])
def test_at_least_one(name):
    with pytest.raises(OptionError):
        get(name)([])

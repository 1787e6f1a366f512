"""The half of a round that needs no model: what is cut of a proposal, and that cutting keeps its law."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from outrider.contract import CandidateGenerator
from outrider.control import Fixed
from outrider.drafting import propose
from outrider.types import Candidates, Context

LAW = np.array([0.5, 0.3, 0.2])


class Proposes(CandidateGenerator):
    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates

    def propose(self, context: Context, budget: int) -> Candidates:
        return self.candidates


def cut(candidates: Candidates, budget: int = 8, trees: bool = False, room: int = 9) -> Candidates:
    context = Context(np.array([0]), 1, room + 1)
    return propose(Proposes(candidates), context, budget, Fixed(budget), vocab_size=LAW.size, trees=trees)


def drawn_trees() -> list[tuple[Candidates, float]]:
    """Two siblings drawn without replacement and a child of each, with their chance."""
    trees = []
    for first, second, below, beside in itertools.product(range(LAW.size), repeat=4):
        if first == second:
            continue
        chance = LAW[first] * LAW[second] / (1 - LAW[first]) * LAW[below] * LAW[beside]
        rows = torch.from_numpy(np.log(LAW)).repeat(4, 1)
        rows[1, first] = -torch.inf
        # Estimates that a choice of the best chain would follow.
        estimates = [LAW[first], LAW[second], LAW[below], LAW[beside]]
        trees.append((Candidates([first, second, below, beside], [-1, -1, 0, 1], estimates, rows), chance))
    return trees


@pytest.mark.parametrize("budget", [1, 2, 3, 8])
@pytest.mark.parametrize("room", [1, 9])
def test_the_chain_of_a_drawn_tree_follows_the_law_it_was_drawn_from(budget: int, room: int) -> None:
    firsts, seconds, total = np.zeros(LAW.size), np.zeros((LAW.size, LAW.size)), 0.0
    for tree, chance in drawn_trees():
        chain = cut(tree, budget, room=room)
        assert chain.is_chain and len(chain) == min(2, budget, room)
        assert torch.equal(chain.draft_logits[0], tree.draft_logits[0])
        firsts[chain.tokens[0]] += chance
        total += chance
        if len(chain) == 2:
            seconds[tuple(chain.tokens)] += chance
    np.testing.assert_allclose(total, 1, atol=1e-12)
    np.testing.assert_allclose(firsts, LAW, atol=1e-12)
    if seconds.any():
        np.testing.assert_allclose(seconds, np.outer(LAW, LAW), atol=1e-12)


def test_the_best_chain_would_not() -> None:
    firsts = np.zeros(LAW.size)
    for tree, chance in drawn_trees():
        firsts[tree.best_chain().tokens[0]] += chance
    assert abs(firsts - LAW).max() > 0.05


@pytest.mark.parametrize("trees", [True, False])
def test_what_cannot_be_accepted_is_dropped_with_what_hangs_under_it(trees: bool) -> None:
    tree = Candidates([1, 7, 2, 1, 2], [-1, -1, 1, 0, 3])
    kept = cut(tree, trees=trees, room=2)
    assert kept.tokens.tolist() == [1, 1]
    assert kept.is_chain

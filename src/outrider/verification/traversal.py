"""Traversal verification: trees drawn at random, from the leaves to the root."""

from __future__ import annotations

from typing import final

from torch import Tensor

from outrider.types import Candidates
from outrider.verification.drafted import DraftedVerifier, DraftLaws
from outrider.verification.law import Law, full
from outrider.verification.maths import ratio, residual, stop_chance
from outrider.verification.nodes import NodeScores
from outrider.verification.recursive import children_of
from outrider.verification.step import Row


@final
class TraversalVerifier(DraftedVerifier):
    """Try whole paths of a tree, depth first; keep the first that passes.

    A node below parent u weighs w = min(1, w_u p_u(x) / q(x)). A leaf is kept with w. One that is not is
    deleted, and its parent goes on with w_u' = S / (S + 1 - w_u) and p_u' = norm((w_u p_u - q)+), where
    S = sum (w_u p_u - q)+; when its children are gone it is a leaf itself.

    **Exact:** for siblings drawn with or without replacement, each row of `Candidates.draft_logits` being
    the law given the siblings before it (Weng 2025); on chains it is block verification. Enumerated in
    `tests/verification/test_exact.py`. Processors that keep state are refused. O(n * V).
    """

    name = "traversal"

    def verify(self, row: Row, candidates: Candidates, logits: Tensor) -> list[int]:
        laws = self.draft_laws(candidates, logits)
        scores = NodeScores(row, candidates, logits)
        path, law = self._traverse(candidates, laws, scores)
        return scores.commit(path, self.chance.pick(full(law)))

    def _traverse(
        self, candidates: Candidates, laws: DraftLaws, scores: NodeScores
    ) -> tuple[list[int], Law | Tensor]:
        waiting = children_of(candidates)
        weight = {-1: 1.0}
        law: dict[int, Law | Tensor] = {-1: self.law(scores[-1])}
        path = [-1]
        while True:
            node = path[-1]
            if waiting[node]:
                child = waiting[node][0]
                weight[child] = ratio(law[node], laws[child], int(candidates.tokens[child]), weight[node])
                law[child] = self.law(scores[child])
                path.append(child)
            elif node == -1 or self.chance.flip(weight[node]):
                return path[1:], law[node]
            else:
                path.pop()
                parent = path[-1]
                waiting[parent].pop(0)
                law[parent], mass = residual(full(law[parent]), laws[node].full, weight[parent])
                weight[parent] = stop_chance(weight[parent], mass)

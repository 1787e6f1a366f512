"""Recursive rejection: at each node, try the children one after the other."""

from __future__ import annotations

from torch import Tensor

from outrider.types import Candidates
from outrider.verification.drafted import DraftedVerifier, DraftLaws
from outrider.verification.law import Law, full
from outrider.verification.maths import ratio, residual
from outrider.verification.step import Row, descend


class RecursiveVerifier(DraftedVerifier):
    """Accept child x_j with min(1, P(x_j) / q_j(x_j)), else go on with P = norm((P - q_j)+).

    q_j is the law that x_j was drawn from, given the siblings before it: the same for each where they
    were drawn with replacement (SpecInfer 2024), without the siblings' mass where not (RSD 2024,
    Sequoia 2024). Both are declared by `Candidates.draft_logits`, row by row.

    **Exact:** for any such tree; proved by enumeration in `tests/verification/test_exact.py`. Each
    processor runs once for each committed token. O(children on the path * V).
    """

    name = "recursive"

    def verify(self, row: Row, candidates: Candidates, logits: Tensor) -> list[int]:
        laws = self.draft_laws(candidates, logits)
        children = children_of(candidates)

        def choose(node: int) -> tuple[int, Tensor]:
            scores = row.score(logits[node + 1 : node + 2])
            p = self.target_law(self.law(scores), children[node], laws)
            for child in children[node]:
                token = int(candidates.tokens[child])
                if self.chance.flip(ratio(p, laws[child], token)):
                    return token, scores
                p, _ = residual(full(p), laws[child].full)
            return self.chance.pick(full(p)), scores

        return descend(row, candidates, choose)

    def target_law(self, p: Law, children: list[int], laws: DraftLaws) -> Law | Tensor:
        """The law to reproduce at a node: the target's."""
        return p


def children_of(candidates: Candidates) -> list[list[int]]:
    """Nodes by parent, in their own order; the last list belongs to -1, the last committed token."""
    children: list[list[int]] = [[] for _ in range(len(candidates) + 1)]
    for node, parent in enumerate(candidates.parents.tolist()):
        children[parent].append(node)
    return children

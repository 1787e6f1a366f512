"""k-SEQ: several independent candidates at a node, by sequential optimal transport."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from outrider.errors import GeneratorError
from outrider.types import Candidates
from outrider.verification.drafted import DraftedVerifier
from outrider.verification.maths import k_seq, ratio
from outrider.verification.recursive import children_of
from outrider.verification.step import Row, descend


@final
class KSeqVerifier(DraftedVerifier):
    """Accept the first child with min(1, p / (rho q)), else draw from what that leaves.

    Children of a node must be drawn independently from one law (equal rows of `draft_logits`); two may be
    the same token.

    **Exact:** for any q (Sun 2023); accepts at least 1 - 1/e of what the best rule for k independent
    draws would. Each processor runs once for each committed token.

    **Raises:** `GeneratorError` where siblings declare different laws.
    """

    name = "k_seq"

    def verify(self, row: Row, candidates: Candidates, logits: Tensor) -> list[int]:
        laws = self.draft_laws(candidates, logits)
        children = children_of(candidates)

        def choose(node: int) -> tuple[int, Tensor]:
            scores = row.score(logits[node + 1 : node + 2])
            p = self.law(scores).full
            if not children[node]:
                return self.chance.pick(p), scores
            q = laws[children[node][0]].full
            if not all(torch.equal(q, laws[child].full) for child in children[node][1:]):
                raise GeneratorError(
                    "verification='k_seq' needs siblings drawn independently from one law, and these rows of "
                    "draft_logits differ; use 'recursive' or 'traversal'"
                )
            plan = k_seq(p, q, len(children[node]))
            for child in children[node]:
                token = int(candidates.tokens[child])
                if self.chance.flip(ratio(p, q, token, 1.0 / plan.rho)):
                    return token, scores
            return self.chance.pick(plan.residual), scores

        return descend(row, candidates, choose)

"""Chains drawn at random: token by token, or the whole block at once."""

from __future__ import annotations

from typing import final

from torch import Tensor

from outrider.types import Candidates
from outrider.verification.drafted import DraftedVerifier, require_chain
from outrider.verification.maths import ratio, residual, stop_chance
from outrider.verification.nodes import NodeScores
from outrider.verification.recursive import RecursiveVerifier
from outrider.verification.step import Row


@final
class TokenVerifier(RecursiveVerifier):
    """Accept each candidate of a chain with min(1, p / q), else draw from norm((p - q)+).

    **Exact:** for any q (Leviathan 2023, Chen 2023); accepts with probability 1 - TV(p, q), the most for
    a single token. Each processor runs once for each committed token.
    """

    name = "token"

    def verify(self, row: Row, candidates: Candidates, logits: Tensor) -> list[int]:
        require_chain(candidates, self.name)
        return super().verify(row, candidates, logits)


@final
class BlockVerifier(DraftedVerifier):
    """Accept the longest prefix of a chain that the block's joint law allows.

    With w_0 = 1 and w_i = min(1, w_{i-1} p(x_i) / q(x_i)), prefix i is kept, longest first, with
    S / (S + 1 - w_i), where S = sum (w_i p - q)+ of the next position; all of it with w_n.

    **Exact:** for any q (Sun 2025, algorithm 2), and never accepts fewer tokens than token rejection;
    both enumerated in `tests/verification/test_exact.py`. Processors run for every node on its own
    prefix, up to the first that the target finds impossible, so one that keeps state is refused.
    O(n * V), with whole laws only where the rule stops.
    """

    name = "block"

    def verify(self, row: Row, candidates: Candidates, logits: Tensor) -> list[int]:
        require_chain(candidates, self.name)
        laws = self.draft_laws(candidates, logits)
        scores = NodeScores(row, candidates, logits)
        p, weights = [self.law(scores[-1])], [1.0]
        for node, token in enumerate(candidates.tokens.tolist()):
            weights.append(ratio(p[node], laws[node], token, weights[-1]))
            if weights[-1] == 0.0:  # So is every later one: no longer prefix can be kept.
                break
            p.append(self.law(scores[node]))
        if self.chance.flip(weights[-1]):
            return scores.commit(list(range(len(candidates))), self.chance.pick(p[-1].full))
        for kept in range(len(weights) - 2, -1, -1):
            # S is at most w, and so is the chance: a coin of w first, and most rows are not looked at.
            if kept and not self.chance.flip(weights[kept]):
                continue
            law, mass = residual(p[kept].full, laws[kept].full, weights[kept])
            if not kept or self.chance.flip(stop_chance(weights[kept], mass) / weights[kept]):
                break
        return scores.commit(list(range(kept)), self.chance.pick(law))

"""Greedy verification: go down while a child is the target's most likely token."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from outrider.errors import NonFiniteLogitsError
from outrider.types import Candidates
from outrider.verification.step import Row, Verifier, walk


@final
class GreedyVerifier(Verifier):
    """Commit the target's own argmax at every position.

    **Exact:** the committed tokens are those of one-token-at-a-time greedy decoding, for any tree,
    wherever the target's logits are equal. O(n * V), one device-to-host copy without processors.
    """

    def verify(self, row: Row, candidates: Candidates, logits: Tensor) -> list[int]:
        if row.wants_scores:
            return walk(row, candidates, logits, lambda scores, _: _argmax(scores)[0])
        best = _argmax(logits)
        node, path = -1, []
        while True:
            token = best[node + 1]
            ended = row.commit(token, None)
            child = next(
                (i for i in range(node + 1, len(candidates)) if candidates.parents[i] == node and candidates.tokens[i] == token),
                None,
            )
            if child is not None:
                path.append(child)
            if ended or child is None:
                return path
            node = child


def _argmax(logits: Tensor) -> list[int]:
    """(n,) best tokens on the host, from (n, V) logits."""
    peak, best = logits.max(dim=-1)
    if torch.isnan(peak).any():
        raise NonFiniteLogitsError(
            "the target returned NaN logits, so no token can be chosen; load the model in float32 or check its weights"
        )
    found: list[int] = best.tolist()
    return found

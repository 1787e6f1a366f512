"""Greedy verification: go down while a child is the target's most likely token."""

from __future__ import annotations

from typing import final

from torch import Tensor

from outrider.types import Candidates
from outrider.verification.step import Row, Verifier, descend, peak_token, peak_tokens, walk


@final
class GreedyVerifier(Verifier):
    """Commit the target's own argmax at every position.

    **Exact:** the committed tokens are those of one-token-at-a-time greedy decoding, for any tree,
    wherever the target's logits are equal. On a CPU only the rows on the path are looked at; on an
    accelerator all of them at once, O(n * V), with one device-to-host copy.
    """

    def verify(self, row: Row, candidates: Candidates, logits: Tensor) -> list[int]:
        if row.wants_scores:
            return walk(row, candidates, logits, lambda scores, _: peak_token(scores))
        peak_of = peak_tokens(logits)
        return descend(row, candidates, lambda node: (peak_of(node + 1), None))

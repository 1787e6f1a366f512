"""Position-keyed sampling: the text depends on model, prompt and seed, and on nothing else."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from outrider.errors import NonFiniteLogitsError
from outrider.types import Candidates
from outrider.verification.noise import keyed_choice, keyed_choices
from outrider.verification.step import Row, Verifier, descend, walk, warped


@final
class KeyedVerifier(Verifier):
    """Commit argmax(scores + noise(seed, stream, position)) at every position of the text.

    **Arguments:**

    - `seed`: Any integer. None draws one from torch's global generator, so that
        `torch.manual_seed` reproduces the text.

    **Exact:** each token's law, given those before it, is softmax(scores), for any candidates, a
    generator's that draws with the same noise included (Daliri, Musco and Suresh 2024); and with one
    seed the text is the same for every generator, tree, budget, batch and padding, and for none. One
    pass over V for each committed token.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = draw_seed() if seed is None else seed

    def verify(self, row: Row, candidates: Candidates, logits: Tensor) -> list[int]:
        if row.wants_scores or logits.device.type == "cpu":
            return walk(
                row,
                candidates,
                logits,
                lambda scores, at: keyed_choice(scores, self.seed, row.stream, at - row.num_padding),
            )
        positions = [row.position, *(row.position + candidates.depths()).tolist()]
        tokens = keyed_choices(logits, positions, self.seed, row.stream)
        if min(tokens) < 0:
            raise NonFiniteLogitsError(
                "the target returned NaN logits, so no token can be drawn; check its weights"
            )
        return descend(row, candidates, lambda node: (tokens[node + 1], None))

    def draw(self, row: Row, logits: Tensor, position: int) -> int:
        """The draft's own choice by the same noise, after the row's warpers: most likely the target's."""
        return keyed_choice(warped(row, logits), self.seed, row.stream, position - row.num_padding)


def draw_seed() -> int:
    """A fresh seed from torch's global generator."""
    return int(torch.randint(2**63 - 1, (1,)))

"""Sample and match: draw from the target; where the draw is a candidate, go on from there."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from outrider.errors import NonFiniteLogitsError
from outrider.types import Candidates
from outrider.verification.chance import Chance
from outrider.verification.multinomial import multinomial
from outrider.verification.step import Row, Verifier, walk


@final
class MatchVerifier(Verifier):
    """Draw each token from softmax(scores), as plain sampling does.

    **Arguments:**

    - `seed`: Seeds a generator of its own; None draws from torch's global one.
    - `chance`: Another source of draws, for tests.

    **Exact:** each token's law, given those before it, is softmax(scores), for any tree; a node's
    chance to be left for a child is the sum of its children's probabilities, the most that any rule
    can give to fixed candidates. Draws with the calls of `model.generate`: for one row and the same
    `torch.manual_seed` the very same text, if the generator leaves torch's random numbers alone.
    """

    def __init__(self, seed: int | None = None, *, chance: Chance | None = None) -> None:
        self.seed, self.chance = seed, chance
        self._random: torch.Generator | None = None

    def verify(self, row: Row, candidates: Candidates, logits: Tensor) -> list[int]:
        if self.seed is not None and self._random is None:
            self._random = torch.Generator(logits.device).manual_seed(self.seed % 2**63)
        return walk(row, candidates, logits, lambda scores, _: self._draw(scores))

    def _draw(self, scores: Tensor) -> int:
        if self.chance is not None:
            return self.chance.pick(torch.softmax(scores[0], dim=-1, dtype=torch.float64))
        try:
            return multinomial(scores, self._random)
        except RuntimeError as error:
            if scores.isnan().any() or not (scores > -torch.inf).any():
                raise NonFiniteLogitsError(
                    "the scores hold NaN, or leave no token possible; check the model's weights "
                    "and the logits processors"
                ) from error
            raise

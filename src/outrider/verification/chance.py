"""Where the accept rules' coins and draws come from: one seam, so that tests can enumerate it."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from outrider.cores import one_thread
from outrider.errors import NonFiniteLogitsError


class Chance(Protocol):
    """A source of independent coins and draws."""

    def flip(self, chance: float) -> bool:
        """True with this probability."""

    def pick(self, probabilities: Tensor) -> int:
        """An index drawn from (V,) probabilities that sum to 1."""


class TorchChance:
    """Coins and draws from a torch generator on the host: its own where seeded, else the global one.

    **Exact:** 53-bit uniforms; `pick` inverts the float64 cumulative sum and never returns an index of
    probability 0.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._random = None if seed is None else torch.Generator().manual_seed(seed % 2**63)

    def _uniform(self) -> float:
        return float(torch.rand((), dtype=torch.float64, generator=self._random))

    def flip(self, chance: float) -> bool:
        return self._uniform() < chance

    @one_thread()
    def pick(self, probabilities: Tensor) -> int:
        sums = probabilities.cumsum(-1, dtype=torch.float64)
        total = sums[-1]
        at = torch.searchsorted(
            sums, (self._uniform() * total).clamp_max(total.nextafter(total * 0)), right=True
        )
        if not float(total) > 0.0:
            raise NonFiniteLogitsError(
                "the scores hold NaN, or leave no token possible; check the model's weights "
                "and the logits processors"
            )
        return int(at)

"""Which slots of a batch's cache hold each row's tokens, and at which positions.

A slot that a row did not accept is a hole. Compacted, every row ends in the last slot, and the holes left
lie before its first token: then the distance of two slots is the distance of two tokens.
"""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.types import Ids

Bools = npt.NDArray[np.bool_]


@final
class Slots:
    """The rows' books of a cache.

    **Arguments:**

    - `mask`: (B, L). Which of the prompts' slots hold a token; the others are padding, on the left.

    `is_aligned` says whether every hole lies before its row's first token.
    """

    def __init__(self, mask: Tensor) -> None:
        self.valid = mask.to(torch.bool)
        self.positions = (self.valid.long().cumsum(1) - 1).clamp(min=0)
        self.counts: Ids = self.valid.sum(1).cpu().numpy()
        self.is_aligned = True

    @property
    def length(self) -> int:
        """Slots in use."""
        return self.valid.shape[1]

    @property
    def num_holes(self) -> int:
        """Slots that closing all holes would free."""
        return self.length - int(self.counts.max())

    @property
    def leads(self) -> list[int]:
        """Slots before each row's first token, where the holes lie there."""
        return [self.length - count for count in self.counts.tolist()]

    def add(self, kept: Bools, positions: Tensor) -> int:
        """Add the slots of a forward that some row kept, (B, T) each; returns how many that are."""
        num_used = int(np.flatnonzero(kept.any(0))[-1]) + 1
        new = torch.from_numpy(kept[:, :num_used]).to(self.valid.device)
        self.valid = torch.cat([self.valid, new], 1)
        self.positions = torch.cat([self.positions, positions[:, :num_used]], 1)
        self.counts = self.counts + kept.sum(1)
        self.is_aligned = self.is_aligned and bool(kept[:, :num_used].all())
        return num_used

    def select(self, index: Tensor) -> None:
        """Keep the rows `index`."""
        self.valid, self.positions = self.valid[index], self.positions[index]
        self.counts = self.counts[index.cpu().numpy()]

    def compact(self) -> Tensor:
        """Close the holes; returns the slots that each row keeps, (B, n) in their order: n is the longest row's."""
        order = torch.argsort(self.valid.to(torch.uint8), dim=1, stable=True)[:, self.num_holes :]
        self.valid, self.positions = self.valid.gather(1, order), self.positions.gather(1, order)
        self.is_aligned = True
        return order

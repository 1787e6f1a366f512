"""Keys and values of rows that left a batch, kept until all rows come back to be returned together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from outrider.caches.in_place import InPlaceCache
from outrider.caches.layers import InPlaceLayer
from outrider.target.slots import Slots

# Of each layer that holds some: K and V of one row's tokens, (H, n, D).
_KeysAndValues = list[tuple[Tensor, Tensor]]


@final
class Parked:
    """The rows that left, without their holes."""

    def __init__(self) -> None:
        self._rows: dict[int, _KeysAndValues] = {}

    def park(self, row: int, cache: InPlaceCache, slots: Slots, at: int) -> None:
        """Keep the entries of `row`, which is number `at` in the cache."""
        valid = slots.valid[at]
        self._rows[row] = [(keys[at][:, valid], values[at][:, valid]) for keys, values in _held(cache)]

    @property
    def counts(self) -> list[int]:
        """Tokens of each row, in the order of their numbers."""
        return [self._rows[row][0][0].shape[1] for row in sorted(self._rows)]

    def lay_out(self, cache: InPlaceCache, slots: Sequence[Tensor]) -> Slots:
        """Bring all rows back, in the order of their numbers.

        **Arguments:**

        - `slots`: For each row, (n,) int64 on the CPU: the slot of each of its tokens. What no row has a
            token in ends the cache; slots without a token hold zeros.

        **Returns:** the books of the cache.
        """
        length = 1 + max(int(own.max()) for own in slots)
        rows = [self._rows[row] for row in sorted(self._rows)]
        for at, layer in enumerate(_filled(cache)):
            keys = _together([row[at][0] for row in rows], slots, length)
            values = _together([row[at][1] for row in rows], slots, length)
            layer.keys, layer.values = keys, values
        mask = torch.zeros(len(rows), length, dtype=torch.bool)
        for held, own in zip(mask, slots, strict=True):
            held[own] = True
        return Slots(mask.to(rows[0][0][0].device))


def _filled(cache: InPlaceCache) -> list[Any]:
    return [layer for layer in cache.layers if isinstance(layer, InPlaceLayer) and layer.keys is not None]


def _held(cache: InPlaceCache) -> list[tuple[Tensor, Tensor]]:
    return [(layer.keys, layer.values) for layer in _filled(cache)]


def _together(rows: Sequence[Tensor], slots: Sequence[Tensor], length: int) -> Tensor:
    """(B, H, length, D) of (H, n, D) each."""
    heads, _, size = rows[0].shape
    joined = rows[0].new_zeros(len(rows), heads, length, size)
    for whole, row, own in zip(joined, rows, slots, strict=True):
        whole[:, own.to(row.device)] = row
    return joined

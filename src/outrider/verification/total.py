"""log(sum(exp(scores))) of one row: one pass, in pieces that stay in the nearest cache, on the calling thread."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from torch import Tensor

from outrider.race import PIECE, widen
from outrider.verification.bits import bits_of

_PER_NAT = np.float32(1.0 / math.log(2.0))
_HALF, _LEAST, _MOST = np.float32(0.5), np.float32(-126), np.float32(127)
# 2**x for x in [-0.5, 0.5], to 3e-9 before rounding: a Chebyshev fit.
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = (
    np.float32(c)
    for c in (
        1.0,
        6.93147207e-01,
        2.40226512e-01,
        5.55032721e-02,
        9.61802560e-03,
        1.34004322e-03,
        1.54697320e-04,
    )
)
# A piece is read again, from its own peak, where its sum from an earlier piece's is no longer near 1.
_LARGE = np.float32(1e4)


def log_total(scores: Tensor) -> float:
    """log(sum(exp(scores))) of a row (V,) on the host; not finite where a score is NaN or +inf, or all are -inf.

    **Exact:** to a few of float32's roundings.
    """
    return float(_log_total(*bits_of(scores)))


@njit(cache=True, nogil=True)
def _log_total(row: Any, places: int) -> Any:  # pragma: no cover - compiled
    scores, rests, powers = (
        np.empty(PIECE, np.float32),
        np.empty(PIECE, np.float32),
        np.empty(PIECE, np.float32),
    )
    peak, total = np.float32(-np.inf), 0.0
    for start in range(0, row.size, PIECE):
        piece = scores[: min(PIECE, row.size - start)]
        widen(row[start:], places, piece.view(np.int32))
        part = _sum_of_exp(piece, peak, rests, powers)
        if not part < _LARGE:
            top = np.max(piece)
            if top == -np.inf:
                continue
            total *= math.exp(peak - top)
            peak = top
            part = _sum_of_exp(piece, peak, rests, powers)
        total += part
    return peak + math.log(total) if total != 0.0 else -np.inf


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _sum_of_exp(scores: Any, peak: Any, rests: Any, powers: Any) -> Any:  # pragma: no cover - compiled
    """sum(exp(scores - peak)), each as 2**whole * 2**rest; large, or NaN, where scores lie far above the peak."""
    bits = powers.view(np.int32)
    for at in range(scores.size):
        power = (scores[at] - peak) * _PER_NAT
        power = _LEAST if power < _LEAST else power
        power = _MOST if power > _MOST else power
        whole = np.floor(power + _HALF)
        x = power - whole
        bits[at] = (np.int32(whole) + np.int32(127)) << np.int32(23)
        rests[at] = _C0 + x * (_C1 + x * (_C2 + x * (_C3 + x * (_C4 + x * (_C5 + x * _C6)))))
    total = np.float32(0)
    for at in range(scores.size):
        total += powers[at] * rests[at]
    return total

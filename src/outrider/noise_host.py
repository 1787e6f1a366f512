"""Position-keyed noise on the host: the key of a position, and the choice in one pass. Free of torch.

A token that cannot win costs no logarithm. `verification/noise.py` is the same with torch, on any device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from outrider.race import PIECE, bar_below, is_behind, may_win, widen

_STEP, _MIX1, _MIX2 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
_S12, _S27, _S30, _S31, _S40 = (np.uint64(places) for places in (12, 27, 30, 31, 40))
_MASK = 2**64 - 1


def host_choice(scores: Any, seed: int, stream: int, position: int) -> int:
    """The token argmax(scores + noise) of (V,) float32 scores: a draw from softmax(scores).

    -1 where a score is NaN or no token is possible.

    **Exact:** the token that `verification.noise.keyed_choice` chooses.
    """
    return int(argmax(scores.view(np.int32), 0, np.uint64(stream_key(seed, stream, position))))


def stream_key(seed: int, stream: int, position: int) -> int:
    """The 64-bit key of one position's noise."""
    key = _mix(seed & _MASK)
    for part in (stream, position):
        key = _mix((key + (part + 1) * int(_STEP)) & _MASK)
    return key


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * int(_MIX1)) & _MASK
    x = ((x ^ (x >> 27)) * int(_MIX2)) & _MASK
    return x ^ (x >> 31)


@njit(cache=True, nogil=True)
def _mixed(key: Any, token: int) -> Any:  # pragma: no cover - compiled
    """splitmix64, started at `key`, but for its last shift: the highest 31 bits are the hash's."""
    x = key + np.uint64(token + 1) * _STEP
    x = (x ^ (x >> _S30)) * _MIX1
    return (x ^ (x >> _S27)) * _MIX2


@njit(cache=True, nogil=True)
def _gumbel(key: Any, token: int) -> float:  # pragma: no cover - compiled
    """From 52 bits in (0, 1), rounded to float32."""
    x = _mixed(key, token)
    uniform = (np.float64((x ^ (x >> _S31)) >> _S12) + 0.5) * 2.0**-52
    return np.float64(np.float32(-math.log(-math.log1p(-uniform))))


@njit(cache=True, nogil=True)
def _lower(key: Any, start: int, out: Any) -> None:  # pragma: no cover - compiled
    """The uniforms of the tokens from `start` on, rounded down to 24 bits."""
    for at in range(out.size):
        out[at] = np.float32(np.int32(_mixed(key, start + at) >> _S40)) * np.float32(2.0**-24)


@njit(cache=True, nogil=True)
def argmax(row: Any, places: int, key: Any) -> int:  # pragma: no cover - compiled
    """argmax(scores + noise) of the (V,) bits of a row (see `race.widen`); -1 where one is NaN or all are -inf.

    **Exact:** the token that computing every noise would choose.
    """
    best, value, bar = -1, -np.inf, np.float32(-np.inf)
    lower = np.empty(PIECE, np.float32)
    bits = lower.view(np.int32)
    scores = np.empty(PIECE, np.float32)
    for start in range(0, row.size, PIECE):
        piece = scores[: min(PIECE, row.size - start)]
        widen(row[start:], places, piece.view(np.int32))
        _lower(key, start, lower[: piece.size])
        if not may_win(piece, bits[: piece.size], bar):
            continue
        for at in range(piece.size):
            if np.isnan(piece[at]):
                return -1
            if is_behind(piece[at], bits[at], bar):
                continue
            total = np.float64(piece[at]) + _gumbel(key, start + at)
            if total > value:
                best, value, bar = start + at, total, bar_below(total)
    return best

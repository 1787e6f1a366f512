"""Position-keyed noise on the host: the key of a position, and the choice in one pass. Free of torch.

A token that cannot win costs no logarithm. `verification/noise.py` is the same with torch, on any device.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

_STEP, _MIX1, _MIX2 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
_S12, _S27, _S30, _S31 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31)
# A token behind by `gap` needs noise above it, so a uniform below exp(-gap); rounded up.
_MAX_GAP = 37
_NEEDED = np.exp(-np.arange(_MAX_GAP, dtype=np.float64)) * 1.001


_MASK = 2**64 - 1


def host_choice(scores: Any, seed: int, row: int, position: int) -> int:
    """The token argmax(scores + noise) of (V,) float32 scores: a draw from softmax(scores).

    -1 where a score is NaN or no token is possible.

    **Exact:** the token that `verification.noise.keyed_choice` chooses.
    """
    return int(argmax(scores, np.uint64(stream_key(seed, row, position))))


def stream_key(seed: int, row: int, position: int) -> int:
    """The 64-bit key of one position's noise."""
    key = _mix(seed & _MASK)
    for part in (row, position):
        key = _mix((key + (part + 1) * int(_STEP)) & _MASK)
    return key


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * int(_MIX1)) & _MASK
    x = ((x ^ (x >> 27)) * int(_MIX2)) & _MASK
    return x ^ (x >> 31)


@numba.njit(cache=True)
def _uniform(key: Any, token: int) -> float:
    """52 bits in (0, 1): splitmix64, started at `key`."""
    x = key + np.uint64(token + 1) * _STEP
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    return (np.float64((x ^ (x >> _S31)) >> _S12) + 0.5) * 2.0**-52


@numba.njit(cache=True)
def _gumbel(uniform: float) -> float:
    return np.float64(np.float32(-math.log(-math.log1p(-uniform))))


@numba.njit(cache=True)
def argmax(scores: Any, key: Any) -> int:
    """argmax(scores + noise) of (V,) float32; -1 where a score is NaN or all are -inf.

    **Exact:** the token that computing every noise would choose.
    """
    best: Any = np.argmax(scores)
    if not scores[best] > -np.inf:
        return -1
    value = np.float64(scores[best]) + _gumbel(_uniform(key, best))
    for token in range(scores.size):
        gap = value - np.float64(scores[token])
        if gap >= _MAX_GAP:
            continue
        uniform = _uniform(key, token)
        if gap > 0.0 and uniform > _NEEDED[int(gap)]:
            continue
        total = np.float64(scores[token]) + _gumbel(uniform)
        if total > value or (total == value and token < best):
            value, best = total, token
    return best

"""The keyed choice on a CPU, in one pass: a token that cannot win costs no logarithm."""

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

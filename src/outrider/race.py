"""A draw from softmax(scores) as a race: the first of V exponential clocks. Free of torch.

Token i arrives at clock_i / exp(score_i), with clock = -log1p(-uniform); the first to arrive maximises
score - log(clock). A clock is never below its uniform, so a token that lies `gap` behind needs a uniform below
exp(-gap). A race goes over the vocabulary in pieces, and looks closer only where `may_win` says so: in one
vectorised loop, without a logarithm or an exponential.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

PIECE = 512
# A float32's bits, read as an integer, are 2**23 * (127 + its logarithm to base 2) or less.
_BIAS = np.float32(127 * 2**23)
_PER_NAT = np.float32(2**23 / math.log(2.0))


@njit(cache=True, nogil=True)
def widen(row: Any, places: int, out: Any) -> None:  # pragma: no cover - compiled
    """Write a piece of a row's bits as float32's: bfloat16's stand 16 places higher there, float32's where they are."""
    for at in range(out.size):
        out[at] = np.int32(row[at]) << np.int32(places)


@njit(cache=True, nogil=True)
def is_behind(score: Any, bits: Any, bar: Any) -> Any:  # pragma: no cover - compiled
    """Whether a token cannot reach `bar`, given the bits of a float32 not above its uniform. Never for NaN."""
    return np.float32(bits) - _BIAS > (score - bar) * _PER_NAT


@njit(cache=True, nogil=True)
def may_win(scores: Any, bits: Any, bar: Any) -> Any:  # pragma: no cover - compiled
    """Whether any of these tokens may reach `bar`, or has a score that is NaN.

    **Arguments:**

    - `scores`: (n,) float32.
    - `bits`: (n,) int32. Of a float32 that is not above the token's uniform.
    - `bar`: float32, by `bar_below`.

    **Exact:** no token that reaches the bar is missed.
    """
    found = np.int32(0)
    for at in range(scores.size):
        found |= np.int32(not is_behind(scores[at], bits[at], bar))
    return found != 0


@njit(cache=True, nogil=True)
def bar_below(value: float) -> Any:  # pragma: no cover - compiled
    """What a token must reach to matter beside `value`, float32: below it by more than `may_win` rounds."""
    return np.float32(value - 1e-3 - 1e-6 * abs(value))

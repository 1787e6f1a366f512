"""torch.multinomial of one row, token for token, without its 2.5 ms for a vocabulary of 150,000.

On a CPU torch draws by the race of `outrider.race`: two words of its Mersenne Twister make each clock, one after
the other. The words are made here sixteen at a time, the clocks only where a token may win.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from outrider.race import bar_below, is_behind, may_win, widen
from outrider.verification.bits import bits_of

_BLOCK = 624
_PIECE = _BLOCK // 2
_STATE = np.dtype(
    [
        ("seed", "<u8"),
        ("left", "<i4"),
        ("seeded", "<i4"),
        ("next", "<u8"),
        ("words", "<u8", (_BLOCK,)),
        ("rest", "V40"),
    ]
)
# A second token this near in the logarithm could be the first by torch's rounding.
_NEAR = 1e-4


def multinomial(scores: Tensor, random: torch.Generator | None = None) -> int:
    """A draw from softmax(scores), (1, V) of any floating dtype. None: torch's global generator.

    **Raises:** as torch.multinomial.

    **Exact:** the token of `torch.multinomial(torch.softmax(scores.float(), -1), 1, generator=random)`, which is asked
    itself wherever rounding could decide; the generator is left as that leaves it.
    """
    if scores.device.type == "cpu" and _knows_torch():
        random = torch.default_generator if random is None else random
        token = _race(scores, random)
        if token >= 0:
            return token
    return int(torch.multinomial(torch.softmax(scores.float(), dim=-1), 1, generator=random))


def _race(scores: Tensor, random: torch.Generator) -> int:
    """The token, and the generator moved on; -1, and the generator left alone, where torch must be asked."""
    bytes_of = random.get_state()
    state = bytes_of.numpy().view(_STATE)[0]
    words = np.empty(2 * _BLOCK, np.uint32)
    words[:_BLOCK] = state["words"]
    token, end = _first_arrival(*bits_of(scores), words, _BLOCK + 1 - int(state["left"]))
    if token >= 0:
        block = _BLOCK if end > _BLOCK else 0
        state["words"] = words[block : block + _BLOCK]
        state["next"] = end - block
        state["left"] = _BLOCK + 1 - (end - block)
        random.set_state(bytes_of)
    return int(token)


@functools.cache
def _knows_torch() -> bool:
    """Whether this torch draws as described above: tried out, its state included, over several blocks of words."""
    scores = torch.linspace(0, 1, 1501)[None]
    for skipped in (0, 1, 1000):
        ours, theirs = (torch.Generator().manual_seed(17) for _ in range(2))
        for random in (ours, theirs):
            torch.rand(skipped, generator=random)
        if ours.get_state().numel() != _STATE.itemsize:
            return False
        for _ in range(4):
            token = _race(scores, ours)
            if token != int(torch.multinomial(torch.softmax(scores, dim=-1), 1, generator=theirs)):
                return False
            if not torch.equal(ours.get_state(), theirs.get_state()):
                return False
    return True


@njit(cache=True, nogil=True)
def _move_on(words: Any) -> None:  # pragma: no cover - compiled
    """The second block becomes the first."""
    for at in range(_BLOCK):
        words[at] = words[at + _BLOCK]


@njit(cache=True, nogil=True)
def _fill_second(words: Any) -> None:  # pragma: no cover - compiled
    """The Mersenne Twister's next block after the first."""
    # Unsigned, so that no index could count from the end: only then is the loop made of vectors.
    for at in range(np.uint64(0), np.uint64(_BLOCK)):
        word = (words[at] & np.uint32(0x80000000)) | (words[at + np.uint64(1)] & np.uint32(0x7FFFFFFF))
        odd = np.uint32(0) - (word & np.uint32(1))
        word = words[at + np.uint64(397)] ^ (word >> np.uint32(1)) ^ (odd & np.uint32(0x9908B0DF))
        words[at + np.uint64(_BLOCK)] = word


@njit(cache=True, nogil=True)
def _tempered(word: Any) -> Any:  # pragma: no cover - compiled
    word ^= word >> np.uint32(11)
    word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
    word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
    return word ^ (word >> np.uint32(18))


@njit(cache=True, nogil=True)
def _lower(words: Any, out: Any) -> None:  # pragma: no cover - compiled
    """The uniforms that two words each make, rounded down to the first word's 21 bits."""
    for at in range(out.size):
        high = _tempered(words[2 * at]) & np.uint32(0x1FFFFF)
        out[at] = np.float32(np.int32(high)) * np.float32(2.0**-21)


@njit(cache=True, nogil=True)
def _clock(high: Any, low: Any) -> float:  # pragma: no cover - compiled
    """torch's exponential clock of two words: 53 bits in [0, 1), rounded to float32."""
    bits = (np.uint64(_tempered(high) & np.uint32(0x1FFFFF)) << np.uint64(32)) | np.uint64(_tempered(low))
    return np.float64(np.float32(-math.log1p(-np.float64(bits) * 2.0**-53)))


@njit(cache=True, nogil=True)
def _first_arrival(row: Any, places: int, words: Any, begin: int) -> Any:  # pragma: no cover - compiled
    """The race of the (V,) bits of a row (see `race.widen`), and where in the last two blocks of words it ends.

    The token is -1 where a score is NaN or infinite, or where no token wins clearly.
    """
    best, value, second, bar = -1, -np.inf, -np.inf, np.float32(-np.inf)
    lower = np.empty(_PIECE, np.float32)
    bits = lower.view(np.int32)
    scores = np.empty(_PIECE, np.float32)
    for start in range(0, row.size, _PIECE):
        if start > 0:
            _move_on(words)
        _fill_second(words)
        piece = scores[: min(_PIECE, row.size - start)]
        widen(row[start:], places, piece.view(np.int32))
        _lower(words[begin:], lower[: piece.size])
        if not may_win(piece, bits[: piece.size], bar):
            continue
        for at in range(piece.size):
            if np.isnan(piece[at]):
                return -1, 0
            if is_behind(piece[at], bits[at], bar):
                continue
            total = np.float64(piece[at]) - math.log(_clock(words[begin + 2 * at], words[begin + 2 * at + 1]))
            if total > value:
                best, value, second, bar = start + at, total, value, bar_below(total)
            elif total > second:
                second = total
    if not (np.isfinite(value) and value - second > _NEAR):
        best = -1
    return best, begin + 2 * piece.size

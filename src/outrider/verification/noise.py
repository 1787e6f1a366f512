"""Position-keyed noise: a Gumbel number for each (seed, stream, position, token), from a counter.

The same 64-bit hash (splitmix64 over a key of seed, stream and position) is written twice: with torch for
any device, and with Numba for the CPU, where a choice skips the logarithms of tokens that cannot win.
A token's noise depends neither on the device nor on the size of the vocabulary.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from outrider.errors import NonFiniteLogitsError
from outrider.noise_host import argmax
from outrider.noise_host import stream_key as stream_key
from outrider.verification.bits import bits_of

_STEP, _MIX1, _MIX2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def keyed_noise(seed: int, stream: int, position: int, vocab: int, device: torch.device | str) -> Tensor:
    """Standard Gumbel noise of every token at one position. (vocab,) float32; do not write to it.

    argmax(log p + noise) is a draw from p. A draft model that draws with the same noise is verified
    exactly by `KeyedVerifier`, and is accepted with probability (1 - TV) / (1 + TV) at least.

    **Arguments:**

    - `seed`: Any integer; taken modulo 2**64.
    - `stream`: Texts of one stream draw alike (`Row.stream`).
    - `position`: Committed tokens before the one to draw, the prompt's included, padding not (`Row.position`).
    - `vocab`: How many tokens.

    **Exact:** 52 random bits a token, float64 logarithms, never infinite.
    """
    return _cached_noise(stream_key(seed, stream, position), vocab, str(device))


def keyed_choice(scores: Tensor, seed: int, stream: int, position: int) -> int:
    """The token argmax(scores + noise): a draw from softmax(scores), by `keyed_noise`.

    **Arguments:**

    - `scores`: (V,) or (1, V), any floating dtype. -inf means impossible.

    **Raises:** `NonFiniteLogitsError` where a score is NaN or no token is possible.

    **Exact:** the draw's law is softmax(scores); the same token on every device, and with any padding
    of the vocabulary by -inf.
    """
    flat = scores.reshape(-1)
    if flat.device.type == "cpu":
        best = int(argmax(*bits_of(flat), np.uint64(stream_key(seed, stream, position))))
    else:
        best = int(_choose(flat, keyed_noise(seed, stream, position, flat.numel(), flat.device)))
    if best < 0:
        raise NonFiniteLogitsError(
            "the scores hold NaN, or leave no token possible; check the model's weights "
            "and the logits processors"
        )
    return best


def keyed_choices(logits: Tensor, positions: list[int], seed: int, stream: int) -> list[int]:
    """`keyed_choice` for the rows of (n, V) at once, with one device-to-host copy; -1 where it raises.

    **Exact:** as `keyed_choice`.
    """
    noise = {at: keyed_noise(seed, stream, at, logits.shape[1], logits.device) for at in set(positions)}
    found: list[int] = _choose(logits.float(), torch.stack([noise[at] for at in positions])).tolist()
    return found


def _choose(scores: Tensor, noise: Tensor) -> Tensor:
    """Token with the largest sum, over the last dimension; -1 where a score is NaN or all are -inf."""
    peak, best = (scores.double() + noise.double()).max(dim=-1)
    return torch.where(peak.isnan() | (peak == -math.inf), -1, best)


@functools.lru_cache(maxsize=32)
def _cached_noise(key: int, vocab: int, device: str) -> Tensor:
    x = torch.arange(1, vocab + 1, dtype=torch.int64, device=device)
    x = x.mul_(_signed(_STEP)).add_(_signed(key))
    for shift, factor in ((30, _MIX1), (27, _MIX2)):
        x = x.bitwise_xor_(_shifted(x, shift)).mul_(_signed(factor))
    uniform = _shifted(x.bitwise_xor_(_shifted(x, 31)), 12).double().add_(0.5).mul_(2.0**-52)
    return uniform.neg_().log1p_().neg_().log_().neg_().float()


def _shifted(x: Tensor, places: int) -> Tensor:
    """Logical right shift; torch's own copies the sign."""
    return (x >> places).bitwise_and_((1 << (64 - places)) - 1)


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x

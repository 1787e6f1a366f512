"""Greedy, or position-keyed sampling, from one row of logits on the host. Free of torch."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from outrider.errors import NonFiniteLogitsError, OptionError
from outrider.noise_host import host_choice
from outrider.types import Floats


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen: cut by `top_k`, then `top_p`, then `min_p`, then warmed, as llama.cpp does.

    **Arguments:**

    - `temperature`: 0 is greedy.
    - `top_k`: Most tokens possible; 0 is all.
    - `top_p`: The likeliest tokens that sum to it; 1 is all.
    - `min_p`: Tokens at least this likely, relative to the likeliest; 0 is all.
    - `seed`: The text depends on model, prompt and seed alone; None draws one for each text.

    **Exact:** with a seed, the same text with every generator and with none (`KeyedVerifier`).
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise OptionError(
                "temperature and top_k must not be negative, top_p lies in (0, 1] and min_p in [0, 1]; "
                f"not {self.temperature}, {self.top_k}, {self.top_p} and {self.min_p}"
            )

    def new_seed(self) -> int:
        """The seed of one text."""
        return secrets.randbits(63) if self.seed is None else self.seed

    def choose(self, logits: Floats, seed: int, position: int) -> int:
        """The token after `position` committed ones, from (V,) float32 logits.

        **Raises:** `NonFiniteLogitsError` where a logit is NaN.
        """
        if self.temperature == 0:
            token = int(logits.argmax())
            token = -1 if np.isnan(logits[token]) else token
        else:
            token = host_choice(self.scores(logits), seed, 0, position)
        if token < 0:
            raise NonFiniteLogitsError(
                "the model returned NaN logits, so no token can be chosen; check its file"
            )
        return token

    def scores(self, logits: Floats) -> Floats:
        """(V,) float32; the law is their softmax, and what was cut is -inf."""
        size = logits.size if self.top_k == 0 else min(self.top_k, logits.size)
        kept = np.argpartition(-logits, size - 1)[:size] if size < logits.size else np.arange(size)
        kept = kept[np.argsort(-logits[kept], kind="stable")]
        chances = np.exp((logits[kept] - logits[kept[0]]).astype(np.float64))
        if self.top_p < 1:
            below = np.cumsum(chances) < self.top_p * chances.sum()
            kept = kept[: int(below.sum()) + 1]
        kept = kept[chances[: kept.size] >= self.min_p]
        scores = np.full(logits.size, -np.inf, np.float32)
        scores[kept] = logits[kept] / np.float32(self.temperature)
        return scores


GREEDY = Sampling(temperature=0.0)

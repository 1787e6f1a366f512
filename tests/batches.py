"""Batches that tests run: prompts of different lengths, and generators that know each row's text, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider import CandidateGenerator, Candidates, Context
from tests.tiny import VOCAB

LENGTHS = (12, 5, 9, 1, 7, 11, 3, 10)


def prompts(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[Tensor]:
    """(1, L) ids each."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB, (1, length), generator=generator) for length in lengths]


def padded(rows: Sequence[Tensor], side: str = "left", fill: int = 0) -> dict[str, Tensor]:
    """`input_ids` and `attention_mask` of the rows together."""
    longest = max(row.shape[1] for row in rows)
    gaps = [longest - row.shape[1] for row in rows]
    sides = [(gap, 0) if side == "left" else (0, gap) for gap in gaps]
    ids = [pad(row, where, value=fill) for row, where in zip(rows, sides, strict=True)]
    masks = [pad(torch.ones_like(row), where) for row, where in zip(rows, sides, strict=True)]
    return {"input_ids": torch.cat(ids), "attention_mask": torch.cat(masks)}


class Knowing(CandidateGenerator):
    """Knows the text of each row, and fails at places of its own: chains and, beside them, wrong branches.

    **Arguments:**

    - `texts`: What each row generates.
    - `right`: How often a candidate is right.
    """

    def __init__(self, texts: Sequence[Sequence[int]], right: float = 0.85) -> None:
        self._texts, self._right = texts, right
        self._forked, self._row = [0], 0

    def fork(self) -> Self:
        other = type(self)(self._texts, self._right)
        self._forked[0] += 1
        other._forked, other._row = self._forked, self._forked[0]
        return other

    def reset(self, prompt: Any) -> None:
        self._rng = np.random.default_rng(self._row)
        if self._row == 0:
            self._forked[0] = 0

    def propose(self, context: Context, budget: int) -> Candidates:
        start = context.ids.size - context.num_prompt
        tokens: list[int] = []
        parents: list[int] = []
        at = -1
        for token in self._texts[self._row][start : start + int(self._rng.integers(0, 6))]:
            is_right = self._rng.random() < self._right
            tokens += [int(token) if is_right else (int(token) + 1) % VOCAB, int(self._rng.integers(VOCAB))]
            parents += [at, at]
            at = len(tokens) - 2
        return Candidates(np.array(tokens, np.int64), np.array(parents, np.int64))


class Adverse(CandidateGenerator):
    """Proposes anything: ids of no token, long chains, bushes, nothing."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._rng = np.random.default_rng(seed)

    def fork(self) -> Self:
        self._seed += 1
        return type(self)(self._seed)

    def propose(self, context: Context, budget: int) -> Candidates:
        size = int(self._rng.choice([0, 1, 3, 40]))
        parents = [int(self._rng.integers(-1, node)) if node else -1 for node in range(size)]
        return Candidates(self._rng.integers(-2, VOCAB + 2, size), np.array(parents, np.int64))

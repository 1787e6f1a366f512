"""Copy what followed the last occurrence of the newest n-gram (prompt lookup)."""

from __future__ import annotations

from typing import Self, final

import numpy as np

from outrider.contract import CandidateGenerator
from outrider.errors import OptionError
from outrider.index.ngram import NGramIndex
from outrider.types import Candidates, Context, Ids, Verification

_MOST = 32


@final
class Generator(CandidateGenerator):
    """Prompt lookup on an index: nothing is rescanned.

    Saxena 2023 (prompt-lookup-decoding). Cost per step: O(new tokens * max_ngram_size + num_tokens).
    State: the index of this sequence. Kept and shared: how often a copied token was right, by match length.

    **Arguments:**

    - `num_tokens`: Most tokens copied.
    - `max_ngram_size`: The longest n-gram looked for; shorter ones down to 1 follow.
    - `order`: Among occurrences of the longest n-gram found, `"recent"` copies the last, and runs on over
        its own copy where the text repeats itself; `"first"` copies the leftmost, as transformers does.
    - `eos_token_ids`: Nothing is proposed after one of these.

    An encoder's ids, where the context has them, are searched for each length after the context itself.
    """

    def __init__(
        self,
        *,
        num_tokens: int = 10,
        max_ngram_size: int = 2,
        order: str = "recent",
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        if num_tokens < 0 or max_ngram_size < 1:
            raise OptionError(
                f"num_tokens must be >= 0 and max_ngram_size >= 1, not {num_tokens} and {max_ngram_size}"
            )
        if order not in ("recent", "first"):
            raise OptionError(f"order must be 'recent' or 'first', not {order!r}")
        self.num_tokens = num_tokens
        self.max_ngram_size = max_ngram_size
        self.order = order
        self.eos_token_ids = eos_token_ids
        self._tried = np.full(_MOST + 1, 2.0)
        self._right = self._tried * (1 - 0.7 ** np.arange(_MOST + 1))
        self._start_sequence()

    def _start_sequence(self) -> None:
        lengths = tuple(range(1, self.max_ngram_size + 1))
        self._index = NGramIndex(lengths, keep_first=self.order == "first")
        self._encoder = NGramIndex(lengths, keep_first=self.order == "first")
        self._copied: Ids = np.empty(0, np.int64)
        self._match = 0

    def reset(self, prompt: Ids) -> None:
        self._start_sequence()
        self._index.append(prompt)

    def propose(self, context: Context, budget: int) -> Candidates:
        self._copied = np.empty(0, np.int64)
        self._index.sync(context.ids)
        most = min(self.num_tokens, budget)
        if most <= 0 or not context.ids.size:
            return Candidates.empty()
        index, self._match, position = self._longest_match(context)
        if not self._match:
            return Candidates.empty()
        copied = self._copy(index, position, most)
        self._copied = copied
        lengths = np.minimum(self._match + np.arange(copied.size), _MOST)
        return Candidates.chain(copied, self._right[lengths] / self._tried[lengths])

    def _longest_match(self, context: Context) -> tuple[NGramIndex, int, int]:
        tail = context.ids[-self.max_ngram_size :]
        match, position = self._index.find(tail)
        if context.encoder_ids is not None:
            if len(self._encoder) != context.encoder_ids.size or not self._encoder.holds(context.encoder_ids):
                self._encoder.clear()
                self._encoder.append(context.encoder_ids)
            other, where = self._encoder.find(tail)
            if other > match:
                return self._encoder, other, where
        return self._index, match, position

    def _copy(self, index: NGramIndex, position: int, most: int) -> Ids:
        copied = index.ids[position + 1 : min(position + 1 + most, len(index))].astype(np.int64)
        if copied.size < most and index is self._index and self.order == "recent":
            copied = np.resize(copied, most)  # the copy overlaps its own end: a period, repeated
        if self.eos_token_ids:
            ends = np.flatnonzero(np.isin(copied, self.eos_token_ids))
            copied = copied[: ends[0] + 1] if ends.size else copied
        return copied

    def update(self, verification: Verification) -> None:
        committed = verification.committed
        compared = min(self._copied.size, committed.size)
        if not compared:
            return
        wrong = np.flatnonzero(self._copied[:compared] != committed[:compared])
        right = int(wrong[0]) if wrong.size else compared
        lengths = np.minimum(self._match + np.arange(min(right + 1, compared)), _MOST)
        self._tried *= 0.9995
        self._right *= 0.9995
        np.add.at(self._tried, lengths, 1.0)
        np.add.at(self._right, lengths[:right], 1.0)
        self._copied = self._copied[:0]

    def fork(self) -> Self:
        other = type(self)(
            num_tokens=self.num_tokens,
            max_ngram_size=self.max_ngram_size,
            order=self.order,
            eos_token_ids=self.eos_token_ids,
        )
        other._tried, other._right = self._tried, self._right
        return other

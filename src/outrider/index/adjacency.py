"""The target's own largest logits after a token, and after a pair of tokens, as it last saw them.

Two tables: by the last token (one row a vocabulary entry), and by the last two (a cache of fixed size, in
which the newest pair takes the place). A row holds the `k` likeliest next tokens and how likely they were, in
buckets; what a bucket is really worth is counted online, on every committed token.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import numpy.typing as npt
from numba import njit

from outrider.index.frontier import is_end, new_frontier, pop, push, take
from outrider.types import Floats, Ids

K = 8
_NUM_BUCKETS = 7
_NUM_RANKS = 4
_MEMORY = 0.999
_PRIOR = (0.75, 0.6, 0.4, 0.2, 0.1, 0.04, 0.01)


@njit(cache=True, nogil=True)
def bucket_of(chance: float) -> int:  # pragma: no cover - compiled
    """0 for nearly certain, 6 for nearly impossible."""
    if chance >= 0.5:
        return 0 if chance >= 0.95 else (1 if chance >= 0.8 else 2)
    if chance >= 0.1:
        return 3 if chance >= 0.25 else 4
    return 5 if chance >= 0.03 else 6


@njit(cache=True, nogil=True)
def pair_row(before: int, last: int, num_pairs: int) -> Any:  # pragma: no cover
    """Row of the pair table where (before, last) lives."""
    mixed = (np.uint64(before) * np.uint64(0x9E3779B97F4A7C15)) ^ (
        np.uint64(last) * np.uint64(0xD6E8FEB86659FD93)
    )
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.int64((mixed >> np.uint64(32)) % np.uint64(num_pairs))


@njit(cache=True, nogil=True)
def look_up(rows: Any, pairs: Any, keys: Any, before: Any, last: Any) -> tuple[int, int]:  # pragma: no cover
    """(order, row) of what is known after (before, last): order 1 the pair, 0 the token, -1 nothing."""
    if before >= 0:
        row = pair_row(before, last, pairs.shape[0])
        if keys[row, 0] == before and keys[row, 1] == last:
            return 1, row
    if 0 <= last < rows.shape[0] and rows[last, 0, 0] >= 0:
        return 0, last
    return -1, 0


@njit(cache=True, nogil=True)
def worth(counts: Any, order: int, rank: int, bucket: int) -> float:  # pragma: no cover
    """How often a token of this order, rank and bucket came next."""
    rank = min(rank, _NUM_RANKS - 1)
    return counts[1, order, rank, bucket] / counts[0, order, rank, bucket]


@njit(cache=True, nogil=True)
def score(counts: Any, table: Any, order: int, row: int, token: int) -> None:  # pragma: no cover
    """Count which of a row's tokens came next."""
    for rank in range(K):
        if table[row, 0, rank] < 0:
            break
        cell = min(rank, _NUM_RANKS - 1)
        bucket = table[row, 1, rank]
        counts[0, order, cell, bucket] = counts[0, order, cell, bucket] * _MEMORY + 1.0
        counts[1, order, cell, bucket] = counts[1, order, cell, bucket] * _MEMORY + (
            1.0 if table[row, 0, rank] == token else 0.0
        )


@njit(cache=True, nogil=True)
def _learn(
    rows: Any, pairs: Any, keys: Any, counts: Any, before: int, last: int, committed: Any
) -> None:  # pragma: no cover
    for token in committed:
        order, row = look_up(rows, pairs, keys, before, last)
        if order == 1:
            score(counts, pairs, 1, row, token)
        elif order == 0:
            score(counts, rows, 0, row, token)
        before, last = last, token


@njit(cache=True, nogil=True)
def _store(  # pragma: no cover
    rows: Any, pairs: Any, keys: Any, befores: Any, lasts: Any, top_tokens: Any, top_logits: Any
) -> None:
    width = min(K, top_tokens.shape[1])
    chances = np.empty(K, np.float64)
    for node in range(lasts.size):
        total = 0.0
        for rank in range(width):
            chances[rank] = np.exp(top_logits[node, rank] - top_logits[node, 0])
            total += chances[rank]
        last, before = lasts[node], befores[node]
        pair = pair_row(before, last, pairs.shape[0]) if before >= 0 else -1
        for rank in range(width):
            bucket = bucket_of(chances[rank] / total)
            rows[last, 0, rank] = top_tokens[node, rank]
            rows[last, 1, rank] = bucket
            if pair >= 0:
                pairs[pair, 0, rank] = top_tokens[node, rank]
                pairs[pair, 1, rank] = bucket
        if pair >= 0:
            keys[pair, 0], keys[pair, 1] = before, last


@njit(cache=True, nogil=True)
def _grow(  # pragma: no cover
    rows: Any,
    pairs: Any,
    keys: Any,
    counts: Any,
    before: int,
    last: int,
    least: float,
    max_depth: int,
    stop_tokens: Any,
    out: Any,
    probabilities: Any,
) -> int:
    """Best-first tree. Rows of `out`: token, parent, rank."""
    budget = probabilities.size
    frontier = new_frontier(budget, K)
    nodes, chances, _ = frontier
    root = last
    size: Any = np.int64(0)  # no literal 0, for which Numba would compile what it calls once more
    depth: Any = np.int64(0)
    path, ended = 1.0, False
    while size < budget:
        order, row = look_up(rows, pairs, keys, before, last)
        if order >= 0 and not ended:
            for rank in range(K):
                token = pairs[row, 0, rank] if order == 1 else rows[row, 0, rank]
                if token < 0:
                    break
                bucket = pairs[row, 1, rank] if order == 1 else rows[row, 1, rank]
                own = worth(counts, order, rank, bucket)
                if own * path >= least:
                    push(frontier, np.int64(token), size - 1, rank, depth + 1, own, own * path)
        node = pop(frontier)
        if node < 0:
            break
        take(frontier, node, out, probabilities, size)
        last, depth, path = nodes[node, 0], nodes[node, 3], chances[node, 1]
        before = out[0, nodes[node, 1]] if nodes[node, 1] >= 0 else root
        ended = depth >= max_depth or is_end(last, stop_tokens)
        size += 1
    return size


@final
class Adjacency:
    """Next tokens by last token and by last pair, from the target's top logits.

    O(K) a verified node. 64 bytes a vocabulary entry seen, and 80 a pair.

    **Arguments:**

    - `num_pairs`: Rows of the pair table; 0 goes by the last token alone.
    """

    def __init__(self, *, num_pairs: int = 32768) -> None:
        self.rows: npt.NDArray[np.int32] = np.full((1024, 2, K), -1, np.int32)
        self.pairs: npt.NDArray[np.int32] = np.full((max(num_pairs, 1), 2, K), -1, np.int32)
        self.keys = np.full((max(num_pairs, 1), 2), -1, np.int64)
        self.uses_pairs = num_pairs > 0
        prior = np.broadcast_to(np.asarray(_PRIOR), (2, _NUM_RANKS, _NUM_BUCKETS)) * np.array(
            [0.6, 1.0]
        ).reshape(2, 1, 1)
        self.counts = np.stack([np.full_like(prior, 6.0), 6.0 * prior])

    def clear(self) -> None:
        """Forget the rows; what buckets are worth is kept."""
        self.rows[:] = -1
        self.keys[:] = -1

    def learn(self, before: int, last: int, committed: Ids) -> None:
        """Score the rows that were known for each committed token. `before` is -1 where there is none."""
        if last >= 0:
            _learn(self.rows, self.pairs, self.keys, self.counts, before, last, committed)

    def store(self, befores: Ids, lasts: Ids, top_tokens: Ids, top_logits: Floats) -> None:
        """Keep the (n, k) largest logits after each of `lasts` (n,), which followed `befores` (or -1)."""
        most = int(lasts.max(initial=0))
        if most >= self.rows.shape[0]:
            grown = np.full((max(most + 1, self.rows.shape[0] * 2), 2, K), -1, np.int32)
            grown[: self.rows.shape[0]] = self.rows
            self.rows = grown
        before = befores if self.uses_pairs else np.full_like(befores, -1)
        _store(
            self.rows,
            self.pairs,
            self.keys,
            before,
            lasts,
            np.asarray(top_tokens, np.int64),
            np.asarray(top_logits, np.float32),
        )

    def tree(
        self,
        before: int,
        last: int,
        budget: int,
        *,
        max_depth: int = 8,
        least: float = 0.005,
        stop_tokens: tuple[int, ...] = (),
    ) -> tuple[Ids, Ids, Floats]:
        """The `budget` likeliest candidates after (before, last): tokens, parents, probabilities."""
        out = np.empty((3, max(budget, 0)), np.int64)
        probabilities = np.empty(max(budget, 0), np.float32)
        size = _grow(
            self.rows,
            self.pairs,
            self.keys,
            self.counts,
            before,
            last,
            least,
            max_depth,
            np.asarray(stop_tokens, np.int64),
            out,
            probabilities,
        )
        return out[0, :size], out[1, :size], probabilities[:size]

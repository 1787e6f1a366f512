"""One tree from suffix statistics, recycled logits and the last logits' runners-up, node by node.

A token's chance is 1 - (1 - suffix)(1 - recycled / 2), times what such pairs of estimates came to so far,
counted on every committed token whether it was proposed or not.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numba import njit

from outrider.index.adjacency import Adjacency, K, look_up, score, worth
from outrider.index.frontier import is_end, new_frontier, pop, push, spell, take
from outrider.index.ngram import index_position
from outrider.index.suffix import LENGTHS, WIDTH, SuffixIndex, learn, next_tokens
from outrider.types import Floats, Ids

SOURCES = ("suffix", "recycled", "suffix+recycled", "anchor")
_MOST = WIDTH + 2 * K
_BUCKETS = 10
_ANCHOR = 0.04


@njit(cache=True, nogil=True)
def _bucket(chance: float) -> int:  # pragma: no cover - compiled
    """0 for none, up to 9."""
    if chance <= 0.0:
        return 0
    if chance < 0.2:
        return 1 if chance < 0.04 else (2 if chance < 0.1 else 3)
    if chance < 0.65:
        return 4 if chance < 0.35 else (5 if chance < 0.5 else 6)
    return 7 if chance < 0.8 else (8 if chance < 0.93 else 9)


@njit(cache=True, nogil=True)
def _children(  # pragma: no cover
    suffix: Any,
    recycled: Any,
    query: Any,
    end: int,
    anchors: Any,
    num_anchors: int,
    tokens: Any,
    chances: Any,
    work: Any,
    groups: Any,
) -> tuple[int, int, int, int, int]:
    """Tokens that may follow `query[: end + 1]`, and their chances before correction.

    Rows of `work`: level, suffix bucket, other bucket. Returns how many; how many are the suffixes', and
    their groups; and order and row of the recycled logits.
    """
    ids, tables, previous, lengths, counts = suffix
    rows, pairs, keys, worths = recycled
    known, num_groups = next_tokens(
        ids, tables, previous, lengths, query, end, counts, tokens, chances, work[0], groups
    )
    count = known
    other = np.zeros(_MOST, np.float64)
    for at in range(known):
        work[1, at] = _bucket(chances[at])
        work[2, at] = 0
    before = np.int64(query[end - 1]) if end > 0 else -1
    order, row = look_up(rows, pairs, keys, before, np.int64(query[end]))
    if order >= 0:
        for rank in range(K):
            token = pairs[row, 0, rank] if order == 1 else rows[row, 0, rank]
            if token < 0:
                break
            own = worth(worths, order, rank, pairs[row, 1, rank] if order == 1 else rows[row, 1, rank])
            at = 0
            while at < count and tokens[at] != token:
                at += 1
            if at == count:
                tokens[at], chances[at], work[1, at] = token, 0.0, 0
                count += 1
            other[at] = own
            work[2, at] = _bucket(own)
    for number in range(num_anchors):
        anchor = anchors[number]
        at = 0
        while at < count and tokens[at] != anchor:
            at += 1
        if at == count:
            tokens[at], chances[at], work[1, at], work[2, at] = anchor, 0.0, 0, 0
            count += 1
        if work[2, at] == 0:
            other[at] = _ANCHOR
            work[2, at] = _BUCKETS
    for at in range(count):
        chances[at] = 1.0 - (1.0 - chances[at]) * (1.0 - 0.5 * other[at])
    return count, known, num_groups, order, row


@njit(cache=True, nogil=True)
def _learn(  # pragma: no cover
    suffix: Any, recycled: Any, table: Any, used: Any, size: int, new: Any, anchors: Any
) -> int:
    ids, tables, previous, lengths, counts = suffix
    rows, pairs, _, worths = recycled
    tokens = np.empty(_MOST, np.int64)
    chances = np.empty(_MOST, np.float64)
    work = np.empty((3, _MOST), np.int64)
    groups = np.empty((lengths.size, 3), np.int64)
    slots = np.empty(lengths.size, np.int64)
    keep_first: Any = np.bool_(False)  # as in `_append`, so that nothing is compiled twice
    for number in range(new.size):
        token = new[number]
        if size > 0:
            num_anchors = anchors.size if number == 0 else 0
            count, known, num_groups, order, row = _children(
                suffix, recycled, ids, size - 1, anchors, num_anchors, tokens, chances, work, groups
            )
            for at in range(count):
                one, other = work[1, at], work[2, at]
                table[0, one, other] = table[0, one, other] * 0.998 + chances[at]
                table[1, one, other] = table[1, one, other] * 0.998 + (1.0 if tokens[at] == token else 0.0)
            learn(counts, tokens, known, groups, num_groups, token)
            if order >= 0:
                score(worths, pairs if order == 1 else rows, order, row, token)
        ids[size] = token
        if size > 0:
            index_position(ids, size - 1, tables, previous, used, lengths, keep_first, slots)
        size += 1
    return size


@njit(cache=True, nogil=True)
def _grow(  # pragma: no cover
    suffix: Any,
    recycled: Any,
    table: Any,
    tail: Any,
    anchors: Any,
    max_depth: int,
    least: float,
    stop_tokens: Any,
    out: Any,
    probabilities: Any,
) -> int:
    """Best-first. Rows of `out`: token, parent, source."""
    budget = probabilities.size
    lengths = suffix[3]
    tokens = np.empty(_MOST, np.int64)
    chances = np.empty(_MOST, np.float64)
    work = np.empty((3, _MOST), np.int64)
    groups = np.empty((lengths.size, 3), np.int64)
    frontier = new_frontier(budget, _MOST)
    nodes, paths, _ = frontier
    query = np.empty(tail.size + max_depth, np.int32)
    for at in range(tail.size):
        query[at] = tail[at]
    size: Any = np.int64(0)  # no literal 0, for which Numba would compile what it calls once more
    depth: Any = np.int64(0)
    path, ended = 1.0, tail.size == 0
    while size < budget:
        if not ended:
            spell(out, size - 1, depth, query, tail.size)
            end, num_anchors = tail.size + depth - 1, anchors.size if size == 0 else 0
            count, _, _, _, _ = _children(
                suffix, recycled, query, end, anchors, num_anchors, tokens, chances, work, groups
            )
            for at in range(count):
                one, other = work[1, at], work[2, at]
                own = min(chances[at] * table[1, one, other] / table[0, one, other], 0.995)
                if own * path >= least:
                    source = 3 if other == _BUCKETS else (0 if other == 0 else (2 if one > 0 else 1))
                    push(frontier, tokens[at], size - 1, source, depth + 1, own, own * path)
        node = pop(frontier)
        if node < 0:
            break
        take(frontier, node, out, probabilities, size)
        depth, path = nodes[node, 3], paths[node, 1]
        ended = depth >= max_depth or is_end(nodes[node, 0], stop_tokens)
        size += 1
    return size


@final
class Blend:
    """A suffix index and an adjacency table that grow one tree and learn together.

    O(1) a committed token and O(budget) a tree. `kept` is what was learnt, to share with another.
    """

    _table: Any

    def __init__(self, kept: tuple[Any, Any, Any] | None = None, adjacency: Adjacency | None = None) -> None:
        self.adjacency = Adjacency() if adjacency is None else adjacency
        if kept is None:
            kept = SuffixIndex().counts, self.adjacency.counts, np.full((2, _BUCKETS, _BUCKETS + 1), 4.0)
        self.kept = kept
        counts, self.adjacency.counts, self._table = kept
        self.suffix = SuffixIndex(counts)

    def restart(self) -> None:
        """Forget the sequence; the adjacency table and what was learnt stay."""
        self.suffix = SuffixIndex(self.suffix.counts)

    def _parts(self) -> tuple[Any, Any]:
        index, near = self.suffix.ngrams, self.adjacency
        return (
            (index.ids, index.tables, index.previous, index.lengths, self.suffix.counts),
            (near.rows, near.pairs, near.keys, near.counts),
        )

    def learn(self, committed: Ids, anchors: Ids) -> None:
        """Score what was known of each committed token, then index it."""
        index = self.suffix.ngrams
        index.reserve(committed.size)
        suffix, recycled = self._parts()
        new = np.asarray(committed, np.int64)
        index.size = _learn(suffix, recycled, self._table, index.used, index.size, new, anchors)

    def tree(
        self,
        tail: Ids,
        budget: int,
        anchors: Ids,
        *,
        max_depth: int = 48,
        least: float = 0.01,
        stop_tokens: tuple[int, ...] = (),
    ) -> tuple[Ids, Ids, Floats, Ids]:
        """The `budget` likeliest candidates: tokens, parents, probabilities, indices into `SOURCES`."""
        out, probabilities = np.empty((3, budget), np.int64), np.empty(budget, np.float32)
        suffix, recycled = self._parts()
        query = np.asarray(tail[-LENGTHS[-1] :], np.int32)
        stops = np.asarray(stop_tokens, np.int64)
        size = _grow(
            suffix, recycled, self._table, query, anchors, max_depth, least, stops, out, probabilities
        )
        return out[0, :size], out[1, :size], probabilities[:size], out[2, :size]

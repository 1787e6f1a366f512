"""What followed every suffix of the context, longest first, with probabilities learnt online.

The continuations of a context are found level by level, a level being one of the n-gram lengths held: the
occurrences that agree with the context for that many tokens and not for the next length held. Deeper levels
speak first; a level gets what the deeper ones left over, times how often, so far, it was right when they were
not (prediction by partial matching, with learnt escapes). Within a level, a token's share is its count among
the last occurrences, the very last counted twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
from numba import njit

from outrider.index.frontier import is_end, new_frontier, pop, push, spell, take
from outrider.index.ngram import NGramIndex, find_heads, index_position
from outrider.types import Floats, Ids

LENGTHS = (1, 2, 3, 4, 6, 10, 18)
WIDTH = 16
_VISITS = 16
_ENOUGH = 0.03
_MEMORY = 0.998

# How often a level is right at first: one occurrence, several that agree, several that differ.
_PRIOR = (
    (0.10, 0.25, 0.35),
    (0.25, 0.45, 0.55),
    (0.45, 0.60, 0.65),
    (0.55, 0.70, 0.75),
    (0.70, 0.80, 0.85),
    (0.80, 0.90, 0.90),
    (0.93, 0.96, 0.96),
)


@njit(cache=True, nogil=True)
def next_tokens(  # pragma: no cover - compiled
    ids: Any,
    tables: Any,
    previous: Any,
    lengths: Any,
    query: Any,
    end: int,
    counts: Any,
    tokens: Any,
    shares: Any,
    levels: Any,
    groups: Any,
) -> tuple[int, int]:
    """Tokens that followed the suffixes of `query[: end + 1]`, with probabilities, deepest level first.

    Fills `tokens`, `shares` (probabilities), `levels` up to the first number returned, and a row
    (level, kind, first token) of `groups` for each of the second.
    """
    heads = np.empty(lengths.size, np.int64)
    num_levels = find_heads(tables, ids, lengths, query, end, heads, np.empty(lengths.size, np.int64))
    # A level's occurrences are among those of the level below: what was visited there tells which match longer.
    visited = np.empty(_VISITS, np.int64)
    longer = np.empty(_VISITS, np.int64)
    count = 0
    num_groups = 0
    num_longer = 0
    remaining = 1.0
    for level in range(num_levels - 1, -1, -1):
        begin = count
        total = 0.0
        seen = 0
        num_visited = 0
        next_longer = 0
        position = heads[level]
        while position >= 0 and num_visited < _VISITS:
            visited[num_visited] = position
            num_visited += 1
            while next_longer < num_longer and longer[next_longer] > position:
                next_longer += 1
            if next_longer == num_longer or longer[next_longer] != position:
                token = np.int64(previous[position, 0])
                at = 0
                while at < count and tokens[at] != token:
                    at += 1
                if at >= begin and at < WIDTH:
                    weight = 2.0 if seen == 0 else 1.0
                    if at == count:
                        tokens[at] = token
                        shares[at] = 0.0
                        levels[at] = level
                        count += 1
                    shares[at] += weight
                    total += weight
                    seen += 1
            position = np.int64(previous[position, level + 1])
        visited, longer = longer, visited
        num_longer = num_visited
        if count == begin:
            continue
        kind = 0 if seen == 1 else (1 if count == begin + 1 else 2)
        confidence = counts[1, level, kind] / counts[0, level, kind]
        for at in range(begin, count):
            shares[at] *= remaining * confidence / total
        groups[num_groups, 0] = level
        groups[num_groups, 1] = kind
        groups[num_groups, 2] = begin
        num_groups += 1
        remaining *= 1.0 - confidence
        if remaining < _ENOUGH:
            break
    return count, num_groups


@njit(cache=True, nogil=True)
def learn(
    counts: Any, tokens: Any, count: int, groups: Any, num_groups: int, token: int
) -> None:  # pragma: no cover
    """Score each level that spoke before the one that knew `token`, and that one."""
    for group in range(num_groups):
        level, kind, begin = groups[group, 0], groups[group, 1], groups[group, 2]
        stop = count if group + 1 == num_groups else groups[group + 1, 2]
        counts[0, level, kind] = counts[0, level, kind] * _MEMORY + 1.0
        counts[1, level, kind] *= _MEMORY
        for at in range(begin, stop):
            if tokens[at] == token:
                counts[1, level, kind] += 1.0
                return


@njit(cache=True, nogil=True)
def _learn_and_append(  # pragma: no cover
    ids: Any,
    size: int,
    new: Any,
    tables: Any,
    previous: Any,
    used: Any,
    lengths: Any,
    counts: Any,
) -> int:
    tokens = np.empty(WIDTH, np.int64)
    shares = np.empty(WIDTH, np.float64)
    levels = np.empty(WIDTH, np.int64)
    groups = np.empty((lengths.size, 3), np.int64)
    slots = np.empty(lengths.size, np.int64)
    keep_first: Any = np.bool_(False)  # as in `_append`, so that nothing is compiled twice
    for token in new:
        if size > 0 and token >= 0:
            count, num_groups = next_tokens(
                ids, tables, previous, lengths, ids, size - 1, counts, tokens, shares, levels, groups
            )
            learn(counts, tokens, count, groups, num_groups, token)
        ids[size] = token
        if size > 0:
            index_position(ids, size - 1, tables, previous, used, lengths, keep_first, slots)
        size += 1
    return size


@njit(cache=True, nogil=True)
def _grow(  # pragma: no cover
    ids: Any,
    tables: Any,
    previous: Any,
    lengths: Any,
    tail: Any,
    counts: Any,
    budget: int,
    max_depth: int,
    least: float,
    stop_tokens: Any,
    out: Any,
    probabilities: Any,
) -> int:
    """Best-first: the candidate with the likeliest path comes next. Rows of `out`: token, parent, level."""
    tokens = np.empty(WIDTH, np.int64)
    shares = np.empty(WIDTH, np.float64)
    levels = np.empty(WIDTH, np.int64)
    groups = np.empty((lengths.size, 3), np.int64)
    frontier = new_frontier(budget, WIDTH)
    nodes, chances, _ = frontier
    query = np.empty(tail.size + max_depth, np.int32)
    for at in range(tail.size):
        query[at] = tail[at]
    size: Any = np.int64(0)  # no literal 0, for which Numba would compile what it calls once more
    depth: Any = np.int64(0)
    path, ended = 1.0, tail.size == 0
    while size < budget:
        if not ended:
            spell(out, size - 1, depth, query, tail.size)
            count, _ = next_tokens(
                ids,
                tables,
                previous,
                lengths,
                query,
                tail.size + depth - 1,
                counts,
                tokens,
                shares,
                levels,
                groups,
            )
            for at in range(count):
                if shares[at] * path >= least:
                    push(frontier, tokens[at], size - 1, levels[at], depth + 1, shares[at], shares[at] * path)
        node = pop(frontier)
        if node < 0:
            break
        take(frontier, node, out, probabilities, size)
        depth, path = nodes[node, 3], chances[node, 1]
        ended = depth >= max_depth or is_end(nodes[node, 0], stop_tokens)
        size += 1
    return size


class SuffixTree(NamedTuple):
    """Candidates of the index: (n,) tokens, parents, probabilities given the parent, and match lengths."""

    tokens: Ids
    parents: Ids
    probabilities: Floats
    match_lengths: Ids


def new_counts() -> npt.NDArray[np.float64]:
    """(2, levels, 3): how often each level and kind spoke, and was right; a weak prior to begin with."""
    prior = np.asarray(_PRIOR)
    return np.stack([np.full_like(prior, 8.0), 8.0 * prior])


@final
class SuffixIndex:
    """Suffix statistics of a growing sequence (or of many, with negative ids between them).

    O(1) a token and O(budget) a tree, whatever is held; about 80 to 100 bytes a token.

    **Arguments:**

    - `counts`: What was learnt about the levels, shared with another index; None begins anew.
    """

    def __init__(self, counts: npt.NDArray[np.float64] | None = None) -> None:
        self.ngrams = NGramIndex(LENGTHS)
        self.counts = new_counts() if counts is None else counts

    def __len__(self) -> int:
        return len(self.ngrams)

    def append(self, tokens: npt.ArrayLike, *, learning: bool = False) -> None:
        """Add tokens at the end; with `learning`, score first what each level would have said of them."""
        index = self.ngrams
        if not learning:
            index.append(tokens)
            return
        new = np.asarray(tokens, np.int32).reshape(-1)
        index.reserve(new.size)
        index.size = _learn_and_append(
            index.ids,
            index.size,
            new,
            index.tables,
            index.previous,
            index.used,
            index.lengths,
            self.counts,
        )

    def sync(self, ids: npt.NDArray[Any], num_prompt: int) -> None:
        """Index what is new in `ids`, learning from what comes after the prompt."""
        index = self.ngrams
        if not index.holds(ids):
            index.clear()
        if len(index) < num_prompt:
            index.append(ids[len(index) : num_prompt])
        if len(index) < ids.size:
            self.append(ids[len(index) :], learning=True)

    def tree(
        self,
        tail: npt.NDArray[Any],
        budget: int,
        *,
        max_depth: int = 64,
        least: float = 0.01,
        stop_tokens: tuple[int, ...] = (),
    ) -> SuffixTree:
        """The `budget` likeliest candidates after `tail`, best path first, parents before children.

        **Arguments:**

        - `tail`: The context's last tokens; those before the longest length held don't matter.
        - `max_depth`: Longest path.
        - `least`: Paths less likely are left out.
        - `stop_tokens`: Nothing follows one of these.
        """
        index = self.ngrams
        query = np.asarray(tail[-LENGTHS[-1] :], np.int32)
        out = np.empty((3, max(budget, 1)), np.int64)
        probabilities = np.empty(max(budget, 1), np.float32)
        size = _grow(
            index.ids,
            index.tables,
            index.previous,
            index.lengths,
            query,
            self.counts,
            max(budget, 0),
            max_depth,
            least,
            np.asarray(stop_tokens, np.int64),
            out,
            probabilities,
        )
        return SuffixTree(out[0, :size], out[1, :size], probabilities[:size], index.lengths[out[2, :size]])

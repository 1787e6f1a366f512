"""A static index over documents: suffix arrays on disk, mapped into memory, shared by processes.

The body of the file is uint32: for each part its tokens, then the positions of its suffixes in their order.
A token is stored as its id plus one; 0 ends a document, and no match or continuation runs over it. Parts are
sorted apart, so that building takes the memory of one, and are put together at query time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
from numba import njit

from outrider.errors import FileFormatError, OptionError
from outrider.index.files import BODY, Body, check_body, check_owner, fingerprint, read_header, replacing
from outrider.index.frontier import is_end, new_frontier, pop, push, take
from outrider.types import Floats, Ids

MAGIC = b"OUTRCRP1"
PART_TOKENS = 1 << 24
_WIDTH = 16
_SAMPLES = 32
_LENGTHS = (1, 2, 3, 4, 6, 9, 14)
_MEMORY = 0.998

# How often the next token is among a match's continuations at first: one occurrence, several that agree,
# several that differ.
_PRIOR = (
    (0.05, 0.15, 0.60),
    (0.15, 0.35, 0.65),
    (0.30, 0.50, 0.70),
    (0.45, 0.60, 0.75),
    (0.60, 0.75, 0.85),
    (0.75, 0.85, 0.90),
    (0.85, 0.93, 0.95),
)


def suffix_array(tokens: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """(m,) uint32. Positions of the suffixes of `tokens` in their order, those that begin with a 0 left out.

    By libdivsufsort, over the tokens' bytes, highest first.

    **Raises:** `OptionError` where pydivsufsort is not installed.
    """
    try:
        from pydivsufsort import divsufsort
    except ImportError as error:
        raise OptionError(
            "building a corpus needs pydivsufsort; run: pip install 'outrider[corpus]'"
        ) from error
    if not tokens.size:
        return np.empty(0, np.uint32)
    width = max(1, (int(tokens.max()).bit_length() + 7) // 8)
    in_bytes = np.ascontiguousarray(tokens.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - width :])
    order = divsufsort(in_bytes.reshape(-1))
    whole = order if width == 1 else order[order % width == 0] // width
    return whole[int((tokens == 0).sum()) :].astype(np.uint32)


@njit(cache=True, nogil=True)
def _at(data: Any, part: Any, position: Any) -> Any:  # pragma: no cover - compiled
    """The stored token at a position of a part, 0 beyond its end."""
    return np.int64(data[part[0] + position]) if position < part[1] else 0


@njit(cache=True, nogil=True)
def _first(  # pragma: no cover
    data: Any, part: Any, query: Any, start: int, length: int, low: int, high: int, above: bool
) -> int:
    """First suffix in [low, high) that is not before `query[start : start + length]`; or, `above`, is after."""
    while low < high:
        middle = (low + high) >> 1
        position = np.int64(data[part[2] + middle])
        before = above
        for offset in range(length):
            token = _at(data, part, position + offset)
            wanted = query[start + offset]
            if token != wanted:
                before = token < wanted
                break
        if before:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _match(data: Any, parts: Any, query: Any, size: int, ranges: Any) -> int:  # pragma: no cover
    """Length of the longest tail of `query[:size]` that occurs with a token after it.

    Fills `ranges` with each part's suffixes that begin with it.
    """
    longest = 0
    for number in range(parts.shape[0]):
        part = parts[number]
        low, high = longest, size
        while low < high:
            length = (low + high + 1) >> 1
            begin = _first(data, part, query, size - length, length, 0, part[3], False)
            found = False
            if begin < part[3]:
                found = True
                position = np.int64(data[part[2] + begin])
                for offset in range(length):
                    if _at(data, part, position + offset) != query[size - length + offset]:
                        found = False
                        break
            if found:
                low = length
            else:
                high = length - 1
        longest = low
    for number in range(parts.shape[0]):
        part = parts[number]
        begin = _first(data, part, query, size - longest, longest, 0, part[3], False)
        ranges[number, 0] = begin
        ranges[number, 1] = _first(data, part, query, size - longest, longest, begin, part[3], True)
    return longest


@njit(cache=True, nogil=True)
def _children(  # pragma: no cover
    data: Any, parts: Any, ranges: Any, depth: int, tokens: Any, counts: Any, below: Any
) -> tuple[int, int]:
    """The tokens at `depth` of the suffixes in `ranges`, their counts, and their own ranges.

    Every token with more than a 32nd of a part's occurrences is found, and its count is exact. Returns how
    many there are, and how many suffixes were in the ranges.
    """
    count, total = 0, 0
    step_query = np.empty(1, np.int64)
    for number in range(parts.shape[0]):
        part = parts[number]
        low, high = ranges[number, 0], ranges[number, 1]
        total += high - low
        step = max(1, (high - low) // _SAMPLES)
        while low < high:
            probe = min(low + step - 1, high - 1)
            token = _at(data, part, np.int64(data[part[2] + probe]) + depth)
            shifted = (part[0] + depth, part[1] - depth, part[2])
            step_query[0] = token
            begin = _first(data, shifted, step_query, 0, 1, low, probe, False)
            width = 1
            end = probe + 1
            while end < high and _at(data, part, np.int64(data[part[2] + end]) + depth) == token:
                end = min(end + width, high)
                width *= 2
            if width > 1:
                # The last jump may have gone past the run.
                end = _first(data, shifted, step_query, 0, 1, max(probe + 1, end - width // 2), end, True)
            if token > 0:
                at = 0
                while at < count and tokens[at] != token:
                    at += 1
                if at == count and count < tokens.size:
                    tokens[at] = token
                    counts[at] = 0
                    below[at, :, :] = 0
                    count += 1
                if at < count:
                    counts[at] += end - begin
                    below[at, number, 0] = begin
                    below[at, number, 1] = end
            low = end
    return count, total


@njit(cache=True, nogil=True)
def _level(lengths: Any, matched: int) -> int:  # pragma: no cover
    level = 0
    while level + 1 < lengths.size and lengths[level + 1] <= matched:
        level += 1
    return level


@njit(cache=True, nogil=True)
def _kind(counts: Any, count: int, total: int) -> int:  # pragma: no cover
    """0 for one occurrence, 1 for several that nearly all agree, 2 for several that differ."""
    most = 0
    for at in range(count):
        most = max(most, counts[at])
    return 0 if total == 1 else (1 if most * 10 >= total * 9 else 2)


@njit(cache=True, nogil=True)
def _grow(  # pragma: no cover
    data: Any,
    parts: Any,
    lengths: Any,
    worth: Any,
    query: Any,
    max_depth: int,
    least: float,
    stop_tokens: Any,
    out: Any,
    probabilities: Any,
) -> int:
    """Best-first. Rows of `out`: token, parent, tokens matched before it."""
    budget = probabilities.size
    num_parts = parts.shape[0]
    frontier = new_frontier(budget, _WIDTH)
    nodes, chances, _ = frontier
    held = np.empty((budget * _WIDTH + 1, num_parts, 2), np.int64)
    tokens = np.empty(_WIDTH, np.int64)
    counts = np.empty(_WIDTH, np.int64)
    below = np.empty((_WIDTH, num_parts, 2), np.int64)
    ranges = np.empty((num_parts, 2), np.int64)
    matched = _match(data, parts, query, query.size, ranges)
    if matched == 0:
        return 0
    size: Any = np.int64(0)  # no literal 0, for which Numba would compile what it calls once more
    depth: Any = np.int64(0)
    path, ended = 1.0, False
    while size < budget:
        if not ended:
            count, total = _children(data, parts, ranges, matched + depth, tokens, counts, below)
            if count > 0:
                level, kind = _level(lengths, matched + depth), _kind(counts, count, total)
                right = worth[1, level, kind] / worth[0, level, kind]
                for at in range(count):
                    own = right * counts[at] / total
                    if own * path >= least:
                        new = push(
                            frontier, tokens[at], size - 1, matched + depth, depth + 1, own, own * path
                        )
                        held[new] = below[at]
        node = pop(frontier)
        if node < 0:
            break
        take(frontier, node, out, probabilities, size)
        ranges[:, :] = held[node]
        depth, path = nodes[node, 3], chances[node, 1]
        ended = depth >= max_depth or is_end(nodes[node, 0] - 1, stop_tokens)
        size += 1
    return size


@njit(cache=True, nogil=True)
def _learn(
    data: Any, parts: Any, lengths: Any, worth: Any, ids: Any, num_new: int
) -> None:  # pragma: no cover
    num_parts = parts.shape[0]
    tokens = np.empty(_WIDTH, np.int64)
    counts = np.empty(_WIDTH, np.int64)
    below = np.empty((_WIDTH, num_parts, 2), np.int64)
    ranges = np.empty((num_parts, 2), np.int64)
    longest = lengths[-1] + 2
    for end in range(ids.size - num_new, ids.size):
        query = ids[max(0, end - longest) : end]
        matched = _match(data, parts, query, query.size, ranges)
        if matched == 0:
            continue
        count, total = _children(data, parts, ranges, matched, tokens, counts, below)
        if count == 0:
            continue
        level, kind = _level(lengths, matched), _kind(counts, count, total)
        worth[0, level, kind] = worth[0, level, kind] * _MEMORY + 1.0
        worth[1, level, kind] *= _MEMORY
        for at in range(count):
            if tokens[at] == ids[end]:
                worth[1, level, kind] += 1.0


class CorpusTree(NamedTuple):
    """Candidates of a corpus: (n,) tokens, parents, probabilities given the parent, and match lengths."""

    tokens: Ids
    parents: Ids
    probabilities: Floats
    match_lengths: Ids


@final
class Corpus:
    """An index over documents, read from its file as it is needed. Safe to share by threads and processes.

    O(parts * log(tokens) + budget) a tree, whatever is held; 8 bytes a token on disk.

    **Arguments:**

    - `path`: What `build` or `merge` wrote.
    - `tokenizer`: The target's, or its fingerprint; a file of another one is refused. None takes any.
    - `check`: Read the whole file once, to find damage.

    **Raises:** `FileFormatError` for a damaged file, another kind of file, or another tokenizer's.
    """

    def __init__(self, path: str | Path, *, tokenizer: Any = None, check: bool = True) -> None:
        self.path = Path(path)
        header, length = read_header(path, MAGIC, "corpus")
        self.header = header
        check_owner(
            path, "tokenizer", None if tokenizer is None else fingerprint(tokenizer), header.get("tokenizer")
        )
        self._parts = self._layout(header, length)
        if check:
            check_body(path, header, length)
        mapped = np.memmap(path, np.uint32, "r", BODY, (length // 4,)) if length else np.empty(0, np.uint32)
        self._data = np.asarray(mapped)
        self._lengths = np.asarray(_LENGTHS, np.int64)

    def _layout(self, header: dict[str, Any], length: int) -> npt.NDArray[np.int64]:
        """(parts, 4): where a part's tokens begin, how many; where its suffixes begin, how many."""
        rows, at = [], 0
        try:
            for num_tokens, num_suffixes in header["parts"]:
                rows.append((at, num_tokens, at + num_tokens, num_suffixes))
                at += num_tokens + num_suffixes
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{self.path} is damaged: it names no parts; build it anew") from error
        if at * 4 != length:
            raise FileFormatError(f"{self.path} is damaged: its parts are not as declared; build it anew")
        return np.asarray(rows, np.int64).reshape(-1, 4)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path,)

    def __len__(self) -> int:
        """Tokens held, an end a document included."""
        return int(self._parts[:, 1].sum())

    @property
    def num_parts(self) -> int:
        """Parts that were sorted apart."""
        return len(self._parts)

    def tree(
        self,
        tail: npt.NDArray[Any],
        budget: int,
        worth: npt.NDArray[np.float64] | None = None,
        *,
        max_depth: int = 32,
        least: float = 0.01,
        stop_tokens: tuple[int, ...] = (),
    ) -> CorpusTree:
        """The `budget` likeliest continuations of the longest match of `tail`, best path first.

        **Arguments:**

        - `tail`: The context's last tokens; those before the 16th from the end don't matter.
        - `worth`: How often matches were right so far (`new_worth`).
        - `max_depth`, `least`, `stop_tokens`: As `SuffixIndex.tree`.
        """
        query = self._query(tail)[-(_LENGTHS[-1] + 2) :]
        out, probabilities = np.empty((3, max(budget, 0)), np.int64), np.empty(max(budget, 0), np.float32)
        size = _grow(
            self._data,
            self._parts,
            self._lengths,
            new_worth() if worth is None else worth,
            query,
            max_depth,
            least,
            np.asarray(stop_tokens, np.int64),
            out,
            probabilities,
        )
        return CorpusTree(out[0, :size] - 1, out[1, :size], probabilities[:size], out[2, :size])

    def learn(self, worth: npt.NDArray[np.float64], ids: npt.NDArray[Any], num_new: int) -> None:
        """Score what the corpus would have said of the last `num_new` of `ids`."""
        query = self._query(ids)
        _learn(self._data, self._parts, self._lengths, worth, query, min(num_new, query.size))

    @staticmethod
    def _query(ids: npt.NDArray[Any]) -> Ids:
        return np.asarray(ids, np.int64) + 1


def new_worth() -> npt.NDArray[np.float64]:
    """(2, levels, 3): how often each match length and kind spoke, and was right; a weak prior to begin with."""
    prior = np.asarray(_PRIOR)
    return np.stack([np.full_like(prior, 8.0), 8.0 * prior])


def _reopen(path: Path) -> Corpus:
    return Corpus(path, check=False)


def build(
    documents: Iterable[Sequence[int] | npt.NDArray[Any]],
    path: str | Path,
    *,
    tokenizer: Any = "",
    part_tokens: int = PART_TOKENS,
    on_part: Callable[[int], None] | None = None,
) -> int:
    """Index documents, given as token ids, into one file. Memory: about 20 bytes a token of a part.

    **Arguments:**

    - `documents`: Read once, in order.
    - `path`: Written atomically.
    - `tokenizer`: Whose ids they are, or its fingerprint.
    - `part_tokens`: A part is sorted when it holds so many; a longer document is a part of its own.
    - `on_part`: Called with the number of tokens before a part is sorted.

    **Returns:** how many tokens are held.

    **Raises:** `OptionError` where there is not a token, or pydivsufsort is not installed.
    """
    parts: list[tuple[int, int]] = []
    with replacing(path) as file:
        body = Body(file, MAGIC)
        for tokens in _in_parts(documents, part_tokens):
            if on_part is not None:
                on_part(tokens.size)
            suffixes = suffix_array(tokens)
            body.write(tokens)
            body.write(suffixes)
            parts.append((int(tokens.size), int(suffixes.size)))
        if not parts:
            raise OptionError("there is no text in these documents, so there is nothing to index")
        body.close({"tokenizer": fingerprint(tokenizer), "parts": parts})
    return sum(num_tokens for num_tokens, _ in parts)


def _in_parts(documents: Iterable[Any], part_tokens: int) -> Iterable[npt.NDArray[np.uint32]]:
    held: list[npt.NDArray[np.uint32]] = []
    size = 0
    for document in documents:
        ids = np.asarray(document, np.int64)
        if not ids.size:
            continue
        if ids.min() < 0 or ids.max() >= 2**31:
            raise OptionError("token ids of a corpus must be at least 0 and below 2**31")
        if size and size + ids.size > part_tokens:
            yield np.concatenate(held)
            held, size = [], 0
        held.append(np.append(ids + 1, 0).astype(np.uint32))
        size += ids.size + 1
    if size:
        yield np.concatenate(held)


def merge(paths: Sequence[str | Path], out: str | Path) -> int:
    """One file of the parts of several, built perhaps on several machines. Returns how many tokens it holds.

    **Raises:** `FileFormatError` for a damaged file, or where their tokenizers differ.
    """
    corpora = [Corpus(path, check=False) for path in paths]
    if not corpora:
        raise OptionError("there is no corpus to merge; give at least one file")
    owner = corpora[0].header["tokenizer"]
    with replacing(out) as file:
        body = Body(file, MAGIC)
        for corpus in corpora:
            check_owner(corpus.path, "tokenizer", owner, corpus.header["tokenizer"])
            check_body(corpus.path, corpus.header, corpus._data.nbytes)
            body.write(corpus._data)
        body.close({"tokenizer": owner, "parts": [part for one in corpora for part in one.header["parts"]]})
    return sum(len(corpus) for corpus in corpora)

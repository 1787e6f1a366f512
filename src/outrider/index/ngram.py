"""Every n-gram of a growing token sequence, of a few lengths, to the positions where it ended.

One open-addressing table a length holds the last position (or the first). A row of `previous` holds the token
after a position, and for each length the position before it with the same n-gram, so that a step back costs
one load from memory. Slots hold positions only: an n-gram is compared with the tokens
themselves, so a hash collision costs a probe and never an error.

A position is indexed once the token after it is known, so what is found always has a continuation.
A negative id separates sequences: no n-gram crosses it and no continuation runs over it.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import numpy.typing as npt
from numba import njit

Int32s = npt.NDArray[np.int32]

SEPARATOR = -1
_MAX_LOAD = 0.5
_CHUNK = 65536


@njit(cache=True, nogil=True, inline="always")
def slot_of(accumulated: Any, level: int, capacity: int) -> Any:  # pragma: no cover - compiled
    """First slot to probe for a hash accumulated token by token, backwards."""
    mixed = (accumulated ^ (np.uint64(level + 1) * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(
        0xD6E8FEB86659FD93
    )
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return np.int64(((mixed >> np.uint64(32)) * np.uint64(capacity)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def find_slot(  # pragma: no cover
    tables: Any, level: int, ids: Any, query: Any, end: int, length: int, slot: int
) -> int:
    """Slot that holds the n-gram of `length` tokens ending at `query[end]`, or the empty slot for it."""
    while True:
        position = tables[level, slot]
        if position < 0:
            return slot
        offset = 0
        while offset < length and ids[position - offset] == query[end - offset]:
            offset += 1
        if offset == length:
            return slot
        slot += 1
        if slot == tables.shape[1]:
            slot = 0


@njit(cache=True, nogil=True)
def find_heads(
    tables: Any, ids: Any, lengths: Any, query: Any, end: int, heads: Any, slots: Any
) -> int:  # pragma: no cover
    """Fill `heads[level]` with the table's position for each length found; return how many levels are.

    An n-gram that never occurred has no longer one that did, so the search stops at the first miss.
    """
    accumulated = np.uint64(0)
    power = np.uint64(1)
    levels = 0
    for offset in range(lengths[-1]):
        if end - offset < 0 or query[end - offset] < 0:
            break
        accumulated += np.uint64(query[end - offset] + 1) * power
        power *= np.uint64(0x5851F42D4C957F2D)
        if offset + 1 == lengths[levels]:
            slots[levels] = slot_of(accumulated, levels, tables.shape[1])
            levels += 1
    for level in range(levels):  # loads that do not wait for one another: the memory is what costs here
        heads[level] = tables[level, slots[level]]
    for level in range(levels):
        if heads[level] >= 0:
            slot = find_slot(tables, level, ids, query, end, lengths[level], slots[level])
            heads[level] = tables[level, slot]
        if heads[level] < 0:
            return level
    return levels


@njit(cache=True, nogil=True)
def index_position(  # pragma: no cover
    ids: Any,
    position: int,
    tables: Any,
    previous: Any,
    used: Any,
    lengths: Any,
    keep_first: bool,
    slots: Any,
) -> None:
    """Enter the n-grams that end at `position`, whose next token is in place."""
    previous[position, 0] = ids[position + 1]
    for column in range(1, previous.shape[1]):
        previous[position, column] = -1
    if ids[position + 1] < 0:
        return
    accumulated = np.uint64(0)
    power = np.uint64(1)
    levels = 0
    for offset in range(lengths[-1]):
        if position - offset < 0 or ids[position - offset] < 0:
            break
        accumulated += np.uint64(ids[position - offset] + 1) * power
        power *= np.uint64(0x5851F42D4C957F2D)
        if offset + 1 == lengths[levels]:
            slots[levels] = slot_of(accumulated, levels, tables.shape[1])
            levels += 1
    for level in range(levels):  # as above
        previous[position, level + 1] = tables[level, slots[level]]
    for level in range(levels):
        slot, before = slots[level], np.int64(previous[position, level + 1])
        if before >= 0:
            slot = find_slot(tables, level, ids, ids, position, lengths[level], slot)
            before = np.int64(tables[level, slot])
            previous[position, level + 1] = before
        if before < 0:
            used[level] += 1
        if before < 0 or not keep_first:
            tables[level, slot] = position


@njit(cache=True, nogil=True)
def _append(  # pragma: no cover
    ids: Any, size: int, tokens: Any, tables: Any, previous: Any, used: Any, lengths: Any, keep_first: bool
) -> int:
    slots = np.empty(lengths.size, np.int64)
    for token in tokens:
        ids[size] = token
        if size > 0:
            index_position(ids, size - 1, tables, previous, used, lengths, keep_first, slots)
        size += 1
    return size


@njit(cache=True, nogil=True)
def _rehash(ids: Any, old: Any, new: Any, lengths: Any) -> None:  # pragma: no cover
    for level in range(lengths.size):
        for position in old[level]:
            if position < 0:
                continue
            accumulated = np.uint64(0)
            power = np.uint64(1)
            for offset in range(lengths[level]):
                accumulated += np.uint64(ids[position - offset] + 1) * power
                power *= np.uint64(0x5851F42D4C957F2D)
            slot = slot_of(accumulated, level, new.shape[1])
            while new[level, slot] >= 0:
                slot += 1
                if slot == new.shape[1]:
                    slot = 0
            new[level, slot] = position


def _rows(capacity: int, width: int) -> Int32s:
    """(capacity, width), begun where a line of the processor's cache begins."""
    buffer = np.empty(capacity * width + 16, np.int32)
    start = -(buffer.ctypes.data // 4) % 16
    return buffer[start : start + capacity * width].reshape(capacity, width)


@final
class NGramIndex:
    """n-gram to positions, incremental. O(longest length) and about 9 bytes per length, and 8, a token.

    **Arguments:**

    - `lengths`: The n-gram lengths held, ascending.
    - `keep_first`: The table keeps the first position of an n-gram instead of the last.
    """

    def __init__(self, lengths: tuple[int, ...], *, keep_first: bool = False) -> None:
        if not lengths or lengths[0] < 1 or list(lengths) != sorted(set(lengths)):
            raise ValueError(f"lengths must be ascending and at least 1, not {lengths}")
        self.lengths = np.asarray(lengths, np.int64)
        self.keep_first = keep_first
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.size = 0
        self.ids: Int32s = np.empty(256, np.int32)
        self.previous: Int32s = _rows(256, self.lengths.size + 1)
        self.tables: Int32s = np.full((self.lengths.size, 512), -1, np.int32)
        self.used = np.zeros(self.lengths.size, np.int64)

    def __len__(self) -> int:
        return self.size

    @property
    def num_bytes(self) -> int:
        """Memory held, room to grow included."""
        return self.ids.nbytes + self.previous.nbytes + self.tables.nbytes

    def append(self, tokens: npt.ArrayLike) -> None:
        """Add tokens at the end. Negative ones separate sequences."""
        new = np.asarray(tokens, np.int32).reshape(-1)
        for start in range(0, new.size, _CHUNK):
            chunk = new[start : start + _CHUNK]
            self.reserve(chunk.size)
            self.size = _append(
                self.ids,
                self.size,
                chunk,
                self.tables,
                self.previous,
                self.used,
                self.lengths,
                self.keep_first,
            )

    def reserve(self, num_tokens: int) -> None:
        """Make room for that many more tokens."""
        needed = self.size + num_tokens + 1
        if needed > self.ids.size:
            capacity = max(needed, self.ids.size + self.ids.size // 4)
            ids, previous = np.empty(capacity, np.int32), _rows(capacity, self.lengths.size + 1)
            ids[: self.size], previous[: self.size] = self.ids[: self.size], self.previous[: self.size]
            self.ids, self.previous = ids, previous
        most = int(self.used.max()) + num_tokens
        if most > _MAX_LOAD * self.tables.shape[1]:
            slots = max(int(most / _MAX_LOAD) + 1, self.tables.shape[1] * 3 // 2)
            tables = np.full((self.lengths.size, slots), -1, np.int32)
            _rehash(self.ids, self.tables, tables, self.lengths)
            self.tables = tables

    def find(self, query: npt.ArrayLike) -> tuple[int, int]:
        """The longest suffix of `query` that occurred before.

        **Returns:** its length among `lengths`, and the position of its last token where it occurred last
        (first, with `keep_first`); (0, -1) when not even the shortest did. `ids[position + 1]` follows it.
        """
        tail = np.asarray(query, np.int32).reshape(-1)[-int(self.lengths[-1]) :]
        heads, slots = np.empty((2, self.lengths.size), np.int64)
        levels = find_heads(self.tables, self.ids, self.lengths, tail, tail.size - 1, heads, slots)
        return (int(self.lengths[levels - 1]), int(heads[levels - 1])) if levels else (0, -1)

    def holds(self, ids: npt.NDArray[Any]) -> bool:
        """Whether `ids` continues what is indexed: not shorter, and equal where it is cheap to look."""
        if ids.size < self.size:
            return False
        if not self.size:
            return True
        tail = min(self.size, 8)
        same_end = (ids[self.size - tail : self.size] == self.ids[self.size - tail : self.size]).all()
        return bool(same_end) and int(ids[0]) == int(self.ids[0])

    def sync(self, ids: npt.NDArray[Any]) -> None:
        """Index what is new in `ids`; begin again where it is another sequence."""
        if not self.holds(ids):
            self.clear()
        if ids.size > self.size:
            self.append(ids[self.size :])

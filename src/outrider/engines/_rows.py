"""A state for every row of an engine's batch, found again from the row's tokens alone. Free of torch.

An engine that names no requests shows, at every step, rows of token ids. A row's state is the one that holds
exactly the tokens before this step's: it is looked up by their number and a 64-bit hash of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

import numpy as np
import numpy.typing as npt
from numba import njit

from outrider.types import Ids

Key = tuple[int, int]


@njit(cache=True, nogil=True)
def _hash(ids: Any, begin: int, end: int) -> Any:  # pragma: no cover - compiled
    """Sum over `ids[begin:end]` of a mix of token and position: adding tokens adds their mixes."""
    total = np.uint64(0)
    for at in range(begin, end):
        word = (np.uint64(at) << np.uint64(32)) ^ np.uint64(np.uint32(ids[at]))
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        total += word ^ (word >> np.uint64(31))
    return total


@njit(cache=True, nogil=True)
def _hash_rows(table: Any, begins: Any, ends: Any) -> Any:  # pragma: no cover - compiled
    """(rows, 2): the hash of each row up to `begins`, and up to `ends`."""
    hashes = np.zeros((begins.size, 2), np.uint64)
    for row in range(begins.size):
        hashes[row, 0] = _hash(table[row], 0, begins[row])
        hashes[row, 1] = hashes[row, 0] + _hash(table[row], begins[row], ends[row])
    return hashes


T = TypeVar("T")


@dataclass
class Row(Generic[T]):
    """One row that got tokens in this step.

    **Arguments:**

    - `at`: Its index in the engine's batch.
    - `state`: What `make` made when the row was new.
    - `ids`: (L,) int64. All its tokens, read-only; this step's are the last `num_new`.
    - `is_new`: No state held its earlier tokens, so one was made.
    """

    at: int
    state: T
    ids: Ids
    num_new: int
    is_new: bool


@dataclass
class _Held(Generic[T]):
    state: T
    ids: Ids  # grows by doubling
    seen: int = field(default=0)  # the step that last claimed it


@final
class Rows(Generic[T]):
    """States by content.

    O(1) a row and step, beside one pass over its tokens at about 1 ns each. Of rows with the same tokens each
    has a state of its own; which one does not matter, as they hold the same. A state that no row claims is
    kept for `patience` steps (its request may be preempted), then dropped.

    **Arguments:**

    - `make`: Gives a new row's state.
    - `drop`: Told of each state that is dropped.
    """

    def __init__(
        self, make: Callable[[], T], drop: Callable[[T], None] = lambda _: None, *, patience: int = 64
    ) -> None:
        self._make = make
        self._drop = drop
        self._patience = patience
        self._held: dict[Key, list[_Held[T]]] = {}
        self._step = 0

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def step(
        self, table: npt.NDArray[np.int32], lengths: npt.NDArray[Any], num_new: Sequence[int]
    ) -> list[Row[T]]:
        """The rows that got tokens, each with its state.

        **Arguments:**

        - `table`: (rows, longest) int32. Token ids; row i is valid up to `lengths[i]`.
        - `lengths`: (rows,) Tokens of each row, this step's included.
        - `num_new`: (rows,) How many of them are this step's; 0 where a row is not decoding yet.
        """
        self._step += 1
        count = len(num_new)
        ends = np.asarray(lengths[:count], np.int64)
        begins = ends - np.asarray(num_new, np.int64)
        hashes = _hash_rows(table, begins, ends).tolist()
        rows = []
        moved: dict[Key, list[_Held[T]]] = {}
        for at, (begin, end, (before, after)) in enumerate(
            zip(begins.tolist(), ends.tolist(), hashes, strict=True)
        ):
            if begin == end:  # a preempted request on its way back keeps its state
                for held in self._held.get((begin, before), ()):
                    held.seen = self._step
                continue
            same = self._held.get((begin, before))
            is_new = not same
            held = same.pop() if same else _Held(self._make(), np.empty(0, np.int64))
            if held.ids.size < end:
                grown = np.empty(max(2 * end, 256), np.int64)
                grown[: 0 if is_new else begin] = held.ids[: 0 if is_new else begin]
                held.ids = grown
            first = 0 if is_new else begin
            held.ids[first:end] = table[at, first:end]
            held.seen = self._step
            moved.setdefault((end, after), []).append(held)
            ids = held.ids[:end]
            ids.flags.writeable = False
            rows.append(Row(at, held.state, ids, end - begin, is_new))
        self._settle(moved)
        return rows

    def _settle(self, moved: dict[Key, list[_Held[T]]]) -> None:
        """Put the moved states in their new places, and drop what waited too long."""
        oldest = self._step - self._patience
        kept: dict[Key, list[_Held[T]]] = {}
        for key, group in self._held.items():
            for held in group:
                if held.seen > oldest:
                    kept.setdefault(key, []).append(held)
                else:
                    self._drop(held.state)
        for key, group in moved.items():
            kept.setdefault(key, []).extend(group)
        self._held = kept

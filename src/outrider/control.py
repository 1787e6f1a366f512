"""The budget: how many candidates a round may hold. Free of torch.

The loop asks `budget` before a round, cuts the proposal with `trim`, and tells `record` what came of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
from numba import njit

from outrider.errors import OptionError, UnknownNameError
from outrider.types import Candidates, Verification


class Controller(ABC):
    """Sets each round's budget. A user's own is one subclass with `budget`."""

    @abstractmethod
    def budget(self, num_rows: int) -> int:
        """The most candidates a row's generator is asked for this round; 0 asks none."""

    def trim(self, candidates: Candidates) -> Candidates:
        """Cut a proposal to what pays. The default keeps the first `budget(1)` nodes."""
        limit = self.budget(1)
        return candidates if len(candidates) <= limit else candidates.keep(range(limit))

    def record(self, outcomes: Sequence[Verification], draft_s: float, target_s: float) -> None:  # noqa: B027
        """Learn from a round: each row's outcome, and seconds of drafting and of the target's forward.

        `target_s` is 0 in the round of the prompt.
        """


@final
class Fixed(Controller):
    """The same budget every round: transformers' schedule "constant"."""

    def __init__(self, num_candidates: int) -> None:
        self.num_candidates = num_candidates

    def budget(self, num_rows: int) -> int:
        return self.num_candidates


@final
class Heuristic(Controller):
    """transformers' schedules "heuristic" and "heuristic_transient".

    Two more after a round whose candidates were all accepted, one fewer after any other; at least 1.

    **Arguments:**

    - `num_candidates`: Where it starts.
    - `persist`: Keep the number between sequences ("heuristic"), or start anew ("heuristic_transient").
    """

    def __init__(self, num_candidates: int, persist: bool = True) -> None:
        self.num_candidates = num_candidates
        self._start = num_candidates
        self._persist = persist

    def budget(self, num_rows: int) -> int:
        return self.num_candidates

    def record(self, outcomes: Sequence[Verification], draft_s: float, target_s: float) -> None:
        if target_s == 0 and not self._persist:
            self.num_candidates = self._start
        for outcome in outcomes:
            if len(outcome.candidates):
                every = outcome.num_accepted == len(outcome.candidates)
                self.num_candidates = max(1, self.num_candidates + (2 if every else -1))


_SIZES = np.array(
    [*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256, 384, 512, 1024]
)


@final
class ForwardTimes:
    """T(k): seconds of a target forward over k new tokens, from what was measured so far.

    Between measured sizes it is interpolated, never falling; beyond the largest it rises by `slope` of the
    smallest a token, which is meant to be optimistic: a size that looks cheap is tried, and then known.
    Where a branch costs more than its tokens do (exact attention), `branch_s` is how much.

    **Arguments:**

    - `measured`: Sizes and seconds known beforehand.
    """

    def __init__(self, measured: Mapping[int, float] | None = None, *, slope: float = 0.01) -> None:
        self.slope = slope
        self._seconds = np.zeros(_SIZES.size)
        self.num_measured = np.zeros(_SIZES.size, np.int64)
        self._table: npt.NDArray[np.float64] | None = None
        self.branch_s = 0.0
        for size, seconds in (measured or {}).items():
            knot = int(np.abs(_SIZES - size).argmin())
            self._seconds[knot], self.num_measured[knot] = seconds, 8

    def record(self, size: int, seconds: float, num_branches: int = 0) -> None:
        """A forward over `size` new tokens took that long. One slow outlier moves little.

        What it took beyond a chain's time is shared between the size and the branches, by least mean squares.
        """
        knot = int(np.abs(_SIZES - size).argmin())
        count, known = int(self.num_measured[knot]), self._seconds[knot]
        if num_branches and known:
            beyond = min(seconds, 2 * known) - known - self.branch_s * num_branches
            step = 0.1 * beyond * num_branches / (num_branches * num_branches + 1)
            self.branch_s = max(0.0, self.branch_s + step)
        seconds = max(seconds - self.branch_s * num_branches, 0.0)
        if count < 3:  # the first forwards of a shape may warm something up
            self._seconds[knot] = seconds if not count else min(known, seconds)
        else:
            self._seconds[knot] += 0.1 * (min(seconds, 2 * known) - known)
        self.num_measured[knot] += 1
        self._table = None

    def upto(self, size: int) -> npt.NDArray[np.float64]:
        """(>= size + 1,) T(k) at index k; all zeros while nothing was measured."""
        if self._table is None or self._table.size <= size:
            self._table = self._compute(max(size, 128))
        return self._table

    def _compute(self, size: int) -> npt.NDArray[np.float64]:
        known = self.num_measured > 0
        if not known.any():
            return np.zeros(size + 1)
        sizes, seconds = _SIZES[known], np.maximum.accumulate(self._seconds[known])
        table = np.interp(np.arange(size + 1), sizes, seconds)
        step = self.slope * float(seconds[0])
        beyond, before = np.arange(size + 1) - sizes[-1], sizes[0] - np.arange(size + 1)
        return table + step * np.maximum(beyond, 0) - step * np.maximum(before, 0)


@njit(cache=True, nogil=True)
def _paths(parents: Any, own: Any, factors: Any, cells: Any) -> Any:  # pragma: no cover - compiled
    """Calibrated probability that each path is accepted, strictly falling from parent to child."""
    paths = np.empty(parents.size, np.float64)
    for node in range(parents.size):
        chance = min(own[node] * factors[cells[node]], 0.995)
        paths[node] = chance * (paths[parents[node]] if parents[node] >= 0 else 1.0)
    return paths


@njit(cache=True, nogil=True)
def _worths(parents: Any, paths: Any, price: float) -> tuple[Any, Any]:  # pragma: no cover - compiled
    """What each candidate is worth for itself, and for the order of choice, in which a parent is never behind.

    The less likely children of a node are branches, and a branch has a price of its own.
    """
    first = np.full(parents.size + 1, -1, np.int64)
    for node in range(parents.size):
        parent = parents[node] + 1
        if first[parent] < 0 or paths[node] > paths[first[parent]]:
            first[parent] = node
    own, chosen = np.empty(parents.size), np.empty(parents.size)
    for node in range(parents.size):
        parent = parents[node]
        own[node] = paths[node] - (price if first[parent + 1] != node else 0.0)
        chosen[node] = own[node] if parent < 0 else min(own[node], chosen[parent])
    return own, chosen


@njit(cache=True, nogil=True)
def _judge(tokens: Any, parents: Any, committed: Any) -> tuple[Any, Any]:  # pragma: no cover
    """Which candidates the text got to, verified or not, and which of these it took."""
    depths = np.zeros(tokens.size, np.int64)
    judged = np.zeros(tokens.size, np.bool_)
    right = np.zeros(tokens.size, np.bool_)
    for node in range(tokens.size):
        parent = parents[node]
        depth = depths[parent] + 1 if parent >= 0 else 0
        depths[node] = depth
        if depth < committed.size and (parent < 0 or right[parent]):
            judged[node] = True
            right[node] = committed[depth] == tokens[node]
    return judged, right


_NUM_CELLS = 12


@final
class CostRule(Controller):
    """Adds a candidate while P(its path is accepted) >= lambda * dT: Dinkelbach's rule.

    T(k) is measured online. P is the generator's own estimate, corrected by how often such estimates of that
    source came true, those left out of a round included. lambda is the rate of the last rounds. Where no
    number of candidates pays, the round is a plain step; where asking itself costs more than it brings, the
    generator rests, and is asked again after 8, 16, ... up to 64 rounds, or in the next text. About 0.1 ms a
    round.

    **Arguments:**

    - `max_candidates`: Most candidates a row ever gets.
    - `times`: Sizes (tokens in a forward) and seconds measured beforehand.
    """

    def __init__(self, *, max_candidates: int = 64, times: Mapping[int, float] | None = None) -> None:
        if max_candidates < 0:
            raise OptionError(f"max_candidates must be >= 0, not {max_candidates}")
        self.max_candidates = max_candidates
        self.times = ForwardTimes(times)
        self._cells: dict[str, int] = {}
        self._expected = np.full(_NUM_CELLS, 4.0)
        self._accepted = np.full(_NUM_CELLS, 4.0)
        self._tokens = self._seconds = 0.0
        self._others = 0.0  # candidates of the other rows of a batch
        self._kept = 8.0  # how many were worth keeping lately
        self._gain = self._draft_s = 0.0
        self._asked = False
        self._pause = self._rest = 0
        self._num_rows = 1
        self._proposed: dict[int, tuple[Candidates, Candidates]] = {}  # by what was kept: all, and that

    @property
    def rate(self) -> float:
        """lambda: tokens per second of the last rounds; at least that of plain steps."""
        plain = float(self.times.upto(self._num_rows)[self._num_rows])
        at_least = self._num_rows / plain if plain > 0 else 0.0
        return max(at_least, self._tokens / self._seconds if self._seconds else 0.0)

    def budget(self, num_rows: int) -> int:
        self._num_rows = num_rows
        if num_rows <= _SIZES[-1] and not self._plain_known(1):
            return 0
        if self._rest > 0:
            return 0
        self._asked = True
        return min(self.max_candidates, int(2 * self._kept) + 8)

    def _plain_known(self, times: int) -> bool:
        knot = int(np.abs(_SIZES - self._num_rows).argmin())
        return int(self.times.num_measured[knot]) >= times

    def trim(self, candidates: Candidates) -> Candidates:
        if not len(candidates):
            return candidates
        own, cells = self._estimates(candidates)
        paths = _paths(candidates.parents, own, self._accepted / self._expected, cells)
        worths, chosen = _worths(candidates.parents, paths, self.rate * self.times.branch_s)
        order = np.argsort(-chosen, kind="stable")[: self.max_candidates]
        base = self._num_rows + int(self._others)
        seconds = self.times.upto(base + order.size)[base : base + order.size + 1]
        gains = np.concatenate([[0.0], np.cumsum(worths[order])]) - self.rate * (seconds - seconds[0])
        best = int(gains.argmax())
        if gains[best] < 0.3 and not self._plain_known(4):
            best = 0  # what a plain step costs decides everything: know it well
        self._gain += 0.1 * (float(gains[best]) - self._gain)
        self._kept = max(float(best), 0.9 * self._kept)
        kept = candidates.keep(np.sort(order[:best]))
        self._proposed[id(kept)] = candidates, kept
        return kept

    def _estimates(self, candidates: Candidates) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Each node's own probability, and the cell that counts how such estimates came true."""
        if candidates.probabilities is None:
            own = np.full(len(candidates), 0.5)
            buckets = np.minimum(candidates.depths() - 1, _NUM_CELLS - 1)
        else:
            own = np.maximum(candidates.probabilities.astype(np.float64), 1e-4)
            buckets = np.minimum((own * _NUM_CELLS).astype(np.int64), _NUM_CELLS - 1)
        if not candidates.sources:
            return own, buckets + self._cell("")
        return own, buckets + np.array([self._cell(source) for source in candidates.sources])

    def _cell(self, source: str) -> int:
        first = self._cells.get(source)
        if first is None:
            first = self._cells[source] = _NUM_CELLS * len(self._cells)
            missing = first + _NUM_CELLS - self._expected.size
            if missing > 0:
                self._expected = np.concatenate([self._expected, np.full(missing, 4.0)])
                self._accepted = np.concatenate([self._accepted, np.full(missing, 4.0)])
        return first

    def record(self, outcomes: Sequence[Verification], draft_s: float, target_s: float) -> None:
        for outcome in outcomes:
            self._calibrate(outcome)
        self._proposed.clear()
        if target_s <= 0:  # another text: what the last one brought says little of it
            self._pause = self._rest = 0
            self._tokens, self._seconds = 0.1 * self._tokens, 0.1 * self._seconds
            return
        draft_s = min(draft_s, 2 * target_s)  # a first call may compile
        num_candidates = sum(len(outcome.candidates) for outcome in outcomes)
        self._num_rows = len(outcomes)
        branches = sum(outcome.candidates.num_branches for outcome in outcomes)
        self.times.record(num_candidates + len(outcomes), target_s, branches)
        if len(outcomes) > 1:
            others = num_candidates * (len(outcomes) - 1) / len(outcomes)
            self._others += 0.2 * (others - self._others)
        else:
            self._others = 0.0
        self._tokens = 0.97 * self._tokens + sum(outcome.committed.size for outcome in outcomes)
        self._seconds = 0.97 * self._seconds + draft_s + target_s
        self._consider_resting(draft_s, target_s)

    def _calibrate(self, outcome: Verification) -> None:
        """Count what was expected of each candidate that the text got to, and what came of it."""
        candidates = self._proposed.get(id(outcome.candidates), (outcome.candidates, outcome.candidates))[0]
        if not len(candidates):
            return
        own, cells = self._estimates(candidates)
        judged, right = _judge(candidates.tokens, candidates.parents, outcome.committed)
        cells, own, right = cells[judged], own[judged], right[judged]
        self._expected[cells] *= 0.99
        self._accepted[cells] *= 0.99
        np.add.at(self._expected, cells, own)
        np.add.at(self._accepted, cells, right.astype(np.float64))

    def _consider_resting(self, draft_s: float, target_s: float) -> None:
        if self._rest > 0:
            self._rest -= 1
        elif self._asked:
            self._draft_s += 0.1 * (draft_s - self._draft_s)
            if self._draft_s > 0.01 * target_s and self._gain < self.rate * self._draft_s:
                self._pause = min(64, max(8, 2 * self._pause))
                self._rest = self._pause
            else:
                self._pause = 0
        self._asked = False


def get_controller(spec: Controller | str | int) -> Controller:
    """A controller from itself, from a number (`Fixed`), or by name: "cost_rule", "fixed", "heuristic".

    **Raises:** `UnknownNameError`.
    """
    if isinstance(spec, Controller):
        return spec
    if isinstance(spec, int):
        return Fixed(spec)
    if spec == "cost_rule":
        return CostRule()
    if spec == "fixed":
        return Fixed(10)
    if spec == "heuristic":
        return Heuristic(20)
    raise UnknownNameError(
        f"there is no controller named {spec!r}; known are cost_rule, fixed, heuristic, or a number"
    )

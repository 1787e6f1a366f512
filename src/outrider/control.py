"""The budget: how many candidates a round may hold. Free of torch.

The loop asks `budget` before a round, cuts the proposal with `trim`, and tells `record` what came of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

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

"""Cheap first; the next generator only where the ones before it have nothing."""

from __future__ import annotations

from typing import Any, Self, final

from outrider.contract import CandidateGenerator, get
from outrider.errors import OptionError
from outrider.types import Candidates, Context, Ids, Verification


@final
class Generator(CandidateGenerator):
    """The first generator whose candidates are worth `min_expected` accepted tokens proposes alone.

    Cost per step: that of the generators asked; all of them learn from every committed token.
    State: theirs.

    **Arguments:**

    - `generators`: Names or generators, cheapest first.
    - `min_expected`: Accepted tokens to expect below which the next is asked; the last is taken as it is.
    """

    def __init__(self, generators: Any = ("suffix", "token_recycling"), *, min_expected: float = 0.5) -> None:
        self.generators: list[CandidateGenerator] = [
            get(item)() if isinstance(item, str) else item for item in generators
        ]
        if not self.generators:
            raise OptionError("cascade needs at least one generator; pass names or generators")
        self.min_expected = min_expected
        self.needs = frozenset().union(*(part.needs for part in self.generators))  # type: ignore[misc]

    def reset(self, prompt: Ids) -> None:
        for part in self.generators:
            part.reset(prompt)

    def propose(self, context: Context, budget: int) -> Candidates:
        best = Candidates.empty()
        for part in self.generators:
            candidates = part.propose(context, budget)
            if len(candidates):
                best = candidates
            if len(candidates) and candidates.path_probabilities().sum() >= self.min_expected:
                return candidates
        return best

    def update(self, verification: Verification) -> None:
        for part in self.generators:
            part.update(verification)

    def fork(self) -> Self:
        return type(self)([part.fork() for part in self.generators], min_expected=self.min_expected)

"""A plain function as a candidate generator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self, final

import numpy as np

from outrider.contract import CandidateGenerator
from outrider.types import Candidates, Context


@final
class FunctionGenerator(CandidateGenerator):
    """Ask `function(ids)` for the tokens to follow.

    **Arguments:**

    - `function`: From (L,) int64 committed ids, read-only, to the ids that may come next: any sequence of
        whole numbers, empty or None for none. More than the budget are cut off.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def propose(self, context: Context, budget: int) -> Candidates:
        proposed = self._function(context.ids)
        if proposed is None:
            return Candidates.empty()
        ids = proposed if isinstance(proposed, np.ndarray) else list(proposed)
        return Candidates.chain(ids[:budget], source=getattr(self._function, "__name__", "function"))

    def fork(self) -> Self:
        return copy.copy(self)

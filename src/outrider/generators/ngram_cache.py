"""Continue the context as texts of earlier requests were continued."""

from __future__ import annotations

from typing import Self, final

import numpy as np

from outrider.contract import CandidateGenerator
from outrider.index.memory import Memory
from outrider.types import Candidates, Context, Ids, Verification


@final
class Generator(CandidateGenerator):
    """Suffix statistics of the finished sequences of one namespace.

    A sequence enters the memory when the next one begins (or at `flush`). Cost per step: O(budget).
    State: this sequence's ids. Kept and shared: the memory.

    **Arguments:**

    - `memory`: Where sequences are kept; None begins an empty one that lives with this object.
    - `max_nodes`: Most candidates a round.
    - `prompts`: Keep prompts as well as outputs.
    - `eos_token_ids`: Nothing is proposed after one of these.
    """

    def __init__(
        self,
        *,
        memory: Memory | None = None,
        max_nodes: int = 60,
        prompts: bool = False,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.memory = Memory("default") if memory is None else memory
        self.max_nodes = max_nodes
        self.prompts = prompts
        self.eos_token_ids = eos_token_ids
        self._ids: list[Ids] = []

    def flush(self) -> None:
        """Put the sequence so far into the memory."""
        if self._ids:
            self.memory.add(np.concatenate(self._ids))
        self._ids = []

    def reset(self, prompt: Ids) -> None:
        self.flush()
        if self.prompts and prompt.size:
            self._ids.append(prompt.copy())

    def propose(self, context: Context, budget: int) -> Candidates:
        most = min(budget, self.max_nodes)
        if most <= 0 or not context.ids.size:
            return Candidates.empty()
        tree = self.memory.tree(context.ids, most, stop_tokens=self.eos_token_ids)
        return Candidates(tree.tokens, tree.parents, tree.probabilities)

    def update(self, verification: Verification) -> None:
        self._ids.append(verification.committed)

    def fork(self) -> Self:
        return type(self)(
            memory=self.memory,
            max_nodes=self.max_nodes,
            prompts=self.prompts,
            eos_token_ids=self.eos_token_ids,
        )

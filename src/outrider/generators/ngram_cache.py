"""Continue the context as texts of earlier requests were continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, final

import numpy as np

from outrider.contract import CandidateGenerator
from outrider.index.memory import Memory
from outrider.index.suffix import WIDTH
from outrider.types import Candidates, Context, Ids, Verification

_LEAST_MASS = 0.3


@final
class Generator(CandidateGenerator):
    """Suffix statistics of the finished sequences of one namespace.

    A sequence enters the memory, and the memory its file, when the next one begins, or at `flush`; the
    command line flushes at its end. Cost per step: O(budget).
    State: this sequence's ids. Kept and shared: the memory.

    **Arguments:**

    - `memory`: Where sequences are kept: a `Memory`, or a file, made where there is none. None begins an
        empty one that lives with this object.
    - `namespace`: Whose texts these are; a file of another one is refused.
    - `max_nodes`: Most candidates a round.
    - `prompts`: Keep prompts as well as outputs.
    - `vocab_size`: The target's. With it candidates are one chain, drawn from what the counts say, and carry
        that law: for sampling with `verification="block"` or another rule that asks for it.
    - `tokenizer`: The target's, to refuse a file of another one; the command line passes it.
    - `eos_token_ids`: Nothing is proposed after one of these.
    """

    def __init__(
        self,
        *,
        memory: Memory | str | Path | None = None,
        namespace: str = "default",
        max_nodes: int = 60,
        prompts: bool = False,
        vocab_size: int | None = None,
        tokenizer: Any = None,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self._path = Path(memory) if isinstance(memory, str | Path) else None
        if isinstance(memory, Memory):
            self.memory = memory
        elif self._path is not None:
            self.memory = Memory.open(self._path, namespace, tokenizer=tokenizer)
        else:
            self.memory = Memory(namespace, tokenizer=tokenizer or "")
        self.max_nodes = max_nodes
        self.prompts = prompts
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self._ids: list[Ids] = []

    def flush(self) -> None:
        """Put the sequence so far into the memory, and the memory into its file."""
        if self._ids:
            self.memory.add(np.concatenate(self._ids))
            if self._path is not None:
                self.memory.save(self._path)
        self._ids = []

    def reset(self, prompt: Ids) -> None:
        self.flush()
        if self.prompts and prompt.size:
            self._ids.append(prompt.copy())

    def propose(self, context: Context, budget: int) -> Candidates:
        most = min(budget, self.max_nodes)
        if most <= 0 or not context.ids.size:
            return Candidates.empty()
        if self.vocab_size is not None:
            return self._drawn(context, most, self.vocab_size)
        tree = self.memory.tree(context.ids, most, stop_tokens=self.eos_token_ids)
        return Candidates(tree.tokens, tree.parents, tree.probabilities)

    def _drawn(self, context: Context, most: int, vocab_size: int) -> Candidates:
        """A chain drawn token by token; it ends where the counts know too little, whatever was drawn."""
        import torch  # only where a law is asked for: the rest of this file runs without

        ids, tokens = context.ids[-WIDTH * 2 :], list[int]()
        chances: list[float] = []
        rows = torch.full((most, vocab_size), -torch.inf)
        while len(tokens) < most and not (tokens and tokens[-1] in self.eos_token_ids):
            known = self.memory.tree(ids, WIDTH, max_depth=1, least=1e-6)
            inside = known.tokens < vocab_size
            mass = float(known.probabilities[inside].sum())
            if mass < _LEAST_MASS:
                break
            row = rows[len(tokens) : len(tokens) + 1]
            row[0, known.tokens[inside]] = torch.tensor(known.probabilities[inside] / mass).log()
            position = context.ids.size + len(tokens)
            token = context.draw(row, position) if context.draw else int(row.argmax())
            tokens.append(token)
            chances.append(mass * float(row[0, token].exp()))
            ids = np.append(ids, token)
        return Candidates.chain(tokens, chances, rows[: len(tokens)] if tokens else None)

    def update(self, verification: Verification) -> None:
        self._ids.append(verification.committed)

    def fork(self) -> Self:
        other = type(self)(
            memory=self.memory,
            max_nodes=self.max_nodes,
            prompts=self.prompts,
            vocab_size=self.vocab_size,
            eos_token_ids=self.eos_token_ids,
        )
        other._path = self._path
        return other

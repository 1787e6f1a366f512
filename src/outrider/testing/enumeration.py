"""Every outcome of an accept rule, with its probability: the proof by exhaustion.

The rules take their coins and draws from one object (`Chance`). `outcomes` runs a rule once for every way
those can fall. On a toy model with a vocabulary of three to five that gives the law of what is
committed to 1e-12, with no sampling.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessorList

from outrider.types import Candidates
from outrider.verification.chance import Chance
from outrider.verification.step import Row, Stopping, Verifier

T = TypeVar("T")
Tokens = tuple[int, ...]
Law = dict[Tokens, float]
Rule = Callable[[Chance], Verifier]


class _Scripted:
    """Follows a script of decisions, then takes the first possible branch and notes the others."""

    def __init__(self, script: list[int]) -> None:
        self._script, self._at = script, 0
        self.weight = 1.0
        self.untried: list[list[int]] = []

    def _decide(self, chances: Sequence[float]) -> int:
        if self._at == len(self._script):
            possible = [branch for branch, chance in enumerate(chances) if chance > 0.0]
            self.untried += [[*self._script, branch] for branch in possible[1:]]
            self._script = [*self._script, possible[0]]
        branch = self._script[self._at]
        self._at += 1
        self.weight *= chances[branch]
        return branch

    def flip(self, chance: float) -> bool:
        return self._decide([1.0 - chance, chance]) == 1

    def pick(self, probabilities: Tensor) -> int:
        return self._decide(probabilities.tolist())


def outcomes(run: Callable[[Chance], T]) -> Iterator[tuple[T, float]]:
    """Each result of `run`, with the probability of the coins that led to it."""
    waiting: list[list[int]] = [[]]
    while waiting:
        chance = _Scripted(waiting.pop())
        result = run(chance)
        waiting += chance.untried
        yield result, chance.weight


@dataclass
class ToyModel:
    """A language model that is a table: random logits, of its own for every prefix.

    **Arguments:**

    - `vocab`: How many tokens.
    - `seed`: Which table.
    - `spread`: Standard deviation of the logits.
    - `forbidden`: Share of the tokens that are impossible (-inf) at each prefix.
    """

    vocab: int
    seed: int = 0
    spread: float = 1.5
    forbidden: float = 0.0
    _table: dict[Tokens, Tensor] = field(default_factory=dict, repr=False)

    def logits(self, prefix: Tokens) -> Tensor:
        """(V,) float32."""
        if prefix not in self._table:
            number = self.seed
            for token in prefix:
                number = (number * 1_000_003 + token + 1) % 2**61
            random = torch.Generator().manual_seed(number)
            logits = torch.randn(self.vocab, generator=random) * self.spread
            hidden = torch.rand(self.vocab, generator=random) < self.forbidden
            hidden[int(logits.argmax())] = False
            self._table[prefix] = logits.masked_fill(hidden, -torch.inf)
        return self._table[prefix]

    def law(self, prefix: Tokens) -> Tensor:
        """(V,) float64 probabilities."""
        return self.logits(prefix).double().softmax(-1)

    def joint_law(self, length: int, prefix: Tokens = ()) -> Law:
        """Probability of every text of `length` tokens after `prefix`."""
        law: Law = {(): 1.0}
        for _ in range(length):
            law = {
                (*text, token): weight * float(chance)
                for text, weight in law.items()
                for token, chance in enumerate(self.law(prefix + text))
                if chance > 0
            }
        return law

    def tree_logits(self, candidates: Candidates, prefix: Tokens = ()) -> Tensor:
        """(n+1, V) float32: what a forward over the tree gives."""
        texts = [prefix]
        for token, parent in zip(candidates.tokens.tolist(), candidates.parents.tolist(), strict=True):
            texts.append((*texts[parent + 1], token))
        return torch.stack([self.logits(text) for text in texts])


def drafts(
    model: ToyModel, parents: Sequence[int], *, replace: bool = False
) -> Iterator[tuple[Candidates, float]]:
    """Every tree of this shape that `model` can draw, with its probability.

    **Arguments:**

    - `parents`: The shape; see `Candidates`.
    - `replace`: Siblings drawn independently; else without replacement, in order.
    """

    def extend(tokens: list[int], laws: list[Tensor], weight: float) -> Iterator[tuple[Candidates, float]]:
        node = len(tokens)
        if node == len(parents):
            ids = torch.tensor(tokens).numpy()
            yield Candidates(ids, torch.tensor(parents).numpy(), draft_logits=torch.stack(laws).log()), weight
            return
        text: list[int] = []
        at = parents[node]
        while at >= 0:
            text.insert(0, tokens[at])
            at = parents[at]
        law = model.law(tuple(text)).clone()
        for sibling in range(0 if replace else node):
            if not replace and parents[sibling] == parents[node]:
                law[tokens[sibling]] = 0
        if not float(law.sum()) > 0:
            return
        law /= law.sum()
        for token, chance in enumerate(law.tolist()):
            if chance > 0:
                yield from extend([*tokens, token], [*laws, law], weight * chance)

    return extend([], [], 1.0)


def committed_law(
    rule: Rule, target: ToyModel, trees: Iterator[tuple[Candidates, float]], length: int
) -> tuple[Law, float]:
    """The law of the first `length` tokens that a rule commits, and the mean number of accepted ones.

    What a round leaves short is filled up by the target itself. `rule(chance)` makes the verifier.
    """
    law: Law = defaultdict(float)
    accepted = 0.0
    for candidates, drawn in trees:
        logits = target.tree_logits(candidates)

        def run(chance: Chance, candidates: Candidates = candidates, logits: Tensor = logits) -> Any:
            row = Row(torch.zeros(1, 1, dtype=torch.long), LogitsProcessorList(), Stopping([]))
            path = rule(chance).verify(row, candidates, logits)
            return tuple(row.ids[1:].tolist()), len(path)

        for (text, num_accepted), weight in outcomes(run):
            accepted += drawn * weight * num_accepted
            for rest, chance in target.joint_law(max(0, length - len(text)), text).items():
                law[(*text, *rest)[:length]] += drawn * weight * chance
    return dict(law), accepted


def distance(a: Law, b: Law) -> float:
    """Total variation between two laws."""
    return 0.5 * sum(abs(a.get(text, 0.0) - b.get(text, 0.0)) for text in {*a, *b})

"""Several sources, one tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, final

import numpy as np

from outrider.contract import CandidateGenerator, get
from outrider.errors import OptionError
from outrider.types import Candidates, Context, Ids, Verification


def merge(trees: Mapping[str, Candidates], budget: int) -> Candidates:
    """One tree of all; equal paths are one node, whose chances combine as 1 - prod(1 - p).

    The likeliest paths fill the budget, parents before children. A node's source names all who proposed it,
    joined by "+". A source without probabilities counts as 0.5 a token.
    """
    children: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    misses: list[float] = []
    sources: list[str] = []
    for name, tree in trees.items():
        own = np.full(len(tree), 0.5) if tree.probabilities is None else tree.probabilities
        place: list[int] = []
        for token, parent, chance in zip(
            tree.tokens.tolist(), tree.parents.tolist(), own.tolist(), strict=True
        ):
            above = place[parent] if parent >= 0 else -1
            node = children.setdefault((above, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(above)
                misses.append(1.0)
                sources.append(name)
            elif name not in sources[node].split("+"):
                sources[node] += "+" + name
            misses[node] *= 1.0 - min(chance, 0.999)
            place.append(node)
    if not tokens:
        return Candidates.empty()
    merged = Candidates(
        np.array(tokens, np.int64),
        np.array(parents, np.int64),
        np.array(1.0 - np.array(misses), np.float32),
        sources=tuple(sources),
    )
    order = np.argsort(-merged.path_probabilities(), kind="stable")  # a child is never before its parent
    if order.size <= budget:
        return merged
    return merged.keep(np.sort(order[:budget]))


@final
class Generator(CandidateGenerator):
    """All sources propose, each for the whole budget; all learn from every committed token.

    Cost per step: the sum of the sources', and O(their candidates). State: the sources'.

    **Arguments:**

    - `generators`: Names or generators; or a mapping from a source's name to a generator.
    """

    def __init__(
        self, generators: Any = ("suffix", "token_recycling"), *, eos_token_ids: tuple[int, ...] = ()
    ) -> None:
        named: dict[str, CandidateGenerator] = dict(generators) if isinstance(generators, Mapping) else {}
        if not named:
            for item in generators:
                name = item if isinstance(item, str) else type(item).__module__.rsplit(".", 1)[-1]
                part: Any = item
                if isinstance(item, str):
                    cls: Any = get(item)
                    part = cls(eos_token_ids=eos_token_ids) if eos_token_ids else cls()
                named[name if name not in named else f"{name}-{len(named)}"] = part
        if not named:
            raise OptionError("composite needs at least one generator; pass names or generators")
        self.eos_token_ids = eos_token_ids
        self.generators: dict[str, CandidateGenerator] = named
        self.needs = frozenset().union(*(part.needs for part in self.generators.values()))  # type: ignore[misc]

    def reset(self, prompt: Ids) -> None:
        for part in self.generators.values():
            part.reset(prompt)

    def propose(self, context: Context, budget: int) -> Candidates:
        return merge({name: part.propose(context, budget) for name, part in self.generators.items()}, budget)

    def update(self, verification: Verification) -> None:
        for part in self.generators.values():
            part.update(verification)

    def fork(self) -> Self:
        return type(self)(
            {name: part.fork() for name, part in self.generators.items()}, eos_token_ids=self.eos_token_ids
        )

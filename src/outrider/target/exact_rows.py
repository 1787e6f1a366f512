"""A target's forwards made exact, as far as a model and a machine allow it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, final

from torch import Tensor
from transformers import PreTrainedModel

from outrider.caches.in_place import InPlaceCache
from outrider.target.exact_attention import BLOCK, Aligned, Apart, Runs, attended_configs, attending
from outrider.types import Candidates

Kind = Literal["transformers", "generators"]

# The stronger first.
KINDS: tuple[Kind, ...] = ("transformers", "generators")


@dataclass(frozen=True, slots=True)
class Exactness:
    """What one kind of exactness is on this machine.

    **Arguments:**

    - `max_rows`: Tokens that a forward may hold; all smaller numbers were tried too. 1 where it can't be had.
    - `group`: Keys that calls of `Apart` are grouped by.
    - `takes_trees`: Whether a tree's tokens have the bits of their paths' too.
    - `prices`: Time of a forward over 9 tokens so, over its usual time, by tokens of context; of which one is a
        branch where it takes trees.
    - `reason`: Why no more tokens, in words that follow "since".
    - `complete`: Whether time did not cut the trial short.
    """

    max_rows: int
    group: int = 1
    takes_trees: bool = False
    prices: dict[int, float] | None = None
    reason: str = ""
    complete: bool = True

    def price(self, context: int) -> float:
        """The price at a context, on a line through what was measured."""
        if not self.prices:
            return 1.0
        (short, low), (long, high) = sorted(self.prices.items())
        return low + (high - low) * (min(context, 4 * long) - short) / (long - short)


@final
class ExactRows:
    """Makes a target's forwards exact.

    **Arguments:**

    - `model`, `kind`: What was found for them is `found`.
    """

    def __init__(self, model: PreTrainedModel, kind: Kind, found: Exactness) -> None:
        self.kind = kind
        self.max_rows = found.max_rows
        self.takes_trees = found.takes_trees
        self._group = found.group
        self._device = model.device
        self._configs = attended_configs(model)

    def around(
        self, cache: Any, candidates: Candidates, padding: Tensor | None = None
    ) -> AbstractContextManager[None]:
        """What a forward over the last committed token and its candidates must run in.

        **Arguments:**

        - `cache`: As it is before the forward.
        - `padding`: (1, >= tokens after the forward) bool, where some of the prompt must not be seen.
        """
        num_past, runs = int(cache.get_seq_length()), Runs.of(candidates, self._device)
        if self.kind == "generators":
            return self._aligned(cache, Aligned(num_past, padding, runs))
        if not len(candidates):
            return nullcontext()
        return attending(self._configs, Apart(num_past, padding, runs, self._group))

    @contextmanager
    def _aligned(self, cache: InPlaceCache, attention: Aligned) -> Iterator[None]:
        cache.show_multiples_of(BLOCK)
        try:
            with attending(self._configs, attention):
                yield
        finally:
            cache.show_multiples_of(1)

"""The half of a round that needs no model: asking a generator, cutting what it proposes, timing. Free of torch."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Self

import numpy as np

from outrider.contract import CandidateGenerator
from outrider.control import Controller
from outrider.errors import GeneratorError, OutriderError
from outrider.stats import Stats
from outrider.types import Candidates, Context, Ids

_NO_IDS: Ids = np.empty(0, np.int64)


def propose(
    generator: CandidateGenerator,
    context: Context,
    budget: int,
    controller: Controller,
    *,
    vocab_size: int,
    trees: bool,
) -> Candidates:
    """Ask the generator, and cut what it proposes to what can be verified and what pays.

    **Arguments:**

    - `context`: Its placeholders are dropped, with what hangs under them, unless they were drawn at random.
    - `budget`: The most candidates; where it is not positive the generator is not asked.
    - `controller`: Cuts what was not drawn at random.
    - `vocab_size`: Other ids are dropped, with what hangs under them.
    - `trees`: Whether a tree can be verified; else its best chain is taken, or its first where it was drawn.

    **Raises:** `GeneratorError` that names the generator.
    """
    if budget <= 0:
        return Candidates.empty()
    proposed = ask(generator, "propose", context, budget)
    if not isinstance(proposed, Candidates):
        raise GeneratorError(
            f"{_name(generator)} proposed a {type(proposed).__name__}, not Candidates; return Candidates"
        )
    is_drawn = proposed.draft_logits is not None
    candidates = proposed
    if not trees:
        candidates = proposed.first_chain() if is_drawn else proposed.best_chain()
    barred = _NO_IDS if is_drawn else context.placeholders
    candidates = _possible(candidates, vocab_size, context.max_new_tokens - 1, barred)
    if is_drawn:
        # What was drawn may be cut by number alone: a choice by its ids would bend the law.
        return candidates.keep(range(min(len(candidates), budget)))
    return controller.trim(candidates)


def _possible(candidates: Candidates, vocab_size: int, room: int, barred: Ids) -> Candidates:
    """Drop what cannot be accepted: ids outside the vocabulary or barred, and nodes below the last position left."""
    if not len(candidates):
        return candidates
    tokens = candidates.tokens
    if len(candidates) <= room and tokens.min() >= 0 and tokens.max() < vocab_size and not barred.size:
        return candidates
    outside = (tokens < 0) | (tokens >= vocab_size) | (tokens[:, None] == barred).any(1)
    kept = np.zeros(len(candidates) + 1, bool)
    kept[-1] = True
    for node, parent in enumerate(candidates.parents):
        kept[node] = kept[parent] and not outside[node]
    return candidates.keep(np.flatnonzero(kept[:-1] & (candidates.depths() <= room)))


def ask(generator: CandidateGenerator, method: str, *arguments: Any) -> Any:
    """Call the generator; whatever it raises names it, and is one error."""
    try:
        return getattr(generator, method)(*arguments)
    except OutriderError:
        raise
    except Exception as error:
        raise GeneratorError(
            f"{_name(generator)} raised {type(error).__name__} in {method}(): {error}; "
            "nothing of the model was changed"
        ) from error


def _name(generator: CandidateGenerator) -> str:
    cls = type(generator)
    return f"candidate generator {cls.__module__}.{cls.__qualname__}"


def source_name(generator: CandidateGenerator) -> str:
    """The generator's registered name, or its class's."""
    cls = type(generator)
    return cls.__module__.rsplit(".", 1)[-1] if cls.__name__ == "Generator" else cls.__name__


class Clock:
    """Seconds of a round by phase; what no phase claims is "other".

    **Arguments:**

    - `marks`: Has `range_push(name)` and `range_pop()`, which a profiler shows; None marks nothing.
    """

    def __init__(self, marks: Any = None) -> None:
        self._marks = marks
        self._spent: dict[str, float] = {}
        self._began = perf_counter()
        self._phase = ""
        self._since = 0.0

    def __call__(self, phase: str) -> Self:
        self._phase = phase
        return self

    def __enter__(self) -> None:
        if self._marks is not None:
            self._marks.range_push(f"outrider.{self._phase}")
        self._since = perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._marks is not None:
            self._marks.range_pop()
        self._spent[self._phase] = self._spent.get(self._phase, 0.0) + perf_counter() - self._since

    @property
    def draft_s(self) -> float:
        return self._spent.get("draft", 0.0)

    @property
    def target_s(self) -> float:
        """Seconds of this round's target forward; 0 in the round of the prompt."""
        return self._spent.get("target", 0.0)

    def spend(self, stats: Stats) -> None:
        """Add the round to `stats`, and begin the next."""
        now = perf_counter()
        for phase, seconds in self._spent.items():
            setattr(stats, f"{phase}_s", getattr(stats, f"{phase}_s") + seconds)
        stats.other_s += now - self._began - sum(self._spent.values())
        self._spent.clear()
        self._began = now

"""The one public base class of candidate generators, and the registry of their names.

A generator's name is its file's name in `outrider/generators/`, or the name under which another package
registers it in the entry-point group `outrider.generators`.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.metadata
import pkgutil
from abc import ABC
from typing import Any, ClassVar, Self

from outrider.errors import UnknownNameError
from outrider.types import Candidates, Context, Ids, Need, Verification

ENTRY_POINT_GROUP = "outrider.generators"


class CandidateGenerator(ABC):  # noqa: B024 - one of two method pairs is required, see __init_subclass__
    """Proposes tokens that the target then verifies. It can be wrong; it cannot make the text wrong.

    A subclass brings `propose` (and, if it learns, `reset` and `update`), or the pair of transformers'
    own contract, `get_candidates` and `update_candidate_strategy`, which is bridged.

    One object serves one sequence at a time, from `reset` to the next `reset`. For a batch the loop
    calls `fork()` once a row.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.propose is CandidateGenerator.propose and not hasattr(cls, "get_candidates"):
            raise TypeError(
                f"{cls.__name__} must define propose(context, budget), or get_candidates(input_ids)"
            )

    def reset(self, prompt: Ids) -> None:  # noqa: B027
        """Begin a new sequence. `prompt` is (L,) int64. Forget the last sequence's state."""

    def propose(self, context: Context, budget: int) -> Candidates:
        """Return at most `budget` candidates to follow `context.ids`. More are cut off."""
        raise NotImplementedError

    def update(self, verification: Verification) -> None:  # noqa: B027
        """Learn what the round brought. Called once a round, after its tokens are committed."""

    def fork(self) -> Self:
        """A generator for another sequence: shares what is kept across sequences, owns the rest.

        The default copies deeply. Override it where something is to be shared (a model, a memory).
        """
        return copy.deepcopy(self)


def _builtin_names() -> list[str]:
    package = importlib.import_module("outrider.generators")
    return [
        module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")
    ]


def available() -> list[str]:
    """Names that `get` knows, sorted."""
    entry_points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    return sorted({*_builtin_names(), *(point.name for point in entry_points)})


def get(name: str) -> type[CandidateGenerator]:
    """The generator class registered as `name`.

    A built-in module exports its class as `Generator`.

    **Raises:** `UnknownNameError`, which suggests the nearest name.
    """
    if name in _builtin_names():
        cls: type[CandidateGenerator] = importlib.import_module(f"outrider.generators.{name}").Generator
        return cls
    for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            loaded: type[CandidateGenerator] = point.load()
            return loaded
    near = difflib.get_close_matches(name, available(), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(available())}."
    raise UnknownNameError(f"there is no candidate generator named {name!r}; {hint}")

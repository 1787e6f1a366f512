"""From what a user of an engine writes to a generator that needs token ids alone. Free of torch."""

from __future__ import annotations

import inspect
from typing import Any

from outrider.choosing import make_generator, parse_spec
from outrider.contract import CandidateGenerator, get
from outrider.errors import OptionError
from outrider.types import HiddenStates, Need, Scores, TargetInputs, TopLogits

DEFAULT = "suffix"

_NEEDS: dict[type[Need], str] = {
    TopLogits: "the target's logits",
    Scores: "the target's scores",
    HiddenStates: "the target's hidden states",
    TargetInputs: "the target's own forward",
}
# Options that bring a second source where the generator does not take them itself.
_SOURCES = {"memory": "ngram_cache", "namespace": "ngram_cache", "corpus": "corpus"}


def generator_for(engine: str, spec: Any = None, **options: Any) -> CandidateGenerator:
    """A generator that can run inside `engine`.

    **Arguments:**

    - `engine`: The engine's name, for messages.
    - `spec`: `NAME:key=value,...` or `FILE.py:key=value,...`, or a generator, its class, or a function from
        ids to the ids that may follow; None or "" is `DEFAULT`. Any generator takes `memory=FILE` (texts of
        earlier requests, kept in that file), `namespace=NAME` (whose texts they are; without a file they
        live with the generator) and `corpus=FILE`: these join its tree.
    - `options`: Further options, as if written after the colon.

    **Raises:** `UnknownNameError`; `OptionError` for an option it does not take, for a package it misses,
    or where it needs more than token ids, which the engine does not show.
    """
    if spec is None or spec == "":
        spec = DEFAULT
    name = spec if isinstance(spec, str) else type(spec).__name__
    if isinstance(spec, str):
        spec, written = parse_spec(spec)
        options = {**written, **options}
    try:
        generator = _with_sources(spec, options)
    except ModuleNotFoundError as error:
        raise OptionError(
            f"candidate generator {name!r} needs the package {error.name}, which is not installed beside "
            f"{engine}; install it, or use {DEFAULT!r}"
        ) from error
    except (TypeError, OSError) as error:
        raise OptionError(
            f"candidate generator {name!r} cannot be made, since an option's value does not fit: {error}"
        ) from error
    for need in generator.needs:
        raise OptionError(
            f"candidate generator {name!r} needs {_NEEDS[type(need)]}, which {engine} does not show to it; "
            f"use one that needs token ids alone, such as {DEFAULT!r}"
        )
    return generator


def _with_sources(spec: Any, options: dict[str, Any]) -> CandidateGenerator:
    """The generator, in one tree with the sources that its options name."""
    cls = get(spec) if isinstance(spec, str) else spec
    taken = inspect.signature(cls).parameters if inspect.isclass(cls) else {}
    beside: dict[str, dict[str, Any]] = {}
    for option in [option for option in options if option in _SOURCES and option not in taken]:
        beside.setdefault(_SOURCES[option], {})[option] = options.pop(option)
    generator = make_generator(spec, **options)
    if not beside:
        return generator
    parts = {source: make_generator(source, **given) for source, given in beside.items()}
    own = spec if isinstance(spec, str) else type(generator).__name__
    return make_generator("composite", generators={own: generator, **parts})

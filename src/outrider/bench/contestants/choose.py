"""From the names on the command line to contestants."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from outrider.bench.contestants import Way
from outrider.bench.contestants.local import OutriderWay, TransformersWay
from outrider.bench.contestants.process import ENGINES, ProcessWay
from outrider.choosing import parse_spec
from outrider.errors import OptionError


def split_names(text: str) -> list[str]:
    """Names of a comma-separated list; `key=value` after a comma belongs to the name before it."""
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if names and re.fullmatch(r"\w+=[^:]*", part):
            names[-1] += ("," if ":" in names[-1] else ":") + part
        else:
            names.append(part)
    return names


def make_ways(
    generators: Sequence[str],
    baselines: Sequence[str],
    model: Any,
    *,
    model_name: str,
    tokenizer: Any = None,
    seed: int = 0,
    keep: bool = False,
) -> list[Way]:
    """The contestants, baselines first; the first of all is what the others are compared with.

    A name is a candidate generator's (`parse_spec`), or an engine's: "transformers" with options of
    `model.generate()`, or one of `ENGINES`, which runs in a process of its own.

    **Raises:** `OptionError` for an unknown or repeated name, or an option that cannot be.
    """
    ways: list[Way] = []
    for name, is_baseline in [(n, True) for n in baselines] + [(n, False) for n in generators]:
        if name in [way.contestant.name for way in ways]:
            raise OptionError(f"{name!r} is asked for twice; name each contestant once")
        engine = name.partition(":")[0]
        if engine in ENGINES or engine == "transformers":
            _, options = parse_spec(name)
            if engine == "transformers":
                ways.append(TransformersWay(name, is_baseline, model, options))
            else:
                ways.append(ProcessWay(name, is_baseline, engine, model_name, model, options))
        else:
            spec, options = parse_spec(name)
            ways.append(
                OutriderWay(
                    name, is_baseline, model, spec, options, tokenizer=tokenizer, seed=seed, keep=keep
                )
            )
    if not ways:
        raise OptionError("there is nobody to measure; name generators with --generators")
    return ways

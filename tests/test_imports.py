"""What loads without torch, so that the help is quick and engines need no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "outrider",
        "outrider.types",
        "outrider.errors",
        "outrider.contract",
        "outrider.index",
        "outrider.cli",
        "outrider.engines.llama_cpp",
        "outrider.engines.sglang",
        "outrider.engines.vllm",
        "outrider.engines._vllm_server",
    ],
)
def test_no_torch_is_loaded(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "[]", result.stderr

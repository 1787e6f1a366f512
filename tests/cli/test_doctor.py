"""`outrider doctor`: times, the check, paths and their reasons, largest speedups."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from outrider.cli import app
from outrider.target import kept
from outrider.target.paths import exact_paths, paths
from tests.tiny import build, tiny


def saved(name: str, folder: Path) -> str:
    build(name).save_pretrained(folder)
    words = Tokenizer(WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    return str(folder)


def test_doctor_tells_times_paths_and_speedups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path / "cache")
    result = CliRunner().invoke(app, ["doctor", saved("llama", tmp_path / "llama")])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    sizes = [line.split()[0] for line in lines if re.match(r" \d+ +\d+\.\d+ +\d+\.\d+", line)]
    assert sizes == ["1", "2", "4", "8", "16", "32", "64"]
    assert "only rounding" in result.output
    assert any(line.split()[:2] == ["tree", "yes"] for line in lines)
    assert {"exact=transformers", "exact=generators"} <= {line.split()[0] for line in lines if line.strip()}
    (six,) = (line.split() for line in lines if line.split()[:1] == ["6"])
    assert six[1:3] == ["-", "-"] and six[3].endswith("x")
    assert list((tmp_path / "cache").rglob("forward_times/*.json"))


@pytest.mark.parametrize(
    ("name", "tree", "why"),
    [
        ("llama", True, "over its path"),
        ("bloom", False, "slot"),
        ("gpt_neo", False, "inside the layer"),
        ("lfm2", False, "follows one path"),
    ],
)
def test_paths_are_those_that_a_model_gets(name: str, tree: bool, why: str) -> None:
    found = {path.name: path for path in paths(tiny(name))}
    assert found["chain"].taken
    assert found["tree"].taken is tree and why in found["tree"].why


@pytest.mark.parametrize(("name", "why"), [("lfm2", "recurrent state"), ("bloom", "attention")])
def test_a_model_that_cannot_be_exact_is_told_why(name: str, why: str) -> None:
    assert all(not path.taken and why in path.why for path in exact_paths(tiny(name)))


def test_a_model_that_does_not_exist_is_one_sentence() -> None:
    result = CliRunner().invoke(app, ["doctor", "/nowhere"])
    assert result.exit_code == 2 and "Traceback" not in result.output

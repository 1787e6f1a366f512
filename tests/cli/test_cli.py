"""The command line on a tiny model in a folder: what a user sees, right and wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.bench.records import write_line
from outrider.cli import app
from tests.report.results import results


def run(*arguments: str, given: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_text_is_the_same_with_every_source_of_a_prompt(folder: str, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("a b c a b c a b")
    common = ("generate", "--model", folder, "--max-new-tokens", "12")
    outputs = [
        run(*common, "--generator", "none", "--prompt", "a b c a b c a b"),
        run(*common, "--generator", "prompt_lookup:num_tokens=3", "--file", str(prompt)),
        run(*common, "--generator", "prompt_lookup", given="a b c a b c a b"),
        run(*common, "--generator", "suffix", "--prompt", "-", given="a b c a b c a b"),
    ]
    assert all(status == 0 for status, _ in outputs)
    texts = {output.split("\n")[0] for _, output in outputs}
    assert len(texts) == 1 and texts != {""}


def test_compare_shows_three_ways_and_that_texts_agree(folder: str) -> None:
    status, output = run(
        "generate", "--model", folder, "--compare", "--generator", "prompt_lookup", "--prompt", "a b a b a b",
        "--max-new-tokens", "16",
    )  # fmt: skip
    assert status == 0
    for expected in (
        "transformers",
        "outrider, drafting nothing",
        "outrider, prompt_lookup",
        "MAT",
        "speedup",
    ):
        assert expected in output
    assert output.count("yes") == 3


def test_a_generator_from_a_file(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from outrider import CandidateGenerator, Candidates\n"
        "class Mine(CandidateGenerator):\n"
        "    def propose(self, context, budget):\n"
        "        return Candidates.chain([2, 3][:budget])\n"
    )
    status, _ = run(
        "generate", "--model", folder, "--prompt", "a b", "--generator", str(path), "--max-new-tokens", "4"
    )
    assert status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--generator", "prompt_lokup", "--prompt", "a"), "did you mean 'prompt_lookup'?"),
        (("--generator", "prompt_lookup:tokens=3", "--prompt", "a"), "num_tokens"),
        (("--generator", "prompt_lookup:3", "--prompt", "a"), "is no option"),
        (("--generator", "missing.py", "--prompt", "a"), "there is no file"),
        (("--prompt", ""), "the prompt is empty"),
        (("--prompt", "a", "--file", "b"), "pass one of them"),
        (("--file", "missing.txt"), "there is no file"),
        (("--prompt", "a", "--dtype", "int3"), "--dtype must be one of"),
        (("--prompt", "a", "--temperature", "-1"), "must not be negative"),
    ],
)
def test_wrong_input_is_one_sentence(folder: str, arguments: tuple[str, ...], said: str) -> None:
    status, output = run("generate", "--model", folder, "--max-new-tokens", "2", *arguments)
    assert status == 2
    assert said in output
    assert "Traceback" not in output


def test_a_missing_model_ends_without_a_traceback(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "outrider.cli",
        "generate",
        "--model",
        str(tmp_path / "none"),
        "--prompt",
        "a",
    ]
    result = subprocess.run(
        command, capture_output=True, text=True, env={"HF_HUB_OFFLINE": "1", "PATH": ""}, timeout=120
    )
    assert result.returncode == 2
    assert "cannot be loaded" in result.stderr and "Traceback" not in result.stderr


def test_a_trace_is_shown_kept_and_shown_again(folder: str, tmp_path: Path) -> None:
    kept, page = tmp_path / "kept.jsonl", tmp_path / "page.html"
    status, output = run(
        "trace", "--model", folder, "--prompt", "a b c a b c a b", "--generator", "prompt_lookup",
        "--max-new-tokens", "12", "--out", str(kept),
    )  # fmt: skip
    assert status == 0 and "MAT" in output and "prompt_lookup" in output
    status, again = run("trace", "show", str(kept), "--html", str(page))
    assert status == 0 and again.startswith(output.split("\n")[0])
    assert "</html>" in page.read_text()
    status, tree = run("trace", "show", str(kept), "--round", "1")
    assert status == 0 and "Round 1" in tree and "the target" in tree


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--prompt", "a"), "there is no model"),
        (("show", "missing.jsonl"), "cannot be read"),
        (("--model", "FOLDER", "--prompt", "a", "--out", "/missing/folder/file"), "cannot be written"),
        (("--model", "FOLDER", "--prompt", "a", "--max-new-tokens", "2", "--round", "9"), "--round must lie"),
    ],
)
def test_a_trace_that_cannot_be_is_one_sentence(folder: str, arguments: tuple[str, ...], said: str) -> None:
    status, output = run("trace", *(folder if part == "FOLDER" else part for part in arguments))
    assert status == 2 and said in " ".join(output.split())


def test_a_report_is_a_page_pictures_and_markdown(tmp_path: Path) -> None:
    held = results(per_category=1, categories=("chat", "math"))
    kept = tmp_path / "kept.jsonl"
    with kept.open("w") as file:
        for line in (held.header, *held.measurements):
            write_line(file, line)
    page, table, folder = tmp_path / "page.html", tmp_path / "table.md", tmp_path / "pictures"
    status, output = run("report", str(kept), "--out", str(page), "--md", str(table), "--png", str(folder))
    assert status == 0 and "times as fast with auto" in " ".join(output.split())
    assert "</html>" in page.read_text() and "| auto |" in table.read_text()
    assert (folder / "speedup.png").exists()
    with kept.open("a") as file:
        file.write("{\n")
    status, output = run("report", str(kept), "--out", str(tmp_path / "none.html"))
    assert status == 2 and "line 10" in " ".join(output.split()) and not (tmp_path / "none.html").exists()


def test_generators_lists_every_name() -> None:
    from outrider import available

    status, output = run("generators")
    assert status == 0
    assert all(name in output for name in available())


def test_chat_answers_until_the_input_ends(folder: str) -> None:
    status, output = run("chat", "--model", folder, given="a b\n")
    assert status == 2 and "has no chat template" in output


def test_memory_build_info_merge_and_use(folder: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.txt").write_text("a b c d e f g h " * 20)
    (tmp_path / "docs" / "two.bin").write_bytes(b"\0\1")
    out = tmp_path / "docs.corpus"
    status, output = run(
        "memory", "build", str(tmp_path / "docs"), "--tokenizer", folder, "--out", str(out), "--part-tokens", "50"
    )  # fmt: skip
    assert status == 0 and "161 tokens of 1 files" in output
    status, output = run("memory", "info", str(out), "--tokenizer", folder)
    assert status == 0 and "corpus" in output and "161" in output
    status, output = run("memory", "merge", str(out), str(out), "--out", str(tmp_path / "twice"))
    assert status == 0 and "322 tokens" in output
    common = ("generate", "--model", folder, "--max-new-tokens", "12", "--prompt", "a b c")
    memory = tmp_path / "kept"
    texts = {
        run(*common, "--generator", generator)[1].split("\n")[0]
        for generator in ("none", f"corpus:corpus={out}", f"auto:corpus={out},memory={memory}")
    }
    assert len(texts) == 1
    status, output = run("memory", "info", str(memory), "--tokenizer", folder)
    assert status == 0 and "default" in output


def test_memory_says_no_in_one_sentence(folder: str, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    from outrider.index.corpus import build

    build([[1, 2, 3]], foreign, tokenizer="another")
    (tmp_path / "empty").mkdir()
    out = str(tmp_path / "out")
    for arguments, said in (
        (("generate", "--model", folder, "--prompt", "a", "--generator", f"corpus:corpus={foreign}"), "tokenizer"),
        (("generate", "--model", folder, "--prompt", "a", "--generator", "corpus:corpus=none"), "there is no corpus"),
        (("memory", "build", str(tmp_path / "empty"), "--tokenizer", folder, "--out", out), "no files"),
        (("memory", "build", "none", "--tokenizer", folder, "--out", out), "there is no file"),
        (("memory", "build", str(foreign), "--tokenizer", folder, "--out", out), "UTF-8"),
        (("memory", "build", __file__, "--tokenizer", folder, "--out", "/no/where"), "--out"),
        (("memory", "info", __file__), "neither"),
        (("memory", "info", str(foreign), "--tokenizer", folder), "tokenizer"),
    ):  # fmt: skip
        status, output = run(*arguments)
        assert status == 2 and said in output and "Traceback" not in output, (arguments, output)

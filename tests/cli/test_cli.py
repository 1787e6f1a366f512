"""The command line on a tiny model in a folder: what a user sees, right and wrong."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from outrider.bench.records import write_line
from outrider.cli import app
from outrider.cli.streaming import ConsoleStreamer
from outrider.pieces import Pieces
from tests.cli.conftest import WORDS
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
    titles = next(line for line in output.split("\n") if "transformers" in line)
    assert "nothing" in titles or titles.count("╭") == 3


def test_compare_heeds_temperature_and_seed(folder: str) -> None:
    def shown(seed: str) -> list[str]:
        status, output = run(
            "generate", "--model", folder, "--compare", "--prompt", "a b a b", "--max-new-tokens", "12",
            "--temperature", "1.5", "--seed", seed,
        )  # fmt: skip
        assert status == 0
        assert "another draw" in output and output.count("yes") == 2
        return [line for line in output.split("\n") if line.startswith("│")]

    assert shown("1") == shown("1") != shown("2")


def test_texts_that_part_say_where_and_how_near(folder: str) -> None:
    from transformers import AutoModelForCausalLM

    from outrider.cli.compare import _sameness

    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[2, 3]])
    logits = model(torch.tensor([[2, 3, 7]])).logits[0, -1].detach().topk(2).values
    said = _sameness(model, ids, [7, 8, 9], [7, 5, 9])
    assert said == f"to token 1, where the two best logits are {float(logits[0] - logits[1]):.3g} apart"
    assert _sameness(model, ids, [7], [7]) == "yes"


@pytest.mark.parametrize(
    ("exact", "tokens", "sampled", "claimed"),
    [
        ("transformers", [7, 8], False, True),
        ("generators", [7, 8], False, False),
        ("", [7, 8], False, False),
        ("transformers", [7, 9], False, False),
        ("transformers", [7, 8], True, False),
    ],
)
def test_bit_for_bit_is_said_only_of_what_is(
    folder: str, exact: str, tokens: list[int], sampled: bool, claimed: bool
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from outrider.cli.compare import Contestant, show

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ways = [
        Contestant(name, [7, 8], ["target"] * 2, [1.0], exact=exact) for name in ("transformers", "nothing")
    ]
    ways.append(Contestant("drafting", tokens, ["target"] * 2, [1.0], exact=exact))
    console = Console(file=io.StringIO(), width=120)
    show(console, model, tokenizer, torch.tensor([[2, 3]]), ways, sampled)
    assert ("bit for bit" in console.file.getvalue()) is claimed  # type: ignore[attr-defined]


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
        (("--prompt", "a", "--exact", "maybe"), "--exact takes auto, transformers,"),
        (("--prompt", ""), "the prompt is empty"),
        (("--prompt", "a", "--file", "b"), "pass one of them"),
        (("--file", "missing.txt"), "there is no file"),
        (("--prompt", "a", "--dtype", "int3"), "--dtype must be one of"),
        (("--prompt", "a", "--temperature", "-1"), "must not be negative"),
        (("--prompt", "a", "--picture", "a.svg"), "--compare"),
    ],
)
def test_wrong_input_is_one_sentence(folder: str, arguments: tuple[str, ...], said: str) -> None:
    status, output = run("generate", "--model", folder, "--max-new-tokens", "2", *arguments)
    assert status == 2
    assert said in output
    assert "Traceback" not in output


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("name", ["./none", "nobody/no-such-model", "no such name"])
@pytest.mark.parametrize("which", ["model", "draft model"])
def test_a_missing_model_is_told_at_once(
    folder: str, monkeypatch: pytest.MonkeyPatch, name: str, which: str, offline: bool
) -> None:
    from huggingface_hub import HfApi, constants

    asked: list[str] = []

    def unreachable(self: Any, name: str, **_: Any) -> None:
        asked.append(name)
        raise ConnectionError("no network")

    monkeypatch.setattr(HfApi, "model_info", unreachable)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    arguments = ("--model", name) if which == "model" else ("--generator", f"draft_model:model={name}")
    status, output = run("generate", "--model", folder, "--prompt", "a", *arguments)
    assert status == 2 and "Traceback" not in output
    assert "there is no folder" in output or "neither a folder nor" in output
    assert len(asked) == int(name == "nobody/no-such-model" and not offline)


def test_a_model_that_is_none_is_one_sentence(folder: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in (tmp_path, Path(folder) / "config.json"):
        status, output = run("generate", "--model", str(name), "--prompt", "a")
        assert status == 2 and "Traceback" not in output and output.startswith("outrider: ")


@pytest.mark.parametrize("error", [RuntimeError("a fault"), OSError("no disk"), MemoryError(), KeyError("x")])
def test_what_nobody_foresaw_shows_a_traceback_only_when_asked(
    folder: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("outrider.generate", fails)
    status, output = run("generate", "--model", folder, "--prompt", "a b")
    assert status == 1
    assert output.strip().startswith("outrider: ") and output.strip().count("\n") == 0
    monkeypatch.setenv("OUTRIDER_DEBUG", "1")
    result = CliRunner().invoke(app, ["generate", "--model", folder, "--prompt", "a b"])
    assert result.exception is error


def test_ctrl_c_keeps_what_was_printed(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put = ConsoleStreamer.put_token
    shown: list[int] = []

    def interrupted(self: ConsoleStreamer, token: int, is_free: bool) -> None:
        if len(shown) == 3:
            raise KeyboardInterrupt
        shown.append(token)
        put(self, token, is_free)

    monkeypatch.setattr(ConsoleStreamer, "put_token", interrupted)
    status, output = run("generate", "--model", folder, "--prompt", "a b")
    assert status == 130 and "interrupted" in output
    assert output.split("\n")[0].split() == [WORDS[token] for token in shown]


def test_tokens_that_came_free_are_coloured_on_a_terminal_only(folder: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import outrider

    model, tokenizer = (cls.from_pretrained(folder) for cls in (AutoModelForCausalLM, AutoTokenizer))
    ids = tokenizer("a b c a b c", return_tensors="pt").input_ids
    text = model.generate(ids, do_sample=False, max_new_tokens=12)[0].tolist()
    shown = {}
    for terminal in (True, False):
        out = io.StringIO()
        colours: Any = "standard" if terminal else "auto"
        console = Console(file=out, force_terminal=terminal, highlight=False, color_system=colours)
        with ConsoleStreamer(tokenizer, console, Console(file=io.StringIO())) as streamer:
            output = outrider.generate(
                model, ids, streamer=streamer, return_dict_in_generate=True, do_sample=False,
                max_new_tokens=12, candidate_generator=lambda known: text[len(known) : len(known) + 2],
            )  # fmt: skip
        shown[terminal] = out.getvalue()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown[True])
    assert plain == shown[False]
    assert plain.split() == tokenizer.decode(text[6:], skip_special_tokens=True).split()
    assert shown[True].count("\x1b[1;32m") == output.stats.num_accepted > 4


def test_characters_that_span_tokens_are_shown_whole_and_once() -> None:
    class Bytes:
        def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
            return bytes(tokens).decode("utf-8", errors="replace")

    pieces = Pieces(Bytes())
    text = "é\nß€ a"
    shown = [pieces.add(token) for token in text.encode()]
    assert "".join(shown) == text and pieces.rest() == ""
    assert pieces.add(0xE2) == "" and pieces.rest() == "\ufffd"


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
    page.unlink()
    status, refused = run("trace", "show", str(kept), "--round", "99", "--html", str(page))
    assert status == 2 and "--round must lie" in refused
    assert page.exists() and output.split("\n")[0] in refused, "a wrong --round loses nothing"


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


def test_chat_needs_a_chat_template(folder: str) -> None:
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


def test_chat_answers_until_the_input_ends(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    import outrider

    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: tokenizer)
    prompts: list[int] = []
    generate = outrider.generate

    def noted(model: Any, ids: Any, **options: Any) -> Any:
        prompts.append(ids.shape[1])
        if len(prompts) == 2:
            raise KeyboardInterrupt
        return generate(model, ids, **options)

    monkeypatch.setattr(outrider, "generate", noted)
    status, output = run("chat", "--model", folder, "--max-new-tokens", "4", given="a b\nc\nd\n")
    assert status == 0
    assert "(stopped)" in output and output.count("tokens/s") == 2
    # What was said in the stopped turn is forgotten; the first turn is not.
    assert prompts == [2, 7, 7]

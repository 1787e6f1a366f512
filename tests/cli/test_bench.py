"""`outrider bench` and `outrider trace record` on a tiny model: what is measured, kept, gone on with, refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.bench import run as bench_run
from outrider.bench.records import read_results
from tests.cli.test_cli import run

GENERATOR = """
from outrider import CandidateGenerator, Candidates
class Mine(CandidateGenerator):
    def propose(self, context, budget):
        {body}
"""


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """T(k) of tiny models does not go to the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four questions, one of two turns."""
    path = tmp_path / "questions.jsonl"
    rows = [
        {"question_id": 1, "category": "x", "turns": ["a b a b a b"]},
        {"question_id": 2, "category": "x", "turns": ["c d e c d"]},
        {"question_id": 3, "category": "y", "turns": ["a b c", "d e f"]},
        {"question_id": 4, "category": "y", "turns": ["q r s q r s q"]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def bench(folder: str, data: Path, out: Path, *more: str) -> tuple[int, str]:
    return run(
        "bench", "--model", folder, "--data", str(data), "--out", str(out), "--max-new-tokens", "8", *more
    )


def test_every_contestant_answers_every_question_and_the_texts_agree(
    folder: str, data: Path, tmp_path: Path
) -> None:
    out, mine = tmp_path / "r.jsonl", tmp_path / "mine.py"
    mine.write_text("def again(ids):\n    return list(ids)[-3:]\n")
    status, output = bench(
        folder, data, out, "--generators", f"none,prompt_lookup:num_tokens=3,max_ngram_size=2,auto,mine:{mine}",
        "--baseline", "transformers,transformers:prompt_lookup_num_tokens=3", "--batch", "1,2", "--repeat", "2",
    )  # fmt: skip
    assert status == 0, output
    results = read_results(out)
    ours = ["none", "prompt_lookup:num_tokens=3,max_ngram_size=2", "auto", f"mine:{mine}"]
    assert [contestant.name for contestant in results.header.contestants] == [
        "transformers",
        "transformers:prompt_lookup_num_tokens=3",
        *ours,
    ]
    # transformers' own assisted decoding takes no batch: a row that says so.
    assert {(f.contestant, f.batch) for f in results.failures} == {
        ("transformers:prompt_lookup_num_tokens=3", 2)
    }
    for name in ours:
        lines = [line for line in results.measurements if line.contestant == name]
        # A repeat has five turns one by one; in twos: 1 and 2, 3's two turns, and 4 alone.
        assert len(lines) == 2 * (5 + 4)
        assert all(line.same_as_baseline for line in lines)
        assert all(line.prefill_s > 0 and line.decode_s > 0 for line in lines)
        assert all(line.stats is not None and line.num_new_tokens >= len(line.token_ids) for line in lines)
        assert sum(line.accepted_by_source.get("target", 0) for line in lines) > 0
    assert "speedup" in output and "100%" in output and "failed at question" in output


def test_ctrl_c_keeps_what_was_measured_and_resume_goes_on(
    folder: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r.jsonl"
    written = bench_run.write_line

    def interrupted(file, line):
        written(file, line)
        if line.kind == "measurement" and line.question_id == "2":
            raise KeyboardInterrupt

    monkeypatch.setattr(bench_run, "write_line", interrupted)
    status, output = bench(folder, data, out, "--generators", "suffix")
    assert status == 130 and "--resume" in output
    monkeypatch.undo()
    before = read_results(out).measurements
    assert len(before) == 3
    # The last line cut off, as by a power failure, is measured again.
    out.write_text(out.read_text() + '{"kind": "measurem')
    assert bench(folder, data, out, "--generators", "suffix")[0] == 2
    status, output = bench(folder, data, out, "--generators", "suffix", "--resume")
    assert status == 0, output
    after = read_results(out).measurements
    assert after[:3] == before and len(after) == 10
    assert len({(line.contestant, line.key) for line in after}) == 10
    status, output = bench(folder, data, out, "--generators", "none", "--resume")
    assert status == 2 and "has the contestants" in output


@pytest.mark.parametrize(
    ("contestant", "reason"),
    [
        ("vllm", "pip install vllm"),
        ("llama_cpp:python=/nowhere/python", "cannot be run"),
    ],
)
def test_an_engine_that_is_not_there_is_a_row_or_a_sentence(
    folder: str, data: Path, tmp_path: Path, contestant: str, reason: str
) -> None:
    out = tmp_path / "r.jsonl"
    status, output = bench(
        folder, data, out, "--baseline", f"transformers,{contestant}", "--generators", "none"
    )
    if status:
        assert status == 2 and reason in output
        return
    results = read_results(out)
    assert [failure.contestant for failure in results.failures] == [contestant]
    assert reason in results.failures[0].reason
    assert len(results.measurements) == 10


def test_a_generator_that_raises_half_way_is_a_row(folder: str, data: Path, tmp_path: Path) -> None:
    out, mine = tmp_path / "r.jsonl", tmp_path / "mine.py"
    mine.write_text(
        GENERATOR.format(body="return Candidates.empty() if context.ids[0] != 18 else 1 / 0")
    )  # "q"
    status, _ = bench(folder, data, out, "--generators", f"mine:{mine},none")
    assert status == 0
    results = read_results(out)
    (failure,) = results.failures
    assert (failure.contestant, failure.question_id) == (f"mine:{mine}", "4")
    assert "ZeroDivisionError" in failure.reason
    assert len(results.measurements) == 5 + 5 + 4


def test_sampling_with_a_seed_is_the_same_text_with_every_generator(
    folder: str, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "r.jsonl"
    status, output = bench(
        folder, data, out, "--generators", "none,prompt_lookup,auto", "--temperature", "0.8", "--seed", "3"
    )
    assert status == 0, output
    results = read_results(out)
    assert results.header.seed == 3
    same = {
        name: {line.same_as_baseline for line in results.measurements if line.contestant == name}
        for name in ("transformers", "none", "auto")
    }
    # transformers draws its own numbers, so that there is nothing to compare with it.
    assert same == {"transformers": {None}, "none": {None}, "auto": {True}}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--data", "missing.jsonl"), "there is no file"),
        (("--category", "z"), "there are x, y"),
        (("--field", "promt"), "has no field 'promt'"),
        (("--generators", "none,none"), "asked for twice"),
        (("--generators", "nonne"), "did you mean 'none'?"),
        (("--generators", "", "--baseline", ""), "nobody to measure"),
        (("--batch", "0"), "--batch takes"),
        (("--batch", "two"), "--batch takes"),
    ],
)
def test_wrong_input_is_one_sentence(
    folder: str, data: Path, tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    status, output = bench(folder, data, tmp_path / "r.jsonl", *more)
    assert status == 2, output
    assert said in " ".join(output.split())
    assert not (tmp_path / "r.jsonl").exists()


def test_without_a_model_there_is_nothing_to_measure() -> None:
    status, output = run("bench")
    assert status == 2 and "--model" in output


def test_recorded_texts_are_replayed_to_the_same_end(folder: str, data: Path, tmp_path: Path) -> None:
    traces = tmp_path / "t.jsonl"
    status, output = run(
        "trace", "record", "--model", folder, "--data", str(data), "--out", str(traces), "--max-new-tokens", "12"
    )  # fmt: skip
    assert status == 0, output
    rows = [json.loads(line) for line in traces.read_text().splitlines()]
    assert len(rows) == 5
    for row in rows:
        # The logits that were kept are those that chose the tokens.
        assert [top[0] for top in row["top_tokens"]] == row["output_ids"]
        assert all(logits == sorted(logits, reverse=True) for logits in row["top_logits"])
    status, output = run("bench", "--replay", str(traces), "--generators", "none,prompt_lookup,auto")
    assert status == 0, output
    for expected in ("none", "prompt_lookup", "auto", "LZ77", "last token"):
        assert expected in output
    assert run("bench", "--replay", str(tmp_path / "none.jsonl"))[0] == 2
    assert run("trace", "record", "--model", folder, "--out", str(traces))[0] == 2


def test_the_worker_runs_without_this_package(tmp_path: Path) -> None:
    """The script that serves other libraries must load where only they are installed."""
    import subprocess

    from outrider.bench import worker

    result = subprocess.run(
        [sys.executable, "-I", "-S", worker.__file__],
        input='{"engine": "vllm"}\n', capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "vllm is not installed" in json.loads(result.stdout)["error"]

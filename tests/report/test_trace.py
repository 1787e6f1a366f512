"""A trace tells what happened: beside the call's own stats and the target's own logits."""

from __future__ import annotations

import functools
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import outrider
from outrider import CandidateGenerator, Candidates
from outrider.control import Fixed
from outrider.errors import FileFormatError, OptionError
from outrider.report.trace import Header, Trace, header_line, parse_trace
from outrider.report.trace_page import trace_page
from outrider.report.trace_terminal import round_view, text_view
from outrider.tracing import Tracer
from tests.tiny import VOCAB, prompt, tiny

HEADER = Header("tiny", "guess", "a prompt", 12, {"max_new_tokens": 24}, {"outrider": "0"}, "2026-12-01")


class Letters:
    """A tokenizer whose every token is one letter."""

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(chr(0x100 + token) for token in tokens)


class Branches(CandidateGenerator):
    """Two chains from the root: one that knows the text, one that does not."""

    def __init__(self, text: list[int]) -> None:
        self.text = text

    def propose(self, context: Any, budget: int) -> Candidates:
        at = context.ids.size
        known = self.text[at : at + 3]
        wrong = [(token + 1) % VOCAB for token in known]
        tokens = [token for pair in zip(known, wrong, strict=True) for token in pair]
        parents = [-1, -1, 0, 1, 2, 3][: len(tokens)]
        names = ("known", "wrong", "known", "wrong", "known", "wrong")[: len(tokens)]
        return Candidates(
            np.array(tokens, np.int64), np.array(parents, np.int64), np.full(len(tokens), 0.5), None, names
        )


def traced(budget: int = 64, **options: Any) -> tuple[Trace, list[str], Any]:
    """A trace of the tiny llama, its lines, and what generate() returned."""
    lines, output = run(budget, **options)
    return parse_trace(lines, "lines"), list(lines), output


@functools.cache
def run(budget: int, **options: Any) -> tuple[list[str], Any]:
    settings = {"do_sample": False, "max_new_tokens": 24} | options
    known = outrider.generate(tiny("llama"), prompt(), candidate_generator="none", **settings)[0].tolist()
    lines = [json.dumps(header_line(HEADER))]
    tracer = Tracer(Letters(), Branches(known), "guess", lambda record: lines.append(json.dumps(record)))
    output = outrider.generate(
        tiny("llama"),
        prompt(),
        candidate_generator=tracer.generator,
        controller=Fixed(budget),
        listeners=(tracer,),
        return_dict_in_generate=True,
        **settings,
    )
    lines.append(json.dumps({"stats": output.stats.to_dict()}))
    assert output.sequences[0].tolist() == known
    return lines, output


@pytest.mark.parametrize("budget", [1, 3, 64])
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 5, "top_k": 20, "temperature": 0.7}])
def test_a_trace_agrees_with_the_stats_and_the_text(budget: int, options: dict[str, Any]) -> None:
    found, _, output = traced(budget, **options)
    stats = output.stats
    text = Letters().decode(output.sequences[0, 12:].tolist())
    assert "".join(piece.text for piece in found.pieces) == text
    assert [piece.origin for piece in found.pieces] == stats.origins
    assert sum(one.num_verified for one in found.rounds) == stats.num_candidates
    assert sum(one.num_accepted for one in found.rounds) == stats.num_accepted
    assert found.mat == pytest.approx(stats.mat)
    assert len(found.rounds) == stats.num_rounds + stats.num_prefills


def test_a_candidate_has_the_targets_own_probability() -> None:
    found, lines, output = traced()
    with torch.no_grad():
        logits = tiny("llama")(output.sequences).logits[0]
    wanted = logits.softmax(dim=-1)
    at = 11
    for one, line in zip(found.rounds, lines[1:], strict=False):
        tokens = json.loads(line)["tokens"]
        for index, node in enumerate(one.nodes):
            if node.parent == -1 and node.status != "cut":
                assert node.target == pytest.approx(float(wanted[at, tokens[index]]), abs=1e-4)
                assert node.rank == int((wanted[at] > wanted[at, tokens[index]]).sum()) + 1
        assert one.top[0].probability == pytest.approx(float(wanted[at].max()), abs=1e-4)
        at += len(one.pieces)


def test_each_fate_has_its_reason() -> None:
    found, _, _ = traced(budget=4)
    nodes = [node for one in found.rounds for node in one.nodes]
    by_status = {
        status: [node for node in nodes if node.status == status]
        for status in ("accepted", "rejected", "unreached", "cut")
    }
    assert all(by_status.values())
    assert all(node.rank == 1 and not node.reason for node in by_status["accepted"])
    assert all("the target chose" in node.reason and node.rank != 1 for node in by_status["rejected"])
    assert all("not reached" in node.reason for node in by_status["unreached"])
    assert all("budget" in node.reason and node.target is None for node in by_status["cut"])
    assert {node.source for node in by_status["accepted"]} == {"known"}


def test_an_interrupted_trace_is_a_shorter_one() -> None:
    found, lines, _ = traced()
    short = parse_trace(lines[:3], "lines")
    assert short.stats is None and short.rounds == found.rounds[:2]


def _changed(line: str, **changes: Any) -> str:
    return json.dumps(json.loads(line) | changes)


@pytest.mark.parametrize(
    ("number", "change", "said"),
    [
        (3, lambda line: line[:-5], "line 3"),
        (3, lambda line: "[]", "not an object"),
        (3, lambda line: _changed(line, more=1), "unknown field 'more'"),
        (3, lambda line: _changed(line, ms="fast"), "'ms'"),
        (3, lambda line: _changed(line, parents=[5] * 6), "'parents'"),
        (3, lambda line: _changed(line, accepted=[77]), "does not hold"),
        (3, lambda line: _changed(line, top=[None] * 7), "'top'"),
        (1, lambda line: _changed(line, version=99), "version is 99"),
        (1, lambda line: "{}", "outrider-trace"),
    ],
)
def test_a_damaged_file_is_one_sentence_with_its_line(number: int, change: Any, said: str) -> None:
    lines = traced()[1]
    lines[number - 1] = change(lines[number - 1])
    with pytest.raises(FileFormatError) as error:
        parse_trace(lines, "kept.jsonl")
    assert f"line {number} of kept.jsonl" in str(error.value) and said in str(error.value)


@pytest.mark.parametrize("num_lines", [0, 1])
def test_a_file_without_rounds_is_refused(num_lines: int) -> None:
    with pytest.raises(FileFormatError):
        parse_trace(traced()[1][:num_lines], "kept.jsonl")


def test_the_terminal_shows_text_legend_and_tree() -> None:
    found, _, _ = traced(budget=4)
    console = Console(record=True, width=160, file=io.StringIO())
    console.print(text_view(found))
    console.print(round_view(found, 1))
    shown = console.export_text()
    assert (
        "MAT" in shown and "known" in shown and "the target chose" in shown and "2 more not verified" in shown
    )
    with pytest.raises(OptionError, match="--round must lie between"):
        round_view(found, 99)


def test_what_a_file_holds_cannot_become_markup() -> None:
    hostile = "</script><img src=x onerror=alert(1)>&lt;"
    _, lines, _ = traced()
    held = json.loads(lines[3])
    held["pieces"][0] = hostile
    held["sources"] = [hostile] * len(held["sources"])
    held["texts"] = {token: hostile for token in held["texts"]}
    lines[3] = json.dumps(held)
    lines[0] = _changed(lines[0], model=hostile, prompt=hostile, settings={hostile: hostile})
    page = trace_page(parse_trace(lines, "lines"))
    assert "<img" not in page and hostile not in page
    assert "http://" not in page and "https://" not in page

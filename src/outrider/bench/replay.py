"""Any generator and controller on recorded greedy text, without a model.

A trace is a JSON line: `prompt_ids`, `output_ids`, and, where they were recorded, `top_tokens` and `top_logits`
(one row an output token: the logits that chose it). Time is counted in units of T(1), by a cost of
1 + `cost` a candidate; what the model would have said at rejected nodes is not known, so they teach nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt
from numba import njit

from outrider.contract import CandidateGenerator
from outrider.control import Controller
from outrider.errors import FileFormatError
from outrider.types import Candidates, Context, Floats, Ids, Verification


@dataclass(frozen=True)
class Trace:
    """One recorded text."""

    prompt_ids: Ids
    output_ids: Ids
    category: str = ""
    top_tokens: Ids | None = None
    top_logits: Floats | None = None


@dataclass
class Replayed:
    """What a replay counted."""

    num_tokens: int = 0
    num_rounds: int = 0
    num_candidates: int = 0
    units: float = 0.0
    draft_s: float = 0.0
    by_category: dict[str, Replayed] = field(default_factory=dict)

    @property
    def acceptance_length(self) -> float:
        """Tokens a round; its mean is MAT."""
        return self.num_tokens / max(self.num_rounds, 1)

    @property
    def speedup(self) -> float:
        """Over plain decoding, at the assumed cost, drafting free."""
        return self.num_tokens / max(self.units, 1e-9)

    def add(self, other: Replayed) -> None:
        """Count another's rounds in."""
        for name in ("num_tokens", "num_rounds", "num_candidates", "units", "draft_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def read_traces(path: str | Path) -> Iterator[Trace]:
    """Traces of a file of JSON lines.

    **Raises:** `FileFormatError` naming the line that is no trace.
    """
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                top = row.get("top_tokens"), row.get("top_logits")
                yield Trace(
                    np.asarray(row["prompt_ids"], np.int64),
                    np.asarray(row["output_ids"], np.int64),
                    str(row.get("category", "")),
                    None if top[0] is None else np.asarray(top[0], np.int64),
                    None if top[1] is None else np.asarray(top[1], np.float32),
                )
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise FileFormatError(f"line {number} of {path} is not a trace: {error}") from error


def replay(
    traces: Iterable[Trace],
    generator: CandidateGenerator,
    controller: Controller,
    *,
    cost: float = 0.05,
    unit_s: float = 0.02,
) -> Replayed:
    """Decode each trace again with this generator and controller.

    **Arguments:**

    - `cost`: What a candidate adds to a forward, in units of a forward over one token.
    - `unit_s`: Seconds that the controller is told such a forward takes.
    """
    result = Replayed()
    for trace in traces:
        one = _replay_one(trace, generator, controller, cost, unit_s)
        result.add(one)
        result.by_category.setdefault(trace.category, Replayed()).add(one)
    return result


def _replay_one(
    trace: Trace, generator: CandidateGenerator, controller: Controller, cost: float, unit_s: float
) -> Replayed:
    result = Replayed()
    ids = np.concatenate([trace.prompt_ids, trace.output_ids])
    length, num_prompt = trace.prompt_ids.size, trace.prompt_ids.size
    generator.reset(trace.prompt_ids)
    while length < ids.size:
        candidates = Candidates.empty()
        start = perf_counter()
        budget = min(controller.budget(1), ids.size - length - 1) if length > num_prompt else 0
        if budget > 0:
            context = Context(ids[:length], num_prompt, ids.size - length)
            candidates = controller.trim(generator.propose(context, budget))
        path = _walk(candidates, ids[length:-1])
        outcome = _outcome(trace, candidates, path, ids[length : length + len(path) + 1], length - num_prompt)
        drafted = perf_counter() - start
        start = perf_counter()
        generator.update(outcome)
        drafted += perf_counter() - start
        units = 1 + cost * len(candidates)
        controller.record([outcome], drafted, units * unit_s if length > num_prompt else 0.0)
        length += outcome.committed.size
        result.add(Replayed(outcome.committed.size, 1, len(candidates), units, drafted))
    return result


def _walk(candidates: Candidates, future: Ids) -> list[int]:
    """Nodes of the path that the text takes through the tree."""
    path: list[int] = []
    above = -1
    for node, (token, parent) in enumerate(zip(candidates.tokens, candidates.parents, strict=True)):
        if parent == above and len(path) < future.size and token == future[len(path)]:
            path.append(node)
            above = node
    return path


def _outcome(
    trace: Trace, candidates: Candidates, path: list[int], committed: Ids, done: int
) -> Verification:
    """The verification as the loop would give it; rejected nodes are left out where logits are supplied."""
    if trace.top_tokens is None or trace.top_logits is None:
        return Verification(committed, len(path), candidates, np.asarray(path, np.int64))
    tokens = np.full((len(candidates) + 1, trace.top_tokens.shape[1]), -1, np.int64)
    logits = np.full(tokens.shape, -1e9, np.float32)
    rows = [0, *(node + 1 for node in path)]
    tokens[rows] = trace.top_tokens[done : done + len(rows)]
    logits[rows] = trace.top_logits[done : done + len(rows)]
    return Verification(committed, len(path), candidates, np.asarray(path, np.int64), tokens, logits)


@njit(cache=True, nogil=True)
def _phrases(ids: npt.NDArray[np.int64], start: int, history: int) -> int:  # pragma: no cover - compiled
    rounds, at = 0, start
    while at < ids.size:
        best = 0
        for source in range(history, at):
            if ids[source] != ids[at] or (history == 1 and ids[source - 1] != ids[at - 1]):
                continue
            length = 0
            while at + length < ids.size and ids[source + length] == ids[at + length]:
                length += 1
            best = max(best, length)
        at += best + 1
        rounds += 1
    return rounds


def bounds(traces: Iterable[Trace]) -> dict[str, float]:
    """Most tokens a round that copying from one place could reach.

    `lz77`: from anywhere in prompt and output so far (the parse into copy + 1 token). `last_token`: from
    where the last token occurred before, which bounds every generator that goes by matching suffixes.
    """
    tokens, anywhere, anchored = 0, 0, 0
    for trace in traces:
        ids = np.concatenate([trace.prompt_ids, trace.output_ids])
        tokens += trace.output_ids.size
        anywhere += _phrases(ids, trace.prompt_ids.size, 0)
        anchored += _phrases(np.append(np.int64(-1), ids), trace.prompt_ids.size + 1, 1)
    return {"lz77": tokens / max(anywhere, 1), "last_token": tokens / max(anchored, 1)}

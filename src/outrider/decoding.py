"""The loop: propose, forward, verify, commit. Everything else in this package serves these lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from outrider.contract import CandidateGenerator
from outrider.control import Controller
from outrider.errors import GeneratorError, OutriderError
from outrider.stats import Stats
from outrider.target.forward import Target
from outrider.types import Candidates, Context, Ids, Scores, TopLogits, Verification
from outrider.verification.step import Row, Verifier

# Marks phases for NVIDIA's profilers where OUTRIDER_NVTX=1 asks for it and there is a GPU.
_NVTX = torch.cuda.nvtx if os.environ.get("OUTRIDER_NVTX") == "1" and torch.cuda.is_available() else None


class Listener(Protocol):
    """Hears of every committed token: a streamer, a recorder of outputs, a tracer."""

    def committed(self, lane: Lane, verification: Verification, target: Target) -> None:
        """A round of this lane is over and its tokens are committed; the cache is not rolled back yet."""


@dataclass
class Lane:
    """One sequence: its row, and the generator that drafts for it."""

    row: Row
    generator: CandidateGenerator
    encoder_ids: Ids | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[Any, int], int] | None = None


def decode(
    target: Target,
    lanes: Sequence[Lane],
    verifier: Verifier,
    controller: Controller,
    listeners: Sequence[Listener] = (),
) -> Stats:
    """Generate until every lane's text ends.

    The first round runs the prompts, without candidates.

    **Exact:** with an exact verifier, each row's tokens are those (or follow the law) of plain decoding,
    whatever the generators propose.
    """
    stats, clock = Stats(lossy=verifier.lossy), Clock()
    for lane in lanes:
        _ask(lane, "reset", lane.row.ids)
    while lanes:
        with clock("draft"):
            proposals = [_propose(lane, target, controller, len(lanes)) for lane in lanes]
        with clock("target" if target.is_prefilled else "prefill"):
            logits = target.forward([lane.row for lane in lanes], proposals)
        with clock("verify"):
            outcomes = [
                _verify(lane, verifier, candidates, rows)
                for lane, candidates, rows in zip(lanes, proposals, logits, strict=True)
            ]
        for lane, outcome in zip(lanes, outcomes, strict=True):
            for listener in listeners:
                listener.committed(lane, outcome, target)
        target.commit(
            [outcome.path for outcome in outcomes], [outcome.committed.size for outcome in outcomes]
        )
        with clock("draft"):
            for lane, outcome in zip(lanes, outcomes, strict=True):
                _ask(lane, "update", outcome)
        controller.record(outcomes, clock.draft_s, clock.target_s)
        stats.count(outcomes, is_prefill=target.num_rounds == 1, source=source_name(lanes[0]))
        clock.spend(stats)
        lanes = [lane for lane in lanes if not lane.row.finished]
    return stats


def _propose(lane: Lane, target: Target, controller: Controller, num_lanes: int) -> Candidates:
    """Ask the generator, and cut what it proposes to what can be verified."""
    row = lane.row
    room = min(row.stopping.max_length - row.length - 1, target.room)
    budget = min(controller.budget(num_lanes), room) if target.is_prefilled else 0
    if budget <= 0:
        return Candidates.empty()
    context = Context(row.ids, row.num_prompt, room + 1, lane.encoder_ids, lane.inputs, lane.draw)
    proposed = _ask(lane, "propose", context, budget)
    if not isinstance(proposed, Candidates):
        raise GeneratorError(
            f"{_name(lane)} proposed a {type(proposed).__name__}, not Candidates; return Candidates"
        )
    candidates = proposed if proposed.is_chain or target.takes_trees else proposed.best_chain()
    candidates = _possible(candidates, target.vocab_size, room)
    if candidates.draft_logits is not None:
        # What was drawn may be cut by number alone: a choice by its ids would bend the law.
        return candidates.keep(range(min(len(candidates), budget)))
    return controller.trim(candidates)


def _possible(candidates: Candidates, vocab_size: int, room: int) -> Candidates:
    """Drop what cannot be accepted: ids outside the vocabulary, and nodes below the last position left."""
    if not len(candidates):
        return candidates
    outside = (candidates.tokens < 0) | (candidates.tokens >= vocab_size)
    if len(candidates) <= room and not outside.any():
        return candidates
    kept = np.zeros(len(candidates) + 1, bool)
    kept[-1] = True
    for node, parent in enumerate(candidates.parents):
        kept[node] = kept[parent] and not outside[node]
    return candidates.keep(np.flatnonzero(kept[:-1] & (candidates.depths() <= room)))


def _verify(lane: Lane, verifier: Verifier, candidates: Candidates, logits: Tensor) -> Verification:
    row, length = lane.row, lane.row.length
    path = verifier.verify(row, candidates, logits)
    supplied: dict[str, Any] = {}
    for need in lane.generator.needs:
        if isinstance(need, TopLogits):
            top = logits.topk(min(need.k, logits.shape[-1]), dim=-1)
            supplied["top_tokens"] = top.indices.cpu().numpy()
            supplied["top_logits"] = top.values.float().cpu().numpy()
        elif isinstance(need, Scores):
            supplied["scores"] = logits.float()
    return Verification(
        row.ids[length:].copy(), len(path), candidates, np.asarray(path, dtype=np.int64), **supplied
    )


def _ask(lane: Lane, method: str, *arguments: Any) -> Any:
    """Call the generator; whatever it raises names it, and is one error."""
    try:
        return getattr(lane.generator, method)(*arguments)
    except OutriderError:
        raise
    except Exception as error:
        raise GeneratorError(
            f"{_name(lane)} raised {type(error).__name__} in {method}(): {error}; nothing of the model was changed"
        ) from error


def _name(lane: Lane) -> str:
    cls = type(lane.generator)
    return f"candidate generator {cls.__module__}.{cls.__qualname__}"


def source_name(lane: Lane) -> str:
    """The generator's registered name, or its class's."""
    cls = type(lane.generator)
    return cls.__module__.rsplit(".", 1)[-1] if cls.__name__ == "Generator" else cls.__name__


class Clock:
    """Seconds of a round by phase; what no phase claims is "other"."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._began = perf_counter()
        self._phase = ""
        self._since = 0.0

    def __call__(self, phase: str) -> Self:
        self._phase = phase
        return self

    def __enter__(self) -> None:
        if _NVTX is not None:
            _NVTX.range_push(f"outrider.{self._phase}")
        self._since = perf_counter()

    def __exit__(self, *_: object) -> None:
        if _NVTX is not None:
            _NVTX.range_pop()
        self._spent[self._phase] = self._spent.get(self._phase, 0.0) + perf_counter() - self._since

    @property
    def draft_s(self) -> float:
        return self._spent.get("draft", 0.0)

    @property
    def target_s(self) -> float:
        """Seconds of this round's target forward; 0 in the round of the prompt."""
        return self._spent.get("target", 0.0)

    def spend(self, stats: Stats) -> None:
        """Add the round to `stats`, and begin the next."""
        now = perf_counter()
        for phase, seconds in self._spent.items():
            setattr(stats, f"{phase}_s", getattr(stats, f"{phase}_s") + seconds)
        stats.other_s += now - self._began - sum(self._spent.values())
        self._spent.clear()
        self._began = now

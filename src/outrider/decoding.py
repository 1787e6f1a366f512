"""The loop: propose, forward, verify, commit. Everything else in this package serves these lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from outrider.contract import CandidateGenerator
from outrider.control import Controller
from outrider.drafting import Clock, ask, propose, source_name
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
    placeholders: Ids = field(default_factory=lambda: np.empty(0, np.int64))


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
    stats, clock = Stats(lossy=verifier.lossy, exact=target.exact), Clock(_NVTX)
    for lane in lanes:
        ask(lane.generator, "reset", lane.row.ids)
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
                ask(lane.generator, "update", outcome)
        controller.record(outcomes, clock.draft_s, clock.target_s)
        stats.count(outcomes, is_prefill=target.num_rounds == 1, source=source_name(lanes[0].generator))
        clock.spend(stats)
        lanes = [lane for lane in lanes if not lane.row.finished]
    return stats


def _propose(lane: Lane, target: Target, controller: Controller, num_lanes: int) -> Candidates:
    """Ask the generator, and cut what it proposes to what can be verified."""
    row = lane.row
    room = min(row.stopping.max_length - row.length - 1, target.room)
    budget = min(controller.budget(num_lanes), room) if target.is_prefilled else 0
    context = Context(
        row.ids, row.num_prompt, room + 1, lane.encoder_ids, lane.inputs, lane.draw, lane.placeholders
    )
    return propose(
        lane.generator, context, budget, controller, vocab_size=target.vocab_size, trees=target.takes_trees
    )


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

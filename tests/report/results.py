"""Results made up for tests of what shows them: their numbers are drawn, no machine measured them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from outrider.bench.records import Contestant, Failure, Header, Measurement, Results
from outrider.stats import Stats

CATEGORIES = (
    "chat",
    "code edit",
    "code completion",
    "JSON extraction",
    "summary",
    "translation",
    "RAG",
    "math",
)
_PACES = {"transformers": 1.0, "none": 0.98, "prompt_lookup": 1.5, "auto": 2.1}


def header(**changes: Any) -> Header:
    """Of a run of four contestants."""
    contestants = tuple(
        Contestant(name, "transformers" if name == "transformers" else "outrider", name == "transformers")
        for name in _PACES
    )
    made = Header(
        versions={"outrider": "0.1.0", "torch": "2.13.0"},
        machine="Linux-x86_64",
        device="A made-up CPU",
        device_type="cpu",
        threads=2,
        dtype="float32",
        model="made-up",
        num_parameters=134_515_008,
        data="builtin",
        num_questions=32,
        settings={"max_new_tokens": 128, "batch": [1], "repeat": 1},
        contestants=contestants,
        baseline="transformers",
        seed=None,
        git="0123456",
        command="outrider bench --model made-up",
        date="2026-12-01T10:00:00+00:00",
        forward_times={1: 0.1, 4: 0.12, 16: 0.2, 64: 0.6},
        lossy=False,
    )
    return dataclasses.replace(made, **changes)


def results(
    seed: int = 0,
    paces: dict[str, float] | None = None,
    per_category: int = 4,
    categories: tuple[str, ...] = CATEGORIES,
) -> Results:
    """Every contestant on every question, `paces` times as fast as the baseline."""
    draw, found = np.random.default_rng(seed), []
    for number in range(per_category * len(categories)):
        category = categories[number % len(categories)]
        kind = 0.75 + 0.5 * (number % len(categories)) / len(categories)
        for name, pace in (_PACES | (paces or {})).items():
            drafts = name not in ("transformers", "none")
            pace = (1 + (pace - 1) * kind) * float(draw.lognormal(0, 0.06))
            found.append(_measurement(name, category, number, 0.11 / pace, drafts))
    failure = Failure("prompt_lookup", "it could not", "q9", 1, 1, 1)
    return Results(header(), tuple(found), (failure,))


def _measurement(name: str, category: str, number: int, token_s: float, drafts: bool) -> Measurement:
    num_new = 101
    rounds = 50 if drafts else num_new - 1
    stats = Stats(
        num_prefills=1, num_rounds=rounds, num_candidates=rounds * 4 if drafts else 0,
        num_accepted=num_new - 1 - rounds, num_committed=num_new, prefill_s=0.2, draft_s=0.002 * rounds,
        target_s=0.9 * token_s * (num_new - 1), verify_s=0.001 * rounds, other_s=0.002 * rounds,
        proposed_by_depth=[50, 50, 50, 50] if drafts else [], accepted_by_depth=[30, 12, 6, 2] if drafts else [],
    ).to_dict()  # fmt: skip
    stats.pop("origins")
    is_baseline = name == "transformers"
    return Measurement(
        contestant=name,
        category=category,
        question_id=f"q{number}",
        turn=1,
        batch=1,
        repeat=1,
        num_prompt=40,
        prefill_s=0.2,
        decode_s=token_s * (num_new - 1),
        num_new_tokens=num_new,
        token_ids=(tuple(range(num_new)),),
        text_sha256="0" * 64,
        stats=None if is_baseline else stats,
        accepted_by_source={},
        same_as_baseline=None if is_baseline else True,
        first_difference=None,
        logit_gap=None,
        peak_memory_bytes=1_200_000_000,
    )

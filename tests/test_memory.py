"""A process that serves request after request stays as large as it was, and lets go of what it served."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch

import outrider
from outrider import AssistedDecoding
from outrider.caches.in_place import InPlaceCache
from outrider.target.forward import Target
from outrider.verification.step import Row
from tests.tiny import VOCAB, build, draft_model, oracle, prompt, tiny

GENERATORS = ("auto", "prompt_lookup", "suffix")


def resident_mib() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20


def kept() -> int:
    """How much of requests that are over is still held."""
    gc.collect()
    return sum(type(one) in (InPlaceCache, Target, Row) for one in gc.get_objects())


def serve(num_requests: int, decodings: list[AssistedDecoding], model: Any) -> Iterator[int]:
    lengths = random.Random(0)
    for request in range(num_requests):
        ids = torch.randint(3, VOCAB, (1, lengths.randint(3, 60))).repeat(1, 2)
        model.generate(
            ids,
            custom_generate=decodings[request % len(decodings)],
            do_sample=False,
            max_new_tokens=lengths.randint(1, 24),
        )
        yield request


def test_many_requests_do_not_add_up() -> None:
    """One of 60 kB kept from every request would be seen."""
    decodings, held, before = [AssistedDecoding(name) for name in GENERATORS], {}, kept()
    for request in serve(210, decodings, tiny("llama")):
        if request in (69, 209):
            held[request] = resident_mib()
    assert held[209] - held[69] < 8
    assert kept() - before <= len(GENERATORS)


@pytest.mark.parametrize("drafts", ["auto", "draft model", "early exit", "interrupted", "oracle"])
def test_models_that_were_served_are_let_go(drafts: str) -> None:
    target, draft = build("llama"), draft_model("llama", 3)
    flags: dict[str, Any] = {
        "auto": {"candidate_generator": "auto"},
        "draft model": {"assistant_model": draft},
        "early exit": {"assistant_early_exit": 1},
        "interrupted": {"candidate_generator": "auto", "stopping_criteria": [lambda *_, **__: 1 / 0]},
        "oracle": {"candidate_generator": oracle(prompt())},
    }[drafts]
    try:
        outrider.generate(target, prompt(), do_sample=False, max_new_tokens=8, **flags)
    except ZeroDivisionError:
        assert drafts == "interrupted"
    alive = [weakref.ref(target), weakref.ref(draft)]
    del target, draft, flags
    gc.collect()
    assert [model() for model in alive] == [None, None]

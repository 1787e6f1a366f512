"""A lean forward gives the same bits, leaves ordinary tensors, and leaves nothing switched."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest
import torch

from outrider.caches.in_place import InPlaceCache
from outrider.lean import LeanForward
from outrider.versions import CACHE
from tests.target.architectures import ALIBI, VOCAB, tiny

SWITCH = "TRANSFORMERS_SDPA_FORCE_GQA"


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma3_text", "deepseek_v3", "bloom", "mpt"])
def test_the_bits_are_the_same(name: str) -> None:
    model = tiny(name, "sdpa" if name not in ALIBI else None)
    text = torch.randint(3, VOCAB, (1, 60), generator=torch.Generator().manual_seed(4))
    logits = []
    for lean in (False, True):
        cache = InPlaceCache(model.config)
        with torch.no_grad():
            model(input_ids=text[:, :50], **{CACHE: cache}, use_cache=True)
            with LeanForward(model) if lean else nullcontext():
                logits.append(model(input_ids=text[:, 50:], **{CACHE: cache}, use_cache=True).logits)
        assert SWITCH not in os.environ
    assert torch.equal(*logits)


def test_its_tensors_can_be_trained_on() -> None:
    model = tiny("llama", "sdpa")
    ids = torch.randint(3, VOCAB, (1, 6))
    with torch.no_grad(), LeanForward(model):
        states = model(input_ids=ids, output_hidden_states=True).hidden_states[-1]
    probe = torch.nn.Linear(states.shape[-1], 1)
    states.add_(1.0)
    probe(states).sum().backward()
    assert probe.weight.grad is not None and not states.is_inference()


def test_gradients_flow_where_they_are_wanted_and_after_an_error() -> None:
    model = tiny("llama", "sdpa")
    lean = LeanForward(model)
    with pytest.raises(ZeroDivisionError), torch.no_grad(), lean, lean:
        raise ZeroDivisionError
    assert SWITCH not in os.environ
    ids = torch.randint(3, VOCAB, (1, 6))
    assert model(input_ids=ids).logits.requires_grad
    with lean:
        assert model(input_ids=ids).logits.requires_grad

"""The in-place cache gives the bits that transformers' DynamicCache gives, and rolls back by a number."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, PreTrainedModel, StaticCache

from outrider.caches.in_place import InPlaceCache, in_place_cache_for
from outrider.caches.layers import InPlaceLayer, InPlaceSlidingLayer
from outrider.versions import CACHE
from tests.target.architectures import ALIBI, ENCODER_DECODER, FULL, VOCAB, WINDOW, WINDOWED, tiny

DECODERS = [*FULL, *WINDOWED, *ALIBI]


def prompt(length: int, batch: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCAB, (batch, length), generator=torch.Generator().manual_seed(length))


def pair(model: PreTrainedModel, max_length: int | None = 90) -> tuple[DynamicCache, InPlaceCache]:
    theirs = DynamicCache(config=model.config)
    theirs.activate_past_recording()
    return theirs, InPlaceCache(model.config, max_length)


def run(model: PreTrainedModel, ids: torch.Tensor, cache: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(ids, **{CACHE: cache}, use_cache=True).logits
    return logits


@pytest.mark.parametrize("attention", [None, "eager"])
@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_those_of_dynamic_cache_through_rollbacks(name: str, attention: str | None) -> None:
    model = tiny(name, attention)
    theirs, ours = pair(model)
    ids, at = prompt(90), 0
    for num_new, num_removed in [
        (10, 0),
        (1, 0),
        (5, 4),
        (6, 1),
        (1, 0),
        (8, 8),
        (20, 3),
        (1, 1),
        (7, 2),
        (30, 5),
    ]:
        piece = ids[:, at : at + num_new]
        assert torch.equal(run(model, piece, theirs), run(model, piece, ours))
        theirs.crop(-num_removed)
        ours.crop(-num_removed)
        at += num_new - num_removed
        assert ours.get_seq_length() == at


def in_place(model: PreTrainedModel, input_ids: torch.Tensor, **kwargs: Any) -> Any:
    """Plain decoding of transformers, on the cache that takes the place of the one it prepared."""
    kwargs[CACHE] = in_place_cache_for(model, kwargs, kwargs["generation_config"])
    assert kwargs[CACHE] is not None
    return model._sample(input_ids, **kwargs)


@pytest.mark.parametrize("name", [*DECODERS, *ENCODER_DECODER])
def test_generate_gives_the_same_text(name: str) -> None:
    model = tiny(name)
    settings: dict[str, Any] = {"max_new_tokens": 30, "do_sample": False}
    wanted = model.generate(prompt(12, batch=2), **settings)
    assert torch.equal(wanted, model.generate(prompt(12, batch=2), custom_generate=in_place, **settings))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", *ENCODER_DECODER])
def test_beams_and_assisted_decoding_of_transformers_run_on_it(name: str) -> None:
    model = tiny(name)
    for flags in ({"num_beams": 3}, {"prompt_lookup_num_tokens": 4}):
        cache: Any = InPlaceCache(model.config)
        if name in ENCODER_DECODER:
            cache = EncoderDecoderCache(cache, DynamicCache(config=model.config))
        settings: dict[str, Any] = {"max_new_tokens": 25, "do_sample": False, **flags}
        wanted = model.generate(prompt(20), **settings)
        assert torch.equal(wanted, model.generate(prompt(20), **{CACHE: cache}, **settings))


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "t5"])
def test_left_padding(name: str) -> None:
    model = tiny(name)
    ids, mask = prompt(12, batch=2), torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    settings: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 25, "do_sample": False}
    wanted = model.generate(ids, **settings)
    cache: Any = InPlaceCache(model.config)
    if name in ENCODER_DECODER:
        cache = EncoderDecoderCache(cache, DynamicCache(config=model.config))
    assert torch.equal(wanted, model.generate(ids, **{CACHE: cache}, **settings))


@pytest.mark.parametrize("name", ["llama", "gemma2", "mistral", "llama4_text"])
def test_rounded_lengths_change_only_the_rounding(name: str) -> None:
    model = tiny(name)
    theirs, ours = DynamicCache(config=model.config), InPlaceCache(model.config, multiple=32)
    ids, at = prompt(80), 0
    for num_new in (20, 1, 4, 1, 30, 1):
        piece = ids[:, at : at + num_new]
        torch.testing.assert_close(run(model, piece, theirs), run(model, piece, ours), atol=1e-4, rtol=1e-4)
        at += num_new


def test_memory_stays_put_between_doublings_and_never_passes_the_limit() -> None:
    layer, entry = InPlaceLayer(max_length=1000), torch.ones(1, 2, 1, 4)
    layer.update(entry.expand(1, 2, 100, 4), entry.expand(1, 2, 100, 4))
    addresses, capacities = set(), set()
    for _ in range(900):
        keys, values = layer.update(entry, entry)
        assert keys.shape[-2] == values.shape[-2] == layer.get_seq_length()
        addresses.add(keys.data_ptr())
        capacities.add(layer.capacity)
    assert len(addresses) == len(capacities) <= 4
    assert max(capacities) <= 1024
    assert layer.num_bytes <= 1.1 * 2 * 1000 * 2 * 4 * 4


def test_a_window_drops_what_it_never_needs_again() -> None:
    layer, entry = InPlaceSlidingLayer(WINDOW), torch.ones(1, 2, 1, 4)
    for step in range(5000):
        keys, _ = layer.update(entry * step, entry)
        assert keys[0, 0, -1, 0] == step
        assert keys.shape[-2] == min(step + 1, WINDOW)
    assert layer.capacity <= 1024
    layer.crop(-200)
    keys, _ = layer.update(entry * -1, entry)
    assert keys[0, 0, :, 0].tolist() == [*range(4800 - WINDOW + 1, 4800), -1]
    with pytest.raises(RuntimeError, match="has dropped what lies before"):
        layer.crop(-4000)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_keep_path_is_as_if_only_the_path_had_run(name: str) -> None:
    model = tiny(name)
    ours, straight = InPlaceCache(model.config), InPlaceCache(model.config)
    ids = prompt(40)
    run(model, ids[:, :20], ours)
    run(model, ids[:, :20], straight)
    keys = torch.randn(1, 2, 5, 8)
    for index in range(2):
        ours.update(keys, keys, index)
    ours.keep_path(21, [0, 2])
    assert ours.get_seq_length() == 23
    for layer in ours.layers:
        assert torch.equal(layer.keys[:, :, 20:], keys[:, :, [0, 1, 3]])
        assert torch.equal(layer.values[:, :, 20:], keys[:, :, [0, 1, 3]])
    ours.crop(-3)
    assert torch.equal(run(model, ids[:, 20:25], ours), run(model, ids[:, 20:25], straight))


def test_batch_changes_reset_and_copies() -> None:
    model = tiny("llama")
    ids = prompt(10, batch=2)
    for change in ("repeat", "select", "reorder", "copy", "reset", "offload"):
        theirs, ours = pair(model)
        run(model, ids, theirs)
        run(model, ids, ours)
        rows = torch.arange(2)
        if change == "repeat":
            theirs.batch_repeat_interleave(2)
            ours.batch_repeat_interleave(2)
            rows = torch.tensor([0, 0, 1, 1])
        elif change == "select":
            theirs.batch_select_indices(torch.tensor([1]))
            ours.batch_select_indices(torch.tensor([1]))
            rows = torch.tensor([1])
        elif change == "reorder":
            theirs.reorder_cache(torch.tensor([1, 1]))
            ours.reorder_cache(torch.tensor([1, 1]))
        elif change == "copy":
            before, ours = ours, copy.deepcopy(ours)
            run(model, ids, before)
        elif change == "reset":
            theirs = pair(model)[0]
            ours.reset()
            rows = torch.tensor([0])
        else:
            for layer in ours.layers:
                layer.offload()
                layer.prefetch()
        assert torch.equal(run(model, ids[rows, :3], theirs), run(model, ids[rows, :3], ours)), change


def test_memory_made_in_inference_mode_is_usable_outside() -> None:
    model = tiny("llama")
    theirs, ours = pair(model)
    with torch.inference_mode():
        model(prompt(10), **{CACHE: ours})
    run(model, prompt(10), theirs)
    assert torch.equal(run(model, prompt(3), theirs), run(model, prompt(3), ours))


def test_in_place_cache_for_leaves_what_is_not_plain() -> None:
    model, bart = tiny("llama"), tiny("bart")
    config = GenerationConfig(max_length=50)
    fresh = DynamicCache(config=model.config)
    ours = in_place_cache_for(model, {CACHE: fresh}, config)
    assert isinstance(ours, InPlaceCache)
    assert len(ours) == 2
    filled = DynamicCache(config=model.config)
    run(model, prompt(5), filled)
    users = DynamicCache(config=model.config)
    users._is_user_defined = True
    others = [None, filled, users, StaticCache(model.config, max_cache_len=50), InPlaceCache(model.config)]
    assert all(in_place_cache_for(model, {CACHE: cache}, config) is None for cache in others)
    cross = DynamicCache(config=bart.config)
    both = in_place_cache_for(
        bart, {CACHE: EncoderDecoderCache(DynamicCache(config=bart.config), cross)}, config
    )
    assert isinstance(both, EncoderDecoderCache)
    assert isinstance(both.self_attention_cache, InPlaceCache)
    assert both.cross_attention_cache is cross

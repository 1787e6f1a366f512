"""The quick inputs of a forward against those that the model's own methods make."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.generation.utils import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from outrider.caches.in_place import InPlaceCache
from outrider.target.inputs import GrownInputs, ModelInputs, inputs_for
from outrider.versions import CACHE
from tests.target.architectures import ALIBI, ENCODER_DECODER, FULL, VOCAB, WINDOWED, tiny


def given(cache: Any, num_padded: int, length: int) -> dict[str, Any]:
    """What `generate()` prepares for a prompt, `num_padded` of whose tokens are padding."""
    mask = (torch.arange(length) >= num_padded).long()[None]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {
        CACHE: cache,
        "attention_mask": mask,
        "position_ids": positions,
        "use_cache": True,
        "logits_to_keep": 1,
        "output_attentions": None,
    }


@pytest.mark.parametrize("num_padded", [0, 3])
@pytest.mark.parametrize("name", [*FULL, *WINDOWED, *ALIBI])
def test_the_quick_way_gives_what_the_models_own_methods_give(name: str, num_padded: int) -> None:
    model, cache = tiny(name), InPlaceCache(tiny(name).config)
    quick = inputs_for(model, given(cache, num_padded, 9))
    if not isinstance(quick, GrownInputs):
        assert any(getattr(type(model), m) is not getattr(GenerationMixin, m) for m in METHODS)
        return
    own = ModelInputs(model, given(cache, num_padded, 9))
    ids = torch.randint(3, VOCAB, (1, 4000), generator=torch.Generator().manual_seed(0))
    length = 9
    for num_committed, num_candidates, num_past in [
        (1, 0, 0),
        (1, 4, 0),
        (3, 1, 2),
        (1100, 40, 7),
        (1, 0, 1),
    ]:
        for inputs in (quick, own):
            inputs.step_on(CausalLMOutputWithPast(**{CACHE: cache}), num_committed)
        length += num_committed
        one, other = (
            i.of(ids[:, : length + num_candidates], num_past, num_candidates + 1) for i in (quick, own)
        )
        assert one.keys() == other.keys()
        for key, value in other.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(one[key], value), key
            else:
                assert one[key] is value or one[key] == value, key


METHODS = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")


def test_every_other_model_is_asked() -> None:
    for name in ENCODER_DECODER:
        assert isinstance(inputs_for(tiny(name), {CACHE: None}), ModelInputs)
    model = tiny("llama")
    cache = InPlaceCache(model.config)
    for changed in (
        {"inputs_embeds": torch.zeros(1, 9, 32)},
        {"use_cache": False},
        {"position_ids": torch.zeros(3, 1, 9, dtype=torch.long)},
        {CACHE: InPlaceCache(model.config, multiple=32)},
    ):
        assert isinstance(inputs_for(model, given(cache, 0, 9) | changed), ModelInputs)
    model.prepare_inputs_for_generation = lambda *_, **__: {}
    try:
        assert isinstance(inputs_for(model, given(cache, 0, 9)), ModelInputs)
    finally:
        del model.prepare_inputs_for_generation

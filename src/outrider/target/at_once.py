"""Whether a model's forward over several tokens is as many forwards over one: what verifying rests on."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from outrider.caches.in_place import InPlaceCache
from outrider.caches.snapshots import has_recurrent_state
from outrider.devices import device_of
from outrider.errors import UnsupportedModelError
from outrider.versions import CACHE

# Rounding is below 1e-5, weights and activations of 8 bits above 1e-2.
_TOLERANCE = 1e-3
_NUM_PROMPT, _NUM_TOKENS = 5, 3

_reasons: weakref.WeakKeyDictionary[PreTrainedModel, dict[bool, str | None]] = weakref.WeakKeyDictionary()


def refuse_unlike_at_once(model: PreTrainedModel, inputs: Mapping[str, Any]) -> None:
    """Try a few tokens at once and one at a time, once for a model and its mode.

    **Arguments:**

    - `inputs`: What `generate()` prepared: the encoder's outputs and the caller's own switches are taken of it.

    **Raises:** `UnsupportedModelError` where forwards are random, as with dropout in train mode; or where, in
        float32 and float64, a token's logits depend on the tokens beside it, as where activations are quantised
        by a scale that all tokens of a forward share. In half precision that can't be told from rounding.
    """
    tried = _reasons.setdefault(model, {})
    if model.training not in tried:
        tried[model.training] = _reason(model, inputs)
    if (reason := tried[model.training]) is not None:
        raise UnsupportedModelError(f"{type(model).__name__} {reason}, or use candidate_generator='none'")


def _reason(model: PreTrainedModel, inputs: Mapping[str, Any]) -> str | None:
    if not model.training and model.dtype not in (torch.float32, torch.float64):
        return None
    try:
        before = _random_state(device_of(model))
        at_once, in_turn = _tried_out(model, inputs)
        drawn = not torch.equal(before, _random_state(device_of(model)))
    except Exception:  # a model may want inputs that are not known here: it is then taken at its word
        return None
    if drawn:
        return (
            "draws random numbers in every forward, since it is in train mode and has dropout, so no candidate "
            "can be verified; call model.eval() first"
        )
    if model.dtype in (torch.float32, torch.float64) and not _alike(at_once, in_turn):
        return (
            "computes other logits over several tokens than over one at a time, as with activations quantised "
            "together, so no candidate can be verified; quantise the weights alone"
        )
    return None


def _alike(one: Tensor, other: Tensor) -> bool:
    return not bool((one - other).abs().max() > _TOLERANCE * other.std())


def _tried_out(model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """(n, V) logits of the last tokens of one forward over several, and of forwards over each."""
    vocab = min(1000, int(model.config.get_text_config(decoder=True).vocab_size) - 1)
    length = _NUM_PROMPT + _NUM_TOKENS
    ids = (torch.arange(length, device=device_of(model))[None] * 7919) % vocab + 1
    cache = InPlaceCache(model.config.get_text_config(decoder=True))
    arguments: dict[str, Any] = {
        key: value
        for key, value in inputs.items()
        if isinstance(value, bool | int | float | str) and key != "logits_to_keep"
    }
    arguments |= {CACHE: cache, "use_cache": True}
    name = "input_ids"
    if model.config.is_encoder_decoder:
        arguments[CACHE] = EncoderDecoderCache(cache, DynamicCache())
        arguments["encoder_outputs"] = _first_row(inputs["encoder_outputs"])
        name = "decoder_input_ids"
    with torch.no_grad():
        model(**{name: ids[:, :_NUM_PROMPT]}, **arguments)
        at_once: Tensor = model(**{name: ids[:, _NUM_PROMPT:]}, **arguments).logits
        # The former are tried in target.recurrent, the latter found out in the first round.
        stateful = getattr(model, "_is_stateful", False) or has_recurrent_state(cache)
        if stateful or at_once.shape[1] != _NUM_TOKENS:
            return at_once[0], at_once[0]
        # Not the first of them: whichever token has the largest activations looks the same alone.
        cache.crop(1 - _NUM_TOKENS)
        in_turn = [model(**{name: ids[:, at : at + 1]}, **arguments).logits for at in range(length)[-2:]]
    return at_once[0, 1:], torch.cat(in_turn, dim=1)[0]


def _first_row(encoder_outputs: Any) -> Any:
    return type(encoder_outputs)(last_hidden_state=encoder_outputs.last_hidden_state[:1])


def _random_state(device: torch.device) -> Tensor:
    """The state of the generator that a forward on `device` draws from."""
    module: Any = torch if device.type == "cpu" else torch.get_device_module(device)
    state: Tensor = module.get_rng_state()
    return state

"""Whether rows that accept different lengths read as each row alone: tried out on the model itself."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, PreTrainedModel

from outrider.devices import device_of
from outrider.errors import UnsupportedModelError
from outrider.target.batch import BatchTarget
from outrider.target.batch_inputs import mask_and_positions, per_token_names, rows_of
from outrider.target.masks import alike, supports_tree
from outrider.target.placeholders import placeholder_ids
from outrider.target.slots import Slots
from outrider.types import Candidates
from outrider.versions import CACHE

_reasons: weakref.WeakKeyDictionary[PreTrainedModel, str | None] = weakref.WeakKeyDictionary()
_NUM_PADS = 2


def batch_target(
    model: PreTrainedModel,
    model_kwargs: dict[str, Any],
    generation_config: GenerationConfig,
    mask: Tensor | None = None,
) -> BatchTarget:
    """A `BatchTarget`, of a model that was tried.

    **Raises:** `UnsupportedModelError` where its rows could not accept different lengths.
    """
    target = BatchTarget(model, model_kwargs, generation_config, mask)
    reason = reason_against_rows(model, model_kwargs, generation_config)
    if reason is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot verify a batch here, since {reason}; generate one prompt at a time"
        )
    return target


def reason_against_rows(
    model: PreTrainedModel, kwargs: Mapping[str, Any], config: GenerationConfig
) -> str | None:
    """Why a batch's rows would not read as each row alone; None where they do.

    Tried out once for a model, by a few short forwards over two rows of different lengths, one of which
    accepts more than the other.

    **Arguments:**

    - `kwargs`: What `generate()` prepared for two rows or more: an encoder-decoder model's encoding is needed.
    """
    config_of_text = model.config.get_text_config(decoder=True)
    if getattr(config_of_text, "cross_attention_layers", None):
        return "some of its layers hold an image's keys beside the text's"
    if supports_tree(model) and not placeholder_ids(model.config).size:
        return None  # a model that sees may count positions by what it saw
    if model not in _reasons:
        _reasons[model] = _tried_out(model, kwargs, config)
    return _reasons[model]


def _tried_out(model: PreTrainedModel, kwargs: Mapping[str, Any], config: GenerationConfig) -> str | None:
    vocab = min(1000, int(model.config.get_text_config(decoder=True).vocab_size) - 1)
    texts = [(np.arange(1 + 20 * row, 19 + 20 * row) * 7919) % vocab + 1 for row in range(2)]
    try:
        with torch.no_grad():
            together = _together(model, kwargs, config, texts)
            alone = [_alone(model, kwargs, config, texts, row) for row in range(2)]
    except UnsupportedModelError as error:
        return str(error)
    except Exception as error:  # a model may fail on rows of different lengths in any way
        first = (str(error).splitlines() or [""])[0]
        return f"it fails on rows of different lengths ({type(error).__name__}: {first})"
    if all(alike(one, other, model.dtype) for one, other in zip(together, alone, strict=True)):
        return None
    return "a row's logits depend on the other rows' lengths"


def _together(
    model: PreTrainedModel, kwargs: Mapping[str, Any], config: GenerationConfig, texts: list[Any]
) -> list[Tensor]:
    """Each row's last logits of two rounds: row 0 accepts three candidates in the first, row 1 none."""
    lengths = [8, 8 - _NUM_PADS]
    mask = torch.ones(2, 8, dtype=torch.long, device=device_of(model))
    mask[1, :_NUM_PADS] = 0
    per_token = dict(zip(mask_and_positions(model), (mask, Slots(mask).positions), strict=False))
    inputs = _inputs(model, kwargs, [0, 1]) | per_token
    target = BatchTarget(model, inputs, config)
    accepted = [[0, 0], [3, 0], [2, 2]]
    found: list[Tensor] = []
    for number, counts in enumerate(accepted):
        rows: list[Any] = []
        for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
            ids = np.concatenate([[0] * _NUM_PADS * row, text[:length]]).astype(np.int64)
            tensor = torch.from_numpy(ids)[None].to(device_of(model))
            rows.append(SimpleNamespace(index=row, ids=ids, tensor=lambda tensor=tensor: tensor))
        proposals = [
            Candidates.chain(text[length : length + count])
            for text, length, count in zip(texts, lengths, counts, strict=True)
        ]
        logits = target.forward(rows, proposals)
        target.commit([np.arange(count) for count in counts], [count + 1 for count in counts])
        lengths = [length + count + 1 for length, count in zip(lengths, counts, strict=True)]
        found = [row[-1].float() for row in logits]
        assert number or lengths == [9, 9 - _NUM_PADS]
    return found


def _alone(
    model: Any, kwargs: Mapping[str, Any], config: GenerationConfig, texts: list[Any], row: int
) -> Tensor:
    """The same of a row alone, whose text is run at once: its last two candidates end it."""
    length = (8 + 1 + 4 + 2, 8 - _NUM_PADS + 1 + 1 + 2)[row]
    ids = torch.from_numpy(texts[row][:length])[None].to(device_of(model))
    logits: Tensor = model._prefill(ids, config, _inputs(model, kwargs, [row])).logits
    return logits[0, -1].float()


def _inputs(model: PreTrainedModel, kwargs: Mapping[str, Any], rows: list[int]) -> dict[str, Any]:
    """What the trial's rows are given: no prompt of the call's own, and an empty cache."""
    fixed = {name: value for name, value in kwargs.items() if name not in (*per_token_names(model), CACHE)}
    if not model.config.is_encoder_decoder:
        # Without what the call's own prompts show.
        fixed = {name: value for name, value in fixed.items() if isinstance(value, bool | int | str | None)}
    num_rows = len(kwargs["encoder_outputs"][0]) if "encoder_outputs" in kwargs else len(rows)
    cache: Any = DynamicCache(config=model.config.get_text_config(decoder=True))
    if model.config.is_encoder_decoder:
        cache = EncoderDecoderCache(cache, DynamicCache())
    own = {name: rows_of(value, torch.tensor(rows), num_rows) for name, value in fixed.items()}
    return own | {CACHE: cache}

"""What a forward of a batch is given beside its tokens: what belongs to each row, and its mask and positions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from outrider.target.own_positions import counting_modules, own_positions
from outrider.versions import CACHE

# Given with every token of a prompt; what follows the prompt has the last one's.
_TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
_PER_TOKEN = ("attention_mask", "position_ids", "inputs_embeds", *_TOKEN_TYPES)


def rows_of(value: Any, index: Tensor, num_rows: int) -> Any:
    """The rows `index` of what belongs to a batch of `num_rows`: tensors, and structures of them."""
    if isinstance(value, Tensor):
        is_a_row_each = value.ndim > 0 and value.shape[0] == num_rows
        return value.index_select(0, index.to(value.device)) if is_a_row_each else value
    if isinstance(value, ModelOutput):
        return type(value)(**{name: rows_of(part, index, num_rows) for name, part in value.items()})
    if isinstance(value, dict):
        return {name: rows_of(part, index, num_rows) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(rows_of(part, index, num_rows) for part in value)
    return value


def per_token_names(model: PreTrainedModel) -> list[str]:
    """Names of what `generate()` prepares with one entry for every token that a text goes on from."""
    prefix = "decoder_" if model.config.is_encoder_decoder else ""
    return [prefix + name for name in _PER_TOKEN]


def mask_and_positions(model: PreTrainedModel) -> tuple[str, ...]:
    """Names of what says which of these tokens are padding and, where the model takes it, where they stand."""
    mask, positions, *_ = per_token_names(model)
    return (mask, positions) if positions in inspect.signature(model.forward).parameters else (mask,)


def padded_on_the_left(
    model: PreTrainedModel, ids: Tensor, kwargs: Mapping[str, Any]
) -> tuple[Tensor, dict[str, Any], Tensor]:
    """Prompts and what belongs to their tokens, each row's padding moved before its first token.

    What is padding is said by the mask alone: an id may be a text's as well.

    **Returns:** the ids, `kwargs` with what was moved, and the mask as given, (B, L), in which a given cache's
    slots are counted too.
    """
    names, num_rows, length = per_token_names(model), *ids.shape
    mask = kwargs.get(names[0])
    if mask is None or mask.ndim != 2:
        mask = ids.new_ones(num_rows, max(length, num_cached(kwargs) + 1))
    order = last_on_the_right(mask[:, -length:])
    rows = torch.arange(num_rows, device=order.device)[:, None]
    moved = {
        name: kwargs[name][rows, order]
        for name in names
        if isinstance(kwargs.get(name), Tensor) and kwargs[name].shape[:2] == ids.shape
    }
    return ids[rows, order], {**kwargs, **moved}, mask


def num_padding(model: PreTrainedModel, ids: Tensor, kwargs: Mapping[str, Any]) -> list[int]:
    """How many of each row's ids (B, L) the mask says are padding."""
    mask = kwargs.get(per_token_names(model)[0])
    if mask is None or mask.ndim != 2:
        return [0] * len(ids)
    hidden: list[int] = (mask[:, -ids.shape[1] :] == 0).sum(1).tolist()
    return hidden


def last_on_the_right(mask: Tensor) -> Tensor:
    """(B, L) int64. Each row's slots without a token, then those with one."""
    return torch.argsort(mask.to(torch.bool).to(torch.uint8), dim=1, stable=True)


def num_cached(kwargs: Mapping[str, Any]) -> int:
    """Tokens in the cache that `generate()` was given."""
    cache = kwargs.get(CACHE)
    return 0 if cache is None else int(cache.get_seq_length())


@final
class BatchInputs:
    """The inputs of each forward after the prompts', made by the model's own method from the rows' own.

    **Arguments:**

    - `kwargs`: What `generate()` prepared, the cache among it.
    """

    def __init__(self, model: PreTrainedModel, kwargs: dict[str, Any]) -> None:
        self._model: Any = model
        self.kwargs = kwargs
        self._names = mask_and_positions(model)
        self._counting = counting_modules(model) if len(self._names) == 1 else []

    def of(self, ids: Tensor, mask: Tensor, positions: Tensor) -> dict[str, Any]:
        """A forward's arguments.

        **Arguments:**

        - `ids`, `positions`: (B, T) int64. The new tokens' ids and positions.
        - `mask`: (B, L + T). Which slots of the cache, and of the new tokens, hold a token.
        """
        width = ids.shape[1]
        own = dict(zip(self._names, (mask.long(), positions), strict=False))
        types = {
            name: self.kwargs[name][:, -1:].expand(-1, width)
            for name in _TOKEN_TYPES
            if self.kwargs.get(name) is not None
        }
        inputs: dict[str, Any] = self._model.prepare_inputs_for_generation(
            ids, next_sequence_length=width, **{**self.kwargs, **own, **types}
        )
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = width
        return inputs

    def counting_from(self, leads: list[int]) -> AbstractContextManager[None]:
        """Inside it a model that takes no positions counts each row's own, which has `leads` slots before it."""
        return own_positions(self._counting, leads)

    def select(self, index: Tensor, num_rows: int) -> None:
        """Keep the rows `index` of `num_rows`; the cache is not touched."""
        self.kwargs = {name: rows_of(value, index, num_rows) for name, value in self.kwargs.items()}

"""What a forward is given beside its tokens: masks and positions that grow with the text.

Most models leave both to transformers' own two methods, which join tensors anew for every forward. For these
the same inputs are views into memory written once. Every other model's own methods are asked.
"""

from __future__ import annotations

from typing import Any, Protocol, final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.generation.utils import GenerationMixin

from outrider.devices import device_of
from outrider.errors import UnsupportedModelError
from outrider.versions import CACHE

_METHODS = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")
_GROWING = ("attention_mask", "position_ids")
_ROOM = 1024


class Inputs(Protocol):
    """The inputs of each forward after the prompt's."""

    @property
    def cache(self) -> Any:
        """The cache as `generate()` returns it."""

    def of(self, ids: Tensor, num_past: int, num_new: int) -> dict[str, Any]:
        """A forward's arguments, its last `num_new` tokens being uncommitted but for the first.

        **Arguments:**

        - `ids`: (1, L + num_new - 1) int64. Committed tokens and a chain of candidates.
        - `num_past`: Committed tokens before the last that the forward takes once more.

        **Raises:** `UnsupportedModelError` where the model makes other tokens of these.
        """

    def step_on(self, outputs: Any, num_tokens: int) -> None:
        """`num_tokens` were committed, and `outputs` are their forward's."""


def inputs_for(model: PreTrainedModel, kwargs: dict[str, Any]) -> Inputs:
    """The quick way where it gives the same, else the model's own."""
    device = device_of(model)
    given = {name: kwargs[name] for name in _GROWING if kwargs.get(name) is not None}
    own = all(
        getattr(type(model), name, None) is getattr(GenerationMixin, name) and name not in vars(model)
        for name in _METHODS
    )
    rest = {name: value for name, value in kwargs.items() if name not in (*_GROWING, CACHE)}
    if (
        own
        and not model.config.is_encoder_decoder
        and not model.is_remote_code()
        and kwargs.get(CACHE) is not None
        and not getattr(kwargs[CACHE], "is_compileable", False)
        and kwargs.get("use_cache", True)
        and all(value.ndim == 2 and value.device == device for value in given.values())
        and all(value is None or isinstance(value, bool | int | float | str) for value in rest.values())
    ):
        return GrownInputs(model, kwargs)
    return ModelInputs(model, kwargs)


@final
class ModelInputs:
    """Inputs made by the model's own two methods, as transformers' loops call them."""

    def __init__(self, model: PreTrainedModel, kwargs: dict[str, Any]) -> None:
        self._model: Any = model
        self._kwargs = kwargs
        self._outputs: Any = None
        # Not all models' own methods heed the number of tokens, and types of tokens are repeated by it.
        name = _METHODS[1]
        is_own = getattr(type(model), name) is getattr(GenerationMixin, name)
        self._at_once = is_own and kwargs.get("token_type_ids") is None

    @property
    def cache(self) -> Any:
        return self._kwargs.get(CACHE)

    def of(self, ids: Tensor, num_past: int, num_new: int) -> dict[str, Any]:
        kwargs = dict(self._kwargs)
        if num_new > 1:
            kwargs = self._stepped(self._outputs, kwargs, num_new - 1)
        length = num_past + num_new if kwargs.get("use_cache", True) else None
        inputs: dict[str, Any] = self._model.prepare_inputs_for_generation(
            ids, next_sequence_length=length, **kwargs
        )
        run = inputs.get("decoder_input_ids" if self._model.config.is_encoder_decoder else "input_ids")
        if num_new > 1 and (run is None or run.shape[1] != length):
            raise UnsupportedModelError(
                f"{type(self._model).__name__} runs other tokens than it is given, as with the virtual tokens of "
                "prompt tuning, so no candidate can be verified; use candidate_generator='none'"
            )
        if "logits_to_keep" in inputs:  # some models set it themselves, to their configuration's
            inputs["logits_to_keep"] = num_new
        return inputs

    def step_on(self, outputs: Any, num_tokens: int) -> None:
        self._outputs = outputs
        self._kwargs = self._stepped(outputs, self._kwargs, num_tokens)

    def _stepped(self, outputs: Any, kwargs: dict[str, Any], num_tokens: int) -> dict[str, Any]:
        for _ in range(1 if self._at_once else num_tokens):
            kwargs = self._model._update_model_kwargs_for_generation(
                outputs,
                kwargs,
                is_encoder_decoder=bool(self._model.config.is_encoder_decoder),
                num_new_tokens=num_tokens if self._at_once else 1,
            )
        return kwargs


@final
class GrownInputs:
    """The same for models that leave it to transformers: views of a mask and of positions written ahead."""

    def __init__(self, model: PreTrainedModel, kwargs: dict[str, Any]) -> None:
        self._fixed = {name: value for name, value in kwargs.items() if name not in _GROWING or value is None}
        self._keep_logits = "logits_to_keep" in kwargs
        self._grown = {name: kwargs[name] for name in _GROWING if kwargs.get(name) is not None}
        self._lengths = {name: value.shape[1] for name, value in self._grown.items()}

    @property
    def cache(self) -> Any:
        return self._fixed[CACHE]

    def of(self, ids: Tensor, num_past: int, num_new: int) -> dict[str, Any]:
        num_run = num_past + num_new
        inputs = {"input_ids": ids[:, -num_run:].contiguous(), **self._fixed}
        if self._keep_logits:
            inputs["logits_to_keep"] = num_new
        for name in self._grown:
            end = self._lengths[name] + num_new - 1
            start = end - num_run if name == "position_ids" else 0
            inputs[name] = self._written(name, end)[:, start:end]
        return inputs

    def step_on(self, outputs: Any, num_tokens: int) -> None:
        for name in self._lengths:
            self._lengths[name] += num_tokens

    def _written(self, name: str, end: int) -> Tensor:
        """The tensor, written at least up to `end`."""
        known = self._grown[name]
        if known.shape[1] < end:
            more = torch.arange(1, end + _ROOM - known.shape[1] + 1, dtype=known.dtype, device=known.device)
            ahead = known[:, -1:] + more if name == "position_ids" else torch.ones_like(more).expand(1, -1)
            known = self._grown[name] = torch.cat([known, ahead.expand(known.shape[0], -1)], 1)
        return known

"""Positions of each row's own for decoders that take none, and count them from their cache's length."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad
from transformers import PreTrainedModel

# How a position embedding is told what came before its tokens: the second name below transformers 5.20.
_LENGTHS = ("cache_length", "past_key_values_length")


def counting_modules(model: PreTrainedModel) -> list[Module]:
    """The position embeddings of a decoder that are told how long the cache is."""
    decoder: Any = model.get_decoder() if model.config.is_encoder_decoder else model
    return [module for module in decoder.modules() if _length_name(module) is not None]


@contextlib.contextmanager
def own_positions(modules: Sequence[Module], leads: Sequence[int]) -> Iterator[None]:
    """Inside it each of `modules` counts a row from its first token on.

    **Arguments:**

    - `modules`: As `counting_modules` found them.
    - `leads`: Slots before each row's first token.
    """
    hook = functools.partial(_row_by_row, leads)
    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _length_name(module: Module) -> str | None:
    parameters = inspect.signature(module.forward).parameters
    return next((name for name in _LENGTHS if name in parameters), None)


def _row_by_row(
    leads: Sequence[int], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
) -> Tensor:
    """What the module gives for each row alone, (B, T, D); zeros before its first token."""
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    name = _length_name(module)
    assert name is not None
    num_past, num_rows, num_new = int(given.get(name, 0)), len(leads), output.shape[-2]
    rows = []
    for row, lead in enumerate(leads):
        skipped = min(max(0, lead - num_past), num_new)
        own = {key: _row(value, row, num_rows, skipped) for key, value in given.items()}
        own[name] = max(0, num_past - lead)
        if "position_ids" in own:  # made of the cache's length too
            own["position_ids"] = None
        positions = module.forward(**own).reshape(1, num_new - skipped, -1)
        rows.append(pad(positions, (0, 0, skipped, 0)))
    return torch.cat(rows)


def _row(value: Any, row: int, num_rows: int, skipped: int) -> Any:
    """A row's part of an argument: of ids or embeddings, or of their shape."""
    if isinstance(value, Tensor) and value.ndim > 1 and value.shape[0] == num_rows:
        return value[row : row + 1, skipped:]
    if isinstance(value, tuple):
        return torch.Size((1, value[1] - skipped))
    return value

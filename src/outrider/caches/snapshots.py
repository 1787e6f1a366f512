"""A transformers cache as it is now, to go back to: what a recurrent state needs in place of a rollback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

from outrider.versions import linear_length

# What a layer grown by concatenation holds; the tensors themselves are never written to.
_GROWN = ("keys", "values", "cumulative_length", "is_initialized", "indexer_keys", "indexer_position_ids")


def has_recurrent_state(cache: Any) -> bool:
    """Whether a layer of `cache` keeps a recurrent or convolution state."""
    return any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in getattr(cache, "layers", ()))


def snapshots(cache: Any) -> list[Callable[[], None]]:
    """What takes a cache back to what it is now: called all together, as often as wanted."""
    return [restore for layer in cache.layers for restore in _of_layer(layer)]


def _of_layer(layer: Any) -> list[Callable[[], None]]:
    """What takes a layer back to what it is now."""
    restores = []
    if hasattr(layer, "remember"):
        restores.append(layer.remember())
    elif isinstance(layer, DynamicLayer):
        held = {name: vars(layer)[name] for name in _GROWN if name in vars(layer)}
        restores.append(lambda: vars(layer).update(held))
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        seen = dict(layer.has_previous_state)
        restores.append(lambda: layer.has_previous_state.update(seen))
        if (length := linear_length(layer)) is not None:
            counted = length.clone()
            restores.append(lambda: layer.cumulative_length_linear.copy_(counted))
        for states in (layer.conv_states, layer.recurrent_states):
            restores += [
                _copy_back(states, index, state) for index, state in states.items() if state is not None
            ]
    return restores


def _copy_back(states: dict[int, Tensor | None], index: int, state: Tensor) -> Callable[[], None]:
    kept = state.clone()

    def restore() -> None:
        now = states[index]
        if now is state:  # in place, as transformers does: its address stays
            now.copy_(kept)
        else:
            states[index] = kept.clone()

    return restore

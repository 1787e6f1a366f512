"""The cache of a batch: layers that keep every row's tokens where they were written, whatever their windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from outrider.caches.in_place import InPlaceCache
from outrider.caches.layers import InPlaceLayer, InPlaceSlidingLayer
from outrider.errors import UnsupportedModelError
from outrider.target.batch_inputs import num_cached
from outrider.versions import CACHE, DummyLayer


def batch_cache(model: PreTrainedModel, kwargs: Mapping[str, Any], order: Tensor) -> InPlaceCache:
    """An in-place cache for the decoder's own attention, with what is in the given one.

    Its windows keep everything: a window counts positions, and slots have holes. The given cache shares the
    layers from now on.

    **Arguments:**

    - `kwargs`: What `generate()` prepared.
    - `order`: (B, L) int64. For each slot, where the given cache has its token.

    **Raises:** `UnsupportedModelError` for a cache that cannot keep rows apart.
    """
    given, positions = kwargs.get(CACHE), kwargs.get("position_ids")
    inner: Any = given.self_attention_cache if isinstance(given, EncoderDecoderCache) else given
    if type(inner) not in (DynamicCache, InPlaceCache):
        reason = f"the cache is a {type(inner).__name__}"
    elif positions is not None and positions.ndim != 2:
        reason = "its positions have three axes"
    elif beside := _beside_tokens(model, kwargs):
        reason = f"{beside} cannot be run behind a cache"
    else:
        reasons = [found for layer in inner.layers if (found := _reason_against(layer)) is not None]
        if not reasons:
            inner.layers[:] = [_with_rows(layer, order) for layer in inner.layers]
            return InPlaceCache.replacing(inner)
        reason = reasons[0]
    raise UnsupportedModelError(
        f"{type(model).__name__} cannot verify a batch here, since {reason}; generate one prompt at a time"
    )


def _beside_tokens(model: PreTrainedModel, kwargs: Mapping[str, Any]) -> str:
    """What a decoder that goes on from a cache is given that only transformers' own first forward takes."""
    if model.config.is_encoder_decoder or not num_cached(kwargs):
        return ""
    names = [
        name for name, value in kwargs.items() if isinstance(value, Tensor) and value.is_floating_point()
    ]
    return ", ".join(names)


def _reason_against(layer: Any) -> str | None:
    name = type(layer).__name__
    if isinstance(layer, DynamicSlidingWindowLayer | InPlaceSlidingLayer):
        return f"a {name} has dropped what lies before its window" if layer.get_seq_length() else None
    if type(layer) in (DynamicLayer, InPlaceLayer) or isinstance(layer, DummyLayer):
        return None
    return f"a {name} follows one path, and takes no mask of each row's own"


def _with_rows(layer: Any, order: Tensor) -> Any:
    """The layer that stands for `layer`, with what that holds."""
    if isinstance(layer, DummyLayer):
        return layer
    own = InPlaceLayer()
    if layer.get_seq_length():
        own.lazy_initialization(layer.keys, layer.values)
        index = order[:, None, :, None].to(layer.keys.device)
        own.keys = layer.keys.gather(2, index.expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3]))
        own.values = layer.values.gather(
            2, index.expand(-1, layer.values.shape[1], -1, layer.values.shape[3])
        )
    return own


def cross_attention(cache: Any) -> list[tuple[Any, Tensor, Tensor]]:
    """Each layer of cross attention with its keys and values."""
    if not isinstance(cache, EncoderDecoderCache):
        return []
    layers: list[Any] = cache.cross_attention_cache.layers
    return [(layer, layer.keys, layer.values) for layer in layers]

"""The in-place cache: transformers' DynamicCache without the copy of the past, and with trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, final

import torch
from transformers import EncoderDecoderCache, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from outrider.caches.layers import InPlaceLayer, InPlaceSlidingLayer
from outrider.versions import CACHE, DummyLayer


@final
class InPlaceCache(DynamicCache):
    """A cache whose attention layers are written in place and rolled back by a number.

    Layers that are not plain attention (recurrent, convolutional, indexed, ...) stay transformers' own.

    **Arguments:**

    - `config`: The model's, or its text model's.
    - `max_length`: Entries that will ever be needed, where that is known.
    - `multiple`: Attention sees lengths rounded up to a multiple of this, under a mask.
    """

    def __init__(self, config: PreTrainedConfig, max_length: int | None = None, multiple: int = 1) -> None:
        super().__init__(config=config)
        self.multiple = multiple
        self._replace_layers(max_length)

    @classmethod
    def replacing(cls, cache: DynamicCache, max_length: int | None = None, multiple: int = 1) -> Self:
        """An empty in-place cache with the layers that an empty `cache` has; that one shares them from now on.

        Where transformers does not tell a cache of the user's own from one it made (below 5.20), the user's is
        thus filled all the same.
        """
        replaced = cls.__new__(cls)
        Cache.__init__(replaced, layers=cache.layers)
        replaced.multiple = multiple
        replaced._replace_layers(max_length)
        return replaced

    def _replace_layers(self, max_length: int | None) -> None:
        for index, layer in enumerate(self.layers):
            if type(layer) is DynamicLayer:
                self.layers[index] = InPlaceLayer(max_length, self.multiple)
            elif type(layer) is DynamicSlidingWindowLayer:
                self.layers[index] = InPlaceSlidingLayer(layer.sliding_window, max_length, self.multiple)

    def show_multiples_of(self, multiple: int) -> None:
        """Let attention see lengths rounded up to another multiple from now on."""
        self.multiple = multiple
        for layer in self.layers:
            if isinstance(layer, InPlaceLayer):
                layer.multiple = multiple

    @property
    def takes_trees(self) -> bool:
        """Whether every layer can keep one path of a tree."""
        return all(isinstance(layer, (InPlaceLayer, DummyLayer)) for layer in self.layers)

    @property
    def is_compileable(self) -> bool:
        """Whether lengths are rounded up: it makes transformers always build a mask."""
        return self.multiple > 1

    @property
    def num_bytes(self) -> int:
        """Bytes of K and V memory at hand in the layers written in place."""
        return sum(layer.num_bytes for layer in self.layers if isinstance(layer, InPlaceLayer))

    def keep_path(self, base_length: int, path: Sequence[int], layers: Sequence[Any] | None = None) -> None:
        """Keep one path of a tree: of the entries from `base_length` on those at `path`, in that order.

        Only entries that are not in their place are moved.

        **Arguments:**

        - `base_length`: Entries before the tree's first candidate; the last committed token is one of them.
        - `path`: Accepted candidates, ascending: candidate i was written at `base_length` + i.
        - `layers`: Those that the tree was written to; None is all.
        """
        num_in_place = 0
        while num_in_place < len(path) and path[num_in_place] == num_in_place:
            num_in_place += 1
        index = torch.tensor(list(path), dtype=torch.long)
        for layer in self.layers if layers is None else layers:
            if isinstance(layer, InPlaceLayer):
                layer.keep_path(base_length, index, num_in_place)


def in_place_cache_for(
    model: PreTrainedModel, model_kwargs: dict[str, Any], generation_config: GenerationConfig
) -> Cache | None:
    """An in-place cache for the dynamic one that `generate()` prepared; None where that one must stay.

    It stays where the user passed it, where something is in it, and where it is static, quantised,
    offloaded, or of no attention layers.
    """
    given = model_kwargs.get(CACHE)
    inner = given.self_attention_cache if isinstance(given, EncoderDecoderCache) else given
    if type(inner) is not DynamicCache or inner.offloading or getattr(given, "_is_user_defined", False):
        return None
    plain = [type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in inner.layers]
    if not any(plain) or any(getattr(layer, "keys", None) is not None for layer in inner.layers):
        return None
    cache = InPlaceCache.replacing(inner, generation_config.max_length)
    if isinstance(given, EncoderDecoderCache):
        return EncoderDecoderCache(cache, given.cross_attention_cache)
    return cache

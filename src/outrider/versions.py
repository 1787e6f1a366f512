"""What the supported versions of transformers call differently."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import cache_utils
from transformers.generation.utils import GenerationMixin

# The cache, as an argument of a forward and as a part of its outputs: "past_key_values" below 5.20.
CACHE = (
    "cache"
    if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    else "past_key_values"
)


class _NoLayer:
    """A class without instances."""


# The layer of a cache that holds nothing: below 5.20 there is none.
DummyLayer: Any = getattr(cache_utils, "DummyLayer", _NoLayer)


def can_be_cropped(part: Any) -> bool:
    """Whether a cache, or one of its layers, takes back its last entries. Below 5.20 none says so."""
    says = getattr(part, "is_croppable", None)
    if says is not None:
        return bool(says)
    layers = getattr(part, "layers", (part,))
    return not any(
        hasattr(layer, "update_recurrent_state") or hasattr(layer, "max_cache_len") for layer in layers
    )


def linear_length(layer: Any) -> Any:
    """The tensor in which a recurrent layer counts its tokens; below 5.25 none does."""
    return getattr(layer, "cumulative_length_linear", None)

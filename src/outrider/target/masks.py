"""Trees in one forward: a 4-D mask for each kind of layer, and a position for each node.

transformers' models take a mask made beforehand: one tensor, or, where layers differ, one for each layer
type. A node sees the committed tokens and its own ancestors, and its position is its depth.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from outrider.caches.in_place import InPlaceCache
from outrider.caches.layers import InPlaceLayer
from outrider.devices import device_of
from outrider.types import Candidates
from outrider.versions import CACHE, DummyLayer

Bools = npt.NDArray[np.bool_]

# Windows applied inside the attention layers, by slot and not by position, where no mask reaches.
_WINDOW_INSIDE = "attention_layers"
_ATTENTIONS = ("sdpa", "eager")


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a kind of layer sees: everything, the last `window` positions, or its chunk."""

    window: int | None = None
    chunk: int | None = None

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """(q, k) bool, of positions; None where everything is seen."""
        if self.window is not None:
            return keys > queries - self.window
        if self.chunk is not None:
            return keys // self.chunk == queries // self.chunk
        return None


def ancestors(candidates: Candidates) -> Bools:
    """(n + 1, n + 1). Whether node i sees node j; node 0 is the last committed token."""
    seen = np.eye(len(candidates) + 1, dtype=np.bool_)
    seen[:, 0] = True
    for node, parent in enumerate(candidates.parents):
        seen[node + 1] |= seen[parent + 1]
    return seen


def tree_inputs(
    model: PreTrainedModel, inputs: Mapping[str, Any], candidates: Candidates, cache: Cache
) -> dict[str, Any]:
    """Turn a forward's inputs over the last committed token and a chain into those over a tree.

    **Arguments:**

    - `inputs`: What `prepare_inputs_for_generation` made of the ids of the last committed token and of all
        candidates, in their order. One row.
    - `cache`: As it is before the forward.

    **Returns:** `inputs` with other `attention_mask` and `position_ids`.
    """
    config = model.config.get_text_config()
    num_past = cache.get_seq_length()
    device = inputs["input_ids"].device
    padding = inputs.get("attention_mask")
    padding = (
        padding[0, :num_past].to(torch.bool) if isinstance(padding, Tensor) and padding.ndim == 2 else None
    )
    num_padded = 0 if padding is None else int((~padding).sum())
    depths = torch.from_numpy(np.concatenate([[0], candidates.depths()])).to(device)
    tree = torch.from_numpy(ancestors(candidates)).to(device)

    def mask(reach: Reach, layer: int) -> Tensor:
        num_keys, first = cache.get_mask_sizes(len(candidates) + 1, layer)
        allowed = torch.zeros(len(candidates) + 1, num_keys, dtype=torch.bool, device=device)
        at = num_past - first
        allowed[:, :at] = True if padding is None else padding[first:]
        allowed[:, at : at + len(candidates) + 1] = tree
        positions = torch.arange(first, first + num_keys, device=device) - num_padded
        positions[at : at + len(candidates) + 1] = num_past - num_padded + depths
        seen = reach.sees(num_past - num_padded + depths[:, None], positions)
        if seen is not None:
            allowed &= seen
        return for_attention(allowed[None, None], model)

    positions = inputs.get("position_ids")
    first = num_past - num_padded if positions is None else positions[..., :1]
    nodes = (first + depths) if positions is not None else (first + depths)[None]
    return {**inputs, "attention_mask": for_each_kind(config, cache, mask), "position_ids": nodes}


def for_attention(allowed: Tensor, model: PreTrainedModel) -> Tensor:
    """A (B, 1, q, k) mask as the model's attention takes it: bool for sdpa, else added to the scores."""
    if model.config.get_text_config()._attn_implementation == "sdpa":
        return allowed
    least = torch.finfo(model.dtype).min
    return torch.where(allowed, 0.0, least).to(model.dtype)


def for_each_kind(config: Any, cache: Cache, mask: Any) -> Any:
    """A mask, or a mask for each layer type: the rule of transformers' `create_masks_for_generate`."""
    sliding = cache.is_sliding.index(True) if True in cache.is_sliding else 0
    stands = [
        not slides and not isinstance(layer, DummyLayer)
        for slides, layer in zip(cache.is_sliding, cache.layers, strict=True)
    ]
    full = stands.index(True) if True in stands else 0
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    kinds = {
        "full_attention": (Reach(), full),
        "sliding_attention": (Reach(window=window), sliding),
        "chunked_attention": (Reach(chunk=chunk), sliding),
    }
    types = getattr(config, "layer_types", None)
    if types is not None:
        return {kind: mask(*kinds[kind]) for kind in dict.fromkeys(types)}
    if window is not None:
        return mask(*kinds["sliding_attention"])
    return mask(*kinds["chunked_attention" if chunk is not None else "full_attention"])


_reasons: weakref.WeakKeyDictionary[PreTrainedModel, dict[bool, str | None]] = weakref.WeakKeyDictionary()


def supports_tree(model: PreTrainedModel) -> bool:
    """Whether a forward over a tree gives what forwards over its paths give: tried out, once for a model."""
    return reason_against_trees(model) is None


def reason_against_trees(model: PreTrainedModel) -> str | None:
    """Why a forward over a tree does not give what forwards over its paths give; None where it does.

    Tried out by three short forwards on the real weights, once for a model and its mode. Encoder-decoder models, ALiBi,
    recurrent layers, windows inside the attention, and kernels that take no mask have a reason.
    """
    tried = _reasons.setdefault(model, {})
    if model.training not in tried:
        tried[model.training] = _known_reason(model) or _tried_out(model)
    return tried[model.training]


def _known_reason(model: PreTrainedModel) -> str | None:
    config = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        return "an encoder-decoder model takes no positions of its nodes' own"
    if config._attn_implementation not in _ATTENTIONS:
        return f"its attention is {config._attn_implementation}, and trees need a mask: sdpa or eager"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "it takes no positions: a token's position is its slot"
    if "local" in getattr(config, _WINDOW_INSIDE, ()):
        return "its window counts slots inside the layer, where no mask reaches"
    for layer in InPlaceCache(model.config).layers:
        if not isinstance(layer, InPlaceLayer | DummyLayer):
            return f"a {type(layer).__name__} cannot keep one path of a tree"
    return None


def _tried_out(model: PreTrainedModel) -> str | None:
    vocab = min(1000, model.config.get_text_config().vocab_size - 1)
    tokens = (np.arange(1, 12, dtype=np.int64) * 7919) % vocab + 1
    # Two paths that share their root's child: 0 1, 2 3 under 0; and 4 beside 0.
    tree = Candidates(tokens[6:11], np.array([-1, 0, 0, 2, -1], np.int64))
    paths = ([0, 1], [0, 2, 3], [4])
    try:
        with torch.no_grad():
            cache = InPlaceCache(model.config)
            ids = torch.from_numpy(tokens).to(device_of(model))[None]
            model(**_plain_inputs(model, ids[:, :5], 5, cache))
            inputs = _plain_inputs(model, ids, 6, cache)
            if inputs.get("position_ids") is None:
                return "it sets its tokens' positions itself"
            nodes = model(**tree_inputs(model, inputs, tree, cache)).logits[0].float()
            for path in paths:
                cache.crop(5 - cache.get_seq_length())
                rows = torch.tensor([*range(6), *(node + 6 for node in path)], device=ids.device)
                chain = model(**_plain_inputs(model, ids[:, rows], len(path) + 1, cache)).logits[0].float()
                if not alike(nodes[rows[5:] - 5], chain, model.dtype):
                    return "a node's logits depend on the slot it is in, not on its position"
    except Exception as error:  # a model may fail on a foreign mask in any way; then it takes chains
        first = (str(error).splitlines() or [""])[0]
        return f"it fails on a mask and positions from outside ({type(error).__name__}: {first})"
    return None


def _plain_inputs(model: Any, ids: Tensor, num_new: int, cache: Cache) -> dict[str, Any]:
    """A plain forward's over the last `num_new` ids, as `generate()` has the model make them."""
    inputs: dict[str, Any] = model.prepare_inputs_for_generation(
        ids,
        next_sequence_length=num_new,
        attention_mask=torch.ones_like(ids),
        position_ids=torch.arange(ids.shape[1], device=ids.device)[None],
        use_cache=True,
        **{CACHE: cache},
    )
    return {**inputs, "logits_to_keep": num_new} if "logits_to_keep" in inputs else inputs


def alike(one: Tensor, other: Tensor, dtype: torch.dtype) -> bool:
    """Whether two sets of logits differ by rounding alone: a wrong mask or position shows as tenths."""
    tolerance = 0.01 if dtype in (torch.float32, torch.float64) else 0.2
    return bool((one - other).abs().max() <= tolerance * other.std())

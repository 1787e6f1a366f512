"""Which exactness a call gets: what was asked, what the cache allows, and what was found out, once for a model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from outrider.caches.in_place import InPlaceCache
from outrider.caches.layers import InPlaceLayer, InPlaceSlidingLayer
from outrider.caches.snapshots import has_recurrent_state
from outrider.errors import OptionError, UnsupportedModelError
from outrider.target import exact_trials, kept
from outrider.target.exact_attention import REPLACED
from outrider.target.exact_rows import KINDS, Exactness, ExactRows, Kind
from outrider.versions import DummyLayer

# The default wants at least so many: fewer would cost more speed than they promise.
_ENOUGH_ROWS = 17
_DEAREST = 1.1


def exact_rows(
    model: PreTrainedModel, exact: bool | str | None, cache: Any, num_prompt: int, max_length: int
) -> ExactRows | None:
    """What makes the target's forwards exact; None where they shall not, or need not, be.

    **Arguments:**

    - `exact`: None: the strongest kind that was proved and costs under a tenth, in half precision; True: the
        strongest there is, or an error; False: none; "transformers" or "generators": that one, or an error.
    - `cache`: The one in use.
    - `max_length`: Tokens that the text can have at most.

    **Raises:** `OptionError` for another value; `UnsupportedModelError` where it is demanded and can't be had.
    """
    if exact is False or (exact is None and model.dtype not in (torch.bfloat16, torch.float16)):
        return None
    if not (exact is None or exact is True or exact in KINDS):
        raise OptionError(
            f"exact must be None, True, False, 'transformers' or 'generators', not {exact!r}; "
            "see docs/exactness.md"
        )
    reasons = []
    for kind in (exact,) if exact in KINDS else KINDS:
        reason = _reason_by_cache(kind, cache, max_length)
        if reason is None:
            found = exactness(model, kind, in_full=exact is not None)
            wanted = _ENOUGH_ROWS if exact is None else 2
            if found.max_rows >= wanted and (exact is not None or found.price(num_prompt) <= _DEAREST):
                return ExactRows(model, kind, found)
            reason = found.reason
        reasons.append(reason)
    if exact is None:
        return None
    raise UnsupportedModelError(
        f"exact={exact!r} can't be had of {type(model).__name__} in {str(model.dtype).removeprefix('torch.')} "
        f"here, since {'; and '.join(dict.fromkeys(reasons))}; drop exact, or pass exact=False"
    )


def exactness(
    model: PreTrainedModel,
    kind: Kind,
    *,
    in_full: bool = False,
    max_s: float = 3.0,
    folder: Path | None = None,
) -> Exactness:
    """What was found for this model on this machine, now or before.

    **Arguments:**

    - `in_full`: Try all numbers of tokens, however long it takes; else stop after about `max_s` seconds.
    - `folder`: In place of the user's cache folder.
    """
    if (reason := _known_reason(model)) is not None:
        return Exactness(1, reason=reason)
    path = (folder or kept.cache_folder()) / "exactness" / f"{kept.fingerprint(model)}.{kind}.json"
    found = _usable(kept.read(path))
    if found is None or (in_full and not found.complete):
        found = exact_trials.find(model, kind, float("inf") if in_full else max_s)
        kept.write(path, asdict(found))
    return found


def _reason_by_cache(kind: Kind, cache: Any, max_length: int) -> str | None:
    """Why not with this cache."""
    layers = getattr(cache, "layers", ())
    plain = (DynamicLayer, DynamicSlidingWindowLayer, InPlaceLayer, InPlaceSlidingLayer, DummyLayer)
    odd = next((layer for layer in layers if type(layer) not in plain), None)
    # A DynamicCache without a configuration makes its layers, plain ones, at the first forward.
    if odd is not None or (not layers and type(cache) is not DynamicCache):
        return f"the cache is a {type(cache).__name__}" + (f" with a {type(odd).__name__}" if odd else "")
    if kind == "generators":
        if not isinstance(cache, InPlaceCache):
            return f"the cache is a {type(cache).__name__}, whose keys cannot be seen in whole blocks"
        windows = [layer.sliding_window for layer in layers if isinstance(layer, InPlaceSlidingLayer)]
        if windows and max_length > min(windows):
            return f"a window of {min(windows)} tokens moves, and keys then stand in other places of their blocks"
    return None


def _known_reason(model: PreTrainedModel) -> str | None:
    config = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        return "the model is an encoder-decoder"
    if getattr(model, "_is_stateful", False) or has_recurrent_state(DynamicCache(config=model.config)):
        return "a recurrent state takes its tokens in other steps"
    if getattr(config, "attention_chunk_size", None) is not None:
        return "its attention is by chunks"
    if config._attn_implementation != REPLACED:
        return f"its attention is {config._attn_implementation}, not {REPLACED}"
    if any(
        hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in model.modules()
    ):
        return "it is compiled"
    return None


def _usable(held: Any) -> Exactness | None:
    """What was kept, where it is whole."""
    try:
        prices = held["prices"]
        return Exactness(
            int(held["max_rows"]),
            int(held["group"]),
            bool(held["takes_trees"]),
            None if prices is None else {int(size): float(price) for size, price in prices.items()},
            str(held["reason"]),
            bool(held["complete"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None

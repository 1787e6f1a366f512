"""Recurrent and hybrid models: the state of the last commit is kept, accepted tokens are run again.

A recurrent state cannot be rolled back by a number. So where candidates were rejected, every layer goes
back to where it was before the forward, and the next forward takes the accepted tokens once more, in front
of its own candidates: no forward more, a few tokens more. Chains only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionCacheLayerMixin

from outrider.caches.snapshots import snapshots
from outrider.devices import device_of
from outrider.errors import UnsupportedModelError
from outrider.target.probe import fresh_cache
from outrider.versions import CACHE, DummyLayer


@final
class RecurrentState:
    """Takes a cache with recurrent layers back to the last commit.

    Around each forward after the prompt's:

        state.before_forward()
        forward over the last `state.num_pending` committed tokens before the last one, the last one, candidates
        state.commit(num_new, num_kept)

    **Arguments:**

    - `cache`: The model's, after the prompt. Its layers must not record their past.
    - `max_pending`: Once so many accepted tokens wait to be run again, `is_full` asks for a forward without
        candidates, which brings the state up to date.

    **Raises:** `UnsupportedModelError` for a layer that cannot be taken back.
    """

    def __init__(self, cache: Cache, max_pending: int = 24) -> None:
        self.num_pending = 0
        self._max_pending = max_pending
        self._cache = cache
        self._restores: list[Callable[[], None]] = []
        for layer in cache.layers:
            if not isinstance(layer, (DynamicLayer, LinearAttentionCacheLayerMixin, DummyLayer)):
                raise UnsupportedModelError(
                    f"candidates cannot be taken back, since a {type(layer).__name__} keeps no state of the last "
                    "commit; use another cache, or candidate_generator='none'"
                )

    @property
    def is_full(self) -> bool:
        """Whether the next forward should be without candidates."""
        return self.num_pending >= self._max_pending

    def before_forward(self) -> None:
        """Remember every layer as it is, unless it already is as remembered."""
        if not self._restores:
            self._restores = snapshots(self._cache)

    def commit(self, num_new: int, num_kept: int) -> None:
        """Keep the first `num_kept` of the `num_new` tokens behind the pending ones, and forget the rest."""
        if num_kept == num_new:
            self._restores, self.num_pending = [], 0
            return
        for restore in self._restores:
            restore()
        self.num_pending += num_kept


def reason_against(model: PreTrainedModel, num_tokens: int = 6, tolerance: float | None = None) -> str | None:
    """Why a recurrent model cannot verify candidates, in one sentence that names the layer; None where it can.

    Tried out: a forward over `num_tokens` behind a non-empty cache against as many forwards over one, and
    once more after taking it back.
    """
    name = type(model).__name__
    if not getattr(model, "_supports_default_dynamic_cache", lambda: False)():
        return f"{name} keeps its state outside transformers' Cache, where it cannot be taken back"
    if tolerance is None:
        tolerance = 0.01 if model.dtype in (torch.float32, torch.float64) else 0.2
    try:
        at_once, again, in_turn = _tried_out(model, num_tokens)
    except UnsupportedModelError as error:
        return f"{name}: {error}"
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        return f"{name} fails on several tokens behind a non-empty cache: {str(error).splitlines()[0]}"
    for index, (states, repeated, wanted) in enumerate(zip(at_once, again, in_turn, strict=True)):
        layer, allowed = _layer(model, index), tolerance * wanted.std()
        if not (states - wanted).abs().max() <= allowed:
            return f"{name} computes something else over several tokens than one at a time, from {layer} on"
        if not (repeated - wanted).abs().max() <= allowed:
            return f"{name} keeps a state outside its cache, in {layer}, where it cannot be taken back"
    return None


def _tried_out(model: PreTrainedModel, num_tokens: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Every layer's hidden states and the logits: of several tokens at once, taken back and again, in turn."""
    vocab = min(1000, int(model.config.get_text_config().vocab_size) - 1)
    ids = (torch.arange(8 + num_tokens, device=device_of(model))[None] * 7919) % vocab + 1
    prompt, tokens = ids[:, :8], ids[:, 8:]
    with torch.no_grad():
        cache = fresh_cache(model)
        _hidden_states(model, prompt, cache)
        state = RecurrentState(cache)
        state.before_forward()
        at_once = _hidden_states(model, tokens, cache)
        state.commit(num_tokens, 0)
        again = _hidden_states(model, tokens, cache)
        cache = fresh_cache(model)
        _hidden_states(model, prompt, cache)
        apart = [_hidden_states(model, token, cache) for token in tokens.split(1, dim=1)]
    return at_once, again, [torch.cat(layer, dim=1) for layer in zip(*apart, strict=True)]


def _hidden_states(model: Any, ids: Tensor, cache: Any) -> list[Tensor]:
    outputs = model(input_ids=ids, **{CACHE: cache}, use_cache=True, output_hidden_states=True)
    hidden = outputs.hidden_states or ()
    return [states.float() for states in (*hidden, outputs.logits)]


def _layer(model: PreTrainedModel, index: int) -> str:
    types = getattr(model.config.get_text_config(), "layer_types", None) or []
    layer = max(index - 1, 0)
    kind = f" ({types[layer]})" if layer < len(types) else ""
    return f"layer {layer}{kind}"

"""Finds logits processors that keep state from call to call."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation import logits_process

from outrider.errors import OptionError

# Of transformers' own, those that remember, and the one that calls the user; the others are functions.
_KEEP_STATE = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "WhisperNoSpeechDetection",
    "DiaEOSDelayPatternLogitsProcessor",
}
_CALLS_BACK = {"PrefixConstrainedLogitsProcessor"}


def refuse_stateful(processors: Iterable[Any], ids: Tensor, scores: Tensor) -> None:
    """Try each processor on a copy of itself.

    **Arguments:**

    - `ids`: (1, L) int64. A prefix that plain decoding would show it.
    - `scores`: (1, V) float32.

    **Raises:** `OptionError` naming the first that keeps state, or that cannot be copied and tried.

    **Exact:** as a guard. What a processor hides from its own attributes and from three calls is not found.
    """
    for processor in processors:
        kind = type(processor)
        if kind.__module__ == logits_process.__name__ and kind.__name__ not in _CALLS_BACK:
            keeps = kind.__name__ in _KEEP_STATE
        else:
            keeps = keeps_state(processor, ids, scores)
        if keeps:
            raise OptionError(
                f"logits processor {kind.__name__} keeps state from call to call, and this verification "
                "calls processors for candidates that may be rejected; use 'keyed', 'match' or 'recursive'"
            )


def keeps_state(processor: Any, ids: Tensor, scores: Tensor) -> bool:
    """Whether a copy changes its attributes, or its answer to the same question, from call to call."""
    try:
        trial = _copy(processor)
        before = _copy(getattr(trial, "__dict__", {}))
        longer = torch.cat([ids, scores.argmax(-1, keepdim=True).to(ids.dtype)], dim=1)
        first = trial(ids, scores.clone()).clone()
        trial(longer, scores.clone())
        trial(longer[:, :-1], scores.flip(-1).clone())
        again = trial(ids, scores.clone())
    except Exception:
        return True
    return not (_same(first, again) and _same(before, getattr(trial, "__dict__", {})))


def _copy(value: Any) -> Any:
    """A deep copy that shares models, which are large and not a processor's own state."""
    shared: dict[int, Any] = {}
    held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    for part in held.values():
        if isinstance(part, torch.nn.Module):
            shared[id(part)] = part
    return copy.deepcopy(value, shared)


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.shape == b.shape and bool(torch.equal(a, b.to(a.device)))
    if isinstance(a, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if hasattr(a, "__dict__"):
        return _same(vars(a), vars(b))
    try:
        return bool(a == b)
    except Exception:
        return False

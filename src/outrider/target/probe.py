"""What a machine and a model are measured for: T(k), and whether k tokens at once are k tokens in turn.

T(k) is the time of a forward over k new tokens. It is measured in under two seconds at the first use of a
model and kept in the user's cache folder, as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, final

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from outrider.caches.in_place import InPlaceCache
from outrider.devices import device_of
from outrider.errors import UnsupportedModelError
from outrider.target import kept
from outrider.versions import CACHE, can_be_cropped

SIZES = (1, 2, 4, 8, 16, 32, 64)

# The most telling first, in case time runs out.
_ORDER = (1, 16, 64, 4, 32, 8, 2)
_CONTEXT = 64


@final
@dataclass(frozen=True, slots=True)
class ForwardTimes:
    """T(k) of one model on one machine.

    **Arguments:**

    - `seconds`: Time of a forward, by its number of new tokens.
    - `measured`: The sizes measured; the others are interpolated.
    """

    seconds: dict[int, float]
    measured: tuple[int, ...]

    def __call__(self, num_tokens: int) -> float:
        """Seconds of a forward over `num_tokens`, on straight lines between what was measured."""
        return _interpolated({size: self.seconds[size] for size in self.measured}, num_tokens)

    def largest_speedup(self, acceptance_length: float, num_tokens: int) -> float:
        """What forwards over `num_tokens` that commit `acceptance_length` on average would bring at most."""
        return acceptance_length * self(1) / self(num_tokens)


def forward_times(
    model: PreTrainedModel,
    *,
    batch_size: int = 1,
    max_s: float = 1.5,
    folder: Path | None = None,
    anew: bool = False,
) -> ForwardTimes:
    """T(k) for `SIZES`: from the cache folder, else measured and kept there.

    **Arguments:**

    - `max_s`: Time to measure; sizes it leaves out are interpolated. T(1) is always measured.
    - `folder`: In place of the user's cache folder.
    - `anew`: Measure even where times are kept, and keep these.

    **Raises:** `UnsupportedModelError` for encoder-decoder models, whose encoder input is not known.
    """
    path = (folder or kept.cache_folder()) / "forward_times" / f"{kept.fingerprint(model, batch_size)}.json"
    times = None if anew else _usable(kept.read(path))
    if times is None:
        times = _measure(model, batch_size, max_s)
        if len(times.measured) > 1:  # one time alone, on a busy machine, is no table
            kept.write(path, {"seconds": times.seconds, "measured": times.measured})
    return times


def difference_at_once(model: PreTrainedModel, num_tokens: int = 8) -> float:
    """How far the logits of one forward over `num_tokens` are from those of as many forwards over one.

    Relative to the spread of the logits: about 1e-6 in float32 and 1e-2 in bfloat16 is rounding.
    """
    ids = some_ids(model, 1, _CONTEXT // 4 + num_tokens)
    context, tokens = ids[:, :-num_tokens], ids[:, -num_tokens:]
    with torch.no_grad():
        caches = [fresh_cache(model), fresh_cache(model)]
        for cache in caches:
            _forward(model, context, cache)
        at_once = _forward(model, tokens, caches[0])
        in_turn = torch.cat([_forward(model, token, caches[1]) for token in tokens.split(1, dim=1)], dim=1)
    return float((at_once.float() - in_turn.float()).abs().max() / in_turn.float().std())


def fresh_cache(model: PreTrainedModel) -> Any:
    """An empty cache of the kind that the target would use."""
    cache = DynamicCache(config=model.config)
    return InPlaceCache.replacing(cache)


def _measure(model: PreTrainedModel, batch_size: int, max_s: float) -> ForwardTimes:
    seconds: dict[int, float] = {}
    cache = fresh_cache(model)
    with torch.no_grad():
        _forward(model, some_ids(model, batch_size, _CONTEXT), cache)
        _time(model, cache, some_ids(model, batch_size, 1))  # the first is slower
        began = perf_counter()
        for size in _ORDER:
            expected = _interpolated(seconds, size) if seconds else 0.0
            if seconds and perf_counter() - began + expected > max_s:
                continue
            tokens = some_ids(model, batch_size, size)
            share = max_s / len(_ORDER)
            samples = [_time(model, cache, tokens)]
            while sum(samples) + samples[0] < share and len(samples) < 9 and perf_counter() - began < max_s:
                samples.append(_time(model, cache, tokens))
            seconds[size] = sorted(samples)[len(samples) // 2]
    return ForwardTimes({size: _interpolated(seconds, size) for size in SIZES}, tuple(sorted(seconds)))


def _time(model: PreTrainedModel, cache: Any, tokens: Tensor) -> float:
    _synchronize(tokens)
    start = perf_counter()
    _forward(model, tokens, cache)
    _synchronize(tokens)
    seconds = perf_counter() - start
    if can_be_cropped(cache):
        cache.crop(-tokens.shape[1])
    return seconds


def _forward(model: Any, ids: Tensor, cache: Any) -> Tensor:
    logits: Tensor = model(input_ids=ids, use_cache=True, **{CACHE: cache}).logits
    return logits


def _synchronize(tensor: Tensor) -> None:
    if tensor.device.type != "cpu":
        torch.accelerator.synchronize(tensor.device)


def some_ids(model: PreTrainedModel, batch_size: int, length: int) -> Tensor:
    """(batch_size, length) ids of its vocabulary, the same whenever asked."""
    if model.config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be probed alone, since its encoder needs an input; leave the probe out"
        )
    vocab = min(1000, int(model.config.get_text_config().vocab_size) - 1)
    return (
        torch.arange(batch_size * length, device=device_of(model)).view(batch_size, length) * 7919
    ) % vocab + 1


def _interpolated(seconds: dict[int, float], size: int) -> float:
    known = sorted(seconds)
    if len(known) == 1:
        return seconds[known[0]]
    right = next((k for k in known[1:] if k >= size), known[-1])
    left = known[known.index(right) - 1]
    slope = (seconds[right] - seconds[left]) / (right - left)
    return max(seconds[left] + slope * (size - left), 0.0)


def _usable(held: Any) -> ForwardTimes | None:
    """What was kept, where it is whole."""
    try:
        seconds = {int(size): float(value) for size, value in held["seconds"].items()}
        measured = tuple(int(size) for size in held["measured"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    usable = set(seconds) == set(SIZES) and {1} <= set(measured) <= set(SIZES) and min(seconds.values()) > 0
    return ForwardTimes(seconds, measured) if usable else None

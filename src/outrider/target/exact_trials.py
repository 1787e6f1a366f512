"""Whether forwards over several tokens have the bits of forwards over one: tried on the model at hand.

Nothing is taken from tables of kernels: the model runs the same tokens one at a time and several at once, in its
dtype, on its device, with as many threads, and every logit is compared by its bits.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from outrider.caches.in_place import InPlaceCache
from outrider.lean import LeanForward
from outrider.target.exact_attention import (
    BLOCK,
    Aligned,
    Apart,
    Attention,
    attended_configs,
    attending,
)
from outrider.target.exact_rows import Exactness, ExactRows, Kind
from outrider.target.masks import supports_tree, tree_inputs
from outrider.target.probe import some_ids
from outrider.types import Candidates
from outrider.versions import CACHE

# Tokens in the largest forward that is tried, and in those whose price is measured.
_MOST_ROWS = 33
_PRICED_ROWS = 9
# Where kernels go over to other ways, and just past that.
_RANDOM_SIZES = (2, 3, 5, 8, 9, 16, 17, 24, 32, 33)
# Crossed by the forwards that are tried: the blocks of 8 to 64 keys of CPU kernels.
_CONTEXT = 90
_PRICED_CONTEXTS = (100, 1000)
_GROUPS = (16, 8, 4)
_RANDOM_CONTEXTS = (90, 300, 500, 1500)


@dataclass(frozen=True)
class _Call:
    """One call of an attention function."""

    module: Any
    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any]

    @property
    def states(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    def random(self, length: int) -> list[Tensor]:
        """Random queries of `_MOST_ROWS` tokens, keys and values of `length`."""
        lengths = (_MOST_ROWS, length, length)
        return [
            _random((1, like.shape[1], size, like.shape[3]), like)
            for like, size in zip(self.states, lengths, strict=True)
        ]

    def run(self, attention: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with torch.no_grad():
            return attention(self.module, query, key, value, self.options)


def _random(shape: tuple[int, ...], like: Tensor) -> Tensor:
    random = torch.Generator(like.device).manual_seed(len(shape))
    return torch.randn(shape, generator=random, device=like.device, dtype=torch.float32).to(like.dtype)


@final
class _Trial:
    """A model, a prompt in its cache, and the tokens that follow."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model: Any = model
        self.configs = attended_configs(model)
        self.lean = {True: LeanForward(model, grouped=False), False: LeanForward(model)}

    def ids(self, length: int) -> Tensor:
        return some_ids(self.model, 1, length)

    def prompt(self, context: int) -> InPlaceCache:
        cache = InPlaceCache(self.model.config)
        self.run({"input_ids": self.ids(context), CACHE: cache})
        return cache

    def run(self, inputs: dict[str, Any], exactly: bool = True) -> Tensor:
        """(n, V) logits."""
        with torch.no_grad(), self.lean[exactly]:
            logits: Tensor = self.model(**inputs, use_cache=True).logits[0]
        if logits.device.type != "cpu":
            torch.accelerator.synchronize(logits.device)
        return logits

    def rows(self, rows: ExactRows | None, ids: Tensor, cache: InPlaceCache, parents: Any = None) -> Tensor:
        """(n, V) logits of a forward made exact, or as usual, over a chain, or a tree by its parents."""
        tokens = ids[0, 1:].cpu().numpy()
        candidates = Candidates.chain(tokens) if parents is None else Candidates(tokens, parents)
        inputs: dict[str, Any] = {"input_ids": ids, CACHE: cache}
        if not candidates.is_chain:
            inputs = tree_inputs(self.model, inputs, candidates, cache)
        with nullcontext() if rows is None else rows.around(cache, candidates):
            return self.run(inputs, exactly=rows is not None)


def find(model: PreTrainedModel, kind: Kind, max_s: float) -> Exactness:
    """What this kind of exactness is for the model as it is, after about `max_s` seconds."""
    began = perf_counter()
    trial = _Trial(model)
    try:
        calls = _attention_calls(trial)
        if not calls:
            return Exactness(
                1, reason="its attention layers do not call the function that transformers names"
            )
        most, reason = _rows_of_linear_layers(model)
        group = 1
        if kind == "transformers":
            group = next((g for g in _GROUPS if all(_group_holds(g, call) for call in calls)), 1)
        elif (by_attention := min(map(_rows_of_aligned, calls))) < most:
            most, reason = by_attention, f"attention rounds {by_attention + 1} tokens otherwise than one"
        if most == 1:
            return Exactness(1, reason=reason)
        rows = ExactRows(model, kind, Exactness(most, group))
        cache = trial.prompt(_CONTEXT)
        text = trial.ids(_CONTEXT + most)[:, _CONTEXT:]
        alone: list[Tensor] = []
        for token in text.split(1, dim=1):
            began_one = perf_counter()
            alone.append(trial.rows(rows, token, cache))
            one_s = perf_counter() - began_one
            # Half of the time for these, half for the forwards over several.
            if len(alone) > 1 and perf_counter() - began + one_s > max_s / 2:
                break
        cache.crop(-len(alone))
        max_rows, differs = 1, False
        for size in range(2, len(alone) + 1):
            if perf_counter() - began > max_s:
                break
            together = trial.rows(rows, text[:, :size], cache)
            cache.crop(-size)
            if differs := not _same_bits(together, torch.cat(alone[:size])):
                reason = f"a forward over {size} tokens does not have the bits of forwards over one"
                break
            max_rows = size
        complete = differs or max_rows == most
        takes_trees = max_rows >= _PRICED_ROWS and _trees_hold(trial, rows, cache, text[:, :max_rows])
        prices = _prices(trial, rows, takes_trees) if max_rows >= _PRICED_ROWS else None
        reason = reason if complete and reason else f"only {max_rows} tokens were tried"
        return Exactness(max_rows, group, takes_trees, prices, reason, complete)
    except Exception as error:  # a model may fail under a foreign attention in any way; then it is not had
        first = (str(error).splitlines() or [""])[0]
        return Exactness(1, reason=f"it fails under it ({type(error).__name__}: {first})")


def _rows_of_linear_layers(model: PreTrainedModel) -> tuple[int, str]:
    """Up to how many random rows all shapes of linear layers have the bits of rows alone; and why no more.

    A difference can be rare, and then the few tokens of the trial do not show it.
    """
    layers = {
        (module.weight.shape, module.weight.dtype): module
        for module in model.modules()
        if type(module) is torch.nn.Linear
    }
    most, reason = _MOST_ROWS, ""
    for (shape, _), layer in layers.items():
        inputs = _random((_MOST_ROWS, shape[1]), layer.weight)
        held = 1
        with torch.no_grad():
            alone = torch.cat([layer(row[None, None])[0] for row in inputs])
            for size in _RANDOM_SIZES:
                if size > most or not torch.equal(layer(inputs[None, :size])[0], alone[:size]):
                    break
                held = size
        if held < most:
            most = held
            reason = f"a linear layer of {shape[1]} to {shape[0]} rounds more than {held} tokens otherwise than one"
    return most, reason


def _trees_hold(trial: _Trial, rows: ExactRows, cache: InPlaceCache, text: Tensor) -> bool:
    """Whether the paths of a tree of `text` have the bits of chains. `cache` holds what precedes it."""
    if not supports_tree(trial.model):
        return False
    size = text.shape[1]
    # Three paths from the root, a node of each in turn, and one more that leaves the first midway.
    parents = np.maximum(np.arange(size - 1) - 3, -1)
    parents[-1] = parents[size // 2]
    nodes = trial.rows(rows, text, cache, parents)
    cache.crop(-size)
    for leaf in range(size - 5, size - 1):
        path = [leaf]
        while path[0] >= 0:
            path.insert(0, int(parents[path[0]]))
        index = torch.tensor(path, device=text.device) + 1
        chain = trial.rows(rows, text[:, index], cache)
        cache.crop(-len(path))
        if not _same_bits(nodes[index], chain):
            return False
    return True


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _attention_calls(trial: _Trial) -> list[_Call]:
    """A call of each kind that a forward makes of transformers' attention function."""
    calls: list[_Call] = []

    def note(module: Any, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        calls.append(_Call(module, query, key, value, {**options, "sliding_window": None}))
        return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True).transpose(1, 2)

    with attending(trial.configs, note):
        trial.run({"input_ids": trial.ids(2), CACHE: InPlaceCache(trial.model.config)})
    kinds = {tuple(state.shape[1::2] for state in call.states): call for call in calls}
    return list(kinds.values())


def _group_holds(group: int, call: _Call) -> bool:
    """Whether groups of `Apart` change no bit on random states."""
    for context in _RANDOM_CONTEXTS:
        states = call.random(context + _MOST_ROWS)
        one, other = (call.run(Apart(context, group=each), *states) for each in (1, group))
        if not torch.equal(one, other):
            return False
    return True


def _rows_of_aligned(call: _Call) -> int:
    """Up to how many random rows `Aligned` gives the bits of rows alone."""
    return min(_rows_of_aligned_at(context, call) for context in _RANDOM_CONTEXTS)


def _rows_of_aligned_at(context: int, call: _Call) -> int:
    def length(num_tokens: int) -> int:
        return -(-(context + num_tokens) // BLOCK) * BLOCK

    query, key, value = call.random(length(_MOST_ROWS))

    def rows(start: int, end: int) -> Tensor:
        shown = (states[:, :, : length(end)] for states in (key, value))
        return call.run(Aligned(context + start), query[:, :, start:end], *shown)

    alone = torch.cat([rows(at, at + 1) for at in range(_MOST_ROWS)], 1)
    sizes = range(2, _MOST_ROWS + 1)
    return next((size - 1 for size in sizes if not torch.equal(rows(0, size), alone[:, :size])), _MOST_ROWS)


def _prices(trial: _Trial, rows: ExactRows, takes_trees: bool) -> dict[int, float]:
    """Forwards over 9 tokens exactly and as usual, in turn; with a branch where the exact ones may have it."""
    prices = {}
    parents = np.arange(-1, _PRICED_ROWS - 2)
    parents[-2] = -1 if takes_trees else parents[-2]
    for context in _PRICED_CONTEXTS:
        cache = trial.prompt(context)
        text = trial.ids(_PRICED_ROWS)
        seconds: dict[ExactRows | None, list[float]] = {rows: [], None: []}
        for _ in range(5):
            for way, times in seconds.items():
                began = perf_counter()
                trial.rows(way, text, cache, parents)
                times.append(perf_counter() - began)
                cache.crop(-_PRICED_ROWS)
        prices[context] = min(seconds[rows]) / min(seconds[None])
    return prices

"""Whether forwards over several tokens have the bits of forwards over one: tried on the model at hand.

Nothing is taken from tables of kernels: the model runs the same tokens one at a time and several at once, in its
dtype, on its device, with as many threads, and every logit is compared by its bits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from time import perf_counter
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from outrider.caches.in_place import InPlaceCache
from outrider.lean import LeanForward
from outrider.target.exact_attention import Apart, attended_configs, attending
from outrider.target.exact_rows import Exactness, ExactRows, Kind
from outrider.target.masks import supports_tree, tree_inputs
from outrider.target.probe import some_ids
from outrider.types import Candidates
from outrider.versions import CACHE

# Tokens in the largest forward that is tried, and in those whose price is measured.
_MOST_ROWS = 33
_PRICED_ROWS = 9
_RANDOM_ROWS = 24
# Crossed by the forwards that are tried: the blocks of 8 to 64 keys of CPU kernels.
_CONTEXT = 90
_PRICED_CONTEXTS = (100, 1000)
_GROUPS = (16, 8, 4)
_GROUP_CONTEXTS = (90, 300, 500, 1500)


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
        group = _largest_group(trial) if kind == "transformers" else 1
        if group is None:
            return Exactness(
                1, reason="its attention layers do not call the function that transformers names"
            )
        if (shape := _shape_that_differs(model)) is not None:
            return Exactness(1, reason=f"a linear layer of {shape} rounds one token otherwise than several")
        rows = ExactRows(model, kind, Exactness(_MOST_ROWS, group))
        cache = trial.prompt(_CONTEXT)
        text = trial.ids(_CONTEXT + _MOST_ROWS)[:, _CONTEXT:]
        alone: list[Tensor] = []
        for token in text.split(1, dim=1):
            began_one = perf_counter()
            alone.append(trial.rows(rows, token, cache))
            one_s = perf_counter() - began_one
            # Half of the time for these, half for the forwards over several.
            if len(alone) > 1 and perf_counter() - began + one_s > max_s / 2:
                break
        cache.crop(-len(alone))
        max_rows, reason = 1, ""
        for size in range(2, len(alone) + 1):
            if perf_counter() - began > max_s:
                break
            together = trial.rows(rows, text[:, :size], cache)
            cache.crop(-size)
            if not _same_bits(together, torch.cat(alone[:size])):
                reason = f"a forward over {size} tokens does not have the bits of forwards over one"
                break
            max_rows = size
        complete = bool(reason) or max_rows == _MOST_ROWS
        takes_trees = max_rows >= _PRICED_ROWS and _trees_hold(trial, rows, cache, text[:, :max_rows])
        prices = _prices(trial, rows, takes_trees) if max_rows >= _PRICED_ROWS else None
        reason = reason or f"only {max_rows} tokens were tried"
        return Exactness(max_rows, group, takes_trees, prices, reason, complete)
    except Exception as error:  # a model may fail under a foreign attention in any way; then it is not had
        first = (str(error).splitlines() or [""])[0]
        return Exactness(1, reason=f"it fails under it ({type(error).__name__}: {first})")


def _shape_that_differs(model: PreTrainedModel) -> str | None:
    """The shape of a linear layer that has other bits for random rows together than alone; None where none has.

    Such a difference can be rare, and then the few tokens of the trial do not show it.
    """
    layers = {
        (module.weight.shape, module.weight.dtype): module
        for module in model.modules()
        if type(module) is torch.nn.Linear
    }
    for (shape, dtype), layer in layers.items():
        random = torch.Generator(layer.weight.device).manual_seed(0)
        size = (_RANDOM_ROWS, shape[1])
        inputs = torch.randn(size, generator=random, device=layer.weight.device, dtype=torch.float32).to(
            dtype
        )
        with torch.no_grad():
            together = layer(inputs[None])[0]
            alone = torch.cat([layer(row[None, None])[0] for row in inputs])
        if not torch.equal(together, alone):
            return f"{shape[1]} to {shape[0]}"
    return None


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


def _largest_group(trial: _Trial) -> int | None:
    """The largest group of `Apart` that changes no bit on random states of the model's shapes; None without calls."""
    shapes: list[tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]] = []

    def note(module: Any, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
        shapes.append((module, query, key, value, options))
        return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True).transpose(1, 2)

    with attending(trial.configs, note):
        trial.run({"input_ids": trial.ids(2), CACHE: InPlaceCache(trial.model.config)})
    if not shapes:
        return None
    kinds = {tuple(state.shape[1::2] for state in call[1:4]): call for call in shapes}
    return next((g for g in _GROUPS if all(_group_holds(g, *call) for call in kinds.values())), 1)


def _group_holds(
    group: int, module: Any, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> bool:
    random = torch.Generator(query.device).manual_seed(0)
    options = {**options, "sliding_window": None}

    def drawn(like: Tensor, length: int) -> Tensor:
        shape = (1, like.shape[1], length, like.shape[3])
        return torch.randn(shape, generator=random, device=like.device, dtype=torch.float32).to(like.dtype)

    for context in _GROUP_CONTEXTS:
        states = [drawn(like, context * (like is not query) + _MOST_ROWS) for like in (query, key, value)]
        ways: list[Callable[..., Tensor]] = [Apart(context), Apart(context, group=group)]
        with torch.no_grad():
            one, other = (way(module, *states, options) for way in ways)
        if not torch.equal(one, other):
            return False
    return True


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

"""Attention in which a token's bits do not depend on what else the forward holds.

In half precision a forward over several tokens rounds otherwise than forwards over one: linear layers mostly do
not, up to some number of rows, attention does. Two ways to mend it, both with the linear layers over all tokens
at once:

- `Apart` gives each token what plain decoding would: one query over just the keys it sees, no mask. The bits
  are those of transformers' own forwards over one token.
- `Aligned` makes one call, under a mask, with keys and queries rounded up to whole blocks.
  The bits are the same whatever the forward holds, also one token; they are not transformers' own.

A tree is taken as runs without branches, each after its ancestors' keys, so that its paths have the bits of chains.

Which of them holds on a machine, and for how many tokens, `exactness` finds out.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from outrider.errors import UnsupportedModelError
from outrider.types import Candidates

# What `config._attn_implementation` says during a forward, and what it must say before.
_NAME = "outrider_exact"
REPLACED = "sdpa"

# Keys are shown in multiples of this to `Aligned`, which asks in multiples of that: kernels multiply the last few
# rows, fewer than a tile of theirs, otherwise than the rest.
BLOCK = 64
_QUERIES = 16


class Attention(Protocol):
    """What stands in for transformers' attention function, in all layers of one forward."""

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """(1, n, H, D) outputs of the last n tokens, by `query` (1, H, n, D), `key`, `value` (1, H', S, D)."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one layer attends with.

    **Arguments:**

    - `key`, `value`: (1, H, S, D).
    - `options`: Those of transformers' attention functions.
    - `num_before`: How many of the keys stand before the forward's own.
    """

    module: Any
    key: Tensor
    value: Tensor
    options: dict[str, Any]
    num_before: int

    @property
    def window(self) -> int | None:
        window: int | None = self.options.get("sliding_window")
        return window


@dataclass(frozen=True, slots=True)
class Runs:
    """A tree's tokens depth first, as runs of which each goes on from its parent without a branch.

    **Arguments:**

    - `order`: (n,) int64. The forward's tokens depth first.
    - `runs`: Start and end of each run in that order, and the depth of its first token.
    """

    order: Tensor
    runs: list[tuple[int, int, int]]

    @classmethod
    def of(cls, candidates: Candidates, device: torch.device) -> Runs | None:
        """Of the last committed token and its candidates; None where they are a chain."""
        if candidates.is_chain:
            return None
        children: list[list[int]] = [[] for _ in range(len(candidates) + 1)]
        for node, parent in enumerate(candidates.parents.tolist()):
            children[parent + 1].append(node + 1)
        depths = [0, *candidates.depths().tolist()]
        order: list[int] = []
        runs: list[tuple[int, int, int]] = []
        stack = [0]
        while stack:
            node = stack.pop()
            if order and node in children[order[-1]][:1]:
                start, _, first = runs.pop()
                runs.append((start, len(order) + 1, first))
            else:
                runs.append((len(order), len(order) + 1, depths[node]))
            order.append(node)
            stack.extend(reversed(children[node]))
        return cls(torch.tensor(order, device=device), runs)


class _ByRuns(ABC):
    """Attention over one run of tokens at a time, whose keys stand in a row.

    **Arguments:**

    - `num_past`: Tokens before the forward.
    - `padding`: (1, >= num_past) bool. Which tokens may be seen; None for all.
    - `runs`: Those of a tree; its K and V must lie where they may be written. None for a chain.
    """

    def __init__(self, num_past: int, padding: Tensor | None = None, runs: Runs | None = None) -> None:
        self._num_past = num_past
        self._padding = padding
        self._runs = runs
        self._masks: dict[tuple[int, int, int, int], Tensor] = {}

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        unknown = next((name for name in ("position_bias", "softcap") if options.get(name) is not None), None)
        if unknown is not None:
            raise UnsupportedModelError(f"exact attention knows no {unknown}; pass exact=False")
        num_new = query.shape[2]
        num_before = min(self._num_past, key.shape[2] - num_new)
        layer = _Layer(module, key, value, options, num_before)
        if self._runs is None:
            return self._run(layer, query, 0)
        order, outputs = self._runs.order, []
        query = query.index_select(2, order)
        # Each run's keys follow those of its ancestors for as long as it attends.
        places = [states[:, :, num_before : num_before + num_new] for states in (key, value)]
        held = [(place, place.index_select(2, order)) for place in places]
        for start, end, depth in self._runs.runs:
            for place, states in held:
                place[:, :, depth : depth + end - start] = states[:, :, start:end]
            outputs.append(self._run(layer, query[:, :, start:end], depth))
        for place, states in held:
            place.index_copy_(2, order, states)
        output = torch.cat(outputs, 1)
        return torch.empty_like(output).index_copy_(1, order, output)

    @abstractmethod
    def _run(self, layer: _Layer, query: Tensor, depth: int) -> Tensor:
        """(1, m, H, D) outputs of m tokens, of which the first has `depth` of the forward's keys before its own."""

    def _mask(
        self, first: int, size: int, length: int, query: Tensor, copies: int = 1, padding: int = 0
    ) -> Tensor:
        """(copies * size + padding, length), added to scores: row i sees its first `first` + i keys."""
        at = (first, size, length, copies)
        mask = self._masks.get(at)
        if mask is None:
            keys = torch.arange(length, device=query.device)
            hidden = keys >= torch.arange(first, first + size, device=query.device)[:, None]
            if self._padding is not None:
                hidden[:, : self._num_past] |= ~self._padding[0, : self._num_past]
            mask = torch.zeros(size, length, dtype=query.dtype, device=query.device)
            mask = mask.masked_fill_(hidden, float("-inf")).repeat(copies, 1)
            mask = self._masks[at] = functional.pad(mask, (0, 0, 0, padding))
        return mask


@final
class Apart(_ByRuns):
    """Each token alone, over the keys that plain decoding would show it.

    Tokens whose numbers of keys round down to one multiple of `group` share a call in which each is a row of a
    batch: where `exactness` found that what is masked behind a row's keys then adds nothing to its bits.
    """

    def __init__(
        self, num_past: int, padding: Tensor | None = None, runs: Runs | None = None, group: int = 1
    ) -> None:
        super().__init__(num_past, padding, runs)
        self._group = group

    def _run(self, layer: _Layer, query: Tensor, depth: int) -> Tensor:
        num_new, first = query.shape[2], layer.num_before + depth + 1
        masked = self._padding is not None or (layer.window is not None and first + num_new > layer.window)
        return torch.cat(
            [
                self._one(layer, query[:, :, start:end], first + start)
                if end - start == 1
                else self._several(layer, query[:, :, start:end], first + start)
                for start, end in groups(first, num_new, 1 if masked else self._group)
            ],
            1,
        )

    def _one(self, layer: _Layer, query: Tensor, end: int) -> Tensor:
        """One query over the keys up to `end`, as transformers' own function does it."""
        start, mask = 0, None
        if layer.window is not None and end >= layer.window:
            # Once a window is full plain decoding passes a mask that lets everything through.
            start = end - layer.window
            mask = torch.ones(1, 1, 1, layer.window, dtype=torch.bool, device=query.device)
        if self._padding is not None:
            length = self._num_past - layer.num_before + end
            mask = self._padding[None, None, :, length - (end - start) : length]
        key, value = layer.key[:, :, start:end], layer.value[:, :, start:end]
        output, _ = sdpa_attention_forward(layer.module, query, key, value, mask, **layer.options)
        return output

    def _several(self, layer: _Layer, query: Tensor, first: int) -> Tensor:
        """Queries of which the first sees `first` keys, each a row of a batch."""
        size = query.shape[2]
        length = first + size - 1
        output = functional.scaled_dot_product_attention(
            query.transpose(0, 2),
            layer.key[:, :, :length].expand(size, -1, -1, -1),
            layer.value[:, :, :length].expand(size, -1, -1, -1),
            attn_mask=self._mask(first, size, length, query)[:, None, None],
            scale=layer.options.get("scaling"),
            enable_gqa=True,
        )
        return output.transpose(0, 2).transpose(1, 2)


@final
class Aligned(_ByRuns):
    """All tokens of a run in one call under a mask, over keys in whole blocks, by queries in whole blocks."""

    def _run(self, layer: _Layer, query: Tensor, depth: int) -> Tensor:
        _, num_heads, num_new, size = query.shape
        # Heads that share keys are queries of one head: K and V are then read once for all of them.
        shared = num_heads // layer.key.shape[1]
        queries = query.reshape(1, layer.key.shape[1], shared * num_new, size)
        padding = -shared * num_new % _QUERIES
        queries = functional.pad(queries, (0, 0, 0, padding))
        first, length = layer.num_before + depth + 1, layer.key.shape[2]
        mask = self._mask(first, num_new, length, query, shared, padding)
        output = functional.scaled_dot_product_attention(
            queries, layer.key, layer.value, attn_mask=mask[None, None], scale=layer.options.get("scaling")
        )
        output = output[:, :, : shared * num_new].unflatten(2, (shared, num_new))
        return output.permute(0, 3, 1, 2, 4).reshape(1, num_new, num_heads, -1)


def groups(first: int, num_new: int, group: int) -> Iterator[tuple[int, int]]:
    """Runs [start, end) of tokens, of which token i has `first` + i keys, that share a multiple of `group`."""
    start = 0
    while start < num_new:
        end = min(num_new, start + group - (first + start) % group)
        yield start, end
        start = end


_current = threading.local()
_lock = threading.Lock()
_users: dict[int, tuple[int, Any]] = {}


def attended_configs(model: PreTrainedModel) -> list[Any]:
    """The configurations by which a model's layers choose their attention, where that is transformers' sdpa."""
    found = {
        id(module.config): module.config
        for module in model.modules()
        if getattr(getattr(module, "config", None), "_attn_implementation", None) == REPLACED
    }
    return list(found.values())


@contextmanager
def attending(configs: Iterable[Any], attention: Attention) -> Iterator[None]:
    """Within it this thread's forwards of the configurations' models attend by `attention`.

    Other threads' forwards of the same models stay what they are; afterwards the configurations are too.
    """
    configs = list(configs)
    with _lock:
        for config in configs:
            count, held = _users.get(id(config), (0, config._attn_implementation_internal))
            _users[id(config)] = count + 1, held
            config._attn_implementation_internal = _NAME
    _current.attention = attention
    try:
        yield
    finally:
        _current.attention = None
        with _lock:
            for config in configs:
                count, held = _users.pop(id(config))
                if count > 1:
                    _users[id(config)] = count - 1, held
                else:
                    config._attn_implementation_internal = held


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    attention: Attention | None = getattr(_current, "attention", None)
    if attention is None or not getattr(module, "is_causal", True):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return attention(module, query, key, value, options).contiguous(), None


def _no_mask(*arguments: Any, **options: Any) -> Tensor | None:
    own: Callable[..., Tensor | None] = sdpa_mask
    return own(*arguments, **options) if getattr(_current, "attention", None) is None else None


AttentionInterface.register(_NAME, _attend)
AttentionMaskInterface.register(_NAME, _no_mask)

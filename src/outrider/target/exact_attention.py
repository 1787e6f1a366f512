"""Attention in which a token's bits do not depend on what else the forward holds.

In half precision a forward over several tokens rounds otherwise than forwards over one: linear layers mostly do
not, up to some number of rows, attention does. Two ways to mend it, both with the linear layers over all tokens
at once:

- `Apart` gives each token what plain decoding would: one query over just the keys it sees, no mask. The bits
  are those of transformers' own forwards over one token.
- `Aligned` keeps one call, under a mask, with keys rounded up to whole blocks and never fewer than two queries.
  The bits are the same whatever the forward holds, also one token; they are not transformers' own.

Which of them holds on a machine, and for how many tokens, `exactness` finds out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

# What `config._attn_implementation` says during a forward, and what it must say before.
_NAME = "outrider_exact"
REPLACED = "sdpa"

# Keys are shown in multiples of this to `Aligned`.
BLOCK = 64


class Attention(Protocol):
    """What stands in for transformers' attention function, in all layers of one forward."""

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """(1, n, H, D) outputs of the last n tokens, by `query` (1, H, n, D), `key`, `value` (1, H', S, D)."""


@final
class Apart:
    """Each token alone, over the keys that plain decoding would show it.

    Tokens whose numbers of keys round down to one multiple of `group` share a call in which each is a row of a
    batch: where `exactness` found that what is masked behind a row's keys then adds nothing to its bits.

    **Arguments:**

    - `num_past`: Tokens before the forward.
    - `padding`: (1, >= num_past + n) bool. Where plain decoding would pass a mask; None where it would not.
    """

    def __init__(self, num_past: int, padding: Tensor | None = None, group: int = 1) -> None:
        self._num_past = num_past
        self._padding = padding
        self._group = group
        self._masks: dict[tuple[int, int, int], Tensor] = {}

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        num_new = query.shape[2]
        # Of the keys shown the last num_new are the forward's own.
        first = key.shape[2] - num_new + 1
        window = options.get("sliding_window")
        if self._padding is not None or (window is not None and first + num_new > window):
            return torch.cat(
                [self._one(module, query, key, value, options, i, first + i) for i in range(num_new)], 1
            )
        return torch.cat(
            [
                self._one(module, query, key, value, options, start, first + start)
                if end - start == 1
                else self._several(query, key, value, options, start, end, first)
                for start, end in groups(first, num_new, self._group)
            ],
            1,
        )

    def _one(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        options: dict[str, Any],
        i: int,
        end: int,
    ) -> Tensor:
        """Query `i` over the keys up to `end`, as transformers' own function does it."""
        window = options.get("sliding_window")
        start, mask = 0, None
        if window is not None and end >= window:
            # Once a window is full plain decoding passes a mask that lets everything through.
            start = end - window
            mask = torch.ones(1, 1, 1, window, dtype=torch.bool, device=key.device)
        if self._padding is not None:
            length = self._num_past + i + 1
            mask = self._padding[None, None, :, length - (end - start) : length]
        output, _ = sdpa_attention_forward(
            module, query[:, :, i : i + 1], key[:, :, start:end], value[:, :, start:end], mask, **options
        )
        return output

    def _several(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        options: dict[str, Any],
        start: int,
        end: int,
        first: int,
    ) -> Tensor:
        size, length = end - start, first + end - 1
        output = functional.scaled_dot_product_attention(
            query[:, :, start:end].transpose(0, 2),
            key[:, :, :length].expand(size, -1, -1, -1),
            value[:, :, :length].expand(size, -1, -1, -1),
            attn_mask=self._mask(first + start, size, length, query),
            scale=options.get("scaling"),
            enable_gqa=True,
        )
        return output.transpose(0, 2).transpose(1, 2)

    def _mask(self, first: int, size: int, length: int, query: Tensor) -> Tensor:
        """(size, 1, 1, length). Row i sees `first` + i keys."""
        at = (first, size, length)
        if at not in self._masks:
            self._masks[at] = _added(first, size, length, query)[:, None, None]
        return self._masks[at]


@final
class Aligned:
    """All tokens in one call under a mask, over keys in whole blocks, a lone token twice.

    **Arguments:**

    - `num_past`: Tokens before the forward.
    - `padding`: (1, >= num_past) bool. The prompt's tokens that may be seen; None for all.
    """

    def __init__(self, num_past: int, padding: Tensor | None = None) -> None:
        self._num_past = num_past
        self._padding = padding
        self._mask: Tensor | None = None

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        num_new, length = query.shape[2], key.shape[2]
        if num_new == 1:  # really twice: a view that repeats it takes another kernel
            query = torch.cat([query, query], 2)
        if self._mask is None or self._mask.shape[-1] != length:
            self._mask = _added(self._num_past + 1, query.shape[2], length, query)[None, None]
            if self._padding is not None:
                hidden = ~self._padding[0, : self._num_past]
                self._mask[..., : hidden.numel()].masked_fill_(hidden, float("-inf"))
        output = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=self._mask, scale=options.get("scaling"), enable_gqa=True
        )
        return output[:, :, :num_new].transpose(1, 2)


def groups(first: int, num_new: int, group: int) -> Iterator[tuple[int, int]]:
    """Runs [start, end) of tokens, of which token i has `first` + i keys, that share a multiple of `group`."""
    start = 0
    while start < num_new:
        end = min(num_new, start + group - (first + start) % group)
        yield start, end
        start = end


def _added(first: int, size: int, length: int, like: Tensor) -> Tensor:
    """(size, length) in the dtype of `like`, added to scores: row i sees its first `first` + i keys."""
    keys = torch.arange(length, device=like.device)
    seen = keys < torch.arange(first, first + size, device=like.device)[:, None]
    return torch.zeros(size, length, dtype=like.dtype, device=like.device).masked_fill_(~seen, float("-inf"))


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

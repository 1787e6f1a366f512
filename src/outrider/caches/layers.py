"""Attention layers of the in-place cache: K and V in preallocated memory, rolled back by a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, final

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

_STEP = 64
_MARGIN = 256


@final
class Memory:
    """Zeroed memory for `capacity` entries along the last dimension but one, and quick views into it.

    Zeroed, since what attention masks must be finite. `as_strided` takes half the time of `narrow`.
    """

    __slots__ = ("_lead", "_strides", "_width", "capacity", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.contiguous()
        self.capacity = tensor.shape[-2]
        self._lead, self._width, self._strides = tensor.shape[:-2], tensor.shape[-1], self.tensor.stride()

    @classmethod
    def like(cls, states: Tensor, capacity: int) -> Self:
        """Memory for entries such as `states` holds."""
        with torch.inference_mode(False):
            shape = (*states.shape[:-2], capacity, states.shape[-1])
            return cls(torch.zeros(shape, dtype=states.dtype, device=states.device))

    def view(self, start: int, length: int) -> Tensor:
        """Entries `start` to `start + length`."""
        size = (*self._lead, length, self._width)
        return torch.as_strided(self.tensor, size, self._strides, start * self._width)

    def extended(self, states: Tensor, start: int, first_seen: int, num_seen: int) -> Tensor:
        """Write `states` at `start`, and see `num_seen` entries from `first_seen` on."""
        lead, width, strides, tensor = self._lead, self._width, self._strides, self.tensor
        size = (*lead, states.shape[-2], width)
        torch.as_strided(tensor, size, strides, start * width).copy_(states)
        return torch.as_strided(tensor, (*lead, num_seen, width), strides, first_seen * width)

    def holds(self, states: Tensor) -> bool:
        """Whether entries such as `states` has can be written into it."""
        mine = self.tensor
        return (
            mine.shape[:-2] == states.shape[:-2]
            and mine.shape[-1] == states.shape[-1]
            and mine.dtype == states.dtype
            and mine.device == states.device
        )

    def grown(self, kept: int, capacity: int) -> Memory:
        """Larger memory with the first `kept` entries."""
        grown = Memory.like(self.tensor, capacity)
        grown.view(0, kept).copy_(self.view(0, kept))
        return grown


class InPlaceLayer(DynamicLayer):
    """K and V of one full-attention layer.

    `update` writes the new entries behind the old ones and returns views, so that a forward never copies
    the past. Memory grows by doubling, and while `max_length` holds the text not beyond it.

    **Arguments:**

    - `max_length`: Entries that will ever be needed, where that is known.
    - `multiple`: Attention sees a length rounded up to a multiple of this; the entries behind the last
        one are masked. 1 means the exact length.
    """

    is_sliding = False

    def __init__(self, max_length: int | None = None, multiple: int = 1) -> None:
        self.max_length = max_length
        self.multiple = multiple
        self.length = 0
        self._dropped = 0
        self._keys: Memory | None = None
        self._values: Memory | None = None
        super().__init__()

    @property
    def keys(self) -> Tensor | None:
        """(B, H, entries kept, D). A view."""
        return None if self._keys is None else self._keys.view(0, self.length - self._dropped)

    @keys.setter
    def keys(self, keys: Tensor | None) -> None:
        self._keys = None if keys is None else Memory(keys)
        self.length = 0 if keys is None else self._dropped + keys.shape[-2]

    @property
    def values(self) -> Tensor | None:
        """(B, H, entries kept, D'). A view."""
        return None if self._values is None else self._values.view(0, self.length - self._dropped)

    @values.setter
    def values(self, values: Tensor | None) -> None:
        self._values = None if values is None else Memory(values)

    @property
    def capacity(self) -> int:
        """Entries that fit into the memory at hand."""
        return 0 if self._keys is None else self._keys.capacity

    def remember(self) -> Callable[[], None]:
        """What takes the layer back to the length that it has now."""
        length = self.length
        return lambda: self.crop(length - self.length)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory at hand."""
        return sum(memory.tensor.nbytes for memory in (self._keys, self._values) if memory is not None)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.device = key_states.device
        self.length = self._dropped = 0
        self._keys, self._values = Memory.like(key_states, 0), Memory.like(value_states, 0)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        num_new = key_states.shape[-2]
        start = self.length
        if not start:
            self._begin(key_states, value_states)
        seen = -(-(start + num_new) // self.multiple) * self.multiple
        if seen > self.capacity:
            self._grow(seen)
        return self._write(key_states, value_states, start, 0, seen)

    def _write(
        self, key_states: Tensor, value_states: Tensor, start: int, first_seen: int, num_seen: int
    ) -> tuple[Tensor, Tensor]:
        assert self._keys is not None and self._values is not None
        self.length += key_states.shape[-2]
        return (
            self._keys.extended(key_states, start, first_seen, num_seen),
            self._values.extended(value_states, start, first_seen, num_seen),
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return -(-(self.length + query_length) // self.multiple) * self.multiple, 0

    def get_seq_length(self) -> int:
        return self.length

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove > 0:
            raise ValueError(
                f"crop({tokens_to_remove}) adds nothing back; pass how many tokens to remove, as -n"
            )
        self.length = max(0, self.length + int(tokens_to_remove))

    def keep_path(self, base_length: int, path: Tensor, num_in_place: int) -> None:
        """Of the entries from `base_length` on keep those at `path`, in that order.

        The first `num_in_place` of them are where they belong already.
        """
        start = base_length - self._dropped
        num_moved = path.numel() - num_in_place
        if num_moved and self.is_initialized:
            source = path[num_in_place:].to(self.device) + start
            for memory in (self._keys, self._values):
                assert memory is not None
                memory.view(start + num_in_place, num_moved).copy_(memory.tensor.index_select(-2, source))
        self.length = base_length + path.numel()

    def compact(self, order: Tensor) -> None:
        """Keep of each row of the batch the entries `order` (B, n) names, in that order."""
        num_kept = order.shape[1]
        for memory in (self._keys, self._values):
            if memory is not None:
                index = order.to(memory.tensor.device)[:, None, :, None]
                index = index.expand(-1, memory.tensor.shape[1], -1, memory.tensor.shape[3])
                memory.view(0, num_kept).copy_(memory.tensor.gather(2, index))
        self.length = num_kept

    def reset(self) -> None:
        self.length = self._dropped = 0

    def offload(self) -> None:
        self._map(lambda memory: memory.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        self._map(lambda memory: memory.to(self.device, non_blocking=True))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda memory: memory.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._map(lambda memory: memory.index_select(0, indices.to(memory.device)))

    def _map(self, change: Callable[[Tensor], Tensor]) -> None:
        if self._keys is not None and self._values is not None:
            self._keys, self._values = Memory(change(self._keys.tensor)), Memory(change(self._values.tensor))

    def _begin(self, key_states: Tensor, value_states: Tensor) -> None:
        """Start with the memory at hand, or with new where that is for another batch, dtype or device."""
        self._dropped = 0
        if not self.is_initialized or self._keys is None or not self._keys.holds(key_states):
            self.lazy_initialization(key_states, value_states)

    def _grow(self, needed: int) -> None:
        capacity = max(needed, 2 * self.capacity, min(2 * needed, needed + 4 * _STEP))
        if self.max_length is not None and needed <= self.max_length:
            capacity = min(capacity, self.max_length)
        step = max(_STEP, self.multiple)
        capacity = -(-capacity // step) * step
        kept = self.length - self._dropped
        assert self._keys is not None and self._values is not None
        self._keys = self._keys.grown(kept, capacity)
        self._values = self._values.grown(kept, capacity)


@final
class InPlaceSlidingLayer(InPlaceLayer):
    """K and V of one sliding-window or chunked layer.

    Attention sees what transformers' own layer shows it: the `window` - 1 entries before the new ones. What
    lies further back is dropped, now and then, but never the last 256 entries before that: a
    rollback may need them.
    """

    is_sliding = True

    def __init__(self, sliding_window: int, max_length: int | None = None, multiple: int = 1) -> None:
        self.sliding_window = sliding_window
        self.record_past = True
        super().__init__(max_length, multiple)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.length:
            self._begin(key_states, value_states)
        past = min(self.length, self.sliding_window - 1)
        seen = -(-(past + key_states.shape[-2]) // self.multiple) * self.multiple
        start = self.length - self._dropped
        if start - past + seen > self.capacity:
            start = self._make_room(start, past, seen)
        return self._write(key_states, value_states, start, start - past, seen)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        past = min(self.length, self.sliding_window - 1)
        return -(-(past + query_length) // self.multiple) * self.multiple, self.length - past

    def get_max_length(self) -> int:
        return -1

    def activate_past_recording(self, **_: Any) -> None:
        """What a rollback needs is always kept."""

    def crop(self, tokens_to_remove: int) -> None:
        length = max(0, self.length + int(tokens_to_remove))
        if self._dropped > max(0, length - self.sliding_window + 1):
            raise RuntimeError(
                f"cannot remove {-tokens_to_remove} tokens: a layer with a window of {self.sliding_window} "
                f"has dropped what lies before token {self._dropped}"
            )
        super().crop(tokens_to_remove)

    def _make_room(self, start: int, past: int, seen: int) -> int:
        """Drop entries that no window or rollback needs, or grow; return where the new entries go."""
        kept = min(start, self.sliding_window - 1 + _MARGIN)
        needed = kept - past + seen
        if 2 * kept <= start and needed <= self.capacity:
            for memory in (self._keys, self._values):
                assert memory is not None
                memory.view(0, kept).copy_(memory.view(start - kept, kept))
            self._dropped += start - kept
            return kept
        self._grow(start - past + seen)
        return start

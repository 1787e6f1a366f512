"""A batch whose rows accept different lengths: K and V stay where they were written.

Where a model takes a mask and positions of each row's own, a slot that a row did not accept is a hole, and
the cache is compacted once holes are more than what it costs. Elsewhere a position is a slot, and a cache
whose rows accepted different lengths is compacted at once. Finished rows leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, PreTrainedModel

from outrider.caches.in_place import InPlaceCache
from outrider.caches.layers import InPlaceLayer, InPlaceSlidingLayer
from outrider.errors import UnsupportedModelError
from outrider.lean import LeanForward
from outrider.target.batch_inputs import BatchInputs, mask_and_positions
from outrider.target.forward import vocab_size
from outrider.target.masks import Reach, ancestors, for_attention, for_each_kind, supports_tree
from outrider.target.parked import Parked
from outrider.target.slots import Slots
from outrider.types import Candidates, Ids
from outrider.versions import CACHE, DummyLayer

if TYPE_CHECKING:
    from outrider.verification.step import Row


@final
class BatchTarget:
    """A model and its cache as the loop sees them: many rows; trees where the model takes them, else chains.

    **Arguments:**

    - `model`: One without recurrent layers; see `ragged.batch_target`.
    - `model_kwargs`: What `generate()` prepared for it; prompts are padded on the left.
    - `generation_config`: As `generate()` prepared it.
    - `min_holes`: Of a model that takes trees, compact once rows leave so many slots unused, and a quarter
        of the cache.

    **Raises:** `UnsupportedModelError` for a cache that cannot do it.
    """

    exact = ""

    def __init__(
        self,
        model: PreTrainedModel,
        model_kwargs: dict[str, Any],
        generation_config: GenerationConfig,
        min_holes: int = 64,
    ) -> None:
        self.model: Any = model
        self.takes_trees = supports_tree(model)
        self._lean = LeanForward(model)
        self.config = generation_config
        self.vocab_size = vocab_size(model)
        self.outputs: Any = None
        self.num_rounds = 0
        self.room = 2**31
        self._min_holes = min_holes
        self.cache = _cache_for(model, model_kwargs)
        given = model_kwargs[CACHE]
        is_pair = isinstance(given, EncoderDecoderCache)
        self.returned_cache: Any = (
            EncoderDecoderCache(self.cache, given.cross_attention_cache) if is_pair else self.cache
        )
        self._inputs = BatchInputs(model, {**model_kwargs, CACHE: self.returned_cache})
        self._parked, self._keeps = Parked(), bool(generation_config.return_dict_in_generate)
        self.rows: list[int] = []
        self._slots: Slots
        self._new: Tensor  # the last forward's positions, (B, T)
        self._whole: tuple[dict[str, Any], list[tuple[Any, Tensor, Tensor]]]
        self._mask: Tensor | None = model_kwargs.get(mask_and_positions(model)[0])

    @property
    def num_fed(self) -> int:
        """Tokens of each row in the last forward, from its last committed one on."""
        return self._new.shape[1]

    @property
    def is_prefilled(self) -> bool:
        """Whether the prompts' forward is over."""
        return self.num_rounds > 0

    def forward(self, rows: Sequence[Row], proposals: Sequence[Candidates]) -> list[Tensor]:
        """Run each row's last committed token and its candidates; the first call runs the prompts.

        **Returns:** for each row, (n + 1, V) raw logits: row 0 follows the last committed token, row i + 1
        candidate i.
        """
        if self.outputs is None:
            return self._prefill(rows)
        self._drop_finished([row.index for row in rows])
        sizes = [len(candidates) + 1 for candidates in proposals]
        width, device = max(sizes), self._slots.valid.device
        ids = np.zeros((len(rows), width), np.int64)
        depths = np.zeros((len(rows), width), np.int64)
        for index, (row, candidates) in enumerate(zip(rows, proposals, strict=True)):
            ids[index, : sizes[index]] = [row.ids[-1], *candidates.tokens]
            depths[index, 1 : sizes[index]] = candidates.depths()
        self._new = torch.from_numpy(self._slots.counts[:, None] + depths).to(device)
        mask = torch.nn.functional.pad(self._slots.valid, (0, width), value=True)
        inputs = self._inputs.of(torch.from_numpy(ids).to(device), mask, self._new)
        if self.takes_trees:
            inputs["attention_mask"] = self._masks(proposals)
        with self._lean, self._inputs.counting_from(self._slots.leads):
            self.outputs = self.model(**inputs, return_dict=True)
        return [self.outputs.logits[index, :size] for index, size in enumerate(sizes)]

    def commit(self, paths: Sequence[Ids], num_committed: Sequence[int]) -> None:
        """Mark each row's accepted slots as valid; slots that no row accepted are rolled back.

        After it the cache holds every committed token but the last of each row.
        """
        if self.num_rounds:
            width = self.num_fed
            kept = np.zeros((len(paths), width), np.bool_)
            for index, (path, num) in enumerate(zip(paths, num_committed, strict=True)):
                kept[index, np.concatenate([[0], np.asarray(path, np.int64) + 1])[: int(num)]] = True
            num_used = self._slots.add(kept, self._new)
            self.cache.crop(num_used - width)
            self._compact()
        self.num_rounds += 1

    def bring_back(self) -> None:
        """Let rows that left take part in the next forward again; of a target that returns its cache."""
        self._park(self.rows)
        counts = self._parked.counts
        self._bring_back([torch.arange(max(counts) - count, max(counts)) for count in counts])

    def lay_out(self, places: Tensor) -> None:
        """Let the cache be as transformers' own: each token in the slot that is its index in `sequences`.

        **Arguments:**

        - `places`: (B, L) int64. For each slot of the prompts as they were run, its index in them as given.
        """
        self._park(self.rows)
        slots = []
        for row, count in enumerate(self._parked.counts):
            prompt = places[row][self._prompt[row]].cpu()
            behind = torch.arange(count - prompt.numel()) + places.shape[1]
            slots.append(torch.cat([prompt, behind]))
        self._bring_back(slots)

    def _park(self, rows: Sequence[int]) -> None:
        if self._keeps:
            for row in rows:
                self._parked.park(row, self.cache, self._slots, self.rows.index(row))

    def _bring_back(self, slots: Sequence[Tensor]) -> None:
        self._inputs.kwargs, cross_attention = self._whole
        for layer, keys, values in cross_attention:
            layer.keys, layer.values = keys, values
        self._slots = self._parked.lay_out(self.cache, slots)
        self.rows = list(range(len(slots)))

    def _prefill(self, rows: Sequence[Row]) -> list[Tensor]:
        ids = torch.cat([row.tensor() for row in rows])
        self._slots = Slots(torch.ones_like(ids) if self._mask is None else self._mask)
        with self._inputs.counting_from(self._slots.leads):
            self.outputs = self.model._prefill(ids, self.config, self._inputs.kwargs)
        self.rows = [row.index for row in rows]
        self._whole = self._inputs.kwargs, _cross_attention(self.returned_cache)
        self._prompt = self._slots.valid
        logits: Tensor = self.outputs.logits
        return list(logits[:, -1:])

    def _masks(self, proposals: Sequence[Candidates]) -> Any:
        """Masks for slots 0 to the last new one, by kind of layer."""
        width = self.num_fed
        trees = np.repeat(np.eye(width, dtype=np.bool_)[None], len(proposals), 0)
        for tree, candidates in zip(trees, proposals, strict=True):
            size = len(candidates) + 1
            tree[:size, :size] = ancestors(candidates)
        past = self._slots.valid[:, None].expand(-1, width, -1)
        allowed = torch.cat([past, torch.from_numpy(trees).to(past.device)], 2)
        positions = torch.cat([self._slots.positions, self._new], 1)

        def mask(reach: Reach, layer: int) -> Tensor:
            seen = reach.sees(self._new[:, :, None], positions[:, None])
            return for_attention((allowed if seen is None else allowed & seen)[:, None], self.model)

        return for_each_kind(self.model.config.get_text_config(), self.cache, mask)

    def _drop_finished(self, alive: list[int]) -> None:
        if alive == self.rows:
            return
        self._park([row for row in self.rows if row not in alive])
        index = torch.tensor([self.rows.index(row) for row in alive], device=self._slots.valid.device)
        self.returned_cache.batch_select_indices(index)
        self._inputs.select(index, len(self.rows))
        self._slots.select(index)
        self.rows = alive
        self._compact()

    def _compact(self) -> None:
        """Close the holes where they are many, or where a slot must tell a position."""
        slots = self._slots
        are_many = slots.num_holes >= max(self._min_holes, slots.length // 4)
        if are_many or not (self.takes_trees or slots.is_aligned):
            order = slots.compact()
            for layer in self.cache.layers:
                if isinstance(layer, InPlaceLayer):
                    layer.compact(order)


def _cross_attention(cache: Any) -> list[tuple[Any, Tensor, Tensor]]:
    """Each layer of cross attention with its keys and values."""
    if not isinstance(cache, EncoderDecoderCache):
        return []
    layers: list[Any] = cache.cross_attention_cache.layers
    return [(layer, layer.keys, layer.values) for layer in layers]


def _cache_for(model: PreTrainedModel, kwargs: Mapping[str, Any]) -> InPlaceCache:
    """An in-place cache whose windows keep everything: a window counts positions, and slots have holes."""
    given, positions = kwargs.get(CACHE), kwargs.get("position_ids")
    inner = given.self_attention_cache if isinstance(given, EncoderDecoderCache) else given
    if type(inner) is not DynamicCache or getattr(given, "_is_user_defined", False):
        reason = f"the cache is a {type(inner).__name__}"
    elif positions is not None and positions.ndim != 2:
        reason = "its positions have three axes"
    else:
        cache = InPlaceCache.replacing(inner, None)
        for index, layer in enumerate(cache.layers):
            if isinstance(layer, InPlaceSlidingLayer):
                cache.layers[index] = InPlaceLayer()
        strange = [layer for layer in cache.layers if not isinstance(layer, InPlaceLayer | DummyLayer)]
        if not strange:
            return cache
        reason = f"a {type(strange[0]).__name__} follows one path, and takes no mask of each row's own"
    raise UnsupportedModelError(
        f"{type(model).__name__} cannot verify a batch here, since {reason}; generate one prompt at a time"
    )

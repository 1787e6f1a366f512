"""A batch whose rows accept different lengths: K and V stay where they were written.

Each row has its own validity mask over the slots of the cache and its own positions. A slot that a row did
not accept is a hole; the cache is compacted once holes are more than what it costs. Finished rows leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

from outrider.caches.in_place import InPlaceCache
from outrider.caches.layers import InPlaceLayer, InPlaceSlidingLayer
from outrider.errors import UnsupportedModelError
from outrider.lean import LeanForward
from outrider.target.forward import vocab_size
from outrider.target.masks import Reach, ancestors, for_attention, for_each_kind, supports_tree
from outrider.types import Candidates, Ids
from outrider.versions import CACHE

if TYPE_CHECKING:
    from outrider.verification.step import Row


@final
class BatchTarget:
    """A model and its cache as the loop sees them: many rows, trees.

    **Arguments:**

    - `model`: A decoder-only model that takes trees (`supports_tree`).
    - `model_kwargs`: What `generate()` prepared for it; prompts are padded on the left.
    - `generation_config`: As `generate()` prepared it.
    - `min_holes`: Compact once rows leave so many slots unused, and a quarter of the cache.

    **Raises:** `UnsupportedModelError` for a model or a cache that cannot do it.
    """

    takes_trees = True
    exact = ""

    def __init__(
        self,
        model: PreTrainedModel,
        model_kwargs: dict[str, Any],
        generation_config: GenerationConfig,
        min_holes: int = 64,
    ) -> None:
        self.model: Any = model
        self._lean = LeanForward(model)
        self.config = generation_config
        self.vocab_size = vocab_size(model)
        self.outputs: Any = None
        self.num_rounds = 0
        self.room = 2**31
        self._min_holes = min_holes
        self._kwargs = model_kwargs
        self.cache = _cache_for(model, model_kwargs, generation_config)
        self._kwargs[CACHE] = self.cache
        self._rows: list[int] = []
        self._base = self._width = 0
        mask = model_kwargs.get("attention_mask")
        self._valid = torch.empty(0, 0, dtype=torch.bool) if mask is None else mask.to(torch.bool)
        self._positions = torch.empty(0, 0, dtype=torch.long)
        self._counts = np.zeros(0, np.int64)

    @property
    def is_prefilled(self) -> bool:
        """Whether the prompts' forward is over."""
        return self.num_rounds > 0

    @property
    def returned_cache(self) -> Any:
        """The cache as `generate()` returns it. With holes, where rows accepted different lengths."""
        return self.cache

    def forward(self, rows: Sequence[Row], proposals: Sequence[Candidates]) -> list[Tensor]:
        """Run each row's last committed token and its candidates; the first call runs the prompts.

        **Returns:** for each row, (n + 1, V) raw logits: row 0 follows the last committed token, row i + 1
        candidate i.
        """
        if self.outputs is None:
            return self._prefill(rows)
        self._drop_finished([row.index for row in rows])
        sizes = [len(candidates) + 1 for candidates in proposals]
        width, device = max(sizes), self._valid.device
        ids = np.zeros((len(rows), width), np.int64)
        depths = np.zeros((len(rows), width), np.int64)
        trees = np.repeat(np.eye(width, dtype=np.bool_)[None], len(rows), 0)
        for index, (row, candidates) in enumerate(zip(rows, proposals, strict=True)):
            ids[index, : sizes[index]] = [row.ids[-1], *candidates.tokens]
            depths[index, 1 : sizes[index]] = candidates.depths()
            trees[index, : sizes[index], : sizes[index]] = ancestors(candidates)
        positions = torch.from_numpy(self._counts[:, None] + depths).to(device)
        masks = self._masks(torch.from_numpy(trees).to(device), positions)
        with self._lean:
            self.outputs = self.model(
                input_ids=torch.from_numpy(ids).to(device),
                attention_mask=masks,
                position_ids=positions,
                use_cache=True,
                return_dict=True,
                **{CACHE: self.cache},
            )
        return [self.outputs.logits[index, :size] for index, size in enumerate(sizes)]

    def commit(self, paths: Sequence[Ids], num_committed: Sequence[int]) -> None:
        """Mark each row's accepted slots as valid; slots that no row accepted are rolled back.

        After it the cache holds every committed token but the last of each row.
        """
        if self.num_rounds:
            kept = np.zeros((len(paths), self._width), np.bool_)
            for index, (path, num) in enumerate(zip(paths, num_committed, strict=True)):
                slots = np.concatenate([[0], np.asarray(path, dtype=np.int64) + 1])[: int(num)]
                kept[index, slots] = True
                self._counts[index] += slots.size
            num_used = int(np.flatnonzero(kept.any(0))[-1]) + 1
            self._valid = torch.cat(
                [self._valid, torch.from_numpy(kept[:, :num_used]).to(self._valid.device)], 1
            )
            self._positions = self._positions[:, : self._base + num_used]
            self.cache.crop(num_used - self._width)
            self._compact()
        self.num_rounds += 1

    def _prefill(self, rows: Sequence[Row]) -> list[Tensor]:
        ids = torch.cat([row.tensor() for row in rows])
        self.outputs = self.model._prefill(ids, self.config, self._kwargs)
        self._rows = [row.index for row in rows]
        if not self._valid.numel():
            self._valid = torch.ones_like(ids, dtype=torch.bool)
        self._positions = (self._valid.long().cumsum(1) - 1).clamp(min=0)
        self._counts = self._valid.sum(1).cpu().numpy()
        logits: Tensor = self.outputs.logits
        return list(logits[:, -1:])

    def _masks(self, trees: Tensor, positions: Tensor) -> Any:
        """Masks for slots 0 to the last new one, by kind of layer."""
        self._base, self._width = self._valid.shape[1], trees.shape[1]
        past = self._valid[:, None].expand(-1, self._width, -1)
        allowed = torch.cat([past, trees], 2)
        self._positions = torch.cat([self._positions[:, : self._base], positions], 1)

        def mask(reach: Reach, layer: int) -> Tensor:
            seen = reach.sees(positions[:, :, None], self._positions[:, None])
            return for_attention((allowed if seen is None else allowed & seen)[:, None], self.model)

        return for_each_kind(self.model.config.get_text_config(), self.cache, mask)

    def _drop_finished(self, alive: list[int]) -> None:
        if alive == self._rows:
            return
        index = torch.tensor([self._rows.index(row) for row in alive], device=self._valid.device)
        self.cache.batch_select_indices(index)
        self._valid, self._positions = self._valid[index], self._positions[index]
        self._counts = self._counts[index.cpu().numpy()]
        self._rows = alive
        self._compact()

    def _compact(self) -> None:
        """Close the holes where they are many: the longest row decides how long the cache must be."""
        length, needed = self._valid.shape[1], int(self._counts.max())
        if length - needed < max(self._min_holes, length // 4):
            return
        order = torch.argsort(~self._valid, dim=1, stable=True)[:, :needed]
        for layer in self.cache.layers:
            if isinstance(layer, InPlaceLayer):
                layer.compact(order)
        self._valid, self._positions = self._valid.gather(1, order), self._positions.gather(1, order)


def _cache_for(model: PreTrainedModel, kwargs: Mapping[str, Any], config: GenerationConfig) -> InPlaceCache:
    """An in-place cache whose windows keep everything: a window counts positions, and slots have holes."""
    given, positions = kwargs.get(CACHE), kwargs.get("position_ids")
    if type(given) is not DynamicCache or getattr(given, "_is_user_defined", False):
        reason = f"the cache is a {type(given).__name__}"
    elif positions is not None and positions.ndim != 2:
        reason = "its positions have three axes"
    elif not supports_tree(model):
        reason = "it takes no mask and positions of each row's own"
    else:
        cache = InPlaceCache.replacing(given, None)
        for index, layer in enumerate(cache.layers):
            if isinstance(layer, InPlaceSlidingLayer):
                cache.layers[index] = InPlaceLayer()
        return cache
    raise UnsupportedModelError(
        f"{type(model).__name__} cannot verify a batch here, since {reason}; generate one prompt at a time"
    )

"""A batch whose rows accept different lengths: K and V stay where they were written.

Where a model takes a mask and positions of each row's own, a slot that a row did not accept is a hole, and
the cache is compacted once holes are more than what it costs. Elsewhere a position is a slot, and a cache
whose rows accepted different lengths is compacted at once. Finished rows leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor
from transformers import EncoderDecoderCache, GenerationConfig, PreTrainedModel

from outrider.caches.layers import InPlaceLayer
from outrider.errors import OptionError, UnsupportedModelError
from outrider.lean import LeanForward
from outrider.target.batch_cache import batch_cache, cross_attention
from outrider.target.batch_inputs import BatchInputs, last_on_the_right, mask_and_positions, num_cached
from outrider.target.forward import vocab_size
from outrider.target.masks import Reach, ancestors, for_attention, for_each_kind, supports_tree
from outrider.target.parked import Parked
from outrider.target.slots import Slots
from outrider.types import Candidates, Ids
from outrider.versions import CACHE

if TYPE_CHECKING:
    from outrider.verification.step import Row


@final
class BatchTarget:
    """A model and its cache as the loop sees them: many rows; trees where the model takes them, else chains.

    **Arguments:**

    - `model`: One without recurrent layers; see `ragged.batch_target`.
    - `model_kwargs`: What `generate()` prepared for it; prompts are padded on the left.
    - `generation_config`: As `generate()` prepared it.
    - `mask`: The prompts' own as given, see `padded_on_the_left`; None where nothing was moved.
    - `min_holes`: Of a model that takes trees, compact once rows leave so many slots unused, and a quarter
        of the cache.

    `keeps_cache` says whether someone sees the cache once the texts have ended.

    **Raises:** `UnsupportedModelError` for a cache that cannot do it.
    """

    exact = ""

    def __init__(
        self,
        model: PreTrainedModel,
        model_kwargs: dict[str, Any],
        generation_config: GenerationConfig,
        mask: Tensor | None = None,
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
        given, name = model_kwargs.get(CACHE), mask_and_positions(model)[0]
        self._num_cached = num_cached(model_kwargs)
        self._mask: Tensor | None = model_kwargs.get(name) if mask is None else mask
        self._cached = torch.empty(0, 0) if self._mask is None else self._mask[:, : self._num_cached]
        self.cache = batch_cache(model, model_kwargs, last_on_the_right(self._cached))
        is_the_users = getattr(given, "_is_user_defined", False) or self._num_cached > 0
        self.keeps_cache = bool(generation_config.return_dict_in_generate or is_the_users)
        self.returned_cache: Any = self.cache
        if isinstance(given, EncoderDecoderCache):
            self.returned_cache = EncoderDecoderCache(self.cache, given.cross_attention_cache)
        self._inputs = BatchInputs(model, {**model_kwargs, CACHE: self.returned_cache})
        self._parked = Parked()
        self.rows: list[int] = []
        self._slots: Slots
        self._new: Tensor  # the last forward's positions, (B, T)
        self._whole: tuple[dict[str, Any], list[tuple[Any, Tensor, Tensor]]]

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
        lines = [np.array([row.ids[-1], *tree.tokens]) for row, tree in zip(rows, proposals, strict=True)]
        self._run(lines, proposals)
        return [logits[: len(line)] for logits, line in zip(self.outputs.logits, lines, strict=True)]

    def _run(self, lines: Sequence[Ids], proposals: Sequence[Candidates]) -> None:
        """A forward over each row's tokens, the first of which is committed and the others `proposals`."""
        width, device = max(map(len, lines)), self._slots.valid.device
        ids = np.zeros((len(lines), width), np.int64)
        depths = np.zeros((len(lines), width), np.int64)
        for index, (line, candidates) in enumerate(zip(lines, proposals, strict=True)):
            ids[index, : line.size] = line
            depths[index, 1 : line.size] = candidates.depths()
        self._new = torch.from_numpy(self._slots.counts[:, None] + depths).to(device)
        mask = torch.nn.functional.pad(self._slots.valid, (0, width), value=True)
        inputs = self._inputs.of(torch.from_numpy(ids).to(device), mask, self._new)
        if self.takes_trees:
            inputs["attention_mask"] = self._masks(proposals)
        with self._lean, self._inputs.counting_from(self._slots.leads):
            self.outputs = self.model(**inputs, return_dict=True)
        if self.outputs.logits.shape[1] != width:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} gave logits of {self.outputs.logits.shape[1]} of {width} tokens, so "
                "candidates cannot be verified; use candidate_generator='none'"
            )

    def commit(self, paths: Sequence[Ids], num_committed: Sequence[int]) -> None:
        """Mark each row's accepted slots as valid; slots that no row accepted are rolled back.

        After it the cache holds every committed token but the last of each row.
        """
        if self.num_rounds:
            self._keep(
                [
                    np.concatenate([[0], path + 1])[:num]
                    for path, num in zip(paths, num_committed, strict=True)
                ]
            )
        self.num_rounds += 1

    def _keep(self, columns: Sequence[Any]) -> None:
        """Of each row's tokens of the last forward keep those at `columns`."""
        kept = np.zeros((len(columns), self.num_fed), np.bool_)
        for row, own in zip(kept, columns, strict=True):
            row[own] = True
        self.cache.crop(self._slots.add(kept, self._new) - self.num_fed)
        self._compact()

    def bring_back(self) -> None:
        """Let rows that left take part in the next forward again; of a target that returns its cache."""
        self._park(self.rows)
        counts = self._parked.counts
        self._bring_back([torch.arange(max(counts) - count, max(counts)) for count in counts])

    def lay_out(self) -> None:
        """Let the cache be as transformers' own: prompts as given, each text behind where they all end."""
        self._park(self.rows)
        assert self._mask is not None
        slots = []
        for is_token, count in zip(self._mask.cpu(), self._parked.counts, strict=True):
            prompt = is_token.nonzero().flatten()
            slots.append(torch.cat([prompt, torch.arange(count - prompt.numel()) + is_token.numel()]))
        self._bring_back(slots)

    def _park(self, rows: Sequence[int]) -> None:
        if self.keeps_cache:
            for row in rows:
                self._parked.park(row, self.cache, self._slots, self.rows.index(row))

    def _bring_back(self, slots: Sequence[Tensor]) -> None:
        self._inputs.kwargs, crossed = self._whole
        for layer, keys, values in crossed:
            layer.keys, layer.values = keys, values
        self._slots = self._parked.lay_out(self.cache, slots)
        self.rows = list(range(len(slots)))

    def _prefill(self, rows: Sequence[Row]) -> list[Tensor]:
        ids = torch.cat([row.tensor() for row in rows])
        given = ids.new_ones(len(ids), self._num_cached + ids.shape[1]) if self._mask is None else self._mask
        self._mask, self.rows = given, [row.index for row in rows]
        logits = self._behind_the_cache(rows, given) if self._num_cached else self._from_the_start(ids, given)
        if self.keeps_cache:
            self._whole = self._inputs.kwargs, cross_attention(self.returned_cache)
        return logits

    def _from_the_start(self, ids: Tensor, mask: Tensor) -> list[Tensor]:
        """Run the prompts as transformers does."""
        self.places = last_on_the_right(mask)
        self._slots = Slots(mask.gather(1, self.places))
        with self._inputs.counting_from(self._slots.leads):
            self.outputs = self.model._prefill(ids, self.config, self._inputs.kwargs)
        return list(self.outputs.logits[:, -1:])

    def _behind_the_cache(self, rows: Sequence[Row], mask: Tensor) -> list[Tensor]:
        """Run what is new of the prompts as chains that were accepted: as many tokens as each row has."""
        is_new = mask[:, self._num_cached :].to(torch.bool)
        self.places = last_on_the_right(~is_new)
        self._slots = Slots(self._cached.sort(1).values)
        sizes = is_new.sum(1).tolist()
        if not all(sizes):
            raise OptionError("a row of the batch has no token behind the cache; pass at least one for each")
        lines = [row.ids[-size:] for row, size in zip(rows, sizes, strict=True)]
        self._run(lines, [Candidates.chain(line[1:]) for line in lines])
        last = [logits[size - 1 : size] for logits, size in zip(self.outputs.logits, sizes, strict=True)]
        self._keep([np.arange(size) for size in sizes])
        return last

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

"""The target: one forward over (last committed token + candidates), and the cache that follows it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from transformers import EncoderDecoderCache, GenerationConfig, PreTrainedModel
from transformers.cache_utils import QuantizedCache, StaticLayer

from outrider.caches.in_place import InPlaceCache, in_place_cache_for
from outrider.caches.snapshots import has_recurrent_state
from outrider.errors import UnsupportedModelError
from outrider.lean import LeanForward
from outrider.target.exactness import exact_rows
from outrider.target.inputs import Inputs, inputs_for
from outrider.target.masks import supports_tree, tree_inputs
from outrider.target.recurrent import RecurrentState, reason_against
from outrider.types import Candidates, Ids
from outrider.versions import CACHE, can_be_cropped

if TYPE_CHECKING:
    from outrider.verification.step import Row


@final
class Target:
    """A model, its prepared inputs and its cache, as the loop sees them: one row.

    **Arguments:**

    - `model`: Any transformers model with `generate()`.
    - `model_kwargs`: What `generate()` prepared for it; owned by the target from here on.
    - `generation_config`: As `generate()` prepared it.
    - `drafting`: Whether there can be candidates.
    - `num_prompt`, `exact`: See `exactness.exact_rows`.

    **Raises:** `UnsupportedModelError` before the first forward where candidates could not be rolled back, or
        where `exact` demands what can't be had.
    """

    _row: Row

    def __init__(
        self,
        model: PreTrainedModel,
        model_kwargs: dict[str, Any],
        generation_config: GenerationConfig,
        drafting: bool,
        num_prompt: int = 0,
        exact: bool | str | None = False,
    ) -> None:
        self.model: Any = model
        self.config = generation_config
        self.vocab_size = vocab_size(model)
        self._kwargs = model_kwargs
        self._inputs: Inputs | None = None
        in_place = in_place_cache_for(model, model_kwargs, generation_config)
        if in_place is not None:
            self._kwargs[CACHE] = in_place
        self._drafting = drafting
        self.outputs: Any = None
        self.num_rounds = 0
        self._num_new = self._num_open = self._length = 0
        self._lengths: list[int] = []
        self._growing: list[Any] | None = None
        self._recording: list[Any] = []
        self._free = 2**31
        self._takes_trees: bool | None = None
        self._is_tree = False
        self._state: RecurrentState | None = None
        self._is_recurrent = has_recurrent_state(self.cache) or getattr(model, "_is_stateful", False)
        if drafting:
            self._refuse_what_cannot_roll_back()
        max_length = generation_config.max_length or 2**31
        self._rows = exact_rows(model, exact, self.returned_cache, num_prompt, max_length)
        self._max_rows = 2**31 if self._rows is None else self._rows.max_rows
        self._lean = LeanForward(model, grouped=self._rows is None)
        mask = model_kwargs.get("attention_mask")
        self._is_padded = mask is not None and not bool(mask.all())

    @property
    def exact(self) -> str:
        """What a text's bits are equal to whatever drafts; empty where they can depend on it."""
        return "" if self._rows is None else self._rows.kind

    @property
    def takes_trees(self) -> bool:
        """Whether a round's candidates may branch. Tried out on the model at the first question."""
        if self._takes_trees is None:
            cache = self.returned_cache
            self._takes_trees = (
                self._drafting
                and (self._rows is None or self._rows.takes_trees)
                and isinstance(cache, InPlaceCache)
                and cache.takes_trees
                and not self.config.output_attentions
                and supports_tree(self.model)
            )
        return self._takes_trees

    @property
    def rows(self) -> list[int]:
        """The rows of the last forward, by their numbers."""
        return [0]

    @property
    def num_fed(self) -> int:
        """Tokens of the last forward, from the last committed one on."""
        return self._num_new

    @property
    def is_prefilled(self) -> bool:
        """Whether the prompt's forward is over."""
        return self.num_rounds > 0

    @property
    def room(self) -> int:
        """How many candidates the next forward can take behind the last committed token."""
        if self._state is not None and self._state.is_full:
            return 0
        return min(self._free, self._max_rows) - 1

    @property
    def returned_cache(self) -> Any:
        """The cache as `generate()` returns it."""
        return self._kwargs.get(CACHE) if self._inputs is None else self._inputs.cache

    @property
    def cache(self) -> Any:
        """The decoder's self-attention cache."""
        cache = self.returned_cache
        return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache

    def forward(self, rows: Sequence[Row], proposals: Sequence[Candidates]) -> list[Tensor]:
        """Run each row's last committed token and its candidates; the first call runs the prompts.

        **Returns:** for each row, (n + 1, V) raw logits in the target's dtype: row 0 follows the last
        committed token, row i + 1 candidate i.
        """
        (row,), (candidates,) = rows, proposals
        self._row = row
        if self._inputs is None:
            return [self._prefill(row.tensor())]
        num_new = len(candidates) + 1
        num_again = 0
        if self._state is not None:
            self._state.before_forward()
            num_again = self._state.num_pending
        inputs = self._inputs.of(row.tensor_with(candidates.tokens), num_again, num_new)
        padding = inputs.get("attention_mask")
        self._is_tree = not candidates.is_chain
        if self._is_tree:
            inputs = tree_inputs(self.model, inputs, candidates, self.cache)
        self._num_new = self._num_open = num_new
        with self._lean, self._exactly(candidates, padding):
            self.outputs = self.model(**inputs, return_dict=True)
        if self._growing is None:
            self._growing = self._grown()
        logits: Tensor = self.outputs.logits[0]
        if logits.shape[0] < num_new:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} gave logits of {logits.shape[0]} of {num_new} tokens, so candidates "
                "cannot be verified; use candidate_generator='none'"
            )
        return [logits if logits.shape[0] == num_new else logits[-num_new:]]

    def commit(self, paths: Sequence[Ids], num_committed: Sequence[int]) -> None:
        """Keep the cache of the accepted tokens, roll back the rest, step the inputs on.

        After it the cache holds every committed token but the last.
        """
        if self._state is not None:
            self._state.commit(self._num_new, num_committed[0])
            if self._row.finished and self._state.num_pending:
                self._run_pending(num_committed[0])
        elif self._is_tree:
            path = paths[0][: num_committed[0] - 1].tolist()
            self.cache.keep_path(self._length + 1, path, self._growing)
        elif self._drafting and self.is_prefilled:
            # crop(0) too: it lets sliding layers drop what only a rollback could have needed.
            for layer in self._growing or ():
                layer.crop(num_committed[0] - self._num_new)
        if self.is_prefilled:
            self._length += num_committed[0]
        self._num_open = 0
        self._free -= num_committed[0]
        assert self._inputs is not None
        self._inputs.step_on(self.outputs, num_committed[0])
        self.num_rounds += 1

    def close(self) -> None:
        """Leave the cache as plain decoding does, whatever ended the text: no open candidate, no past recorded.

        After an interrupted round it holds what the rounds before had committed.
        """
        if self._num_open and self._state is not None:
            self._state.commit(self._num_open, 0)
        elif self._num_open and self._drafting:
            # An interruption within the forward finds some layers longer than others.
            for layer in self._grown():
                length = int(layer.get_seq_length())
                if length >= self._length:
                    layer.crop(self._length - length)
        for layer in self._recording:
            layer.record_past = False
        self._num_open, self._recording = 0, []

    def _run_pending(self, num_committed: int) -> None:
        """Bring a recurrent state up to the last round's tokens, now that no round follows that would."""
        assert self._inputs is not None and self._state is not None
        num_past = self._state.num_pending - num_committed
        inputs = self._inputs.of(self._row.tensor()[:, :-1], num_past, num_committed)
        with self._lean:
            self.model(**inputs, return_dict=True)
        self._state.num_pending = 0

    def _exactly(self, candidates: Candidates, padding: Any) -> AbstractContextManager[None]:
        """What a forward runs in for its bits' sake."""
        if self._rows is None:
            return nullcontext()
        return self._rows.around(self.cache, candidates, padding.to(torch.bool) if self._is_padded else None)

    def _prefill(self, ids: Tensor) -> Tensor:
        self.outputs = self.model._prefill(ids, self.config, self._kwargs)
        self._inputs = inputs_for(self.model, self._kwargs)
        self._num_new = 1
        cache = self.cache
        if self._drafting and self._is_recurrent:
            self._state = RecurrentState(cache)
        elif self._drafting:
            if not can_be_cropped(cache):
                raise _cannot_roll_back(self.model, type(cache).__name__)
            self._recording = [
                layer for layer in cache.layers if getattr(layer, "record_past", None) is False
            ]
            cache.activate_past_recording()
            self._lengths = [int(layer.get_seq_length()) for layer in cache.layers]
            self._length = int(cache.get_seq_length())
            limits = [
                layer.max_cache_len
                for layer in cache.layers
                if isinstance(layer, StaticLayer) and not layer.is_sliding
            ]
            self._free = min(limits) - self._length + 1 if limits else 2**31
        logits: Tensor = self.outputs.logits[:, -1]
        return logits

    def _grown(self) -> list[Any]:
        """The layers that a forward after the prompt's wrote to: one that holds an image's states stays as it is."""
        lengths = zip(self.cache.layers, self._lengths, strict=True) if self._lengths else ()
        return [layer for layer, length in lengths if int(layer.get_seq_length()) > length]

    def _refuse_what_cannot_roll_back(self) -> None:
        cache = self.cache
        if cache is None:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} runs without a cache here, and candidates are verified on one; "
                "pass candidate_generator='none'"
            )
        if self._is_recurrent:
            if (reason := _reason_against(self.model)) is not None:
                raise UnsupportedModelError(f"{reason}; use candidate_generator='none'")
            return
        if _sees_unmasked(self.model, self._kwargs, cache):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} attends to its image causally where several tokens run without "
                "cross_attention_mask; pass what the processor makes, or candidate_generator='none'"
            )
        if isinstance(cache, QuantizedCache):
            raise _cannot_roll_back(self.model, "a quantised cache")
        for layer in getattr(cache, "layers", []):
            if not can_be_cropped(layer):
                raise _cannot_roll_back(self.model, type(layer).__name__)


def vocab_size(model: Any) -> int:
    """How many ids a model knows: the rows of its input embeddings."""
    size = getattr(model.get_input_embeddings(), "num_embeddings", None)
    return int(size or model.config.get_text_config(decoder=True).vocab_size)


def _sees_unmasked(model: Any, kwargs: dict[str, Any], cache: Any) -> bool:
    """Whether layers attend to an image without a mask, which transformers takes for causal unless it is eager."""
    config = model.config.get_text_config(decoder=True)
    layers = getattr(config, "cross_attention_layers", None) or ()
    if kwargs.get("cross_attention_mask") is not None or config._attn_implementation == "eager":
        return False
    seen = [layer for index, layer in enumerate(cache.layers) if index in layers]
    is_shown = kwargs.get("pixel_values") is not None
    return bool(seen) and (is_shown or any(int(layer.get_seq_length()) for layer in seen))


_reasons: weakref.WeakKeyDictionary[PreTrainedModel, str | None] = weakref.WeakKeyDictionary()


def _reason_against(model: PreTrainedModel) -> str | None:
    """`reason_against`, tried out once for a model."""
    if model not in _reasons:
        _reasons[model] = reason_against(model)
    return _reasons[model]


def _cannot_roll_back(model: PreTrainedModel, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(model).__name__} cannot take back rejected candidates, since {what} cannot be rolled back; "
        "use another cache, or candidate_generator='none'"
    )

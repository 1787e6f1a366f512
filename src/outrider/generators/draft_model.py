"""A second, smaller model drafts; or the target itself, leaving after some of its layers."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import ModuleList
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from outrider.caches.in_place import InPlaceCache
from outrider.caches.snapshots import has_recurrent_state, snapshots
from outrider.contract import CandidateGenerator
from outrider.devices import device_of
from outrider.errors import OptionError
from outrider.hub import is_local
from outrider.lean import LeanForward
from outrider.types import Candidates, Context, Ids, TargetInputs
from outrider.versions import CACHE


@final
class Generator(CandidateGenerator):
    """Draft with a model: token by token in a loop and a cache of its own.

    **Arguments:**

    - `model`: The draft model, a path that `from_pretrained` takes, or None with `early_exit`.
    - `confidence_threshold`: Stop after a token the draft model gives less than this probability; 0 never.
    - `num_tokens`: The most tokens a round.
    - `early_exit`: Run the target's first `early_exit` layers instead of another model.

    Ids are those of the target; padded vocabularies may differ in size. What the draft model has no embedding
    for it does not read, nor what stands for images and sound: these are the target's alone. Leviathan et al. 2023
    (arXiv 2211.17192); early exit: Elhoushi et al. 2024 (arXiv 2404.16710). Cost per step: one draft
    forward a candidate. State: the draft model's cache of committed tokens.
    """

    def __init__(
        self,
        model: PreTrainedModel | str | None = None,
        *,
        confidence_threshold: float = 0.4,
        num_tokens: int = 20,
        early_exit: int | None = None,
    ) -> None:
        if (model is None) == (early_exit is None):
            raise OptionError(
                "draft_model needs a model, or early_exit=LAYER to draft with the target's first layers"
            )
        if isinstance(model, str):
            from transformers import AutoModelForCausalLM

            local = is_local(model)
            try:
                model = AutoModelForCausalLM.from_pretrained(model, local_files_only=local)
            except (OSError, ValueError, RuntimeError) as error:
                reason = " ".join(str(error).split())[:200]
                raise OptionError(
                    f"the draft model {model!r} cannot be loaded; give a folder or a name ({reason})"
                ) from error
        if model is None:
            self.needs = frozenset({TargetInputs()})  # type: ignore[misc]
        self._model = model
        self._threshold = confidence_threshold
        self._num_tokens = num_tokens
        self._early_exit = early_exit
        self.reset(np.empty(0, np.int64))

    def reset(self, prompt: Ids) -> None:
        self._cache: Any = None
        self._cached: Ids = np.empty(0, np.int64)
        self._restores: list[Callable[[], None]] = []
        self._num_committed = 0
        self._encoder: dict[str, Any] = {}

    def fork(self) -> Self:
        other = copy.copy(self)
        other.reset(np.empty(0, np.int64))
        return other

    @torch.no_grad()
    def propose(self, context: Context, budget: int) -> Candidates:
        model: Any = context.inputs["target"] if self._model is None else self._model
        with _first_layers(model, self._early_exit):
            return self._draft(model, context, min(budget, self._num_tokens))

    def _draft(self, model: Any, context: Context, num_tokens: int) -> Candidates:
        if self._cache is not None:
            self._roll_back(context.ids)
        if self._cache is None:
            self._begin(model, context)
        fresh = context.ids[self._cached.size :]
        if not self._readable(fresh)[-1]:
            return Candidates.empty()
        tokens: list[int] = []
        probabilities: list[float] = []
        while len(tokens) < num_tokens:
            logits = self._forward(model, fresh)
            if not tokens and self._is_recurrent:
                self._restores, self._num_committed = snapshots(self._cache), self._cached.size
            position = context.ids.size + len(tokens)
            token = context.draw(logits, position) if context.draw else int(logits.argmax())
            if token in self._placeholders:
                break
            tokens.append(token)
            fresh = np.array([token])
            probabilities.append(float(logits.softmax(-1)[0, token]))
            if probabilities[-1] < self._threshold:
                break
        return Candidates.chain(tokens, probabilities, source="draft_model")

    def _forward(self, model: Any, ids: Ids) -> Tensor:
        """(1, V) float32 logits of what follows `ids`, which come after what is cached."""
        self._cached = np.concatenate([self._cached, ids])
        tokens = torch.tensor(ids[None, self._readable(ids)], device=device_of(model))
        inputs = {"decoder_input_ids" if model.config.is_encoder_decoder else "input_ids": tokens}
        if self._is_told_positions:
            inputs["position_ids"] = self._cache.get_seq_length() + torch.arange(
                tokens.shape[1], device=device_of(model)
            ).expand_as(tokens)
        with self._lean:
            outputs = model(
                **{**inputs, CACHE: self._cache},
                **self._encoder,
                use_cache=True,
                return_dict=True,
            )
        logits: Tensor = outputs.logits[:, -1].float()
        return logits

    def _readable(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """(n,) bool. Which of `ids` (n,) the draft model reads."""
        return (ids < self._vocab_size) & ~(ids[:, None] == self._placeholders).any(1)

    def _roll_back(self, ids: Ids) -> None:
        """Keep the cache's longest common prefix with `ids`, at most all of them but the last.

        A recurrent state goes back to where drafting began; where that is not such a prefix, all is run anew.
        """
        shared = min(self._cached.size, ids.size - 1)
        differs = np.flatnonzero(self._cached[:shared] != ids[:shared])
        keep = int(differs[0]) if differs.size else shared
        if self._is_recurrent:
            if keep == self._cached.size:
                return
            if keep < self._num_committed:
                return self.reset(ids)
            for restore in self._restores:
                restore()
            keep = self._num_committed
        elif self._cached.size:
            cache = self._cache
            (cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache).crop(
                -int(self._readable(self._cached[keep:]).sum())
            )
        self._cached = self._cached[:keep]

    def _begin(self, model: Any, context: Context) -> None:
        inputs = context.inputs
        self._lean = LeanForward(model)
        self._placeholders = context.placeholders
        self._vocab_size = model.get_input_embeddings().num_embeddings
        # A model that sees keeps its last image's shift of positions, and would add it.
        self._is_told_positions = (
            model.config is not model.config.get_text_config(decoder=True)
            and "position_ids" in inspect.signature(model.forward).parameters
        )
        cache = InPlaceCache(model.config.get_text_config(decoder=True))
        self._is_recurrent = has_recurrent_state(cache)
        if not self._is_recurrent:
            cache.activate_past_recording()
        self._cache = cache
        if model.config.is_encoder_decoder and not _is_encoded(inputs["inputs_tensor"]):
            self._cache = EncoderDecoderCache(cache, DynamicCache())
            self._encoder = _encoder_inputs(model, inputs)
        elif "encoder_outputs" in inspect.signature(model.forward).parameters and "encoder_outputs" in inputs:
            self._cache = EncoderDecoderCache(cache, DynamicCache())
            self._encoder = {"encoder_outputs": inputs["encoder_outputs"]}


def _is_encoded(inputs: Tensor) -> bool:
    """Whether the caller gave the encoder's outputs: generate() then makes up ids below 0 as its input."""
    return not inputs.is_floating_point() and bool((inputs < 0).any())


def _encoder_inputs(model: PreTrainedModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The draft model's own encoding of the target's encoder input."""
    mask = inputs.get("attention_mask")
    encoder = model.get_encoder()
    accepted = inspect.signature(encoder.forward).parameters
    arguments = {"attention_mask": mask} if mask is not None and "attention_mask" in accepted else {}
    outputs = encoder(inputs["inputs_tensor"].to(device_of(model)), return_dict=True, **arguments)
    found = {"encoder_outputs": outputs}
    if mask is not None and "attention_mask" in inspect.signature(model.forward).parameters:
        found["attention_mask"] = mask
    return found


@contextlib.contextmanager
def _first_layers(model: PreTrainedModel, num_layers: int | None) -> Iterator[None]:
    """Run only the model's first layers inside; its configuration is put back whatever happens."""
    if num_layers is None:
        yield
        return
    config = model.config.get_text_config(decoder=True)
    if not 0 < num_layers < config.num_hidden_layers:
        raise OptionError(
            f"early exit after layer {num_layers} needs 1 to {config.num_hidden_layers - 1}: "
            f"the target has {config.num_hidden_layers} layers"
        )
    before = config.num_hidden_layers
    decoder: Any = model.get_decoder()
    # Some models run every layer they hold, others as many as the configuration says.
    holder, name, layers = next(
        (module, name, child)
        for module in decoder.modules()
        for name, child in module.named_children()
        if isinstance(child, ModuleList) and len(child) == before
    )
    config.num_hidden_layers = num_layers
    setattr(holder, name, layers[:num_layers])
    try:
        yield
    finally:
        config.num_hidden_layers = before
        setattr(holder, name, layers)

"""The two ways in: `generate(model, ...)`, and `AssistedDecoding` for transformers' `custom_generate`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor
from transformers import EncoderDecoderCache, GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList, StopStringCriteria

from outrider.batching import check_batch, complete, copies, processors_of, together
from outrider.choosing import choose
from outrider.control import Controller, CostRule
from outrider.decoding import Lane, Listener, decode
from outrider.devices import device_of, num_ranks
from outrider.drafting import source_name
from outrider.errors import OptionError, UnsupportedModelError
from outrider.flags import Flags
from outrider.generators.none import Generator as NoCandidates
from outrider.recording import Recording, Streaming
from outrider.stats import Stats
from outrider.target.at_once import refuse_unlike_at_once
from outrider.target.batch_inputs import num_padding, padded_on_the_left, rows_of
from outrider.target.forward import Target
from outrider.target.placeholders import placeholder_ids
from outrider.target.ragged import batch_target
from outrider.verification.choose import get_verifier
from outrider.verification.step import Row, Stopping, Verifier
from outrider.versions import CACHE

_log = logging.getLogger(__name__)


def generate(
    model: Any,
    input_ids: Tensor | None = None,
    *,
    candidate_generator: Any = "auto",
    seed: int | None = None,
    streamer: Any = None,
    verification: str = "auto",
    exact: bool | str | None = None,
    controller: Controller | None = None,
    listeners: Sequence[Listener] = (),
    **generate_kwargs: Any,
) -> Any:
    """Generate with `model`, faster, and the same text.

    **Arguments:**

    - `model`: Any transformers model with `generate()`.
    - `input_ids`: (B, L) int64, as `model.generate` takes it. Rows of a batch may be padded on either side;
        the mask says where, and never an id.
    - `candidate_generator`: A generator, its class, its name (`outrider.available()`), or a function from
        ids to the ids that may follow.
    - `seed`: With sampling, the text depends on model, prompt and seed alone.
    - `streamer`: transformers' streamer; it gets every committed token once, in order.
    - `verification`: How candidates are accepted; see `outrider.verification`.
    - `exact`: In half precision, whose bits the target's logits have, whatever drafts: "transformers", those
        of its own `generate()`; "generators", the same for all of them and for none; True, the stronger of
        these that can be had; False, none; None, the stronger that costs less than a tenth of the speed.
    - `controller`: What sets each round's budget; the default fits the generator.
    - `listeners`: Hear of every round; see `outrider.decoding.Listener`.
    - `generate_kwargs`: All that `model.generate` takes, its flags of assisted decoding included.

    **Returns:** what `model.generate` returns; with `return_dict_in_generate=True`, `.stats` is a `Stats`. Of a
        batch a cache holds each token in the slot that is its index in `sequences`, as transformers' does, the
        last token of `sequences` left out. The padding behind a row that ended early is computed as there where
        scores, logits or hidden states are asked for; else its slots hold zeros, to be masked.

    **Raises:** `OutriderError`s, each one sentence; see `outrider.errors`.

    **Exact:** greedy tokens equal `model.generate`'s in float32 and float64, and in half precision where
        `.stats.exact` says "transformers".
    """
    if not callable(getattr(model, "generate", None)):
        raise UnsupportedModelError(
            f"{type(model).__name__} has no generate(), so there is nothing to speed up; pass a generative model"
        )
    flags = Flags.take(generate_kwargs)
    _add_stop_strings(generate_kwargs, model, flags.tokenizer)
    decoding = AssistedDecoding(
        candidate_generator,
        seed=seed,
        streamer=streamer,
        verification=verification,
        exact=exact,
        controller=controller,
        listeners=listeners,
        flags=flags,
        generation_config=generate_kwargs.get("generation_config"),
    )
    if input_ids is not None:
        generate_kwargs["input_ids"] = input_ids
    return model.generate(custom_generate=decoding, streamer=streamer, **generate_kwargs)


@final
class AssistedDecoding:
    """transformers' `custom_generate` hook: `model.generate(**inputs, custom_generate=AssistedDecoding(...))`.

    It lives across calls: the generator keeps what it has learnt, `stats` merges all calls, and a
    heuristic draft length persists. Calls from several threads take turns.

    transformers hands no streamer, stop-string tokenizer or assistant model to a hook: give the streamer
    here, or call `outrider.generate`, which takes them all.

    **Arguments:** as `outrider.generate`; `assistant_model` and transformers' other flags may be given here.

    - `generation_config`: The call's, where its flags are to count even at transformers' own defaults:
        what a hook is handed no longer tells them from flags that nobody set.
    """

    def __init__(
        self,
        candidate_generator: Any = "auto",
        *,
        seed: int | None = None,
        streamer: Any = None,
        verification: str = "auto",
        exact: bool | str | None = None,
        controller: Controller | None = None,
        listeners: Sequence[Listener] = (),
        flags: Flags | None = None,
        generation_config: GenerationConfig | None = None,
        **flag_values: Any,
    ) -> None:
        self._flags = flags or Flags.take(flag_values)
        if flag_values:
            raise OptionError(f"AssistedDecoding takes no {', '.join(flag_values)}; see its documentation")
        self._given_config = generation_config
        self._flags.check_beside(candidate_generator, controller)
        self._spec = candidate_generator
        self._seed = seed
        self._streamer = streamer
        self._verification = verification
        self._exact = exact
        self._given_controller = controller
        self._listeners = tuple(listeners)
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._resolved: Flags | None = None
        self.stats = Stats()
        if self._flags.given() or candidate_generator != "auto":
            self._choose(self._flags)

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        inputs_tensor: Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Called by `model.generate()` once everything is prepared."""
        if self._holder == threading.get_ident():
            raise OptionError(
                "this AssistedDecoding is already decoding; make a second one for a nested call"
            )
        with self._lock:
            self._holder = threading.get_ident()
            try:
                return self._decode(
                    model,
                    input_ids,
                    logits_processor,
                    stopping_criteria,
                    generation_config,
                    {**model_kwargs, "inputs_tensor": inputs_tensor},
                )
            finally:
                self._holder = None

    def _choose(self, flags: Flags) -> None:
        if self._resolved != flags:
            self.generator, self.controller = choose(self._spec, flags, self._given_controller)
            self._resolved = flags

    def _decode(
        self,
        model: PreTrainedModel,
        ids: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        inputs: dict[str, Any],
    ) -> Any:
        _check_mode(config, ids)
        flags = self._flags.filled_from(self._given_config).filled_from(model.generation_config)
        self._choose(flags.filled_from(config, _DEFAULTS))
        verifier = get_verifier(self._verification, do_sample=bool(config.do_sample), seed=self._seed)
        exact = _exactness_asked(self._exact, model)
        prompts, num_rows = ids, ids.shape[0]
        if num_rows > 1:
            check_batch(model, config, processors, self._streamer, exact)
            ids, inputs, mask = padded_on_the_left(model, ids, inputs)
        target_inputs = {name: value for name, value in inputs.items() if name != "inputs_tensor"}
        _check_place(model, inputs.get(CACHE), self.controller if self._drafts else None)
        if self._drafts:
            refuse_unlike_at_once(model, target_inputs)
        if num_rows > 1:
            target: Any = batch_target(model, target_inputs, config, mask)
        else:
            target = Target(model, target_inputs, config, self._drafts, ids.shape[1], exact)
        wanted = bool(config.return_dict_in_generate)
        padding = num_padding(model, ids, inputs)
        # With a seed a row's text is that of its prompt alone; without, rows draw apart.
        streams = range(num_rows) if self._seed is None else copies(ids, inputs)
        lanes = [
            self._lane(
                Row(
                    row[None].to(device_of(model)),
                    processors if num_rows == 1 else processors_of(processors, index, num_rows),
                    Stopping(criteria),
                    keep_scores=wanted and bool(config.output_scores),
                    keep_logits=wanted and bool(config.output_logits),
                    index=index,
                    num_padding=padding[index],
                    stream=streams[index],
                ),
                verifier,
                {
                    **(inputs if num_rows == 1 else rows_of(inputs, torch.tensor([index]), num_rows)),
                    "target": model,
                },
            )
            for index, row in enumerate(ids)
        ]
        _log.debug(
            "%d rows of %d tokens: generator %s, controller %s, verifier %s",
            len(lanes),
            ids.shape[1],
            source_name(lanes[0].generator),
            type(self.controller).__name__,
            type(verifier).__name__,
        )
        recording = Recording(config, bool(model.config.is_encoder_decoder), num_rows)
        streaming = [Streaming(self._streamer)] if self._streamer is not None else []
        try:
            stats = decode(
                target, lanes, verifier, self.controller, [recording, *streaming, *self._listeners]
            )
        finally:
            if isinstance(target, Target):
                target.close()
        self.stats.merge(stats)
        _log.debug(
            "%d tokens in %d rounds and %.3f s: MAT %.2f, %d of %d candidates accepted",
            stats.num_committed,
            stats.num_rounds,
            stats.total_s,
            stats.mat,
            stats.num_accepted,
            stats.num_candidates,
        )
        if self._streamer is not None:
            self._streamer.end()
        pad = config._pad_token_tensor
        fill = 0 if pad is None else int(pad.reshape(-1)[0])
        if num_rows > 1 and target.keeps_cache:
            complete(target, lanes, recording, fill)
            target.lay_out()
        rows = [lane.row for lane in lanes]
        sequences = together([row.tensor() for row in rows], fill)
        sequences[:, : prompts.shape[1]] = prompts
        if not wanted:
            return sequences
        output = recording.output(sequences, rows, target, inputs)
        output.stats = stats
        return output

    def _lane(self, row: Row, verifier: Verifier, inputs: dict[str, Any]) -> Lane:
        """A row and its generator: the first row's is the one that lives on."""
        generator = self.generator if row.index == 0 else self.generator.fork()
        return Lane(
            row,
            generator,
            inputs=inputs,
            draw=lambda logits, position: verifier.draw(row, logits, position),
            placeholders=placeholder_ids(inputs["target"].config),
        )

    @property
    def _drafts(self) -> bool:
        return not isinstance(self.generator, NoCandidates)


# What generate() fills in where the user said nothing.
_DEFAULTS = GenerationConfig._get_default_generation_params()


def _check_mode(config: GenerationConfig, ids: Tensor) -> None:
    if ids.shape[-1] == 0:
        raise OptionError("the prompt is empty, so there is nothing to continue; pass at least one token")
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.ASSISTED_GENERATION):
        raise OptionError(
            f"candidates cannot be verified in {mode.value.replace('_', ' ')}; drop num_beams and its kin, "
            "or call model.generate()"
        )
    if config.use_cache is False:
        raise OptionError(
            "candidates are verified on a cache; drop use_cache=False, or call model.generate()"
        )
    if config.assistant_ensemble_weight is not None:
        raise OptionError(
            "assistant_ensemble_weight changes the text; ask for it by name with verification='lossy_ensemble'"
        )


def _exactness_asked(exact: bool | str | None, model: PreTrainedModel) -> bool | str | None:
    """`exact` as it can be tried: not in train mode, nor by the clocks and files of several ranks.

    **Raises:** `OptionError` where it is demanded there.
    """
    reasons = {
        "the model is in train mode; call model.eval()": model.training,
        "the model's ranks would each try it out by their own clock; drop exact": num_ranks(model) > 1,
    }
    for reason, holds in reasons.items():
        if holds and exact:
            raise OptionError(f"exact={exact!r} can't be had, since {reason}")
    return False if any(reasons.values()) else exact


def _check_place(model: PreTrainedModel, cache: Any, controller: Controller | None) -> None:
    """**Raises:** `OptionError` for what cannot be where the model runs.

    **Arguments:**

    - `controller`: What sets the budgets; None without candidates.
    """
    if isinstance(controller, CostRule) and num_ranks(model) > 1:
        raise OptionError(
            f"the {num_ranks(model)} ranks of a tensor-parallel model must run the same forwards, and the default "
            "budget follows each one's own clock; pass controller=outrider.control.Fixed(8), or another generator"
        )
    inner = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    if getattr(inner, "offloading", False) and device_of(model).type != "cuda":
        raise OptionError(
            f"an offloaded cache waits in the host's memory for a GPU, and {type(model).__name__} runs on the "
            f"{device_of(model).type}; drop cache_implementation, or pass a cache that is not offloaded"
        )


def _add_stop_strings(kwargs: dict[str, Any], model: PreTrainedModel, tokenizer: Any) -> None:
    """Turn `stop_strings` into a criterion here: transformers hands a hook no tokenizer."""
    config = kwargs.get("generation_config") or model.generation_config
    strings = kwargs.get("stop_strings") or config.stop_strings
    if strings is None:
        return
    if tokenizer is None:
        raise OptionError("stop_strings need the tokenizer they are read with; pass tokenizer=...")
    kwargs["stop_strings"] = None
    criteria = StoppingCriteriaList(kwargs.get("stopping_criteria") or [])
    criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=strings))
    kwargs["stopping_criteria"] = criteria

"""Contestants that run in this process, on one model: Outrider's generators, and transformers itself."""

from __future__ import annotations

from importlib.metadata import version
from time import perf_counter
from typing import Any, final

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

import outrider
from outrider.bench.contestants import Answer, Asked
from outrider.bench.records import Contestant
from outrider.bench.worker import Peak
from outrider.choosing import generator_maker
from outrider.control import get_controller
from outrider.verification.choose import get_verifier


@final
class OutriderWay:
    """A candidate generator in `AssistedDecoding`.

    The prompt's seconds are all that is not spent in later rounds, transformers' preparation included.

    **Arguments:**

    - `spec`, `options`: As `parse_spec` reads them; `verification` and `controller` are set apart from the
        generator's own options.
    - `tokenizer`: For generators that take one.
    - `keep`: Generator and controller live through the run, as in a server; else each call makes them anew,
        as `outrider.generate` does.
    """

    def __init__(
        self,
        name: str,
        is_baseline: bool,
        model: Any,
        spec: Any,
        options: dict[str, Any],
        *,
        tokenizer: Any = None,
        seed: int = 0,
        keep: bool = False,
    ) -> None:
        self._spec, self._seed, self._tokenizer = spec, seed, tokenizer
        self._options = dict(options)
        self._verification = self._options.pop("verification", "auto")
        self._controller = self._options.pop("controller", None)
        verifier = get_verifier(self._verification, do_sample=self._verification != "greedy", seed=seed)
        self.contestant = Contestant(
            name, "outrider", is_baseline, options, version("outrider"), verifier.lossy
        )
        self._model = model
        made = self._decoding()
        self._kept = made if keep else None

    def _decoding(self) -> outrider.AssistedDecoding:
        return outrider.AssistedDecoding(
            generator_maker(self._spec, self._options)(self._tokenizer),
            controller=None if self._controller is None else get_controller(self._controller),
            verification=self._verification,
            seed=self._seed,
        )

    def answer(self, asked: Asked) -> Answer:
        decoding = self._kept or self._decoding()
        peak = Peak(self._model.device)
        began = perf_counter()
        output = self._model.generate(
            custom_generate=decoding,
            **_arguments(self._model, asked),
            return_dict_in_generate=True,
        )
        total_s = _now(self._model) - began
        stats = output.stats
        decode_s = stats.draft_s + stats.target_s + stats.verify_s + stats.other_s
        rows = _rows(self._model, output.sequences, asked)
        return Answer(rows, total_s - decode_s, decode_s, peak.num_bytes(), stats)

    def close(self) -> None:
        """Nothing to let go of."""


@final
class TransformersWay:
    """`model.generate()`; the options are its own."""

    def __init__(self, name: str, is_baseline: bool, model: Any, options: dict[str, Any]) -> None:
        self.contestant = Contestant(
            name, "transformers", is_baseline, options, version("transformers"), _is_lossy(options)
        )
        self._model = model

    def answer(self, asked: Asked) -> Answer:
        watch, peak = _FirstToken(self._model), Peak(self._model.device)
        torch.manual_seed(asked.seed)
        began = perf_counter()
        sequences = self._model.generate(
            **_arguments(self._model, asked),
            **self.contestant.options,
            stopping_criteria=StoppingCriteriaList([watch]),
        )
        total_s = _now(self._model) - began
        prefill_s = (watch.at or began + total_s) - began
        return Answer(_rows(self._model, sequences, asked), prefill_s, total_s - prefill_s, peak.num_bytes())

    def close(self) -> None:
        """Nothing to let go of."""


class _FirstToken(StoppingCriteria):
    """Notes when the first token (of assisted decoding: the first round) was committed; never stops."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.at = 0.0

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.at = self.at or _now(self._model)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def _now(model: Any) -> float:
    """The clock, once the device is done."""
    if model.device.type != "cpu":
        torch.accelerator.synchronize(model.device)
    return perf_counter()


def _arguments(model: Any, asked: Asked) -> dict[str, Any]:
    """What `generate()` takes: rows padded on the left."""
    pad = _pad(model)
    longest = max(map(len, asked.prompts))
    ids = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in asked.prompts])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in asked.prompts])
    sampling = {"do_sample": True, "temperature": asked.temperature} if asked.temperature else {}
    return {
        "input_ids": ids.to(model.device),
        "attention_mask": mask.to(model.device),
        "max_new_tokens": asked.max_new_tokens,
        "pad_token_id": pad,
        **({"do_sample": False} | sampling),
    }


def _rows(model: Any, sequences: Tensor, asked: Asked) -> tuple[tuple[int, ...], ...]:
    """Each row's new tokens, up to its end of sequence."""
    eos, longest = _eos(model), max(map(len, asked.prompts))
    rows = []
    for row in sequences[:, longest:].tolist():
        end = next((at + 1 for at, token in enumerate(row) if token in eos), len(row))
        rows.append(tuple(row[:end]))
    return tuple(rows)


def _eos(model: Any) -> set[int]:
    eos = model.generation_config.eos_token_id
    return set() if eos is None else {eos} if isinstance(eos, int) else set(eos)


def _pad(model: Any) -> int:
    pad = model.generation_config.pad_token_id
    return pad if pad is not None else min(_eos(model), default=0)


def _is_lossy(options: dict[str, Any]) -> bool:
    return options.get("assistant_ensemble_weight") is not None

"""A batch's rows are decoded apart: what each is given of what `generate()` prepared for all, and what none can be."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import GenerationConfig
from transformers.generation import logits_process
from transformers.generation.logits_process import LogitsProcessorList

from outrider.errors import OptionError

# Processors that keep what all rows of a step have in common.
_WHOLE_BATCH = (
    logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    logits_process.WhisperNoSpeechDetection,
)


def check_batch(
    config: GenerationConfig, processors: LogitsProcessorList, streamer: Any, exact: bool | str | None
) -> None:
    """**Raises:** `OptionError` for what is kept once a batch, and cannot be had a row."""
    kept = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
    asked = [name for name in kept if config.return_dict_in_generate and getattr(config, name)]
    if asked:
        raise OptionError(
            f"{asked[0]} of a batch is not supported, since its rows end apart; generate one at a time"
        )
    if exact:
        raise OptionError(
            f"exact={exact!r} can't be had of a batch, whose rows' keys have holes; generate one prompt at a time, "
            "or drop exact"
        )
    if streamer is not None:
        raise OptionError("a streamer shows one text, and this is a batch; generate one sequence at a time")
    for processor in processors:
        if isinstance(processor, _WHOLE_BATCH):
            raise OptionError(
                f"{type(processor).__name__} acts on a whole batch at once, and rows are decoded apart; "
                "generate one sequence at a time"
            )


def processors_of(processors: LogitsProcessorList, index: int, num_rows: int) -> LogitsProcessorList:
    """What acts on row `index` of `num_rows`: transformers' own processors with that row's part, a user's as it is."""
    return LogitsProcessorList(_of_row(processor, index, num_rows) for processor in processors)


def _of_row(processor: Any, index: int, num_rows: int) -> Any:
    kind = type(processor)
    if kind.__module__ != logits_process.__name__:
        return processor
    own = copy.copy(processor)  # what it remembers is the row's own
    if kind is logits_process.EncoderNoRepeatNGramLogitsProcessor:
        own.generated_ngrams = [own.generated_ngrams[index * own.batch_size // num_rows]]
        own.batch_size = 1
    elif kind is logits_process.EncoderRepetitionPenaltyLogitsProcessor:
        at = index * len(own.encoder_input_ids) // num_rows
        own.encoder_input_ids = own.encoder_input_ids[at : at + 1]
    elif kind is logits_process.PrefixConstrainedLogitsProcessor:
        allowed = own._prefix_allowed_tokens_fn
        own._prefix_allowed_tokens_fn = lambda _, ids: allowed(index, ids)
    return own


def together(rows: list[Tensor], fill: Tensor | None) -> Tensor:
    """(B, L) ids of rows of any lengths, (1, n) each, shorter ones filled with the pad id on the right."""
    longest = max(row.shape[1] for row in rows)
    value = 0 if fill is None else int(fill.reshape(-1)[0])
    return torch.cat([pad(row, (0, longest - row.shape[1]), value=value) for row in rows])

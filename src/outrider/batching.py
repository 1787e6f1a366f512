"""A batch's rows are decoded apart: what each is given of what `generate()` prepared for all, and what none can be."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import logits_process
from transformers.generation.logits_process import LogitsProcessorList

from outrider.decoding import Lane
from outrider.errors import OptionError
from outrider.recording import Recording
from outrider.types import Candidates, Verification

# Processors that keep what all rows of a step have in common.
_WHOLE_BATCH = (
    logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    logits_process.WhisperNoSpeechDetection,
)


def check_batch(
    model: PreTrainedModel,
    config: GenerationConfig,
    processors: LogitsProcessorList,
    streamer: Any,
    exact: bool | str | None,
) -> None:
    """**Raises:** `OptionError` for what is kept once a batch, and cannot be had a row."""
    if config.return_dict_in_generate and config.output_attentions:
        raise OptionError(
            "output_attentions can't be had of a batch, whose rows attend to slots of their own; "
            "generate one prompt at a time, or drop output_attentions"
        )
    if exact:
        raise OptionError(
            f"exact={exact!r} can't be had of a batch, whose rows' keys have holes; generate one prompt at a time, "
            "or drop exact"
        )
    if "prepare_inputs_for_generation" in vars(model):
        raise OptionError(
            f"the inputs of this {type(model).__name__} are made by another's method, as in prompt tuning, which "
            "knows of no rows that end apart; generate one prompt at a time"
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


def copies(ids: Tensor, inputs: Mapping[str, Any]) -> list[int]:
    """For each row of (B, L) ids, how many rows before it have the same prompt.

    **Arguments:**

    - `inputs`: What `generate()` prepared, of which tensors with a row each belong to the prompts.
    """
    parts = [ids, *(part for part in inputs.values() if isinstance(part, Tensor) and part.ndim > 1)]
    # For each part, the number of the row's value among those there are.
    values = [
        part.reshape(len(ids), -1).unique(dim=0, return_inverse=True)[1].tolist()
        for part in parts
        if part.shape[0] == len(ids)
    ]
    seen: Counter[tuple[int, ...]] = Counter()
    found = []
    for prompt in zip(*values, strict=True):
        found.append(seen[prompt])
        seen[prompt] += 1
    return found


def complete(target: Any, lanes: Sequence[Lane], recording: Recording, fill: int) -> None:
    """Let rows that ended early go on over padding to the longest row's end, as transformers' loop does.

    What is asked for of every token is kept of the padding too, by one forward over all that is missing. Where
    nothing is, only the last token of each row is run, which a text that goes on from the cache needs.

    **Arguments:**

    - `target`: A `BatchTarget`, whose texts have ended.
    - `fill`: The pad id.
    """
    rows, config = [lane.row for lane in lanes], target.config
    is_asked = config.output_scores or config.output_logits or config.output_hidden_states
    longest = max(row.length for row in rows)
    missing = [min(longest - row.length, 2**31 if is_asked else 1) for row in rows]
    if not any(missing):
        return
    target.bring_back()
    proposals = [Candidates.chain([fill] * max(0, num - 1)) for num in missing]
    logits = target.forward(rows, proposals)
    for lane, candidates, scores, num in zip(lanes, proposals, logits, missing, strict=True):
        path = np.arange(len(candidates))
        outcome = Verification(np.full(num, fill), path.size, candidates, path)
        for at in range(num):
            lane.row.commit(fill, lane.row.score(scores[at : at + 1]))
        recording.committed(lane, outcome, target)
    target.commit([np.arange(len(candidates)) for candidates in proposals], missing)


def together(rows: list[Tensor], fill: int) -> Tensor:
    """(B, L) ids of rows of any lengths, (1, n) each, shorter ones filled on the right."""
    longest = max(row.shape[1] for row in rows)
    return torch.cat([pad(row, (0, longest - row.shape[1]), value=fill) for row in rows])

"""What tests of the whole loop run: tiny models, what they continue, and who drafts."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.target import architectures
from tests.target.architectures import ENCODER_DECODER, auto_class, config_for

VOCAB, WINDOW = architectures.VOCAB, architectures.WINDOW
DECODERS = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
    "mixtral",
    "olmo2",
    "gpt2",
    "gpt_neox",
    "gptj",
    "gpt_neo",
    "gpt_bigcode",
    "opt",
    "falcon",
    "bloom",
    "mpt",
    "cohere",
    "cohere2",
    "granite",
    "stablelm",
    "starcoder2",
    "deepseek_v3",
    "llama4_text",
    "gpt_oss",
    "smollm3",
    "lfm2",
    "persimmon",
    "codegen",
    "xglm",
    "biogpt",
]
ENCODER_DECODERS = [*ENCODER_DECODER]

build = architectures.tiny


@functools.cache
def tiny(name: str, attention: str | None = None, seed: int = 0) -> PreTrainedModel:
    """`build`, once: for tests that leave the model as it is."""
    return build(name, attention, seed)


def takes(name: str, attention: str) -> bool:
    """Whether the architecture has that attention; every one has eager."""
    auto = auto_class(name)
    return attention == "eager" or bool(auto._model_mapping[type(config_for(name))]._supports_sdpa)


def draft_model(name: str, seed: int, num_tokens: int = 2, attention: str | None = None) -> PreTrainedModel:
    """A model that drafts `num_tokens` a round; with seed 0 it has the weights of `tiny(name)`."""
    model = build(name, attention, seed)
    model.generation_config.num_assistant_tokens = num_tokens
    model.generation_config.num_assistant_tokens_schedule = "constant"
    return model


def prompt(length: int = 12, seed: int = 1) -> Tensor:
    """(1, length) ids, the second half a repetition of the first."""
    half = torch.randint(3, VOCAB, (1, -(-length // 2)), generator=torch.Generator().manual_seed(seed))
    return torch.cat([half, half], dim=1)[:, :length]


def oracle(sequence: Tensor, num_tokens: int = 5, wrong_every: int = 0) -> Callable[[Any], list[int]]:
    """A generator that knows the text: proposes what follows in `sequence` (1, L).

    Every `wrong_every`-th token of the text is proposed wrongly; 0 is never.
    """
    text = sequence[0].tolist()

    def right_or_wrong(ids: Any) -> list[int]:
        start = len(ids)
        proposed = text[start : start + num_tokens]
        if wrong_every:
            proposed = [
                (token + 1) % VOCAB if (start + i) % wrong_every == 0 else token
                for i, token in enumerate(proposed)
            ]
        return proposed

    return right_or_wrong


def guesses(num_tokens: int = 3, seed: int = 0) -> Callable[[Any], list[int]]:
    """A generator that proposes anything, the same after the same number of tokens."""

    def anything(ids: Any) -> list[int]:
        generator = torch.Generator().manual_seed(seed + len(ids))
        return torch.randint(0, VOCAB, (num_tokens,), generator=generator).tolist()

    return anything


def snapshot(model: PreTrainedModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """What of a model a call must leave as it was."""
    return copy.deepcopy(model.config.to_dict()), copy.deepcopy(model.generation_config.to_dict())

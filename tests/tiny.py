"""Tiny models made from their configurations alone, and what they are asked to continue."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedModel

from tests.target.architectures import LATENT, MOE

VOCAB = 99
WINDOW = 8

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT: dict[str, Any] = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "n_inner": 48,
    "n_ctx": 256,
}
_MIXED: dict[str, Any] = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
DECODERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": MOE,
    "mistral": {"sliding_window": WINDOW},
    "gemma": {},
    "gemma2": _MIXED,
    "gemma3_text": _MIXED,
    "phi": {},
    "phi3": {},
    "mixtral": MOE,
    "olmo2": {},
    "gpt2": _GPT,
    "gpt_neox": {},
    "gptj": _GPT | {"rotary_dim": 4},
    "gpt_neo": {
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
    },
    "gpt_bigcode": _GPT,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "falcon": {"alibi": False, "head_dim": None, "num_key_value_heads": None},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256, "use_cache": True},
    "cohere": {},
    "cohere2": _MIXED,
    "granite": {},
    "stablelm": {},
    "starcoder2": {},
    "deepseek_v3": LATENT,
    "llama4_text": {
        "attention_chunk_size": WINDOW,
        "layer_types": ["chunked_attention", "full_attention"],
        "intermediate_size_mlp": 48,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "gpt_oss": _MIXED | MOE,
    "smollm3": {},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "persimmon": {},
    "codegen": _GPT | {"rotary_dim": 4},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
    "biogpt": {},
}

_BART: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
_T5: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}

ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "t5": _T5,
    "mt5": _T5,
    "bart": _BART,
    "mbart": _BART,
    "pegasus": _BART,
    "marian": _BART,
    "m2m_100": _BART,
    "blenderbot": _BART,
}


def build(name: str, attention: str | None = None, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A fresh tiny model in float32, with weights large enough that its text varies.

    `attention` is "sdpa" or "eager"; None lets transformers choose. `changes` are settings of its
    configuration. No end of sequence is set.
    """
    overrides: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": attention}
    auto: Any = AutoModelForSeq2SeqLM if name in ENCODER_DECODERS else AutoModelForCausalLM
    settings = ENCODER_DECODERS[name] if name in ENCODER_DECODERS else _BASE | DECODERS[name]
    settings = {key: value for key, value in (settings | changes).items() if value is not None}
    torch.manual_seed(seed)
    model: PreTrainedModel = auto.from_config(AutoConfig.for_model(name, **settings), **overrides).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3, generator=generator)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


@functools.cache
def tiny(name: str, attention: str | None = None, seed: int = 0) -> PreTrainedModel:
    """`build`, once: for tests that leave the model as it is."""
    return build(name, attention, seed)


def takes(name: str, attention: str) -> bool:
    """Whether the architecture has that attention; every one has eager."""
    if attention == "eager":
        return True
    settings = ENCODER_DECODERS[name] if name in ENCODER_DECODERS else _BASE | DECODERS[name]
    config = AutoConfig.for_model(
        name, **{key: value for key, value in settings.items() if value is not None}
    )
    auto: Any = AutoModelForSeq2SeqLM if name in ENCODER_DECODERS else AutoModelForCausalLM
    return bool(auto._model_mapping[type(config)]._supports_sdpa)


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

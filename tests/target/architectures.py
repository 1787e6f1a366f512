"""Tiny models of many architectures, made from their configurations alone."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from outrider.versions import CACHE

VOCAB = 99
WINDOW = 16

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT: dict[str, Any] = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "n_inner": 48,
    "n_ctx": 512,
}
MOE: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
_MIXED = {
    "num_hidden_layers": 4,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
LATENT: dict[str, Any] = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
    "head_dim": 4,
}

FULL: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": MOE,
    "phi": {},
    "phi3": {},
    "mixtral": MOE,
    "olmo": {},
    "olmo2": {},
    "olmoe": MOE,
    "stablelm": {},
    "starcoder2": {},
    "gemma": {},
    "granite": {},
    "granitemoe": MOE,
    "cohere": {},
    "glm": {},
    "glm4": {},
    "nemotron": {},
    "smollm3": {},
    "helium": {},
    "ernie4_5": {},
    "seed_oss": {},
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gpt_neox": {},
    "gptj": _GPT | {"rotary_dim": 4},
    "codegen": _GPT | {"rotary_dim": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "falcon": {"alibi": False, "head_dim": None, "num_key_value_heads": None},
    "persimmon": {},
    "biogpt": {},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
    "deepseek_v2": LATENT | {"topk_method": "greedy"},
    "deepseek_v3": LATENT,
}

WINDOWED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": WINDOW},
    "qwen2_window": {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW},
    "gemma2": _MIXED,
    "gemma3_text": _MIXED,
    "gpt_oss": _MIXED | MOE,
    "cohere2": _MIXED,
    "exaone4": _MIXED,
    "gpt_neo": {
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": WINDOW,
    },
    "llama4_text": {
        "num_hidden_layers": 4,
        "attention_chunk_size": WINDOW,
        "layer_types": ["chunked_attention", "full_attention"] * 2,
        "intermediate_size_mlp": 48,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.0] * 4,
        "altup_num_inputs": 2,
    },
}

ALIBI: dict[str, dict[str, Any]] = {
    "bloom": {"n_layer": 2, "n_head": 4, "tie_word_embeddings": False},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 512, "use_cache": True},
}

_BART: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "pad_token_id": 0,
    "max_position_embeddings": 512,
}

ENCODER_DECODER: dict[str, dict[str, Any]] = {
    "t5": {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "mt5": {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "bart": _BART,
    "mbart": _BART,
    "pegasus": _BART,
    "marian": _BART | {"tie_word_embeddings": False},
    "blenderbot": _BART,
    "m2m_100": _BART | {"tie_word_embeddings": False},
}

_SSM: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
    "mamba_d_ssm": 64,
    "mamba_expand": 2,
}
_DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}

RECURRENT: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 8},
    "falcon_mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 16},
    "jamba": MOE
    | {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8},
    "bamba": _SSM | {"num_hidden_layers": 4, "attn_layer_indices": [1, 3], "head_dim": None},
    "falcon_h1": _SSM,
    "granitemoehybrid": _SSM | MOE | {"num_hidden_layers": 4, "layer_types": ["mamba", "attention"] * 2},
    "nemotron_h": {
        "num_hidden_layers": None,
        "layers_block_type": ["mamba", "attention", "mlp", "mamba"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 16,
    },
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "mamba_d_state": 8,
        "num_key_value_heads": 4,
        "head_dim": None,
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "mamba_d_state": 8,
        "n_mamba_heads": 8,
        "chunk_size": 16,
        "num_key_value_heads": 4,
        "head_dim": None,
    },
    "recurrent_gemma": {
        "num_hidden_layers": 4,
        "block_types": ["recurrent", "attention"],
        "attention_window_size": WINDOW,
        "head_dim": None,
    },
    "qwen3_next": _DELTA | MOE,
    "qwen3_5_text": _DELTA,
    "olmo_hybrid": _DELTA | {"linear_num_value_heads": 2},
    "kimi_linear": {
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 6,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "num_key_value_heads": 4,
        "head_dim": None,
    },
    "lfm2": {
        "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention"] * 2,
        "initializer_range": 0.3,
    },
    "lfm2_moe": MOE | {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2},
    "minimax": MOE | {"num_hidden_layers": 4, "block_size": 16},
    "rwkv": {},
    "xlstm": {"num_heads": 4, "num_blocks": 2},
}

_TYPES = {"qwen2_window": "qwen2"}

if CACHE != "cache":  # transformers below 5.20 does not know it
    del RECURRENT["kimi_linear"]

DECODERS = FULL | WINDOWED | ALIBI | RECURRENT

# Small embeddings and large layers: else a tied model repeats its last token for ever.
_STDS = {
    "marian": (0.3, 1.0),
    "m2m_100": (1.0, 0.3),
    "bloom": (0.03, 1.0),
    "mpt": (0.3, 0.3),
    "xglm": (0.3, 0.6),
    "mt5": (0.3, 0.6),
}
_EMBEDDING_STD, _LAYER_STD = 0.03, 0.6


def config_for(name: str, **changes: Any) -> PreTrainedConfig:
    """The architecture's tiny configuration; `changes` are settings of it."""
    settings = (
        {"vocab_size": VOCAB} | ENCODER_DECODER[name] if name in ENCODER_DECODER else _BASE | DECODERS[name]
    )
    settings = {key: value for key, value in (settings | changes).items() if value is not None}
    return AutoConfig.for_model(_TYPES.get(name, name), **settings)


def auto_class(name: str) -> Any:
    """What makes a model of the architecture."""
    return AutoModelForSeq2SeqLM if name in ENCODER_DECODER else AutoModelForCausalLM


def tiny(name: str, attention: str | None = None, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A fresh tiny model in float32 whose text varies; recurrent ones keep their own first weights.

    `attention` is "sdpa" or "eager"; None lets transformers choose. No end of sequence is set.
    """
    overrides: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": attention}
    torch.manual_seed(seed)
    model: PreTrainedModel = auto_class(name).from_config(config_for(name, **changes), **overrides).eval()
    if name not in RECURRENT:
        embeddings = {
            id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)
        }
        embedding_std, layer_std = _STDS.get(name, (_EMBEDDING_STD, _LAYER_STD))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    std = embedding_std if id(parameter) in embeddings else layer_std
                    parameter.normal_(0.0, std, generator=generator)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model

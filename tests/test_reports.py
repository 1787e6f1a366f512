"""Faults reported against assisted decoding elsewhere: each whole kind cannot happen here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

import outrider
from outrider import CandidateGenerator, Candidates
from outrider.errors import GeneratorError, OptionError, OutriderError
from outrider.generators.prompt_lookup import Generator as PromptLookup
from outrider.types import Context
from outrider.versions import CACHE
from tests.test_generation import Streamed, characters
from tests.tiny import VOCAB, WINDOW, build, draft_model, guesses, oracle, prompt, snapshot, takes, tiny

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}
DICT: dict[str, Any] = GREEDY | {"return_dict_in_generate": True}


def plain(name: str = "llama", ids: Tensor | None = None, **changes: Any) -> Tensor:
    return tiny(name).generate(prompt() if ids is None else ids, **GREEDY | changes)


def ours(name: str = "llama", ids: Tensor | None = None, **changes: Any) -> Any:
    return outrider.generate(tiny(name), prompt() if ids is None else ids, **DICT | changes)


def sure(name: str = "llama", seed: int = 0, num_tokens: int = 4, **changes: Any) -> Any:
    """A draft model of a constant length, never unsure."""
    model = build(name, seed=seed, **changes)
    model.generation_config.assistant_confidence_threshold = 0.0
    model.generation_config.num_assistant_tokens = num_tokens
    model.generation_config.num_assistant_tokens_schedule = "constant"
    return model


@contextmanager
def decoder_calls(model: Any, name: str) -> Iterator[list[int]]:
    """How many tokens each forward of `model` ran; `name` is the argument that holds them."""
    found: list[int] = []

    def note(_: Any, arguments: Any, kwargs: dict[str, Any]) -> None:
        found.append(int(kwargs[name].shape[1]))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


# Where the text ends


@pytest.mark.parametrize("position", range(1, 13))
def test_an_eos_inside_a_draft_is_missed(position: int) -> None:
    """Report 1: what follows an accepted end of sequence is appended and streamed."""
    text, streamer = plain(), Streamed()
    eos = int(text[0, 11 + position])
    wanted = plain(eos_token_id=eos)
    output = ours(candidate_generator=oracle(text, 8), eos_token_id=eos, streamer=streamer)
    assert output.sequences.tolist() == wanted.tolist()
    assert streamer.tokens == wanted[0].tolist()


@pytest.mark.parametrize("source", ["oracle", "draft model"])
def test_a_stop_string_inside_a_draft_is_missed(source: str) -> None:
    """Report 2: at every place of a window to a round's border, with a draft model too."""
    tokenizer, text = characters(), plain()
    drafter: dict[str, Any] = (
        {"candidate_generator": oracle(text, 20)} if source == "oracle" else {"assistant_model": sure()}
    )
    for width in (1, 2, 3):
        for start in range(0, 12, width):
            flags = {"stop_strings": [tokenizer.decode(text[0, 12 + start : 12 + start + width])]}
            wanted = plain(tokenizer=tokenizer, **flags)
            assert ours(tokenizer=tokenizer, **drafter, **flags).sequences.tolist() == wanted.tolist()


class Hostile(CandidateGenerator):
    """Proposes without regard to the budget, the vocabulary or the end."""

    def __init__(self, kind: str, text: Tensor, eos: int) -> None:
        self.kind, self.text, self.eos = kind, text[0].tolist(), eos

    def propose(self, context: Context, budget: int) -> Candidates:
        right = self.text[context.ids.size :]
        return Candidates.chain(
            {
                "too long": [*right, *[5] * 400],
                "an end inside": [*right[:2], self.eos, *right[2:]],
                "ends only": [self.eos] * 9,
                "no such token": [*right[:1], VOCAB + 7, *right[1:]],
                "negative": [-1, *right],
                "the prompt again": context.ids.tolist(),
            }[self.kind]
        )


@pytest.mark.parametrize(
    "kind", ["too long", "an end inside", "ends only", "no such token", "negative", "the prompt again"]
)
@pytest.mark.parametrize("ends", [False, True])
def test_an_overlong_draft_or_one_past_the_end_is_committed(kind: str, ends: bool) -> None:
    """Report 4: the loop, not each generator, cuts what it commits."""
    text = plain()
    eos = int(text[0, 21])
    flags = {"eos_token_id": eos} if ends else {}
    try:
        output = ours(candidate_generator=Hostile(kind, text, eos), **flags)
    except GeneratorError as error:
        assert "Hostile" in str(error)
    else:
        assert output.sequences.tolist() == plain(**flags).tolist()


def test_prompt_lookup_copies_past_the_end() -> None:
    """Report 6: a prompt that holds an end of sequence and the text that followed it."""
    eos = 2
    ids = torch.tensor([[7, 8, eos, 30, 31, 32, 7, 8]])
    generator = PromptLookup(num_tokens=6, eos_token_ids=(eos,))
    generator.reset(ids[0].numpy())
    proposed = generator.propose(Context(ids[0].numpy(), 8, 20), 6)
    assert proposed.tokens.tolist() == [eos]

    class EndsAtOnce(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            wanted = torch.full_like(scores, -torch.inf)
            wanted[:, [40, 7, 8, eos][min(input_ids.shape[1] - 8, 3)]] = 0.0
            return wanted

    flags = {"eos_token_id": eos, "logits_processor": LogitsProcessorList([EndsAtOnce()])}
    output = ours(ids=ids, prompt_lookup_num_tokens=6, **flags)
    assert output.sequences[0].tolist() == [*ids[0].tolist(), 40, 7, 8, eos]


def test_prompt_lookup_without_an_eos_fails() -> None:
    """Report 7: no end of sequence configured, and a prompt that repeats itself."""
    assert tiny("llama").generation_config.eos_token_id is None
    ids = prompt(6).repeat(1, 3)
    output = ours(ids=ids, prompt_lookup_num_tokens=5)
    assert output.sequences.tolist() == plain(ids=ids).tolist()
    assert output.stats.num_candidates > 0


@pytest.mark.parametrize("length", [1, 12])
@pytest.mark.parametrize("drafter", ["random model", "itself", "half right", "guesses"])
def test_the_text_drifts_from_greedy(length: int, drafter: str) -> None:
    """Report 8: positions advanced by one rather than by what was accepted; over 110 tokens."""
    ids = prompt(length)
    text = plain(ids=ids, max_new_tokens=110)
    flags: dict[str, Any] = {
        "random model": {"assistant_model": sure(seed=1)},
        "itself": {"assistant_model": sure()},
        "half right": {"candidate_generator": oracle(text, 6, wrong_every=2)},
        "guesses": {"candidate_generator": guesses(4)},
    }[drafter]
    output = ours(ids=ids, max_new_tokens=110, **flags)
    assert output.sequences.tolist() == text.tolist()
    assert output.stats.num_candidates > 50


# Sampling


SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 1.2, "top_k": 30}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drafter", ["itself", "random model", "point"])
def test_sampling_is_bent_by_the_drafter(drafter: str, seed: int) -> None:
    """Reports 9, 12: greedy and drawn drafts alike leave the sampled text as it is without them."""
    wanted = ours(candidate_generator="none", seed=seed, **SAMPLED).sequences
    flags: dict[str, Any] = {
        "itself": {"assistant_model": sure()},
        "random model": {"assistant_model": sure(seed=1)},
        "point": {"candidate_generator": oracle(plain(), 4)},
    }[drafter]
    output = ours(seed=seed, **SAMPLED, **flags)
    assert output.sequences.tolist() == wanted.tolist()
    assert output.stats.num_candidates > 0


@pytest.mark.parametrize("wrong_at", [0, 2, 4, 99])
def test_the_wrong_row_is_drawn_from(wrong_at: int) -> None:
    """Report 13: none, some and all of a draft accepted; scores are those of the token's own row."""
    flags = SAMPLED | {"seed": 3, "output_scores": True, "output_logits": True}
    wanted = ours(candidate_generator="none", **flags)
    text = wanted.sequences[0].tolist()

    def knows(ids: Any) -> list[int]:
        right = text[len(ids) : len(ids) + 5]
        return [(token + 1) % VOCAB if i == wrong_at else token for i, token in enumerate(right)]

    output = ours(candidate_generator=knows, **flags)
    assert output.sequences[0].tolist() == text
    for name in ("scores", "logits"):
        for mine, theirs in zip(output[name], wanted[name], strict=True):
            torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=2e-3)
    if wrong_at == 0:
        assert output.stats.num_accepted == 0
    if wrong_at == 99:
        assert output.stats.num_accepted == output.stats.num_candidates


# Caches


@pytest.mark.parametrize("wrong_every", [0, 2, 3])
def test_a_hybrid_cache_is_not_rolled_back(wrong_every: int) -> None:
    """Reports 14, 16: convolution states and caches whose trim does nothing skip tokens."""
    text = plain("lfm2", max_new_tokens=40)
    output = ours("lfm2", max_new_tokens=40, candidate_generator=oracle(text, 5, wrong_every))
    assert output.sequences.tolist() == text.tolist()
    assert output[CACHE].get_seq_length() == text.shape[1] - 1


SLIDING = [
    (name, attention)
    for name in ("gemma2", "gemma3_text", "mistral", "cohere2")
    for attention in ("eager", "sdpa")
    if takes(name, attention)
]


@pytest.mark.parametrize(("name", "attention"), SLIDING)
def test_a_sliding_window_is_not_rolled_back(name: str, attention: str) -> None:
    """Reports 18, 19, 21: prompts shorter and longer than the window, rejected drafts across its edge."""
    model = tiny(name, attention)
    for length in (WINDOW - 4, 2 * WINDOW):
        ids = prompt(length)
        text = model.generate(ids, do_sample=False, max_new_tokens=3 * WINDOW)
        for drafter in (oracle(text, 5, 3), oracle(text, 5), guesses(5)):
            output = outrider.generate(
                model, ids, candidate_generator=drafter, do_sample=False, max_new_tokens=3 * WINDOW
            )
            assert output.tolist() == text.tolist()


@pytest.mark.parametrize("drafter", ["draft model", "prompt lookup"])
def test_the_users_cache_goes_to_the_draft_model(drafter: str) -> None:
    """Report 22: a prefilled prefix is the target's alone."""
    model, text = tiny("llama"), plain()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(prompt()[:, :7], **{CACHE: cache}, use_cache=True)
    flags = {"assistant_model": sure()} if drafter == "draft model" else {"prompt_lookup_num_tokens": 3}
    with decoder_calls(model, "input_ids") as ran:
        output = ours(**{CACHE: cache}, **flags)
    assert output.sequences.tolist() == text.tolist()
    assert ran[0] == 5
    assert output[CACHE] is cache and cache.get_seq_length() == text.shape[1] - 1


@pytest.mark.parametrize("kept", [3, 8, 11])
def test_a_shortened_cache_is_misaligned(kept: int) -> None:
    """Report 23: a cache cut back by its owner, then continued."""
    model, text = tiny("llama"), plain()
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.cat([prompt()[:, :kept], prompt(9, seed=4)], 1), **{CACHE: cache}, use_cache=True)
    cache.crop(-9)
    output = ours(**{CACHE: cache}, candidate_generator=oracle(text, 4, 3))
    assert output.sequences.tolist() == text.tolist()


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("drafter", ["draft model", "prompt lookup"])
def test_an_encoder_decoder_cache_cannot_record(name: str, drafter: str) -> None:
    """Report 24: encoder-decoder targets with prompt lookup and with a draft model."""
    flags = {"assistant_model": sure(name)} if drafter == "draft model" else {"prompt_lookup_num_tokens": 3}
    output = ours(name, **flags)
    assert output.sequences.tolist() == plain(name).tolist()
    assert output.stats.num_candidates > 0


@pytest.mark.parametrize("name", ["t5", "bart", "llama"])
def test_every_round_runs_the_whole_prefix(name: str) -> None:
    """Report 25: a forward of the target runs the last token and the candidates, no more."""
    model = tiny(name)
    argument = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    ours(name, candidate_generator=guesses(4))  # a model's first call tries out what it can do
    with decoder_calls(model, argument) as ran:
        output = ours(name, candidate_generator=guesses(4))
    assert output.sequences.tolist() == plain(name).tolist()
    assert len(ran) == output.stats.num_rounds + 1
    assert max(ran[1:]) <= 5
    assert sum(ran[1:]) == output.stats.num_candidates + output.stats.num_rounds


@pytest.mark.parametrize("name", ["t5", "llama"])
def test_a_draft_model_runs_its_whole_prefix(name: str) -> None:
    """Report 25: the draft model runs, after its first forward, what is new to it."""
    assistant = sure(name, seed=1)
    argument = "decoder_input_ids" if assistant.config.is_encoder_decoder else "input_ids"
    with decoder_calls(assistant, argument) as ran:
        ours(name, assistant_model=assistant)
    assert len(ran) > 10
    assert max(ran[1:]) <= 2


@pytest.mark.parametrize("flags", [{"candidate_generator": "prompt_lookup"}, {"prompt_lookup_num_tokens": 3}])
def test_a_configuration_without_cache_is_an_obscure_error(flags: dict[str, Any]) -> None:
    """Report 27: use_cache=False in the model's generation configuration is one sentence."""
    model = build("llama")
    model.generation_config.use_cache = False
    with pytest.raises(OutriderError, match="use_cache") as error:
        outrider.generate(model, prompt(), **GREEDY, **flags)
    assert "\n" not in str(error.value)
    model.generation_config.use_cache = True
    assert outrider.generate(model, prompt(), **GREEDY, **flags).tolist() == plain().tolist()


# Draft models


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("vocab_size", [80, VOCAB, 128])
def test_padded_vocabularies_of_one_tokenizer_agree(vocab_size: int, do_sample: bool) -> None:
    """Reports 29, 32: one tokenizer, embeddings of different sizes, also larger than its words; greedy and sampling."""
    flags: dict[str, Any] = SAMPLED | {"seed": 1} if do_sample else {}
    wanted = ours(candidate_generator="none", **flags).sequences
    output = ours(assistant_model=sure(vocab_size=vocab_size), **flags)
    assert output.sequences.tolist() == wanted.tolist()


def test_ids_and_the_draft_model_are_on_other_devices() -> None:
    """Report 37: a device given as a string, an index or an object is one device."""
    devices = [torch.device("cpu")] + ([torch.device("cuda", 0)] if torch.cuda.is_available() else [])
    text = plain()
    for device in devices:
        assistant = sure().to(device)
        output = ours(assistant_model=assistant)
        assert output.sequences.tolist() == text.tolist()
        assert output.sequences.device == tiny("llama").device
        assert output.stats.num_accepted > 0


@pytest.mark.parametrize("drafter", ["draft model", "oracle", "prompt lookup"])
def test_model_arguments_do_not_reach_the_target(drafter: str) -> None:
    """Report 38: an argument of the forward that alters logits, in every forward of the target."""
    model = build("llama")
    forward, seen = model.forward, []

    def shifted(input_ids: Tensor | None = None, bias: float = 0.0, **kwargs: Any) -> Any:
        seen.append(bias)
        output = forward(input_ids=input_ids, **kwargs)
        output.logits = output.logits.roll(int(bias), -1)
        return output

    model.forward = shifted  # type: ignore[method-assign]
    wanted = model.generate(prompt(), bias=5.0, **GREEDY)
    assert wanted.tolist() != plain().tolist()
    flags: dict[str, Any] = {
        "draft model": {"assistant_model": sure()},
        "oracle": {"candidate_generator": oracle(wanted, 4, 3)},
        "prompt lookup": {"prompt_lookup_num_tokens": 3},
    }[drafter]
    seen.clear()
    assert outrider.generate(model, prompt(), bias=5.0, **flags, **GREEDY).tolist() == wanted.tolist()
    assert set(seen) == {5.0}


# Draft lengths


@pytest.mark.parametrize("number", [1, 2, 5])
def test_the_calls_draft_length_is_ignored(number: int) -> None:
    """Report 40: num_assistant_tokens of the call, not the draft model's own, is the round's length."""
    output = ours(assistant_model=sure(num_tokens=7), num_assistant_tokens=number, max_new_tokens=61)
    rounds = output.stats.num_rounds
    assert rounds == 60 // (number + 1)
    assert output.stats.num_candidates == rounds * number


@pytest.mark.parametrize(
    ("schedule", "goes_on"), [("heuristic", True), ("heuristic_transient", False), ("constant", False)]
)
@pytest.mark.parametrize("hook", [False, True])
def test_a_heuristic_length_is_lost_between_calls(schedule: str, goes_on: bool, hook: bool) -> None:
    """Report 41: the heuristic length outlives a call, the transient one does not; no configuration is written."""
    assistant = sure(num_tokens=2)
    assistant.generation_config.num_assistant_tokens_schedule = schedule
    before, target = snapshot(assistant), snapshot(tiny("llama"))
    decoding = outrider.AssistedDecoding(assistant_model=assistant)

    def rounds() -> int:
        if not hook:
            return int(ours(assistant_model=assistant).stats.num_rounds)
        done = decoding.stats.num_rounds
        tiny("llama").generate(prompt(), custom_generate=decoding, **GREEDY)
        return int(decoding.stats.num_rounds - done)

    first, second = rounds(), rounds()
    assert second < first if goes_on else second == first
    assert snapshot(assistant) == before and snapshot(tiny("llama")) == target


def test_a_processor_runs_twice_or_reaches_the_draft_model() -> None:
    """Report 45: min_new_tokens, and a user's subclass of a processor, run once a committed token."""

    class Counted(LogitsProcessor):
        calls = 0

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            self.calls += 1
            return scores.index_fill(1, torch.tensor([int(input_ids[0, -1])]), -torch.inf)

    eos = int(plain()[0, 14])
    flags: dict[str, Any] = {"eos_token_id": eos, "min_new_tokens": 9}
    theirs, mine = Counted(), Counted()
    wanted = plain(logits_processor=LogitsProcessorList([theirs]), **flags)
    output = ours(logits_processor=LogitsProcessorList([mine]), assistant_model=sure(), **flags)
    assert output.sequences.tolist() == wanted.tolist()
    assert mine.calls == theirs.calls == wanted.shape[1] - 12


def test_the_oldest_or_a_shorter_match_is_copied() -> None:
    """Report 48: the longest match first, and among those the most recent; "first" takes the oldest."""
    ids = np.array([9, 1, 2, 50, 9, 1, 2, 51, 8, 2, 52, 9, 1, 2])

    def proposed(**options: Any) -> int:
        generator = PromptLookup(num_tokens=1, **options)
        generator.reset(ids)
        return int(generator.propose(Context(ids, ids.size, 20), 1).tokens[0])

    assert proposed(max_ngram_size=3) == 51
    assert proposed(max_ngram_size=1) == 52
    assert proposed(max_ngram_size=3, order="first") == 50


@pytest.mark.parametrize("drafter", ["prompt_lookup", "draft model", "half right"])
def test_rows_of_a_batch_change_each_other(drafter: str) -> None:
    """Report 50: rows that accept and end apart are those rows alone."""
    prompts = [prompt(length, seed=length) for length in (10, 4, 7)]
    texts = [plain(ids=row) for row in prompts]
    eos = int(texts[0][0, 16])
    ids = torch.cat([torch.nn.functional.pad(row, (10 - row.shape[1], 0)) for row in prompts])
    mask = (ids != 0).long()

    def half_right(known: Any) -> list[int]:
        known = list(known)
        for row, text in zip(prompts, texts, strict=True):
            whole = [0] * (10 - row.shape[1]) + text[0].tolist()
            if whole[: len(known)] == known or text[0].tolist()[: len(known)] == known:
                start = len(known) if whole[: len(known)] == known else len(known) + 10 - row.shape[1]
                return [
                    (token + 1) % VOCAB if (start + i) % 4 == row.shape[1] % 4 else token
                    for i, token in enumerate(whole[start : start + 5])
                ]
        return []

    flags: dict[str, Any] = {
        "prompt_lookup": {"candidate_generator": "prompt_lookup"},
        "draft model": {"assistant_model": sure()},
        "half right": {"candidate_generator": half_right},
    }[drafter]
    output = ours(ids=ids, attention_mask=mask, eos_token_id=eos, **flags)
    assert output.stats.num_candidates > 0
    for row, alone in zip(output.sequences, prompts, strict=True):
        text = plain(ids=alone, eos_token_id=eos)[0, alone.shape[1] :]
        assert row[10 : 10 + len(text)].tolist() == text.tolist()
        assert not row[10 + len(text) :].any()


@pytest.mark.parametrize("wrong_every", [0, 2, 3])
@pytest.mark.parametrize("do_sample", [False, True])
def test_rejected_drafts_advance_a_grammar(wrong_every: int, do_sample: bool) -> None:
    """Report 52: a matcher that consumes each committed token once, and forbids the rest."""

    class Matcher(LogitsProcessor):
        """Token i must leave remainder i in the division by three."""

        def __init__(self) -> None:
            self.consumed: list[int] = []

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            new = input_ids[0, 12:].tolist()
            assert new[: len(self.consumed)] == self.consumed and len(new) - len(self.consumed) <= 1
            self.consumed = new
            forbidden = torch.arange(VOCAB) % 3 != len(self.consumed) % 3
            return scores.masked_fill(forbidden, -torch.inf)

    def constrained(generator: Any) -> tuple[list[int], list[int]]:
        matcher = Matcher()
        flags: dict[str, Any] = SAMPLED | {"top_k": 0, "seed": 2} if do_sample else {}
        processors = LogitsProcessorList([matcher])
        output = ours(candidate_generator=generator, logits_processor=processors, **flags)
        return output.sequences[0].tolist(), matcher.consumed

    wanted, _ = constrained("none")
    got, consumed = constrained(oracle(torch.tensor([wanted]), 5, wrong_every))
    assert got == wanted
    assert consumed == wanted[12:-1]
    assert all(token % 3 == i % 3 for i, token in enumerate(got[12:]))


def test_a_batch_asks_for_what_it_cannot_have() -> None:
    """Report 50: what is not kept a row is refused in one sentence."""
    ids = torch.cat([prompt(), prompt(seed=2)])
    with pytest.raises(OptionError, match="output_attentions can't be had of a batch"):
        ours(ids=ids, candidate_generator="none", output_attentions=True, return_dict_in_generate=True)


def test_a_sliding_draft_model_is_rolled_back() -> None:
    """Report 18: the draft model's own window, past its end."""
    text = plain("gemma2", max_new_tokens=40)
    for seed in (0, 1):
        assistant = draft_model("gemma2", seed=seed, num_tokens=5)
        assistant.generation_config.assistant_confidence_threshold = 0.0
        output = ours("gemma2", max_new_tokens=40, assistant_model=assistant)
        assert output.sequences.tolist() == text.tolist()
        if seed == 0:
            assert output.stats.num_accepted == output.stats.num_candidates > 0


@pytest.mark.parametrize("name", ["llama", "mistral", "t5"])
def test_a_draft_model_drafts_from_a_stale_cache(name: str) -> None:
    """Reports 25, 18: after a rejection it drafts what it would draft from the committed text alone."""
    assistant, asked = sure(name, seed=1), []
    drafts = outrider.get("draft_model")(assistant, confidence_threshold=0.0, num_tokens=4)

    class Watched(CandidateGenerator):
        def reset(self, prompt: Any) -> None:
            drafts.reset(prompt)

        def propose(self, context: Context, budget: int) -> Candidates:
            found = drafts.propose(context, budget)
            asked.append((context.ids.copy(), found.tokens.tolist()))
            return found

    ours(name, candidate_generator=Watched(), num_assistant_tokens=4)
    assert len(asked) > 8
    flags: dict[str, Any] = {"do_sample": False, "min_new_tokens": 1}
    for ids, tokens in asked:
        given = torch.tensor(ids[None])
        start = {"decoder_input_ids": given, "input_ids": prompt()} if name == "t5" else {"input_ids": given}
        fresh = assistant.generate(**start, max_new_tokens=len(tokens), **flags)
        assert fresh[0, ids.size :].tolist() == tokens


@pytest.mark.parametrize("number", [1, 3])
def test_a_generators_own_length_overrides_the_calls(number: int) -> None:
    """Report 40: a generator that proposes more is cut to num_assistant_tokens."""
    output = ours(candidate_generator=Hostile("too long", plain(), 2), num_assistant_tokens=number)
    assert output.sequences.tolist() == plain().tolist()
    assert len(output.stats.proposed_by_depth) == number

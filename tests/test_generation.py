"""`generate()` and `AssistedDecoding` beside plain decoding: lengths, stops, caches, streams, interruptions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
    TextGenerationPipeline,
)

import outrider
from outrider import AssistedDecoding, CandidateGenerator, Candidates, HiddenStates
from outrider.errors import GeneratorError, NonFiniteLogitsError, OptionError, UnsupportedModelError
from outrider.versions import CACHE, can_be_cropped
from tests.tiny import VOCAB, oracle, prompt, snapshot, tiny

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}


def plain(name: str = "llama", ids: Tensor | None = None, **changes: Any) -> Tensor:
    return tiny(name).generate(prompt() if ids is None else ids, **GREEDY | changes)


def ours(name: str = "llama", ids: Tensor | None = None, **changes: Any) -> Any:
    return outrider.generate(tiny(name), prompt() if ids is None else ids, **GREEDY | changes)


def knowing(text: Tensor, wrong_every: int = 0) -> Callable[[Any], list[int]]:
    return oracle(text, num_tokens=7, wrong_every=wrong_every)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("length", [1, 2, 12])
def test_any_length_from_any_prompt(max_new_tokens: int, length: int) -> None:
    ids = prompt(length)
    wanted = plain(ids=ids, max_new_tokens=max_new_tokens)
    longer = plain(ids=ids)
    assert torch.equal(
        ours(ids=ids, max_new_tokens=max_new_tokens, candidate_generator=knowing(longer)), wanted
    )


def test_no_new_tokens_is_what_plain_decoding_makes_of_it() -> None:
    with pytest.raises(ValueError) as theirs:
        plain(max_new_tokens=0)
    with pytest.raises(ValueError) as mine:
        ours(max_new_tokens=0, candidate_generator="none")
    assert str(mine.value) == str(theirs.value)


def test_a_prompt_at_the_models_limit() -> None:
    limit = tiny("llama").config.max_position_embeddings
    ids = prompt(limit - 3)
    assert torch.equal(
        ours(ids=ids, max_new_tokens=3, candidate_generator="prompt_lookup"), plain(ids=ids, max_new_tokens=3)
    )


@pytest.mark.parametrize("position", range(1, 10))
def test_the_text_ends_at_the_first_eos_wherever_it_falls_in_a_round(position: int) -> None:
    text = plain()
    eos = [int(text[0, 12 + position]), VOCAB - 1]
    wanted = plain(eos_token_id=eos)
    output = ours(eos_token_id=eos, candidate_generator=knowing(text), return_dict_in_generate=True)
    assert torch.equal(output.sequences, wanted)
    assert output[CACHE].get_seq_length() == wanted.shape[1] - 1


def test_min_new_tokens_and_penalties_hold() -> None:
    text = plain()
    flags = {
        "eos_token_id": int(text[0, 14]),
        "min_new_tokens": 9,
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 3,
    }
    wanted = plain(**flags)
    assert torch.equal(ours(candidate_generator=knowing(wanted), **flags), wanted)
    assert torch.equal(ours(candidate_generator=knowing(text), **flags), wanted)


def characters() -> PreTrainedTokenizerFast:
    """A tokenizer whose every token is one printable character."""
    vocab = {chr(ord("!") + i): i for i in range(VOCAB)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="!")


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("start", range(0, 16, 3))
def test_stop_strings_end_the_text_across_a_rounds_border(start: int, width: int) -> None:
    tokenizer, text = characters(), plain()
    stop = tokenizer.decode(text[0, 12 + start : 12 + start + width])
    wanted = plain(stop_strings=[stop], tokenizer=tokenizer)
    got = ours(stop_strings=[stop], tokenizer=tokenizer, candidate_generator=knowing(text))
    assert torch.equal(got, wanted)


def test_processors_and_criteria_see_plain_decodings_calls() -> None:
    class Seen(LogitsProcessor):
        def __init__(self) -> None:
            self.calls: list[list[int]] = []

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            self.calls.append(input_ids[0].tolist())
            return scores.index_fill(1, torch.tensor([len(self.calls) % VOCAB]), -torch.inf)

    class Asked(StoppingCriteria):
        def __init__(self) -> None:
            self.calls: list[list[int]] = []

        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            self.calls.append(input_ids[0].tolist())
            return torch.tensor([input_ids.shape[1] == 30])

    def listeners() -> dict[str, Any]:
        return {
            "logits_processor": LogitsProcessorList([Seen()]),
            "stopping_criteria": StoppingCriteriaList([Asked()]),
        }

    theirs = listeners()
    wanted = plain(**theirs)
    for wrong_every in (0, 2, 5):
        mine = listeners()
        assert torch.equal(ours(**mine, candidate_generator=knowing(wanted, wrong_every)), wanted)
        for name in theirs:
            assert mine[name][0].calls == theirs[name][0].calls


@pytest.mark.parametrize("name", ["llama", "gemma2", "t5"])
@pytest.mark.parametrize("chunk", [None, 5])
def test_prefill_in_chunks(name: str, chunk: int | None) -> None:
    if name == "t5" and chunk is not None:
        chunk = None
    flags = {} if chunk is None else {"prefill_chunk_size": chunk}
    wanted = plain(name, **flags)
    assert torch.equal(ours(name, candidate_generator="prompt_lookup", **flags), wanted)


@pytest.mark.parametrize("only_new", [False, True])
def test_a_cache_that_holds_a_prefix_is_continued(only_new: bool) -> None:
    model, ids = tiny("llama"), prompt()
    wanted = plain()

    def prefix() -> DynamicCache:
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids[:, :8], **{CACHE: cache}, use_cache=True)
        return cache

    cache = prefix()
    fed = ids[:, 8:] if only_new else ids
    output = (
        outrider.generate(
            model,
            fed,
            **{CACHE: cache},
            attention_mask=torch.ones_like(ids),
            candidate_generator=knowing(wanted),
            **GREEDY,
        )
        if not only_new
        else outrider.generate(
            model,
            fed,
            **{CACHE: cache},
            attention_mask=torch.ones_like(ids),
            candidate_generator="prompt_lookup",
            **GREEDY,
        )
    )
    assert torch.equal(output[:, -24:], wanted[:, -24:])
    assert cache.get_seq_length() == wanted.shape[1] - 1


def test_a_static_cache_is_not_written_past_its_end() -> None:
    model, wanted = tiny("llama"), plain()
    cache = StaticCache(config=model.config, max_cache_len=12 + 24 - 1)
    if not can_be_cropped(cache):  # transformers below 5.20
        with pytest.raises(UnsupportedModelError, match="cannot take back rejected candidates"):
            outrider.generate(
                model, prompt(), **{CACHE: cache}, candidate_generator="prompt_lookup", **GREEDY
            )
        return
    got = outrider.generate(model, prompt(), **{CACHE: cache}, candidate_generator=knowing(wanted), **GREEDY)
    assert torch.equal(got, wanted)


def test_left_padding() -> None:
    ids = torch.cat([torch.zeros(1, 4, dtype=torch.long), prompt()], 1)
    mask = (torch.arange(16) >= 4).long()[None]
    wanted = plain(ids=ids, attention_mask=mask)
    assert torch.equal(ours(ids=ids, attention_mask=mask, candidate_generator=knowing(wanted)), wanted)
    assert torch.equal(wanted[:, 4:], plain())


class Streamed:
    def __init__(self, stop_after: int | None = None) -> None:
        self.tokens: list[int] = []
        self.ended = False
        self.stop_after = stop_after

    def put(self, value: Tensor) -> None:
        self.tokens += value.reshape(-1).tolist()
        if self.stop_after is not None and len(self.tokens) > self.stop_after:
            raise KeyboardInterrupt

    def end(self) -> None:
        self.ended = True


def test_the_streamer_gets_every_token_once_in_order() -> None:
    wanted, streamer = plain(), Streamed()
    ours(candidate_generator=knowing(wanted, 3), streamer=streamer)
    assert streamer.tokens == wanted[0].tolist() and streamer.ended


def test_an_interruption_leaves_everything_usable() -> None:
    model, wanted = tiny("llama"), plain()
    before = snapshot(model)
    streamer = Streamed(stop_after=18)
    decoding = AssistedDecoding("prompt_lookup", streamer=streamer)
    with pytest.raises(KeyboardInterrupt):
        model.generate(prompt(), custom_generate=decoding, **GREEDY)
    assert streamer.tokens == wanted[0, 12:].tolist()[: len(streamer.tokens)]
    streamer.stop_after = None
    assert torch.equal(model.generate(prompt(), custom_generate=decoding, **GREEDY), wanted)
    assert snapshot(model) == before


@pytest.mark.parametrize("where", ["reset", "propose", "update"])
def test_a_generators_exception_is_one_error_that_names_it(where: str) -> None:
    class Failing(CandidateGenerator):
        broken = True

        def propose(self, context: Any, budget: int) -> Candidates:
            self._fail("propose")
            return Candidates.chain([1])

        def reset(self, prompt: Any) -> None:
            self._fail("reset")

        def update(self, verification: Any) -> None:
            self._fail("update")

        def _fail(self, here: str) -> None:
            if self.broken and here == where:
                raise ValueError("a fault of mine")

    generator = Failing()
    with pytest.raises(GeneratorError, match=r"Failing raised ValueError .* a fault of mine"):
        ours(candidate_generator=generator)
    generator.broken = False
    assert torch.equal(ours(candidate_generator=generator), plain())


def test_threads_take_turns_on_one_assisted_decoding() -> None:
    model, decoding = tiny("llama"), AssistedDecoding("suffix")
    prompts = [prompt(12, seed) for seed in range(6)]
    wanted = [plain(ids=ids) for ids in prompts]
    got: dict[int, Tensor] = {}

    def work(index: int) -> None:
        got[index] = model.generate(prompts[index], custom_generate=decoding, **GREEDY)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(got[index], wanted[index]) for index in range(6))
    assert decoding.stats.num_committed == 6 * 24


def test_a_nested_call_is_one_clear_error() -> None:
    model = tiny("llama")

    class Nested(CandidateGenerator):
        def propose(self, context: Any, budget: int) -> Candidates:
            model.generate(prompt(), custom_generate=decoding, **GREEDY)
            return Candidates.empty()

    decoding = AssistedDecoding(Nested())
    with pytest.raises(OptionError, match="already decoding"):
        model.generate(prompt(), custom_generate=decoding, **GREEDY)


def test_a_pipeline_takes_the_hook() -> None:
    tokenizer = characters()
    pipe = TextGenerationPipeline(model=tiny("llama"), tokenizer=tokenizer)
    text = "".join(chr(ord("!") + i) for i in prompt()[0].tolist())
    decoding = AssistedDecoding("prompt_lookup")
    wanted = pipe(text, do_sample=False, max_new_tokens=8)
    assert pipe(text, do_sample=False, max_new_tokens=8, custom_generate=decoding) == wanted
    assert decoding.stats.num_committed == 8


@pytest.mark.parametrize("generator", ["none", "prompt_lookup", "suffix", "auto", "token_recycling"])
def test_sampling_with_a_seed_is_the_same_text_whatever_drafts(generator: str) -> None:
    flags = {"do_sample": True, "temperature": 0.7, "top_k": 20, "seed": 5}
    assert torch.equal(
        ours(candidate_generator=generator, **flags), ours(candidate_generator="none", **flags)
    )


def test_sampling_without_a_seed_is_drawn_from_torchs_generator() -> None:
    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return ours(do_sample=True, candidate_generator="suffix")

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))


@pytest.mark.parametrize("generator", ["none", "prompt_lookup", "auto"])
def test_rows_of_a_batch_are_those_rows_alone(generator: str) -> None:
    model = tiny("llama")
    prompts = [prompt(length, seed=length) for length in (12, 5, 9, 1)]
    ids = torch.cat([torch.nn.functional.pad(row, (12 - row.shape[1], 0)) for row in prompts])
    mask = torch.cat(
        [torch.nn.functional.pad(torch.ones_like(row), (12 - row.shape[1], 0)) for row in prompts]
    )
    eos = int(plain(ids=prompts[0])[0, 20])
    got = outrider.generate(
        model, ids, attention_mask=mask, candidate_generator=generator, eos_token_id=eos, **GREEDY
    )
    for row, alone in zip(got, prompts, strict=True):
        text = plain(ids=alone, eos_token_id=eos)[0, alone.shape[1] :]
        assert row[12 : 12 + len(text)].tolist() == text.tolist()
        assert not row[12 + len(text) :].any()


def test_a_need_that_is_not_supplied_is_refused() -> None:
    class Hidden(CandidateGenerator):
        needs = frozenset({HiddenStates((1,))})

        def propose(self, context: Any, budget: int) -> Candidates:
            return Candidates.empty()

    class Inside:
        requires_model_outputs = True

        def get_candidates(self, input_ids: Tensor, model_outputs: Any = None) -> Any:
            return input_ids, None

    with pytest.raises(OptionError, match="Hidden needs the target's hidden states"):
        ours(candidate_generator=Hidden)
    with pytest.raises(OptionError, match="hidden states"):
        ours(candidate_generator=outrider.get("composite")([Hidden()]))
    with pytest.raises(OptionError, match="Inside reads the target's outputs"):
        ours(candidate_generator=Inside())


@pytest.mark.parametrize(
    ("flags", "error", "said"),
    [
        ({"candidate_generator": "prompt_lokup"}, OptionError, "did you mean 'prompt_lookup'"),
        ({"candidate_generator": 3}, OptionError, "must be a generator"),
        ({"num_beams": 2, "candidate_generator": "none"}, OptionError, "num_beams"),
        ({"use_cache": False, "candidate_generator": "none"}, OptionError, "use_cache=False"),
        ({"stop_strings": ["a"]}, OptionError, "tokenizer"),
        ({"verification": "gredy"}, OptionError, "did you mean 'greedy'"),
        ({"verification": "block", "do_sample": False}, OptionError, "do_sample"),
    ],
)
def test_wrong_input_is_one_sentence(flags: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ours(**flags)


def test_an_empty_prompt_and_a_thing_that_cannot_generate() -> None:
    with pytest.raises((OptionError, ValueError), match=r"empty|at least|no tokens|0"):
        ours(ids=torch.zeros(1, 0, dtype=torch.long), candidate_generator="none")
    with pytest.raises(UnsupportedModelError, match="has no generate"):
        outrider.generate(torch.nn.Linear(2, 2), prompt())


def test_nan_logits_are_one_clear_error() -> None:
    class Broken(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return scores * torch.nan

    with pytest.raises(NonFiniteLogitsError, match="NaN"):
        ours(candidate_generator="prompt_lookup", logits_processor=LogitsProcessorList([Broken()]))

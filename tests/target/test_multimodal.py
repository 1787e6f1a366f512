"""Models that see or hear: the text is plain decoding's whatever drafts, and what they see is looked at once."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.cache_utils import StaticLayer

import outrider
from outrider import AssistedDecoding, CandidateGenerator, Candidates
from outrider.errors import UnsupportedModelError
from outrider.generators.draft_model import Generator as DraftModel
from outrider.target.masks import reason_against_trees
from outrider.target.placeholders import placeholder_ids
from outrider.types import Context, Verification
from outrider.versions import CACHE, can_be_cropped
from tests import tiny as texts
from tests.target.architectures import DECODERS, ENCODER_DECODER, VOCAB, config_for
from tests.target.multimodal import AUDIO, CASES, END, IMAGE, START, VIDEO, build, tiny, tower, without_media
from tests.test_architectures import EVERYTHING, assert_same_output
from tests.tiny import guesses, oracle

NAMES = [*CASES]
ROTATED = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
NEW = 40
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW, "return_dict_in_generate": True}
# Said by Mllama's own code in the oldest supported version.
pytestmark = pytest.mark.filterwarnings("ignore:`hidden_state` is deprecated:FutureWarning")
MEDIA = [IMAGE, VIDEO, AUDIO, START, END]


class Branches(CandidateGenerator):
    """Proposes, below each token of `text`, a placeholder, a wrong token and the next one."""

    def __init__(self, text: Tensor, depth: int = 4) -> None:
        self.text, self.depth = text[0].tolist(), depth

    def propose(self, context: Context, budget: int) -> Candidates:
        tokens: list[int] = []
        parents: list[int] = []
        parent, start = -1, context.ids.size
        for i, token in enumerate(self.text[start : start + self.depth]):
            tokens += [MEDIA[(start + i) % len(MEDIA)], (token + 1) % VOCAB, token]
            parents += [parent] * 3
            parent = len(tokens) - 1
        return Candidates(np.array(tokens, np.int64), np.array(parents, np.int64))


DRAFTERS: dict[str, Callable[[str, Tensor], Any]] = {
    "none": lambda name, text: "none",
    "prompt_lookup": lambda name, text: "prompt_lookup",
    "auto": lambda name, text: "auto",
    "draft that reads": lambda name, text: unsure(texts.build("llama", seed=3)),
    "draft of few words": lambda name, text: unsure(texts.architectures.tiny("llama", seed=3, vocab_size=85)),
    "draft that sees": lambda name, text: unsure(build(name, seed=3)),
    "itself": lambda name, text: unsure(tiny(name)),
    "early exit": lambda name, text: DraftModel(early_exit=1, confidence_threshold=0.0, num_tokens=4),
    "oracle": lambda name, text: oracle(text),
    "half right": lambda name, text: oracle(text, wrong_every=3),
    "anything": lambda name, text: guesses(),
    "placeholders": lambda name, text: lambda ids: MEDIA,
    "branches": lambda name, text: Branches(text),
}


def unsure(model: PreTrainedModel) -> DraftModel:
    return DraftModel(model, confidence_threshold=0.0, num_tokens=4)


def inputs(name: str, seed: int = 1, num_padded: int = 0) -> dict[str, Any]:
    """A prompt and what it shows, behind padding."""
    made = CASES[name].inputs(seed)
    if not num_padded:
        return made
    mask = torch.ones_like(made["input_ids"])
    padded = {"attention_mask": mask, **made}
    for key, value in padded.items():
        if value.shape[:2] == mask.shape:
            padding = value.new_zeros(1, num_padded, *value.shape[2:])
            padded[key] = torch.cat([padding, value], 1)
    return padded


@functools.cache
def plain(name: str, seed: int = 1, num_padded: int = 0, attention: str | None = None) -> Any:
    return tiny(name, attention).generate(**inputs(name, seed, num_padded), **GREEDY)


@contextmanager
def looks(name: str, model: PreTrainedModel) -> Iterator[list[int]]:
    """Counts the forwards of what sees or hears."""
    counted = [0]

    def count(*_: Any) -> None:
        counted[0] += 1

    handle = tower(name, model).register_forward_hook(count)
    try:
        yield counted
    finally:
        handle.remove()


class Verified:
    """A listener that keeps what was verified."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def committed(self, lane: Any, verification: Verification, target: Any) -> None:
        self.tokens += verification.candidates.tokens.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_what_a_prompt_shows_decides_the_text(name: str) -> None:
    """Else the tests below would prove nothing of it."""
    text = plain(name).sequences[0, -NEW:].tolist()
    assert text != plain(name, 2).sequences[0, -NEW:].tolist()
    assert len(set(text)) > 5


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_plain_decodings_and_the_image_is_seen_once(name: str, drafter: str) -> None:
    """Report 35: a draft model that sees, one that only reads, and n-grams."""
    model, wanted = tiny(name), plain(name).sequences
    with looks(name, model) as seen:
        output = outrider.generate(
            model, **inputs(name), candidate_generator=DRAFTERS[drafter](name, wanted), **GREEDY
        )
    assert output.sequences.tolist() == wanted.tolist()
    assert seen == [1]


@pytest.mark.parametrize("drafter", ["auto", "draft that reads", "half right", "branches"])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_through_the_hook(name: str, drafter: str) -> None:
    model, wanted = tiny(name), plain(name).sequences
    decoding = AssistedDecoding(DRAFTERS[drafter](name, wanted))
    with looks(name, model) as seen:
        for seed in (1, 2, 1):
            got = model.generate(**inputs(name, seed), custom_generate=decoding, **GREEDY).sequences
            assert got.tolist() == plain(name, seed).sequences.tolist()
    assert seen == [3]


@pytest.mark.parametrize("drafter", ["half right", "branches"])
@pytest.mark.parametrize("name", NAMES)
def test_eager_attention(name: str, drafter: str) -> None:
    wanted = plain(name, attention="eager").sequences
    generator = DRAFTERS[drafter](name, wanted)
    output = outrider.generate(tiny(name, "eager"), **inputs(name), candidate_generator=generator, **GREEDY)
    assert output.sequences.tolist() == wanted.tolist()


@pytest.mark.parametrize("drafter", ["half right", "branches"])
@pytest.mark.parametrize("name", NAMES)
def test_a_padded_prompt(name: str, drafter: str) -> None:
    wanted = plain(name, num_padded=3).sequences
    output = outrider.generate(
        tiny(name),
        **inputs(name, num_padded=3),
        candidate_generator=DRAFTERS[drafter](name, wanted),
        **GREEDY,
    )
    assert output.sequences.tolist() == wanted.tolist()


@pytest.mark.parametrize("drafter", ["oracle", "half right", "branches"])
@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "gemma3", "mllama"])
def test_all_that_generate_returns(name: str, drafter: str) -> None:
    model, flags = tiny(name), EVERYTHING | {"max_new_tokens": NEW}
    wanted = model.generate(**inputs(name), **flags)
    generator = DRAFTERS[drafter](name, wanted.sequences)
    assert_same_output(
        outrider.generate(model, **inputs(name), candidate_generator=generator, **flags), wanted
    )


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "mllama", "qwen2_audio"])
def test_keyed_sampling_is_that_of_no_candidates(name: str) -> None:
    flags = {"do_sample": True, "max_new_tokens": NEW, "seed": 5, "temperature": 0.7}
    wanted = outrider.generate(tiny(name), **inputs(name), candidate_generator="none", **flags)
    for drafter in ("auto", "draft that reads", "half right", "branches"):
        generator = DRAFTERS[drafter](name, wanted)
        got = outrider.generate(tiny(name), **inputs(name), candidate_generator=generator, **flags)
        assert got.tolist() == wanted.tolist(), drafter


@pytest.mark.parametrize("drafter", ["oracle", "branches"])
@pytest.mark.parametrize("name", NAMES)
def test_an_image_costs_no_acceptance(name: str, drafter: str) -> None:
    """Report 36: wrong positions let acceptance fall silently; of a text that is known all is accepted, as without."""
    num_tokens = 5 if drafter == "oracle" else 4
    num_rounds = -(-(NEW - 1) // (num_tokens + 1))
    for prompt in (inputs(name), without_media(inputs(name))):
        wanted = tiny(name).generate(**prompt, **GREEDY).sequences
        generator = DRAFTERS[drafter](name, wanted)
        stats = outrider.generate(tiny(name), **prompt, candidate_generator=generator, **GREEDY).stats
        assert (stats.num_rounds, stats.num_accepted) == (num_rounds, NEW - 1 - num_rounds)


# Placeholders


@pytest.mark.parametrize("name", NAMES)
def test_ids_of_the_configuration_are_found(name: str) -> None:
    assert placeholder_ids(tiny(name).config).tolist() == sorted(CASES[name].placeholders)


@pytest.mark.parametrize("name", [*DECODERS, *ENCODER_DECODER])
def test_a_model_of_text_has_none(name: str) -> None:
    assert placeholder_ids(config_for(name)).size == 0


@pytest.mark.parametrize("drafter", ["placeholders", "branches", "auto", "itself"])
@pytest.mark.parametrize("name", NAMES)
def test_a_placeholder_is_no_candidate(name: str, drafter: str) -> None:
    verified = Verified()
    outrider.generate(
        tiny(name),
        **inputs(name),
        candidate_generator=DRAFTERS[drafter](name, plain(name).sequences),
        listeners=[verified],
        **GREEDY,
    )
    assert set(verified.tokens).isdisjoint(CASES[name].placeholders)
    assert set(verified.tokens) or drafter != "branches"


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_target_may_write_one_itself(name: str, drafter: str) -> None:
    class Writes(LogitsProcessor):
        def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
            if ids.shape[1] % 5 == 0:
                scores[:, CASES[name].placeholders[0]] = 1e4
            return scores

    flags = GREEDY | {"logits_processor": LogitsProcessorList([Writes()])}
    wanted = tiny(name).generate(**inputs(name), **flags).sequences
    assert wanted[0, -NEW:].tolist().count(CASES[name].placeholders[0]) == NEW // 5
    generator = DRAFTERS[drafter](name, wanted)
    output = outrider.generate(tiny(name), **inputs(name), candidate_generator=generator, **flags)
    assert output.sequences.tolist() == wanted.tolist()


# Positions


@contextmanager
def positions_of(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """The positions of each forward of the text model."""
    found: list[Tensor] = []

    def note(_: Any, arguments: Any, kwargs: dict[str, Any]) -> None:
        found.append(kwargs["position_ids"].clone())

    handle = model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


@pytest.mark.parametrize("num_padded", [0, 3])
@pytest.mark.parametrize("name", NAMES)
def test_each_token_of_a_chain_and_of_a_tree_has_its_position(name: str, num_padded: int) -> None:
    """Report 36: three-dimensional positions go on from where the image left them, whatever drafts."""
    model, prompt = tiny(name), inputs(name, num_padded=num_padded)
    with positions_of(model) as apart:
        text = model.generate(**prompt, **GREEDY).sequences
    wanted = torch.cat(apart, -1)
    if name in ROTATED:
        assert wanted.shape[0] == 4
        assert (wanted[1:, 0, -1] < wanted[0, 0, -1]).all(), "an image takes fewer positions than slots"
    assert reason_against_trees(model) is None
    for generator in (oracle(text), Branches(text)):
        with positions_of(model) as found:
            outrider.generate(model, **prompt, candidate_generator=generator, **GREEDY)
        assert len(found) < NEW
        at = 0
        for positions in found:
            depths = (positions - positions[..., :1])[0, ..., :].reshape(-1, positions.shape[-1])[0]
            if at:
                assert torch.equal(positions, wanted[..., at + depths])
                at += int(depths.max()) + 1
            else:
                at = positions.shape[-1]
                assert torch.equal(positions, wanted[..., :at])


@pytest.mark.parametrize("name", ROTATED)
def test_an_earlier_images_shift_is_no_reason_against_trees(name: str) -> None:
    """The model keeps its last image's shift of positions: neither a trial nor a draft may take it for its own."""
    model = build(name)
    outrider.generate(model, **inputs(name), candidate_generator="none", **GREEDY)
    assert reason_against_trees(model) is None
    prompt = without_media(inputs(name))
    accepted = []
    for draft in (build(name), model):
        output = outrider.generate(
            build(name), **prompt, candidate_generator=unsure(draft), do_sample=False, max_new_tokens=NEW
        )
        verified = outrider.generate(build(name), **prompt, candidate_generator=unsure(draft), **GREEDY)
        assert verified.sequences.tolist() == output.tolist()
        accepted.append(verified.stats.num_accepted)
    assert accepted[0] == accepted[1] > NEW // 2


# Caches


@pytest.mark.parametrize("name", NAMES)
def test_a_cache_of_the_users(name: str) -> None:
    wanted = plain(name).sequences
    for drafter in ("half right", "anything", "branches"):
        cache = DynamicCache(config=tiny(name).config)
        generator = DRAFTERS[drafter](name, wanted)
        output = outrider.generate(
            tiny(name), **inputs(name), candidate_generator=generator, **GREEDY, **{CACHE: cache}
        )
        assert output.sequences.tolist() == wanted.tolist(), drafter
        assert output[CACHE].get_seq_length() == wanted.shape[1] - 1


@pytest.mark.parametrize("name", NAMES)
def test_a_static_cache_serves_where_it_can_be_rolled_back(name: str) -> None:
    flags, wanted = GREEDY | {"cache_implementation": "static"}, plain(name).sequences
    # No static cache below 5.20, and none whose window has been passed.
    serves = can_be_cropped(StaticLayer(8)) and name != "gemma3"
    for drafter in ("half right", "anything", "branches"):
        generator = DRAFTERS[drafter](name, wanted)
        with positions_of(tiny(name)) as found:
            if serves:
                output = outrider.generate(tiny(name), **inputs(name), candidate_generator=generator, **flags)
                assert output.sequences.tolist() == wanted.tolist(), drafter
            else:
                with pytest.raises(UnsupportedModelError, match="rolled back"):
                    outrider.generate(tiny(name), **inputs(name), candidate_generator=generator, **flags)
        assert bool(found) == serves


def second_turn(name: str, first: Any, **more: Any) -> Any:
    """The conversation goes on; the image is in the cache, and is not shown again."""
    ids = torch.cat([first.sequences, torch.tensor([[7, 8, 9, 7, 8]])], 1)
    return tiny(name).generate(ids, **{CACHE: copy.deepcopy(first[CACHE])}, **GREEDY, **more).sequences


@pytest.mark.parametrize("drafter", ["half right", "branches"])
@pytest.mark.parametrize("name", NAMES)
def test_a_second_turn_goes_on_from_the_cache_of_the_first(name: str, drafter: str) -> None:
    first = tiny(name).generate(**inputs(name), **GREEDY)
    mask = inputs(name).get("cross_attention_mask")
    more = {}
    if mask is not None:
        more["cross_attention_mask"] = torch.cat([mask, mask[:, -1:].expand(-1, NEW + 5, -1, -1)], 1)
    wanted = second_turn(name, first, **more)
    first = outrider.generate(tiny(name), **inputs(name), candidate_generator="none", **GREEDY)
    decoding = AssistedDecoding(DRAFTERS[drafter](name, wanted))
    with looks(name, tiny(name)) as seen:
        got = second_turn(name, first, custom_generate=decoding, **more)
    assert got.tolist() == wanted.tolist()
    assert seen == [0]


def unmasked() -> dict[str, Any]:
    return {key: value for key, value in inputs("mllama").items() if key != "cross_attention_mask"}


@pytest.mark.parametrize("turn", [1, 2])
def test_cross_attention_without_its_mask_is_refused_where_transformers_makes_it_causal(turn: int) -> None:
    model, first = tiny("mllama", "sdpa"), plain("mllama", attention="sdpa")

    def call(generator: Any) -> Any:
        if turn == 2:
            return second_turn("mllama", first, custom_generate=AssistedDecoding(generator))
        return outrider.generate(model, **unmasked(), candidate_generator=generator, **GREEDY).sequences

    wanted = call("none")
    with looks("mllama", model) as seen, pytest.raises(UnsupportedModelError, match="cross_attention_mask"):
        call(oracle(wanted))
    assert seen == [0]


def test_cross_attention_without_its_mask_or_without_an_image() -> None:
    for model, prompt in (
        (tiny("mllama", "eager"), unmasked()),
        (tiny("mllama"), without_media(inputs("mllama"))),
    ):
        wanted = model.generate(**prompt, **GREEDY).sequences
        generator = oracle(wanted, wrong_every=3)
        output = outrider.generate(model, **prompt, candidate_generator=generator, **GREEDY)
        assert output.sequences.tolist() == wanted.tolist()


# What counts its own positions, or keeps an image's keys, cannot have rows that accept different lengths.
REFUSED_TOGETHER = {"mllama", "paligemma", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5"}


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_see_are_themselves_alone_or_refused(name: str) -> None:
    model = tiny(name)
    first, second = inputs(name, 1), inputs(name, 2)
    together = {key: torch.cat([first[key], second[key]]) for key in first}
    answers = [model.generate(**row, **GREEDY).sequences for row in (first, second)]
    guess = Branches(answers[0])
    try:
        text = outrider.generate(model, candidate_generator=guess, **together, **GREEDY)
    except UnsupportedModelError as error:
        assert name in REFUSED_TOGETHER and "generate one prompt at a time" in str(error)
        return
    assert name not in REFUSED_TOGETHER
    assert torch.equal(text.sequences, torch.cat(answers))

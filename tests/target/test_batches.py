"""Batches through `generate()`: each row reads as that row alone, whatever the model takes, whoever drafts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, WhisperConfig, WhisperForConditionalGeneration

import outrider
from outrider import CandidateGenerator
from outrider.errors import OptionError, UnsupportedModelError
from outrider.versions import CACHE
from tests.batches import Adverse, Knowing, padded, prompts
from tests.target.architectures import ENCODER_DECODER
from tests.tiny import VOCAB, build, takes, tiny

GREEDY: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
DECODERS = ["llama", "gemma2", "gpt2", "llama4_text", "bloom", "mpt", "gpt_neo"]

# transformers warns of right padding, which it takes for a part of the text.
pytestmark = pytest.mark.filterwarnings("ignore")


def texts_alone(model: PreTrainedModel, rows: list[Tensor], /, **settings: Any) -> list[list[int]]:
    """What each row generates alone, without its prompt."""
    start = 1 if model.config.is_encoder_decoder else None
    found = []
    for row in rows:
        text = model.generate(row, attention_mask=torch.ones_like(row), **GREEDY | settings)[0]
        found.append(text[start or row.shape[1] :].tolist())
    return found


def assert_texts(sequences: Tensor, texts: list[list[int]], num_prompt: int, fill: int = 0) -> None:
    """Each row is its text, and padding behind it."""
    assert sequences.shape[1] == num_prompt + max(map(len, texts))
    for row, text in zip(sequences[:, num_prompt:].tolist(), texts, strict=True):
        assert row == text + [fill] * (len(row) - len(text))


def some_ends(texts: list[list[int]], least: int = 4) -> list[int]:
    """Ids that end the texts at as many different places as three can."""

    def num_ends(ends: list[int]) -> int:
        found = {min((text.index(end) for end in ends if end in text), default=len(text)) for text in texts}
        return len(found)

    ends: list[int] = []
    for _ in range(3):
        ends.append(max(range(3, VOCAB), key=lambda token: num_ends([*ends, token])))
    assert num_ends(ends) >= least, "rows must end at different times"
    return ends


def generators(texts: list[list[int]]) -> dict[str, CandidateGenerator | str]:
    return {"knowing": Knowing(texts), "adverse": Adverse(), "prompt_lookup": "prompt_lookup", "none": "none"}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", DECODERS)
def test_rows_are_those_rows_alone_on_whichever_side_they_are_padded(name: str, side: str) -> None:
    model, rows = tiny(name), prompts()
    eos = some_ends(texts_alone(model, rows))
    texts = texts_alone(model, rows, eos_token_id=eos)
    given = padded(rows, side)
    for drafter, generator in generators(texts).items():
        settings = GREEDY | {"eos_token_id": eos, "return_dict_in_generate": True}
        got = outrider.generate(model, **given, candidate_generator=generator, **settings)
        assert_texts(got.sequences, texts, 12)
        assert torch.equal(got.sequences[:, :12], given["input_ids"])
        if drafter == "knowing":
            assert got.stats.mat > 1.5


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_padding_is_what_the_mask_says_and_no_id(name: str, side: str) -> None:
    """The pad id is EOS, and stands in a prompt as a token too."""
    model, rows = tiny(name), prompts()
    eos = texts_alone(model, rows)[0][9]
    rows[1][0, 2] = rows[2][0, 0] = rows[4][0, -1] = eos
    settings: dict[str, Any] = {"eos_token_id": eos, "pad_token_id": eos}
    texts = [
        model.generate(row, attention_mask=torch.ones_like(row), **GREEDY | settings)[
            0, row.shape[1] :
        ].tolist()
        for row in rows
    ]
    given = padded(rows, side, fill=eos)
    got = outrider.generate(model, **given, candidate_generator=Knowing(texts), **GREEDY | settings)
    assert_texts(got, texts, 12, fill=eos)


@pytest.mark.parametrize("name", ENCODER_DECODER)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_encoder_decoder_rows_are_those_rows_alone(name: str, attention: str) -> None:
    if not takes(name, attention):
        attention = "eager"
    model, rows = tiny(name, attention), prompts()
    texts = texts_alone(model, rows, eos_token_id=None)
    eos = some_ends(texts)
    texts = texts_alone(model, rows, eos_token_id=eos)
    for generator in generators(texts).values():
        got = outrider.generate(
            model, **padded(rows, "right"), candidate_generator=generator, **GREEDY, eos_token_id=eos
        )
        assert_texts(got[:, 1:], texts, 0)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["t5", "bart", "marian", "m2m_100"])
def test_prompts_of_the_decoder_of_different_lengths(name: str, side: str) -> None:
    model, rows = tiny(name), prompts()
    starts = [
        torch.cat([torch.tensor([[model.config.decoder_start_token_id]]), row], 1)
        for row in prompts((4, 1, 6, 2, 3, 6, 1, 5), seed=3)
    ]
    texts = [
        model.generate(row, decoder_input_ids=start, **GREEDY)[0, start.shape[1] :].tolist()
        for row, start in zip(rows, starts, strict=True)
    ]
    begin = {f"decoder_{key}": value for key, value in padded(starts, side).items()}
    got = outrider.generate(
        model, **padded(rows, "right"), **begin, candidate_generator=Knowing(texts), **GREEDY
    )
    assert_texts(got, texts, 7)


def whisper() -> WhisperForConditionalGeneration:
    """A tiny model that hears: its encoder takes no mask, its decoder positions."""
    config = WhisperConfig(
        vocab_size=VOCAB, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8,
        max_source_positions=30, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, begin_suppress_tokens=None, suppress_tokens=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.03 if "embed_tokens" in name else 0.6, generator=generator)
    model.generation_config.pad_token_id = 0
    return model


def test_heard_rows_are_those_rows_alone() -> None:
    model = whisper()
    sounds = torch.randn(8, 8, 60, generator=torch.Generator().manual_seed(1))
    generate = super(WhisperForConditionalGeneration, model).generate
    settings = GREEDY | {"eos_token_id": None}
    texts = [generate(sound[None], **settings)[0, 1:].tolist() for sound in sounds]
    settings["eos_token_id"] = some_ends(texts)
    texts = [generate(sound[None], **settings)[0, 1:].tolist() for sound in sounds]
    for generator in generators(texts).values():
        decoding = outrider.AssistedDecoding(generator)
        got = generate(sounds, custom_generate=decoding, **settings)
        assert_texts(got[:, 1:], texts, 0)


@pytest.mark.parametrize("name", ["llama", "bloom", "t5", "bart"])
def test_sampled_sequences_do_not_depend_on_who_drafts(name: str) -> None:
    model, rows = tiny(name), prompts((12, 5))
    settings: dict[str, Any] = {
        "do_sample": True, "max_new_tokens": 20, "num_return_sequences": 4, "seed": 5, "temperature": 0.7,
        "eos_token_id": [*range(90, VOCAB)],
    }  # fmt: skip
    given = padded(rows, "right")
    wanted = outrider.generate(model, **given, candidate_generator="none", **settings)
    start = 1 if model.config.is_encoder_decoder else 12
    assert wanted.shape[0] == 8
    assert len({tuple(row) for row in wanted.tolist()}) > 4
    for generator in generators(wanted[:, start:].tolist()).values():
        got = outrider.generate(model, **given, candidate_generator=generator, **settings)
        assert torch.equal(got, wanted)


def test_processors_act_on_their_own_row() -> None:
    """Each of transformers' that knows a row by its number, or remembers."""
    model, rows = tiny("t5"), prompts()
    given = padded(rows, "right")
    settings = GREEDY | {"encoder_no_repeat_ngram_size": 1, "encoder_repetition_penalty": 3.0}
    texts = [
        model.generate(
            row, **settings, prefix_allowed_tokens_fn=lambda _, ids, at=at: list(range(3 + at, VOCAB, 2))
        )[0, 1:].tolist()
        for at, row in enumerate(rows)
    ]
    assert len({tuple(text) for text in texts}) == 8
    for generator in generators(texts).values():
        got = outrider.generate(
            model, **given, candidate_generator=generator, **settings,
            prefix_allowed_tokens_fn=lambda at, ids: list(range(3 + at, VOCAB, 2)),
        )  # fmt: skip
        assert_texts(got[:, 1:], texts, 0)


def test_a_draft_model_hears_its_rows_own_encoding() -> None:
    model, rows = tiny("t5"), prompts()
    texts = texts_alone(model, rows)
    drafts = outrider.get("draft_model")(build("t5"), confidence_threshold=0.0, num_tokens=4)
    settings = GREEDY | {"return_dict_in_generate": True}
    got = outrider.generate(model, **padded(rows, "right"), candidate_generator=drafts, **settings)
    assert_texts(got.sequences[:, 1:], texts, 0)
    assert got.stats.mat > 3


def test_a_model_whose_rows_are_not_apart_is_refused() -> None:
    model = build("t5")
    decoder = model.get_decoder()
    whole = decoder.forward
    decoder.forward = lambda *args, **kwargs: whole(*args, **kwargs | {"attention_mask": None})
    with pytest.raises(UnsupportedModelError, match="a row's logits depend on the other rows' lengths"):
        outrider.generate(model, **padded(prompts(), "right"), candidate_generator="none", **GREEDY)


@pytest.mark.parametrize("name", ["mamba", "lfm2"])
def test_a_recurrent_model_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises((UnsupportedModelError, OptionError), match="cannot verify a batch here, since"):
        outrider.generate(tiny(name), **padded(prompts()), candidate_generator="none", **GREEDY)


ASKED: dict[str, Any] = {
    "return_dict_in_generate": True, "output_scores": True, "output_logits": True, "output_hidden_states": True,
}  # fmt: skip


def assert_same(got: Any, wanted: Any, where: str) -> None:
    """Equal in structure and shape, and but for rounding in value."""
    assert type(got) is type(wanted), where
    if isinstance(wanted, tuple):
        assert len(got) == len(wanted), where
        for at, (one, other) in enumerate(zip(got, wanted, strict=True)):
            assert_same(one, other, f"{where}[{at}]")
    elif wanted is not None:
        torch.testing.assert_close(got, wanted, atol=2e-4, rtol=2e-3, msg=lambda text: f"{where}: {text}")


@pytest.mark.parametrize("name", [*DECODERS, "t5", "bart", "marian", "m2m_100"])
def test_everything_returned_is_that_of_plain_decoding(name: str) -> None:
    """Rows that ended go on over padding in plain decoding; theirs is returned too."""
    model, rows = tiny(name), prompts()
    settings: dict[str, Any] = {"bad_words_ids": [[0]]}  # M2M100 counts no position for its own pad id
    settings["eos_token_id"] = some_ends(texts_alone(model, rows, **settings))
    texts = texts_alone(model, rows, **settings)
    side = "right" if model.config.is_encoder_decoder else "left"
    given, settings = padded(rows, side), GREEDY | ASKED | settings | {"pad_token_id": 3}
    wanted = model.generate(**given, **settings)
    for generator in generators(texts).values():
        got = outrider.generate(model, **given, candidate_generator=generator, **settings)
        assert torch.equal(got.sequences, wanted.sequences)
        for field in wanted.keys() - {"sequences", CACHE}:
            assert_same(got[field], wanted[field], field)
        assert got[CACHE].get_seq_length() == wanted[CACHE].get_seq_length() == wanted.sequences.shape[1] - 1


@pytest.mark.parametrize("asked", [{}, {"output_scores": True}])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", DECODERS)
def test_texts_go_on_from_the_returned_cache(name: str, side: str, asked: dict[str, Any]) -> None:
    """By plain decoding, as from plain decoding's cache; where a slot tells no position, as each text alone."""
    model, rows = tiny(name), prompts()
    eos = some_ends(texts_alone(model, rows))
    texts = texts_alone(model, rows, eos_token_id=eos)
    given, settings = padded(rows, side), GREEDY | {"eos_token_id": eos, "return_dict_in_generate": True}
    got = outrider.generate(model, **given, candidate_generator=Knowing(texts), **settings, **asked)
    mask = torch.zeros_like(got.sequences)
    mask[:, :12] = given["attention_mask"]
    for row, text in zip(mask, texts, strict=True):
        row[12 : 12 + len(text)] = 1
    new = torch.randint(3, VOCAB, (8, 4), generator=torch.Generator().manual_seed(7))
    mask = torch.cat([mask, torch.ones_like(new)], 1)

    def going_on(output: Any) -> list[list[int]]:
        ids = torch.cat([output.sequences, new], 1)
        cache = {CACHE: output[CACHE]}
        more = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, **cache)
        return more[:, ids.shape[1] :].tolist()

    found = going_on(got)
    if side == "left":
        assert found == going_on(model.generate(**given, **settings))
    if name in ("llama", "gpt2", "bloom"):
        wholes = [
            torch.cat([row[0], torch.tensor(text), more])[None]
            for row, text, more in zip(rows, texts, new, strict=True)
        ]
        assert found == [text[:8] for text in texts_alone(model, wholes)]


def continued(
    model: PreTrainedModel, rows: list[Tensor], wholes: list[Tensor], **settings: Any
) -> list[list[int]]:
    """What each text goes on with alone: a decoder's `wholes`, given `rows` to an encoder where there is one."""
    found = []
    for row, whole in zip(rows, wholes, strict=True):
        is_pair = model.config.is_encoder_decoder
        start = {
            "input_ids": row if is_pair else whole,
            "attention_mask": torch.ones_like(row if is_pair else whole),
        }
        if is_pair:
            start["decoder_input_ids"] = whole
        found.append(model.generate(**start, **settings)[0, whole.shape[1] :].tolist())
    return found


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", [*DECODERS, "t5", "bart"])
def test_batches_go_on_from_each_others_cache(name: str, side: str) -> None:
    """Turn after turn, each row as alone: also where a slot is a position, or a window counts slots."""
    model, rows = tiny(name), prompts()
    is_pair = model.config.is_encoder_decoder
    start = torch.tensor([[getattr(model.config, "decoder_start_token_id", None) or 0]])
    wholes, cache = [start if is_pair else row for row in rows], {}
    encoded = padded(rows, "right") if is_pair else {}
    given = padded(wholes, side)
    ids, mask = given["input_ids"], given["attention_mask"]
    for turn in range(3):
        alone: dict[str, Any] = {"max_new_tokens": 12 - turn, "do_sample": False}
        eos = some_ends(continued(model, rows, wholes, **alone), least=2)
        texts = continued(model, rows, wholes, **alone, eos_token_id=eos)
        prefix = "decoder_" if is_pair else ""
        told = encoded | {f"{prefix}input_ids": ids, f"{prefix}attention_mask": mask}
        got = outrider.generate(
            model, **told, **cache, **alone, eos_token_id=eos, candidate_generator=Knowing(texts),
            return_dict_in_generate=True,
        )  # fmt: skip
        assert_texts(got.sequences, texts, ids.shape[1])
        new = torch.randint(3, VOCAB, (8, 3), generator=torch.Generator().manual_seed(turn))
        more = torch.zeros(8, got.sequences.shape[1] - ids.shape[1], dtype=torch.long)
        for at, line in enumerate(texts):
            more[at, : len(line)] = 1
        mask = torch.cat([mask, more, torch.ones_like(new)], 1)
        ids, cache = torch.cat([got.sequences, new], 1), {CACHE: got[CACHE]}
        wholes = [
            torch.cat([whole[0], torch.tensor(line), tail])[None]
            for whole, line, tail in zip(wholes, texts, new, strict=True)
        ]


def test_a_picture_behind_a_cache_is_refused() -> None:
    model, given = tiny("llama"), padded(prompts())
    output = outrider.generate(
        model, **given, candidate_generator="none", return_dict_in_generate=True, **GREEDY
    )
    decoding, kwargs = outrider.AssistedDecoding("none"), {CACHE: output[CACHE]}

    def with_a_picture(*args: Any, **inputs: Any) -> Any:
        return decoding(*args, **inputs, pixel_values=torch.zeros(8, 3, 4, 4))

    mask = torch.cat([given["attention_mask"], torch.ones(8, 24, dtype=torch.long)], 1)
    with pytest.raises(UnsupportedModelError, match="pixel_values cannot be run behind a cache"):
        model.generate(
            output.sequences, attention_mask=mask, custom_generate=with_a_picture, **GREEDY, **kwargs
        )


# Bart's encoder counts its positions through padding on the left: there no row is that prompt alone.
@pytest.mark.parametrize(
    ("name", "side"),
    [*itertools.product(["llama", "bloom", "t5"], ["left", "right"]), ("bart", "right")],
)
def test_with_a_seed_a_row_is_that_prompt_alone(name: str, side: str) -> None:
    """Whatever else is in the batch, wherever the padding; of a prompt given twice the first one is."""
    model, rows = tiny(name), prompts((12, 5, 9))
    settings: dict[str, Any] = {"do_sample": True, "max_new_tokens": 16, "seed": 11, "temperature": 1.3}
    alone = [
        outrider.generate(
            model, row, attention_mask=torch.ones_like(row), candidate_generator="none", **settings
        )
        for row in rows
    ]
    given = padded([*rows, rows[0]], side)
    got = outrider.generate(model, **given, candidate_generator="prompt_lookup", **settings)
    new = [text[0, -16:].tolist() for text in alone]
    assert [text[-16:].tolist() for text in got[:3]] == new
    assert got[3, -16:].tolist() != new[0]


def test_padding_alone_does_not_change_a_seeded_text() -> None:
    model, (row,) = tiny("llama"), prompts((7,))
    settings: dict[str, Any] = {"do_sample": True, "max_new_tokens": 16, "seed": 11}
    plain = outrider.generate(model, row, attention_mask=torch.ones_like(row), **settings)
    wide = torch.nn.functional.pad(row, (5, 0), value=9)
    mask = torch.nn.functional.pad(torch.ones_like(row), (5, 0))
    assert (
        outrider.generate(model, wide, attention_mask=mask, **settings)[0, 5:].tolist() == plain[0].tolist()
    )


def test_without_a_seed_rows_draw_apart() -> None:
    """Equal prompts, and the same place in the text."""
    model, (row,) = tiny("llama"), prompts((7,))
    torch.manual_seed(0)
    got = outrider.generate(model, row.repeat(6, 1), do_sample=True, max_new_tokens=12, temperature=2.0)
    assert len({tuple(text) for text in got.tolist()}) == 6

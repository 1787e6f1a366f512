"""Every processor and warper of transformers, and grammars: the text is plain decoding's, whatever drafts."""

from __future__ import annotations

import functools
import json

import pytest
import torch
from transformers import WatermarkingConfig
from transformers.generation import logits_process as lp
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

import outrider
from outrider.testing import AdversarialGenerator, OracleGenerator, RandomGenerator, tiny_prompts, tiny_target
from tests.generators.text import byte_tokenizer

VOCAB = 32
PROMPT = tiny_prompts(VOCAB, num=1, length=7)[0]


@functools.cache
def target():
    return tiny_target(VOCAB)


class Parity(LogitsProcessor):
    """A user's own, that keeps state: every second call it forbids even tokens."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        if self.calls % 2:
            scores[:, ::2] = -torch.inf
        return scores


class EverySeven(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((input_ids.shape[0],), int(input_ids[0, -1]) % 7 == 3)


GREEDY = {
    "repetition": dict(repetition_penalty=1.5),
    "encoder_repetition": dict(encoder_repetition_penalty=1.5),
    "no_repeat_ngram": dict(no_repeat_ngram_size=2),
    "encoder_no_repeat_ngram": dict(encoder_no_repeat_ngram_size=2),
    "min_new_tokens": dict(min_new_tokens=12, eos_token_id=[5, 21, 12]),
    "min_length": dict(min_length=15, eos_token_id=[5, 21]),
    "forced_bos": dict(forced_bos_token_id=4),
    "forced_eos": dict(forced_eos_token_id=9, eos_token_id=9),
    "suppress": dict(suppress_tokens=[12, 21, 5]),
    "begin_suppress": dict(begin_suppress_tokens=[12, 21, 5, 0]),
    "bad_words": dict(bad_words_ids=[[12], [21, 0], [5, 12, 3]], eos_token_id=9),
    "sequence_bias": dict(sequence_bias={(12,): -8.0, (21, 0): 6.0}),
    "exponential_decay": dict(exponential_decay_length_penalty=(4, 1.5), eos_token_id=9),
    "renormalize": dict(renormalize_logits=True),
    "nan_removal": dict(remove_invalid_values=True),
    "watermark": dict(watermarking_config=WatermarkingConfig(bias=3.0)),
    "guidance": dict(guidance_scale=1.6, negative_prompt_ids=torch.tensor([[3, 4, 5]])),
    "prefix": dict(
        prefix_allowed_tokens_fn=lambda _, ids: [(int(ids[-1]) + step) % VOCAB for step in (1, 5, 9)]
    ),
    "eos": dict(eos_token_id=[9, 22, 31]),
    "criterion": dict(stopping_criteria=[EverySeven()]),
    "many": dict(repetition_penalty=1.3, no_repeat_ngram_size=3, suppress_tokens=[2], min_new_tokens=8),
}
WARPERS = {
    "temperature": dict(temperature=0.6),
    "top_k": dict(top_k=5),
    "top_p": dict(top_p=0.7),
    "min_p": dict(min_p=0.1),
    "typical": dict(typical_p=0.8),
    "epsilon": dict(epsilon_cutoff=0.01),
    "eta": dict(eta_cutoff=0.02),
    "penalties": dict(repetition_penalty=1.4, temperature=1.5, top_k=9, top_p=0.9),
}


def arguments(options):
    fresh = dict(max_new_tokens=20, attention_mask=torch.ones_like(PROMPT)) | options
    if "stopping_criteria" in fresh:
        fresh["stopping_criteria"] = StoppingCriteriaList(fresh["stopping_criteria"])
    if "logits_processor" in fresh:
        fresh["logits_processor"] = LogitsProcessorList([make() for make in fresh["logits_processor"]])
    return fresh


def drafters(text):
    return [
        OracleGenerator([text]),
        OracleGenerator([text], num_wrong=2),
        RandomGenerator(VOCAB),
        AdversarialGenerator(),
    ]


@pytest.mark.parametrize("options", GREEDY.values(), ids=GREEDY.keys())
def test_greedy_text_is_transformers(options):
    plain = target().generate(PROMPT, do_sample=False, **arguments(options))
    for drafter in drafters(plain[0].tolist()):
        found = outrider.generate(
            target(), PROMPT, candidate_generator=drafter, do_sample=False, **arguments(options)
        )
        assert found.tolist() == plain.tolist(), type(drafter).__name__


def test_a_users_stateful_processor_is_called_as_in_plain_decoding():
    options = dict(logits_processor=[Parity])
    plain = target().generate(PROMPT, do_sample=False, **arguments(options))
    for drafter in drafters(plain[0].tolist()):
        found = outrider.generate(
            target(), PROMPT, candidate_generator=drafter, do_sample=False, **arguments(options)
        )
        assert found.tolist() == plain.tolist(), type(drafter).__name__


@pytest.mark.parametrize("options", WARPERS.values(), ids=WARPERS.keys())
def test_sampled_text_depends_on_the_seed_alone(options):
    def text(drafter):
        found = outrider.generate(
            target(), PROMPT, candidate_generator=drafter, do_sample=True, seed=3, **arguments(options)
        )
        return found[0].tolist()

    plain = text("none")
    for drafter in drafters(plain):
        assert text(drafter) == plain, type(drafter).__name__


@pytest.mark.parametrize("options", WARPERS.values(), ids=WARPERS.keys())
def test_match_gives_the_very_text_of_model_generate(options):
    """The same torch seed, the same calls of multinomial: the same sampled text as transformers'."""
    torch.manual_seed(4)
    plain = target().generate(PROMPT, do_sample=True, **arguments(options))
    for drafter in drafters(plain[0].tolist()):
        torch.manual_seed(4)
        found = outrider.generate(
            target(),
            PROMPT,
            candidate_generator=drafter,
            do_sample=True,
            verification="match",
            **arguments(options),
        )
        assert found.tolist() == plain.tolist(), type(drafter).__name__


def test_every_processor_of_transformers_is_known_to_be_tested_or_not_for_text():
    tested = {
        "MinLength MinNewTokensLength RepetitionPenalty EncoderRepetitionPenalty NoRepeatNGram "
        "EncoderNoRepeatNGram SequenceBias NoBadWords PrefixConstrained ForcedBOSToken ForcedEOSToken "
        "InfNanRemove SuppressTokensAtBegin SuppressTokens UnbatchedClassifierFreeGuidance Watermark"
    }
    names = {f"{name}LogitsProcessor" for name in next(iter(tested)).split()}
    names |= {
        f"{name}LogitsWarper" for name in ["Temperature", "TopP", "TopK", "MinP", "Typical", "Epsilon", "Eta"]
    }
    names |= {"ExponentialDecayLengthPenalty", "LogitNormalization"}
    # Of audio models, a base class, and those whose state or settings belong to another model family.
    names |= {
        "LogitsProcessor",
        "TopHLogitsWarper",
        "WhisperTimeStampLogitsProcessor",
        "WhisperNoSpeechDetection",
        "ClassifierFreeGuidanceLogitsProcessor",
        "AlternatingCodebooksLogitsProcessor",
        "BarkEosPrioritizerLogitsProcessor",
        "SynthIDTextWatermarkLogitsProcessor",
        "DiaClassifierFreeGuidanceLogitsProcessor",
        "DiaEOSChannelFilterLogitsProcessor",
        "DiaEOSDelayPatternLogitsProcessor",
    }
    found = {
        name
        for name, cls in vars(lp).items()
        if isinstance(cls, type) and issubclass(cls, LogitsProcessor) and cls.__module__ == lp.__name__
    }
    assert not found - names


# Grammars

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def xgrammar_processor(tokenizer):
    import xgrammar as xgr

    info = xgr.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    compiled = xgr.GrammarCompiler(info).compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)
    return xgr.contrib.hf.LogitsProcessor(compiled)


class Guidance(LogitsProcessor):
    """llguidance's matcher, fed the committed tokens one by one."""

    def __init__(self, tokenizer):
        import llguidance as llg
        import llguidance.hf
        import llguidance.torch

        self.llg = llguidance.torch
        grammar = llg.LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
        self.matcher = llg.LLMatcher(llguidance.hf.from_tokenizer(tokenizer), grammar)
        self.mask = self.llg.allocate_token_bitmask(1, len(tokenizer))
        self.seen = None

    def __call__(self, input_ids, scores):
        if self.seen is not None:
            assert input_ids.shape[1] == self.seen + 1
            assert self.matcher.consume_token(int(input_ids[0, -1]))
        self.seen = input_ids.shape[1]
        self.llg.fill_next_token_bitmask(self.matcher, self.mask)
        self.llg.apply_token_bitmask_inplace(scores, self.mask)
        return scores


@pytest.mark.parametrize("make", [xgrammar_processor, Guidance], ids=["xgrammar", "llguidance"])
@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "keyed"])
def test_constrained_text_is_plain_and_valid(make, do_sample):
    tokenizer = byte_tokenizer()
    vocab, end = len(tokenizer), tokenizer.eos_token_id
    model = tiny_target(vocab, seed=2, eos_token_id=end)
    prompt = torch.tensor([tokenizer.encode("make a person: ")])

    def text(drafter):
        found = outrider.generate(
            model,
            prompt,
            candidate_generator=drafter,
            do_sample=do_sample,
            seed=1 if do_sample else None,
            max_new_tokens=160,
            attention_mask=torch.ones_like(prompt),
            logits_processor=LogitsProcessorList([make(tokenizer)]),
        )
        return found[0].tolist()

    plain = text("none")
    if not do_sample:
        expected = model.generate(
            prompt,
            do_sample=False,
            max_new_tokens=160,
            attention_mask=torch.ones_like(prompt),
            logits_processor=LogitsProcessorList([make(tokenizer)]),
        )
        assert plain == expected[0].tolist()
    for drafter in (OracleGenerator([plain]), RandomGenerator(vocab), "prompt_lookup"):
        assert text(drafter) == plain
    assert plain[-1] == end
    # xgrammar lets control characters into strings.
    person = json.loads(tokenizer.decode(plain[prompt.shape[1] : -1]), strict=False)
    assert set(person) == {"name", "age", "tags"}

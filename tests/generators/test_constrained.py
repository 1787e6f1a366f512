"""What a grammar forces is proposed, with xgrammar and with llguidance; the text stays the plain one."""

import json

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList

import outrider
from outrider.contract import get
from outrider.errors import OptionError
from outrider.testing import tiny_target
from tests.generators.text import byte_tokenizer
from tests.verification.test_processors import SCHEMA, Guidance, xgrammar_processor

Constrained = get("constrained")


def compiled(tokenizer):
    import xgrammar as xgr

    info = xgr.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    return xgr.GrammarCompiler(info).compile_json_schema(json.dumps(SCHEMA), any_whitespace=False)


KINDS = [(xgrammar_processor, compiled), (Guidance, lambda tokenizer: Guidance(tokenizer).matcher)]


@pytest.mark.parametrize(("processor", "grammar"), KINDS, ids=["xgrammar", "llguidance"])
def test_forced_text_comes_in_few_rounds_and_is_the_plain_one(processor, grammar):
    tokenizer = byte_tokenizer()
    model = tiny_target(len(tokenizer), seed=2, eos_token_id=tokenizer.eos_token_id)
    prompt = torch.tensor([tokenizer.encode("make a person: ")] * 2)

    def output(drafter, ids):
        return outrider.generate(
            model,
            ids,
            candidate_generator=drafter,
            do_sample=False,
            max_new_tokens=160,
            attention_mask=torch.ones_like(ids),
            return_dict_in_generate=True,
            logits_processor=LogitsProcessorList([processor(tokenizer)]),
        )

    generator = Constrained(grammar(tokenizer), tokenizer=tokenizer)
    plain, drafted = output("none", prompt[:1]), output(generator, prompt[:1])
    assert drafted.sequences.tolist() == plain.sequences.tolist()
    assert drafted.stats.num_rounds < plain.stats.num_rounds - 5
    again = output(generator.fork(), prompt[:1])
    assert again.sequences.tolist() == plain.sequences.tolist()


@pytest.mark.parametrize("grammar", [kind for _, kind in KINDS], ids=["xgrammar", "llguidance"])
def test_a_token_that_is_the_only_one_is_certain(grammar):
    tokenizer = byte_tokenizer()
    generator = Constrained(grammar(tokenizer), tokenizer=tokenizer)
    prompt = np.array(tokenizer.encode("x"))
    generator.reset(prompt)
    candidates = generator.propose(outrider.Context(prompt, 1), 8)
    assert tokenizer.decode(candidates.tokens).startswith('{"na')
    assert candidates.probabilities[0] == 1.0
    assert 0 < candidates.probabilities.min() < 1
    assert len(generator.propose(outrider.Context(prompt, 1), 3)) == 3
    generator.update(outrider.Verification(np.array(tokenizer.encode("no"), np.int64), 0))
    assert len(generator.propose(outrider.Context(prompt, 1), 8)) == 0
    generator.reset(prompt)
    assert generator.propose(outrider.Context(prompt, 1), 8).tokens.tolist() == candidates.tokens.tolist()


def test_what_is_no_grammar_is_refused():
    for grammar in (None, "json"):
        with pytest.raises(OptionError, match="CompiledGrammar"):
            Constrained(grammar, tokenizer=1)

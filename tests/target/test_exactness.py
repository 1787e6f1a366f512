"""Exact modes: groups and runs, whose bits forwards have, what is found out, and what is refused."""

import json
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import outrider
from outrider.errors import OptionError, UnsupportedModelError
from outrider.stats import Stats
from outrider.target import exact_trials
from outrider.target.exact_attention import REPLACED, Runs, attended_configs, attending, groups
from outrider.target.exact_rows import Exactness
from outrider.target.exactness import exactness
from outrider.types import Candidates
from outrider.versions import CACHE
from tests.tiny import build, guesses, oracle

VOCAB = 300
SIZES = {"vocab_size": VOCAB, "hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 1024}


def llama(**options):
    torch.manual_seed(0)
    config = LlamaConfig(
        **{**SIZES, **HEADS, "head_dim": 32, **options}, eos_token_id=None, bos_token_id=None
    )
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


def mistral(window):
    torch.manual_seed(0)
    config = MistralConfig(
        **SIZES, **HEADS, head_dim=32, sliding_window=window, eos_token_id=None, bos_token_id=None
    )
    return MistralForCausalLM(config).to(torch.bfloat16).eval()


def ids(length, seed=3):
    return torch.randint(3, VOCAB, (1, length), generator=torch.Generator().manual_seed(seed))


def bushy(text):
    """A tree in which the right path is not the first."""
    known = text[0].tolist()

    def propose(self, context, budget):
        right = known[len(context.ids) : len(context.ids) + 4]
        if len(right) < 4:
            return Candidates.empty()
        wrong = [(token + 1) % VOCAB for token in right]
        return Candidates([wrong[0], right[0], wrong[1], right[1], right[2], right[3]], [-1, -1, 1, 1, 3, 4])

    return type("Bushy", (outrider.CandidateGenerator,), {"propose": propose})()


def logits_of(model, prompt, drafter, exact, **options):
    output = outrider.generate(
        model,
        prompt,
        candidate_generator=drafter,
        exact=exact,
        do_sample=False,
        max_new_tokens=40,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )
    assert output.stats.exact == (exact or "")
    return output.sequences, torch.cat(output.logits)


def drafters(text):
    return ["none", "prompt_lookup", "auto", oracle(text, 7, wrong_every=5), guesses(5), bushy(text)]


@given(st.integers(1, 200), st.integers(1, 40), st.sampled_from([1, 8, 16, 32]))
def test_groups_cover_all_and_share_a_multiple(first, num_new, group):
    found = list(groups(first, num_new, group))
    assert [start for start, _ in found] == [0, *(end for _, end in found[:-1])] and found[-1][1] == num_new
    for start, end in found:
        assert (first + start) // group == (first + end - 1) // group


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30))
def test_runs_hold_every_token_behind_its_ancestors(draws):
    parents = np.array([draw % (node + 1) - 1 for node, draw in enumerate(draws)])
    candidates = Candidates(np.arange(len(draws)), parents)
    runs = Runs.of(candidates, torch.device("cpu"))
    assert (runs is None) == candidates.is_chain
    if runs is None:
        return
    order = runs.order.tolist()
    assert sorted(order) == list(range(len(draws) + 1)) and order[0] == 0
    standing = {}
    for start, end, depth in runs.runs:
        for at in range(start, end):
            standing[depth + at - start] = order[at]
            path, node = [], order[at]
            while node:
                path.append(node)
                node = int(parents[node - 1]) + 1
            expected = [0, *reversed(path)]
            assert [standing[place] for place in range(depth + at - start + 1)] == expected


@pytest.mark.parametrize("length", [5, 61, 130])
@pytest.mark.parametrize("heads", [(6, 2), (6, 6), (4, 1)], ids=str)
def test_every_bit_is_that_of_transformers_own(length, heads):
    model = llama(num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=32)
    theirs = model.generate(
        ids(length), do_sample=False, max_new_tokens=40, output_logits=True, return_dict_in_generate=True
    )
    for drafter in drafters(theirs.sequences):
        sequences, logits = logits_of(model, ids(length), drafter, "transformers")
        assert torch.equal(sequences, theirs.sequences) and torch.equal(logits, torch.cat(theirs.logits))


@pytest.mark.parametrize("length", [5, 61, 130])
@pytest.mark.parametrize("heads", [(6, 2), (6, 6), (4, 1)], ids=str)
def test_every_bit_is_the_same_whatever_drafts(length, heads):
    model = llama(num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=32)
    plain = logits_of(model, ids(length), "none", "generators")
    for drafter in drafters(plain[0]):
        sequences, logits = logits_of(model, ids(length), drafter, "generators")
        assert torch.equal(sequences, plain[0]) and torch.equal(logits, plain[1])


def test_past_a_sliding_window_the_bits_are_still_transformers():
    model, prompt = mistral(window=24), ids(14)
    theirs = model.generate(
        prompt, do_sample=False, max_new_tokens=40, output_logits=True, return_dict_in_generate=True
    )
    for drafter in drafters(theirs.sequences):
        sequences, logits = logits_of(model, prompt, drafter, "transformers")
        assert torch.equal(sequences, theirs.sequences) and torch.equal(logits, torch.cat(theirs.logits))
    with pytest.raises(UnsupportedModelError, match="window of 24"):
        logits_of(model, prompt, "none", "generators")


@pytest.mark.parametrize("exact", ["transformers", "generators"])
def test_padded_prompts(exact):
    model, prompt = llama(), ids(50)
    mask = torch.ones_like(prompt)
    mask[:, :9] = 0
    plain = logits_of(model, prompt, "none", exact, attention_mask=mask)
    if exact == "transformers":
        theirs = model.generate(
            prompt,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=40,
            output_logits=True,
            return_dict_in_generate=True,
        )
        assert torch.equal(plain[1], torch.cat(theirs.logits))
    for drafter in drafters(plain[0]):
        sequences, logits = logits_of(model, prompt, drafter, exact, attention_mask=mask)
        assert torch.equal(sequences, plain[0]) and torch.equal(logits, plain[1])


def test_a_cache_that_is_given_is_used_as_it_is():
    model, prompt = llama(), ids(30)
    plain = model.generate(prompt, do_sample=False, max_new_tokens=40)
    for drafter in (oracle(plain, 5), guesses(4)):
        cache = DynamicCache()
        sequences, _ = logits_of(model, prompt, drafter, "transformers", **{CACHE: cache})
        assert torch.equal(sequences, plain) and cache.get_seq_length() == plain.shape[1] - 1
    with pytest.raises(UnsupportedModelError, match="DynamicCache"):
        logits_of(model, prompt, "none", "generators", **{CACHE: DynamicCache()})


def test_the_default_is_exact_in_half_precision_and_waived_in_float32():
    model, prompt = llama(), ids(40)
    options = {"do_sample": False, "max_new_tokens": 12, "return_dict_in_generate": True}
    assert outrider.generate(model.float(), prompt, **options).stats.exact == ""
    assert outrider.generate(model.bfloat16(), prompt, exact=False, **options).stats.exact == ""
    assert outrider.generate(model, prompt, exact=True, **options).stats.exact == "transformers"


def test_a_wrong_value_and_models_that_cannot_are_refused_in_a_sentence():
    with pytest.raises(OptionError, match="'transformers' or 'generators', not 'yes'"):
        logits_of(llama(), ids(5), "none", "yes")
    with pytest.raises(UnsupportedModelError, match="attention is eager"):
        logits_of(build("llama", "eager").bfloat16(), ids(5) % 20, "none", "transformers")
    with pytest.raises(UnsupportedModelError, match="EncoderDecoderCache"):
        outrider.generate(build("t5", "eager").bfloat16(), ids(5) % 20, exact=True, max_new_tokens=2)
    with pytest.raises(OptionError, match="batch"):
        outrider.generate(llama(), ids(5).repeat(2, 1), exact=True, max_new_tokens=2)


def test_what_attends_is_put_back_also_by_errors_and_beside_other_threads():
    model = llama()
    configs, prompt = attended_configs(model), ids(20)
    expected = model(prompt).logits
    heard = []

    def failing(*call):
        raise RuntimeError("no")

    def other():
        heard.append(torch.equal(model(prompt).logits, expected))

    with pytest.raises(RuntimeError, match="no"), attending(configs, failing):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        model(prompt)
    assert heard == [True]
    assert all(config._attn_implementation == REPLACED for config in configs)
    assert torch.equal(model(prompt).logits, expected)


def test_what_was_found_is_kept_and_a_damaged_file_is_found_again(tmp_path, monkeypatch):
    model = llama()
    found = exactness(model, "transformers", in_full=True, folder=tmp_path)
    assert found.max_rows > 8 and found.takes_trees
    (path,) = (tmp_path / "exactness").iterdir()
    monkeypatch.setattr(exact_trials, "find", lambda *arguments: Exactness(3, reason="asked again"))
    assert exactness(model, "transformers", in_full=True, folder=tmp_path) == found
    for damage in ("", "{", "[]", json.dumps({"max_rows": "many"})):
        path.write_text(damage)
        assert exactness(model, "transformers", in_full=True, folder=tmp_path).max_rows == 3


def test_a_folder_that_cannot_be_written_loses_nothing(tmp_path):
    (tmp_path / "exactness").write_text("a file where a folder should be")
    assert exactness(llama(), "generators", in_full=True, folder=tmp_path).max_rows > 1


@pytest.mark.parametrize("differs_from", [2, 17, 33])
def test_a_linear_layer_that_rounds_otherwise_is_found(differs_from):
    model = llama()
    weight = model.lm_head.weight
    forward = torch.nn.Linear.forward

    def rounded(self, x):
        out = forward(self, x)
        if self.weight is weight and x.shape[1] >= differs_from:
            out[..., :1] *= 1.01
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Linear, "forward", rounded)
        held, reason = exact_trials._rows_of_linear_layers(model)
    assert 1 <= held < differs_from
    assert reason.startswith(f"a linear layer of {weight.shape[1]} to {weight.shape[0]} rounds more than")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(9, 3), (14, 2), (8, 1), (4, 4)])
@pytest.mark.parametrize("head_size", [32, 64, 96, 128])
def test_aligned_rows_do_not_depend_on_what_else_is_asked(dtype, heads, head_size):
    """On states by the thousand: what a kernel does to its last few rows is too rare for a text to show."""
    query, key = (torch.empty(1, num, 1, head_size, dtype=dtype) for num in heads)
    module = torch.nn.Module().eval()
    assert exact_trials._rows_of_aligned(exact_trials._Call(module, query, key, key, {})) == 33


def test_attention_that_rounds_more_rows_otherwise_is_found(monkeypatch):
    asked = torch.nn.functional.scaled_dot_product_attention

    def rounded(query, *arguments, **options):
        out = asked(query, *arguments, **options)
        if query.shape[2] > 32:
            out[:, :, 5:6] *= 1.01
        return out

    model = llama()
    usual = exactness(model, "generators", in_full=True).max_rows
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", rounded)
    found = exact_trials.find(model, "generators", float("inf"))
    assert found.max_rows < usual
    assert (
        found.complete and found.reason == f"attention rounds {found.max_rows + 1} tokens otherwise than one"
    )


def test_merged_stats_promise_what_all_calls_did():
    for mine, theirs, both in (
        ("transformers", "transformers", "transformers"),
        ("transformers", "generators", "generators"),
        ("generators", "", ""),
    ):
        stats = Stats(exact=mine, num_rounds=1)
        stats.merge(Stats(exact=theirs, num_rounds=1))
        assert stats.exact == both

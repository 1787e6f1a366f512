"""What all rules owe plain decoding: tokens, processors, endings, and errors that say what to do."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    LogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)
from transformers.generation.stopping_criteria import StoppingCriteria

from outrider.errors import GeneratorError, NonFiniteLogitsError, OptionError, UnknownNameError
from outrider.testing.enumeration import ToyModel
from outrider.types import Candidates
from outrider.verification import available_verifiers, get_verifier, warped
from tests.verification.rows import decode, make_row, new_tokens, random_tree

NONE = Candidates.empty
WALKING = ["greedy", "match", "keyed"]
DRAFTED = ["block", "token", "traversal", "k_seq", "recursive"]


def verifier(name, seed=0, **options):
    return get_verifier(name, do_sample=name != "greedy", seed=seed, **options)


def with_draft(tree, vocab, seed=0):
    logits = torch.randn(len(tree), vocab, generator=torch.Generator().manual_seed(seed))
    return Candidates(tree.tokens, tree.parents, draft_logits=logits)


# The same tokens, whatever is proposed


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["greedy", "keyed"]), st.integers(0, 10_000), st.integers(1, 12), st.booleans())
def test_any_tree_gives_the_plain_text(name, seed, size, with_processors):
    model, rng = ToyModel(5, seed=seed), np.random.default_rng(seed)
    processors = [RepetitionPenaltyLogitsProcessor(1.7), TopKLogitsWarper(3)] if with_processors else []
    plain = decode(model, verifier(name), lambda _: NONE(), 10, processors)
    eos = plain[seed % 10]
    options = dict(eos=eos) if seed % 2 else {}
    expected = plain[: plain.index(eos) + 1] if seed % 2 else plain
    found = decode(model, verifier(name), lambda _: random_tree(rng, 5, size), 10, processors, **options)
    assert found == expected
    oracle = lambda prefix: Candidates.chain(plain[len(prefix) - 1 :][:size])  # noqa: E731
    assert decode(model, verifier(name), oracle, 10, processors, **options) == expected


def test_match_repeats_multinomial_call_by_call():
    model, rng = ToyModel(5, seed=3), np.random.default_rng(0)
    torch.manual_seed(11)
    plain, prefix = [], (0,)
    for _ in range(12):
        plain.append(int(torch.multinomial(model.logits(prefix)[None].softmax(-1), 1)))
        prefix = (*prefix, plain[-1])
    torch.manual_seed(11)
    assert decode(model, verifier("match", None), lambda _: random_tree(rng, 5, 6), 12) == plain


@pytest.mark.parametrize("name", WALKING[1:] + DRAFTED)
def test_seed_repeats_and_none_follows_torch(name):
    model = ToyModel(5, seed=3)

    def run(seed):
        trees = np.random.default_rng(0)
        rule = verifier(name, seed)

        def propose(_):
            tree = Candidates.chain(trees.integers(0, 5, 3))
            return with_draft(tree, 5)

        return decode(model, rule, propose, 30)

    assert run(5) == run(5) != run(6)
    torch.manual_seed(1)
    first = run(None)
    torch.manual_seed(1)
    assert run(None) == first


def test_keyed_text_differs_by_stream():
    model = ToyModel(5, seed=3)
    assert decode(model, verifier("keyed"), lambda _: NONE(), 20, stream=0) != decode(
        model, verifier("keyed"), lambda _: NONE(), 20, stream=1
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_greedy_takes_the_first_of_equals_as_argmax_does(dtype):
    random = torch.Generator().manual_seed(0)
    logits = torch.randint(-3, 4, (33, 1000), generator=random).to(dtype)
    expected = logits.float().argmax(-1).tolist()
    row = make_row()
    path = verifier("greedy").verify(row, Candidates.chain(expected[:32]), logits)
    assert path == list(range(32))
    assert new_tokens(row) == expected


# Processors and endings


class Recorder(LogitsProcessor):
    def __init__(self):
        self.calls = []

    def __call__(self, input_ids, scores):
        self.calls.append(input_ids[0].tolist())
        scores[:, 0] = -torch.inf  # In place, as some do.
        return scores


@pytest.mark.parametrize("name", [*WALKING, "token", "k_seq", "recursive", "lossy_typical"])
def test_processors_run_once_a_committed_token_on_its_prefix(name):
    model, recorder = ToyModel(4, seed=1), Recorder()
    row = make_row((1, 2), [recorder], max_length=20)
    rng, rule = np.random.default_rng(2), verifier(name)
    while not row.finished:
        prefix = tuple(row.ids.tolist())
        tree = with_draft(Candidates.chain(rng.integers(1, 4, 3)), 4)
        logits = model.tree_logits(tree, prefix)
        before = logits.clone()
        rule.verify(row, tree, logits)
        assert torch.equal(logits, before)
    ids = row.ids.tolist()
    assert recorder.calls == [ids[:length] for length in range(2, 20)]
    assert 0 not in ids[2:]


@pytest.mark.parametrize("name", ["block", "traversal"])
def test_rules_that_look_below_refuse_a_processor_that_keeps_state(name):
    tree = with_draft(Candidates.chain([1, 2]), 4)
    logits = ToyModel(4).tree_logits(tree)
    with pytest.raises(OptionError, match="Recorder keeps state"):
        verifier(name).verify(make_row(processors=[Recorder()]), tree, logits)

    class Counting(LogitsProcessor):
        state: ClassVar = {"calls": 0}  # Out of sight of __dict__, but seen in the answers.

        def __call__(self, input_ids, scores):
            self.state["calls"] += 1
            return scores + self.state["calls"] * torch.arange(4)

    with pytest.raises(OptionError, match="Counting keeps state"):
        verifier(name).verify(make_row(processors=[Counting()]), tree, logits)


@pytest.mark.parametrize("name", ["block", "traversal"])
def test_rules_that_look_below_show_each_node_its_own_prefix(name):
    """The same scores, kept for each committed token, as calling the processor there."""

    class Plain(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return scores + 0.1 * input_ids.sum() * torch.arange(4)

    model, processor = ToyModel(4, seed=1), Plain()
    row = make_row((1,), [processor], max_length=12, keep_scores=True, keep_logits=True)
    rng, rule = np.random.default_rng(2), verifier(name)
    while not row.finished:
        tree = with_draft(Candidates.chain(rng.integers(0, 4, 3)), 4)
        rule.verify(row, tree, model.tree_logits(tree, tuple(row.ids.tolist())))
    for at, (scores, logits) in enumerate(zip(row.scores, row.logits, strict=True)):
        prefix = row.ids[: at + 1].tolist()
        assert torch.equal(logits[0], model.logits(tuple(prefix)))
        assert torch.equal(scores, processor(torch.tensor([prefix]), logits.clone()))


@pytest.mark.parametrize("name", WALKING + DRAFTED)
@pytest.mark.parametrize("max_length", [2, 3, 9])
def test_nothing_is_committed_past_the_end(name, max_length):
    rule = verifier(name)
    for seed in range(6):
        tree = Candidates.chain([1, 1, 1])
        logits = torch.zeros(4, 3)
        logits[:, 1] = 9.0
        tree = Candidates(tree.tokens, tree.parents, draft_logits=logits[:3])
        row = make_row(max_length=max_length, eos=1 if seed % 2 else None)
        path = rule.verify(row, tree, logits)
        new = new_tokens(row)
        assert len(new) <= max_length - 1
        assert new[: len(path)] == tree.tokens[path].tolist()
        if 1 in new and seed % 2:
            assert new.index(1) == len(new) - 1 and row.finished
        assert len(path) in (len(new), len(new) - 1)


def test_a_users_criterion_is_asked_token_by_token_with_scores():
    class Seen(StoppingCriteria):
        def __init__(self):
            self.lengths = []

        def __call__(self, input_ids, scores, **kwargs):
            self.lengths.append((input_ids.shape[1], len(scores)))
            return torch.tensor([len(scores) == 3])

    seen = Seen()
    row = make_row(keep_scores=True)
    row.stopping.others.append(seen)
    logits = torch.eye(4) * 9
    path = verifier("greedy").verify(row, Candidates.chain([0, 1, 2]), logits)
    assert path == [0, 1, 2]
    assert seen.lengths == [(2, 1), (3, 2), (4, 3)]
    assert new_tokens(row) == [0, 1, 2]


# Errors


@pytest.mark.parametrize("name", WALKING + DRAFTED)
def test_nan_is_an_error(name):
    tree = with_draft(Candidates.chain([1]), 3)
    with pytest.raises(NonFiniteLogitsError):
        verifier(name).verify(make_row(), tree, torch.full((2, 3), float("nan")))


@pytest.mark.parametrize("name", DRAFTED)
def test_rules_that_need_q_refuse_candidates_without(name):
    rule = verifier(name)
    with pytest.raises(OptionError, match="use 'match' or 'keyed'"):
        rule.verify(make_row(), Candidates.chain([1, 2]), torch.zeros(3, 4))
    tree = Candidates.chain([1, 2], draft_logits=torch.zeros(2, 3))
    with pytest.raises(GeneratorError, match=r"\(2, 4\)"):
        rule.verify(make_row(), tree, torch.zeros(3, 4))
    row = make_row()
    assert rule.verify(row, NONE(), torch.zeros(1, 4)) == []
    assert len(new_tokens(row)) == 1


@pytest.mark.parametrize("name", ["block", "token"])
def test_chain_rules_refuse_trees(name):
    fork = Candidates(np.array([1, 2]), np.array([-1, -1]), draft_logits=torch.zeros(2, 4))
    with pytest.raises(OptionError, match="'recursive' or 'traversal'"):
        verifier(name).verify(make_row(), fork, torch.zeros(3, 4))


def test_k_seq_refuses_siblings_of_different_laws():
    fork = Candidates(np.array([1, 2]), np.array([-1, -1]), draft_logits=torch.randn(2, 4))
    with pytest.raises(GeneratorError, match="independently from one law"):
        verifier("k_seq").verify(make_row(), fork, torch.zeros(3, 4))


def test_names():
    assert type(get_verifier("auto", do_sample=False)).__name__ == "GreedyVerifier"
    assert type(get_verifier("auto", do_sample=True)).__name__ == "KeyedVerifier"
    with pytest.raises(UnknownNameError, match="did you mean 'traversal'"):
        get_verifier("traversel", do_sample=True)
    with pytest.raises(OptionError, match="do_sample=True"):
        get_verifier("block", do_sample=False)
    with pytest.raises(OptionError, match="cannot sample"):
        get_verifier("greedy", do_sample=True)
    with pytest.raises(OptionError, match="epsilonn"):
        get_verifier("lossy_typical", do_sample=True, epsilonn=1)
    for name in available_verifiers():
        rule = get_verifier(name, do_sample=name != "greedy")
        assert rule.lossy == name.startswith("lossy_")
        assert "**Exact:**" in type(rule).__doc__ or rule.lossy
        assert "**Lossy:**" in type(rule).__doc__ or not rule.lossy


def test_drafts_are_drawn_as_the_rule_verifies_them():
    row = make_row(processors=[TemperatureLogitsWarper(0.5), RepetitionPenaltyLogitsProcessor(3.0)])
    logits = torch.randn(1, 6)
    assert torch.equal(warped(row, logits), logits / 0.5)
    for name in WALKING:
        verifier(name).draw(row, logits, 4)
    keyed = verifier("keyed", 9)
    tokens = []
    for position in range(40):
        row = make_row(prompt=[0] * (position + 1))
        keyed.verify(row, NONE(), logits)
        tokens.append((new_tokens(row)[0], keyed.draw(row, logits, position + 1)))
    assert all(a == b for a, b in tokens)

"""The tools that prove others must themselves find what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import outrider
from outrider import CandidateGenerator, Candidates
from outrider.errors import GeneratorError
from outrider.generation import generate
from outrider.testing import (
    FAULTS,
    AdversarialGenerator,
    OracleGenerator,
    RandomGenerator,
    ScriptedGenerator,
    assert_drafter_invariant,
    assert_lossless,
    assert_same_law,
    check_generator,
    tiny_prompts,
    tiny_target,
)
from outrider.testing.checks import check_candidates
from outrider.testing.lossless import plain

MODEL = tiny_target(32)
LAW = tiny_target(5, spread=0.3)


def test_lossless_holds_for_right_wrong_and_hostile_generators():
    for generator in ("none", RandomGenerator(32), AdversarialGenerator()):
        compared = assert_lossless(generator, MODEL, prompts=tiny_prompts(32, num=2), budgets=(1, 8))
        assert compared == 2 * 2 * 2 * 2 * 32  # dtypes, budgets, batch sizes, prompts


def test_rows_that_end_apart_are_compared_without_their_padding():
    model = tiny_target(32, eos_token_id=[3, 5, 7])
    prompts = tiny_prompts(32, num=5)
    lengths = {plain(model, ids, max_new_tokens=24).shape[1] - ids.shape[1] for ids in prompts}
    assert len(lengths) > 1
    assert_lossless(RandomGenerator(32), model, prompts=prompts, budgets=(3,), max_new_tokens=24)


def test_lossless_finds_a_batch_whose_rows_depend_on_each_other(monkeypatch):
    def shifted(model, ids, **kwargs):
        text = generate(model, ids, **kwargs)
        return text.roll(1, 0) if len(ids) > 1 else text

    monkeypatch.setattr("outrider.testing.lossless.generate", shifted)
    with pytest.raises(AssertionError, match=r"in a batch of 2: the text differs"):
        assert_lossless("none", MODEL, prompts=tiny_prompts(32, num=2), budgets=(1,), batch_sizes=(1, 2))


def test_lossless_finds_a_difference(monkeypatch):
    monkeypatch.setattr(
        "outrider.verification.greedy.peak_tokens",
        lambda logits: logits.argsort(-1)[:, -2].tolist().__getitem__,
    )
    with pytest.raises(AssertionError, match=r"from new token 0 on.*apart"):
        assert_lossless("none", MODEL, prompts=tiny_prompts(32, num=1), budgets=(1,))


def test_drafter_invariance():
    assert (
        assert_drafter_invariant(MODEL, ["prompt_lookup"], prompts=tiny_prompts(32, num=2)) == 2 * 2 * 5 * 24
    )


@pytest.mark.parametrize(
    ("verification", "chains"),
    [
        ("keyed", False),
        ("match", False),
        ("token", True),
        ("block", True),
        ("recursive", False),
        ("traversal", False),
    ],
)
def test_laws(verification, chains):
    drafter = RandomGenerator(5, with_draft_logits=True, chains=chains)
    assert_same_law(drafter, LAW, verification=verification, num_samples=1500)


class Declared(CandidateGenerator):
    """Draws from one law, and says so."""

    def __init__(self):
        self.random = np.random.default_rng(0)

    def propose(self, context, budget):
        logits = torch.tensor([[2.0, 0.0, 1.0, -1.0, -2.0]])
        tokens = self.random.choice(5, 1, p=logits[0].double().softmax(-1).numpy())
        return Candidates.chain(tokens, draft_logits=logits)


class Misdeclared(CandidateGenerator):
    """Draws from one law, declares another."""

    def __init__(self):
        self.random = np.random.default_rng(0)

    def propose(self, context, budget):
        tokens = self.random.integers(0, 5, 2)
        declared = torch.tensor([[2.0, 0.0, 0.0, 0.0, -2.0]]).repeat(2, 1)
        return Candidates.chain(tokens, draft_logits=declared)


@pytest.mark.parametrize("verification", ["token", "block", "recursive", "traversal"])
def test_a_misdeclared_q_is_found_out(verification):
    with pytest.raises(AssertionError, match="is not the target's"):
        assert_same_law(Misdeclared(), LAW, verification=verification, num_samples=1500)
    assert_same_law(Misdeclared(), LAW, verification="keyed", num_samples=1000)


def test_an_off_by_one_residual_is_found_out(monkeypatch):
    def shifted(p, q, weight=1.0):
        left = (weight * p - q.roll(1)).clamp_min(0)
        return left / left.sum(), float(left.sum())

    assert_same_law(Declared(), LAW, verification="token", num_samples=1500)
    monkeypatch.setattr("outrider.verification.recursive.residual", shifted)
    with pytest.raises(AssertionError, match="is not the target's"):
        assert_same_law(Declared(), LAW, verification="token", num_samples=1500)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_broken_generator_ends_in_plain_text_or_a_generator_error(fault):
    (ids,) = tiny_prompts(32, num=1)
    plain = MODEL.generate(ids, do_sample=False, max_new_tokens=8, attention_mask=torch.ones_like(ids))
    try:
        found = outrider.generate(
            MODEL,
            ids,
            candidate_generator=AdversarialGenerator([fault]),
            do_sample=False,
            max_new_tokens=8,
            attention_mask=torch.ones_like(ids),
        )
    except GeneratorError as error:
        assert "AdversarialGenerator" in str(error)
    else:
        assert found.tolist() == plain.tolist()


def test_an_oracle_needs_the_fewest_rounds():
    (ids,) = tiny_prompts(32, num=1)
    options = dict(do_sample=False, max_new_tokens=25, attention_mask=torch.ones_like(ids))
    plain = MODEL.generate(ids, **options)
    found = outrider.generate(
        MODEL,
        ids,
        candidate_generator=OracleGenerator([plain[0]]),
        controller=outrider.control.Fixed(5),
        return_dict_in_generate=True,
        **options,
    )
    assert found.sequences.tolist() == plain.tolist()
    assert found.stats.num_rounds == 4  # 24 tokens after the prompt's, six a round.


class Greedy(CandidateGenerator):
    def propose(self, context, budget):
        return Candidates.chain([0] * (budget + 1))


class Forgetful(CandidateGenerator):
    def __init__(self):
        self.round = 0

    def propose(self, context, budget):
        self.round += 1
        return Candidates.chain([self.round % 32])


class Unseeded(CandidateGenerator):
    def propose(self, context, budget):
        return Candidates.chain(np.random.default_rng().integers(0, 32, 1))


class Shared(CandidateGenerator):
    def __init__(self):
        self.seen = []

    def fork(self):
        other = Shared()
        other.seen = self.seen
        return other

    def update(self, verification):
        self.seen += verification.committed.tolist()

    def reset(self, prompt):
        self.seen[:] = [1]

    def propose(self, context, budget):
        return Candidates.chain(self.seen[-1:])


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Greedy, "at most"),
        (Forgetful, "reset"),
        (Unseeded, "same proposals"),
        (Shared, "fork must own"),
    ],
)
def test_check_generator_says_what_is_owed(cls, message):
    with pytest.raises(AssertionError, match=message):
        check_generator(cls, MODEL, max_new_tokens=8)


def test_check_generator_passes_what_is_right(outrider_check):
    outrider_check(lambda: "prompt_lookup", max_new_tokens=8)
    outrider_check(lambda: ScriptedGenerator([[1], [3]]), max_new_tokens=8)


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        (Candidates.chain([40]), "vocabulary"),
        (Candidates.chain([1], probabilities=[1.5]), "between 0 and 1"),
        (Candidates.chain([1], draft_logits=torch.zeros(1, 3)), "draft_logits"),
        (Candidates.chain([1], draft_logits=torch.full((1, 32), -torch.inf)), "impossible"),
    ],
)
def test_check_candidates(candidates, message):
    with pytest.raises(AssertionError, match=message):
        check_candidates(candidates, 4, 32)

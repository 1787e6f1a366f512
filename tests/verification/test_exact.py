"""Every sampling rule, enumerated to the last coin: the committed law is the target's to 1e-12."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.testing.enumeration import ToyModel, committed_law, distance, drafts
from outrider.verification.k_seq import KSeqVerifier
from outrider.verification.lossy import EnsembleVerifier, TypicalVerifier
from outrider.verification.matching import MatchVerifier
from outrider.verification.maths import k_seq
from outrider.verification.recursive import RecursiveVerifier
from outrider.verification.rejection import BlockVerifier, TokenVerifier
from outrider.verification.traversal import TraversalVerifier

CHAIN2, CHAIN3 = [-1, 0], [-1, 0, 1]
FORK, FORKED, COMB, WIDE = [-1, -1], [-1, -1, 0, 0], [-1, -1, 0, 1, 0], [-1, -1, -1, 0, 0]
BINARY = [-1, -1, 0, 0, 1, 1]


def rule(cls, **options):
    if cls is not MatchVerifier and cls is not TypicalVerifier:
        options["dtype"] = torch.float64
    return lambda chance: cls(chance=chance, **options)


def law(cls, parents, *, vocab=3, seed=0, forbidden=0.0, replace=False, draft=None, **options):
    target = ToyModel(vocab, seed=seed, forbidden=forbidden)
    draft = draft or ToyModel(vocab, seed=seed + 100, forbidden=forbidden)
    length = depth(parents) + 1
    found, accepted = committed_law(
        rule(cls, **options), target, drafts(draft, parents, replace=replace), length
    )
    return distance(found, target.joint_law(length)), accepted


def depth(parents):
    depths = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths)


@pytest.mark.parametrize("forbidden", [0.0, 0.4])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "cls", [TokenVerifier, BlockVerifier, TraversalVerifier, RecursiveVerifier, KSeqVerifier]
)
def test_chains(cls, seed, forbidden):
    for parents, vocab in ((CHAIN3, 3), (CHAIN2, 4)):
        error, _ = law(cls, parents, vocab=vocab, seed=seed, forbidden=forbidden)
        assert error < 1e-12


@pytest.mark.parametrize("replace", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("parents", [FORK, FORKED, COMB, WIDE], ids=["fork", "forked", "comb", "wide"])
@pytest.mark.parametrize("cls", [RecursiveVerifier, TraversalVerifier])
def test_trees(cls, parents, replace):
    error, _ = law(cls, parents, replace=replace)
    assert error < 1e-12


@pytest.mark.parametrize("cls", [RecursiveVerifier, TraversalVerifier])
def test_trees_with_impossible_tokens(cls):
    error, _ = law(cls, FORK, vocab=5, forbidden=0.3, seed=3)
    assert error < 1e-12


@pytest.mark.parametrize("parents", [FORK, FORKED, [-1, -1, -1]], ids=["fork", "forked", "three"])
def test_k_seq(parents):
    error, _ = law(KSeqVerifier, parents, replace=True)
    assert error < 1e-12


def test_match_takes_any_tree_however_it_was_drawn():
    for parents in (CHAIN2, FORKED):
        error, _ = law(MatchVerifier, parents)
        assert error < 1e-12


@pytest.mark.parametrize("cls", [TokenVerifier, BlockVerifier, TraversalVerifier])
def test_equal_laws_accept_everything(cls):
    """p = q leaves a residual of zero; a target in the draft's place too."""
    error, accepted = law(cls, CHAIN2, draft=ToyModel(3, seed=0))
    assert error < 1e-12
    assert accepted == pytest.approx(2, abs=1e-12)


# Acceptance laws


def test_token_rejection_accepts_one_minus_tv():
    target, draft = ToyModel(4, seed=2), ToyModel(4, seed=9)
    _, accepted = committed_law(rule(TokenVerifier), target, drafts(draft, [-1]), 1)
    tv = 0.5 * float((target.law(()) - draft.law(())).abs().sum())
    assert accepted == pytest.approx(1 - tv, abs=1e-12)


def test_match_accepts_the_childrens_probability():
    target, draft = ToyModel(4, seed=2), ToyModel(4, seed=9)
    for tree, _ in drafts(draft, FORK):
        _, accepted = committed_law(rule(MatchVerifier), target, iter([(tree, 1.0)]), 1)
        assert accepted == pytest.approx(float(target.law(())[tree.tokens.tolist()].sum()), abs=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_block_never_accepts_fewer_and_traversal_is_block_on_chains(seed):
    _, token = law(TokenVerifier, CHAIN3, seed=seed)
    _, block = law(BlockVerifier, CHAIN3, seed=seed)
    _, traversal = law(TraversalVerifier, CHAIN3, seed=seed)
    assert block >= token - 1e-12
    assert traversal == pytest.approx(block, abs=1e-12)


def test_block_accepts_strictly_more_somewhere():
    gains = [
        law(BlockVerifier, CHAIN3, seed=seed)[1] - law(TokenVerifier, CHAIN3, seed=seed)[1]
        for seed in range(3)
    ]
    assert max(gains) > 0.01


def test_more_siblings_accept_more_and_all_of_them_always():
    target, draft = ToyModel(3, seed=0), ToyModel(3, seed=100)
    rates = [committed_law(rule(RecursiveVerifier), target, drafts(draft, [-1] * k), 1)[1] for k in (1, 2, 3)]
    assert rates[0] < rates[1] < rates[2]
    assert rates[2] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_k_seq_bound(k):
    """1 - (1 - b)^k accepted, no less than 1 - 1/e of the optimal transport's bound, no more than it."""
    p, q = ToyModel(6, seed=1).law(()), ToyModel(6, seed=5).law(())
    rho = k_seq(p, q, k).rho
    b = float((p / rho).minimum(q).sum())
    accepted = 1 - (1 - b) ** k
    subsets = [[i for i in range(6) if code >> i & 1] for code in range(64)]
    bound = min(float(p[s].sum()) + 1 - float(q[s].sum()) ** k for s in subsets)
    assert accepted == pytest.approx(rho * b, abs=1e-9)
    assert (1 - 1 / math.e) * bound <= accepted <= bound + 1e-12


# What is lossy is seen to be, and what is wrong is found out


def test_lossy_rules_change_the_law():
    assert law(TypicalVerifier, CHAIN2)[0] > 0.01
    assert law(EnsembleVerifier, CHAIN2, weight=0.5)[0] > 0.01
    assert law(EnsembleVerifier, CHAIN2, weight=0.0)[0] < 1e-12


@pytest.mark.parametrize("cls", [TokenVerifier, BlockVerifier, TraversalVerifier])
def test_a_misdeclared_q_is_found_out(cls):
    """Drawn from one law, declared as another."""
    target, draft, declared = ToyModel(3, seed=0), ToyModel(3, seed=100), ToyModel(3, seed=200)
    lying = (
        (type(tree)(tree.tokens, tree.parents, draft_logits=declared.tree_logits(tree)[:-1]), weight)
        for tree, weight in drafts(draft, CHAIN2)
    )
    found, _ = committed_law(rule(cls), target, lying, 3)
    assert distance(found, target.joint_law(3)) > 0.02


@pytest.mark.parametrize("cls", [TokenVerifier, BlockVerifier, RecursiveVerifier, TraversalVerifier])
def test_an_off_by_one_residual_is_found_out(cls, monkeypatch):
    """The residual of the next token's row instead of the rejected one's."""
    module = "recursive" if cls in (TokenVerifier, RecursiveVerifier) else cls.name
    module = {"block": "rejection"}.get(module, module)

    def shifted(p, q, weight=1.0):
        left = (weight * p - q.roll(1)).clamp_min(0)
        return left / left.sum(), float(left.sum())

    monkeypatch.setattr(f"outrider.verification.{module}.residual", shifted)
    assert law(cls, CHAIN2)[0] > 0.01


def test_recursive_needs_the_law_without_replacement():
    """Siblings drawn without replacement, declared as if drawn with it."""
    errors = []
    for seed in range(4):
        target, draft = ToyModel(4, seed=seed, spread=0.7), ToyModel(4, seed=seed + 100, spread=0.7)
        lying = (
            (type(tree)(tree.tokens, tree.parents, draft_logits=draft.logits(()).repeat(2, 1)), weight)
            for tree, weight in drafts(draft, FORK)
        )
        found, _ = committed_law(rule(RecursiveVerifier), target, lying, 1)
        errors.append(distance(found, target.joint_law(1)))
    assert max(errors) > 0.01


def test_half_precision_draft_logits_are_verified_as_declared():
    target, draft = ToyModel(4, seed=3), ToyModel(4, seed=7)
    for dtype in (torch.float16, torch.bfloat16):
        half = ToyModel(4, seed=7)
        half._table[()] = draft.logits(()).to(dtype).float()
        found, _ = committed_law(rule(TokenVerifier), target, drafts(half, [-1]), 1)
        assert distance(found, target.joint_law(1)) < 1e-12

"""Controllers against known costs and known chances."""

import time

import numpy as np
import pytest

from outrider.control import Controller, CostRule, Fixed, ForwardTimes, Heuristic, get_controller
from outrider.errors import OptionError, UnknownNameError
from outrider.types import Candidates, Verification


def chain(chances, source=None):
    return Candidates.chain(range(len(chances)), chances, source=source)


def outcome(candidates, num_right):
    """A round where the text goes on with the chain for `num_right` tokens, however many are verified."""
    accepted = min(len(candidates), num_right)
    path = np.arange(accepted, dtype=np.int64)
    return Verification(np.append(path, accepted if accepted < num_right else 99), accepted, candidates, path)


def run(controller, chances, cost, rounds=150, seed=0, draft_s=0.0, declared=None):
    """Rounds of a chain whose tokens are accepted with `chances`; tokens per second, and candidates kept."""
    rng, tokens, seconds, kept = np.random.default_rng(seed), 0, 0.0, []
    for _ in range(rounds):
        budget = controller.budget(1)
        spent, candidates = 0.0, Candidates.empty()
        if budget:
            spent = draft_s
            candidates = controller.trim(chain((declared or chances)[:budget]))
        lucky = rng.random(len(chances)) < np.asarray(chances)
        round_ = outcome(candidates, len(chances) if lucky.all() else int(lucky.argmin()))
        took = cost(len(candidates) + 1)
        controller.record([round_], spent, took)
        tokens, seconds = tokens + round_.committed.size, seconds + took + spent
        kept.append(len(candidates))
    return tokens / seconds, np.array(kept)


@pytest.mark.parametrize("slope", [0.0, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("chance", [0.1, 0.5, 0.8, 0.95])
def test_the_cost_rule_is_near_the_best_fixed_length(slope, chance):
    def cost(size):
        return 0.01 * (1 + slope * (size - 1))

    chances = [chance] * 20
    best = max(run(Fixed(n), chances, cost, 400)[0] for n in (0, 1, 2, 3, 5, 8, 12, 20))
    assert run(CostRule(), chances, cost, 400)[0] >= 0.93 * best


def test_nothing_is_kept_where_nothing_pays():
    rate, kept = run(CostRule(), [0.02] * 5, lambda size: 0.01 * (1 + 0.2 * (size - 1)), 200)
    assert kept[20:].mean() < 0.05
    assert rate >= 0.98 * 100


def test_overconfident_estimates_are_corrected():
    _, kept = run(CostRule(), [0.05] * 5, lambda size: 0.002 * (4 + size), 400, declared=[0.9] * 5)
    assert kept[:20].mean() > 1
    assert kept[200:].mean() < 0.5


def test_an_expensive_generator_that_brings_nothing_rests():
    controller = CostRule()
    rate, _ = run(controller, [0.01] * 5, lambda size: 0.01, 400, draft_s=0.01, declared=[0.01] * 5)
    assert rate >= 0.85 * 100


def test_the_next_text_is_tried_anew():
    rule = CostRule()

    def cost(size):
        return 0.01 * (1 + 0.01 * (size - 1))

    run(rule, [0.01] * 5, cost, 200, draft_s=0.004)
    assert rule.budget(1) == 0
    rule.record([outcome(Candidates.empty(), 0)], 0.0, 0.0)  # the round of a prompt
    assert rule.budget(1) > 0
    fresh, _ = run(CostRule(), [0.95] * 20, cost, 60)
    assert run(rule, [0.95] * 20, cost, 60)[0] >= 0.85 * fresh


def test_the_likeliest_paths_are_kept_with_their_parents():
    controller = CostRule(times={1: 0.010, 2: 0.012, 4: 0.016, 8: 0.024})
    tree = Candidates(
        np.arange(5), np.array([-1, 0, 0, -1, 3]), np.array([0.8, 0.1, 0.7, 0.3, 0.9], np.float32)
    )
    controller.budget(1)
    kept = controller.trim(tree)
    assert kept.tokens.tolist() == [0, 2, 3, 4]
    assert kept.parents.tolist() == [-1, 0, -1, 2]


def test_a_tree_without_probabilities_learns_by_depth():
    controller = CostRule(times={1: 0.01, 8: 0.024})
    for _ in range(60):
        controller.budget(1)
        candidates = controller.trim(Candidates.chain(range(6)))
        controller.record([outcome(candidates, 2)], 0.0, 0.010 + 0.002 * len(candidates))
    assert len(controller.trim(Candidates.chain(range(6)))) in (2, 3)


def test_a_batch_shares_what_it_costs():
    controller = CostRule(times={1: 0.01, 4: 0.01, 8: 0.02, 16: 0.04, 32: 0.08})
    controller.budget(1)
    alone = len(controller.trim(chain([0.8] * 10)))
    controller.budget(8)
    together = len(controller.trim(chain([0.8] * 10)))
    assert together < alone


def test_times_interpolate_and_never_fall():
    times = ForwardTimes({1: 1.0, 4: 1.6})
    table = times.upto(10)
    assert table[1] == 1.0
    assert table[2] == pytest.approx(1.2)
    assert table[10] == pytest.approx(1.66)
    times.record(8, 1.5)
    assert (np.diff(times.upto(10)[1:]) >= 0).all()
    for _ in range(3):
        times.record(8, 2.0)
    before = times.upto(8)[8]
    times.record(8, 50.0)
    assert times.upto(8)[8] < 1.2 * before


def test_a_round_costs_little():
    controller = CostRule(times={1: 0.01, 64: 0.02})
    rng = np.random.default_rng(0)
    parents = np.array([-1, *[rng.integers(-1, i) for i in range(1, 60)]])
    tree = Candidates(np.arange(60), parents, rng.random(60).astype(np.float32), sources=("a", "b") * 30)
    spent = []
    for _ in range(50):
        start = time.perf_counter()
        controller.budget(1)
        kept = controller.trim(tree)
        controller.record([outcome(kept, 0)], 0.0001, 0.01)
        spent.append(time.perf_counter() - start)
    assert np.median(spent) < 0.0005


def test_fixed_and_heuristic_are_transformers_schedules():
    heuristic = Heuristic(5)
    assert heuristic.budget(1) == 5
    heuristic.record([outcome(chain([0.5] * 5), 5)], 0, 1)
    assert heuristic.budget(1) == 7
    heuristic.record([outcome(chain([0.5] * 5), 4)], 0, 1)
    assert heuristic.budget(1) == 6
    assert len(Fixed(3).trim(chain([0.5] * 5))) == 3


def test_get_controller():
    own = Fixed(1)
    assert get_controller(own) is own
    assert get_controller(4).budget(1) == 4
    assert isinstance(get_controller("cost_rule"), CostRule)
    assert all(isinstance(get_controller(name), Controller) for name in ("fixed", "heuristic"))
    with pytest.raises(UnknownNameError, match="cost_rule"):
        get_controller("none")
    with pytest.raises(OptionError):
        CostRule(max_candidates=-1)


def test_branches_that_cost_are_left_out() -> None:
    """Where each branch costs as much as many tokens, the rule keeps to chains; where it is free, it branches."""
    tree = Candidates([1, 2, 3], [-1, -1, 0], [0.5, 0.45, 0.9])
    kept = {}
    for branch_s in (0.0, 0.02):
        rule = CostRule(times={1: 0.030, 2: 0.0301, 64: 0.034})
        for turn in range(600):
            size, branches = (1, 2, 4, 5, 8)[turn % 5], turn % 3 if turn % 5 > 2 else 0
            rule.times.record(size, 0.030 + 0.0001 * size + branch_s * branches, branches)
        assert abs(rule.times.branch_s - branch_s) < 0.2 * branch_s + 1e-4
        kept[branch_s] = rule.trim(tree)
    assert len(kept[0.0]) == 3
    assert kept[0.02].is_chain and len(kept[0.02]) == 2

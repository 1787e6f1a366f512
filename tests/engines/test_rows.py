"""States found again from tokens alone, against an engine that shuffles, evicts and doubles its rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from outrider.contract import CandidateGenerator
from outrider.engines._drafting import Drafting
from outrider.engines._rows import Rows
from outrider.generators.prompt_lookup import Generator as PromptLookup
from outrider.types import Candidates, Context, Ids, Verification

LONGEST = 160


def flat() -> Callable[[], float]:
    """A clock by which every step takes a second, whatever it verifies, and drafting a thousandth."""
    return itertools.accumulate(itertools.cycle((1.0, 0.001))).__next__


@dataclass
class Sequence:
    ids: list[int]
    end: int
    drafts: list[int] = field(default_factory=list)


class Engine:
    """A batch as vLLM keeps one: rows move, end, are preempted, and hold stale ids beyond their length."""

    def __init__(self, seed: int, most: int = 12) -> None:
        self.draw = np.random.default_rng(seed)
        self.most = most
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.prompts = [self.draw.integers(0, 5, 12).tolist() for _ in range(3)]

    def step(self) -> tuple[list[list[int]], np.ndarray, np.ndarray]:
        """One step: what was sampled, the lengths, and the table."""
        draw = self.draw
        self.running = [one for one in self.running if len(one.ids) < one.end]
        while len(self.running) < self.most and draw.random() < 0.5:
            if self.waiting and draw.random() < 0.7:
                self.running.append(self.waiting.pop(int(draw.integers(len(self.waiting)))))
            else:
                self.running.extend(self._new())
        if len(self.running) > 2 and draw.random() < 0.1:
            self.waiting.append(self.running.pop(int(draw.integers(len(self.running)))))
        if draw.random() < 0.5:
            draw.shuffle(self.running)  # type: ignore[arg-type]
        table = draw.integers(0, 5, (self.most + 4, LONGEST)).astype(np.int32)
        sampled = []
        for row, one in enumerate(self.running):
            new = [] if draw.random() < 0.1 else self._verified(one)
            one.ids += new
            sampled.append(new)
            table[row, : len(one.ids)] = one.ids
        lengths = np.zeros(self.most + 4, np.int32)
        lengths[: len(self.running)] = [len(one.ids) for one in self.running]
        return sampled, lengths, table

    def _new(self) -> list[Sequence]:
        """Some requests with one prompt, or a prompt that differs in its first, or its last, token."""
        prompt = list(self.prompts[int(self.draw.integers(3))])
        kind = self.draw.integers(4)
        if kind < 2:
            prompt[-int(kind)] = int(self.draw.integers(5))
        count = 3 if kind == 2 else 1
        return [Sequence(list(prompt), int(self.draw.integers(20, 120))) for _ in range(count)]

    def _verified(self, one: Sequence) -> list[int]:
        """Some of the drafts, then a token of its own: for a third of the rows always the same one."""
        kept = one.drafts[: int(self.draw.integers(len(one.drafts) + 1))]
        own = 1 if one.end % 3 == 0 else int(self.draw.integers(5))
        return [*kept, own][: one.end - len(one.ids)]


class Faithful(CandidateGenerator):
    """Knows only what it was told, and insists that it is the whole text."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.resets = 0

    def reset(self, prompt: Ids) -> None:
        self.ids, self.resets = prompt.tolist(), self.resets + 1

    def update(self, verification: Verification) -> None:
        self.ids += verification.committed.tolist()

    def propose(self, context: Context, budget: int) -> Candidates:
        assert self.resets == 1
        assert self.ids == context.ids.tolist()
        return Candidates.chain([int(token) for token in context.ids[-budget:]], [0.99] * budget)


@pytest.mark.parametrize("seed", range(6))
def test_a_state_holds_what_a_rebuild_from_scratch_would(seed: int) -> None:
    engine, rows = Engine(seed), Rows(list)
    made = 0
    for _ in range(600):
        sampled, lengths, table = engine.step()
        for row in rows.step(table, lengths, [len(new) for new in sampled]):
            before = row.ids[: -row.num_new].tolist()
            made += row.is_new
            assert row.state == ([] if row.is_new else before)
            row.state[:] = row.ids.tolist()
            assert row.state == engine.running[row.at].ids
        active = sum(1 for one in engine.running + engine.waiting if len(one.ids) > 12)
        assert len(rows) >= min(active, len(engine.running)) - sum(not new for new in sampled)
    assert made < 600  # found again, not rebuilt at every step


@pytest.mark.parametrize("seed", range(3))
def test_generators_hear_the_whole_text_once(seed: int) -> None:
    engine = Engine(seed)
    drafting = Drafting(Faithful(), max_candidates=4, max_length=LONGEST, vocab_size=5, clock=flat())
    for _ in range(1500):
        sampled, lengths, table = engine.step()
        drafts = drafting.step(sampled, lengths, table)
        for one, new, draft in zip(engine.running, sampled, drafts, strict=True):
            assert draft == [] or new
            assert len(draft) <= min(4, LONGEST - len(one.ids) - 1)
            assert all(type(token) is int for token in draft)
            one.drafts = draft
    assert drafting.counts.failed_requests == 0
    assert drafting.counts.proposed > drafting.counts.accepted > 0


def test_drafts_equal_those_of_a_generator_made_for_the_text() -> None:
    engine = Engine(7)
    options = {"num_tokens": 4, "max_ngram_size": 3}
    drafting = Drafting(
        PromptLookup(**options), max_candidates=4, max_length=LONGEST, vocab_size=5, clock=flat()
    )
    compared = 0
    for _ in range(1500):
        sampled, lengths, table = engine.step()
        drafts = drafting.step(sampled, lengths, table)
        for one, draft in zip(engine.running, drafts, strict=True):
            one.drafts = draft
            if draft:
                fresh, ids = PromptLookup(**options), np.array(one.ids)
                fresh.reset(ids)
                whole = fresh.propose(Context(ids, ids.size), 4).tokens.tolist()
                assert draft == whole[: len(draft)]
                compared += 1
    assert compared > 100


def test_states_that_no_row_claims_are_dropped() -> None:
    dropped: list[list[int]] = []
    rows = Rows(list, dropped.append, patience=4)
    table = np.arange(40, dtype=np.int32).reshape(2, 20)
    rows.step(table, np.array([5, 6]), [1, 1])
    for length in range(6, 10):
        assert len(rows) == 2
        rows.step(table[:1], np.array([length]), [1])
    assert len(rows) == 1 and len(dropped) == 1


class Raising(CandidateGenerator):
    """Raises in rows whose first token is 3; right elsewhere, for text that repeats itself."""

    def propose(self, context: Context, budget: int) -> Candidates:
        if context.ids[0] == 3:
            raise RuntimeError("broken")
        return Candidates.chain([int(context.ids[-1])] * budget, [0.99] * budget)


def test_a_generator_that_raises_is_out_for_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    drafting = Drafting(Raising(), max_candidates=3, max_length=60, vocab_size=5, clock=flat())
    table = np.tile(np.array([[3], [2]], np.int32), (1, 60))
    seen: list[list[list[int]]] = []
    for length in range(4, 40):
        seen.append(drafting.step([[3], [2]], np.array([length, length]), table))
    assert all(first == [] for first, _ in seen)
    assert any(second == [2] * len(second) != [] for _, second in seen)
    assert drafting.counts.failed_requests == 1
    assert sum("broken" in record.exc_text for record in caplog.records if record.exc_text) == 1


def test_ids_outside_the_vocabulary_are_cut_off() -> None:
    class Outside(CandidateGenerator):
        def propose(self, context: Context, budget: int) -> Candidates:
            return Candidates.chain([1, 1, 99, 1][:budget], [0.99] * min(budget, 4))

    drafting = Drafting(Outside(), max_candidates=8, max_length=60, vocab_size=5, clock=flat())
    table = np.ones((1, 60), np.int32)
    drafts = [drafting.step([[1]], np.array([length]), table)[0] for length in range(4, 40)]
    assert [1, 1] in drafts
    assert all(len(draft) <= 2 for draft in drafts)

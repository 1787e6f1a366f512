"""Drafts for an engine's whole batch, step by step: states, cost rule and failures. Free of torch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

import numpy as np
import numpy.typing as npt

from outrider.contract import CandidateGenerator
from outrider.control import CostRule
from outrider.engines._rows import Row, Rows
from outrider.errors import GeneratorError
from outrider.types import Candidates, Context, Verification

_LOG = logging.getLogger(__name__)


@dataclass
class Request:
    """What is kept of one row: its generator (None once it raised), and what was last proposed."""

    generator: CandidateGenerator | None
    num_prompt: int = 0
    told: int = 0  # tokens that the generator has heard of
    pending: Candidates | None = None  # None: it was not asked


@dataclass
class Counts:
    """Totals since the start; seconds are those inside `Drafting.step`."""

    steps: int = 0
    steps_asked: int = 0
    proposed: int = 0
    accepted: int = 0
    failed_requests: int = 0
    seconds: float = 0.0


@final
class Drafting:
    """One generator for all rows of a batch that an engine verifies.

    A row's generator is a fork of `generator`. What the steps cost is measured between calls; one cost rule
    for each doubling of the number of rows decides whether, and how much, to draft. In steps in which nobody
    is asked a generator hears nothing; it is told of their tokens together, before it is asked next.

    **Arguments:**

    - `generator`: Needs token ids alone.
    - `max_candidates`: Most candidates a row.
    - `max_length`: Most tokens of a row.
    - `vocab_size`: Ids from here on are not proposed.
    - `clock`: Seconds.
    """

    def __init__(
        self,
        generator: CandidateGenerator,
        *,
        max_candidates: int,
        max_length: int,
        vocab_size: int,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.generator = generator
        self.max_candidates = max_candidates
        self.max_length = max_length
        self.vocab_size = vocab_size
        self.counts = Counts()
        self.rows: Rows[Request] = Rows(lambda: Request(generator.fork()), self._forget)
        self._clock = clock
        self._rules: dict[int, CostRule] = {}
        self._spent_s = 0.0
        self._left_at = 0.0

    def step(
        self, sampled: Sequence[Sequence[int]], lengths: npt.NDArray[Any], table: npt.NDArray[np.int32]
    ) -> list[list[int]]:
        """What to verify next in each row; [] where nothing pays.

        **Arguments:**

        - `sampled`: Each row's tokens of this step; [] where it is not decoding yet.
        - `lengths`: (>= rows,) Each row's tokens, those included.
        - `table`: (>= rows, longest) int32. Row i is valid up to `lengths[i]`.
        """
        began = self._clock()
        step_s = began - self._left_at
        rows = self.rows.step(table, lengths, [len(tokens) for tokens in sampled])
        drafts: list[list[int]] = [[] for _ in sampled]
        if rows:
            only_decoding = len(rows) == len(sampled) and not any(row.is_new for row in rows)
            outcomes = [self._outcome(row) for row in rows]
            rule = self._rule(len(rows))
            rule.record(outcomes, self._spent_s, step_s if only_decoding else 0.0)
            budget = rule.budget(len(rows))
            if budget > 0:
                self.counts.steps_asked += 1
                for row in rows:
                    drafts[row.at] = self._propose(row, rule, budget)
        self.counts.steps += 1
        self._left_at = self._clock()
        self._spent_s = self._left_at - began
        self.counts.seconds += self._spent_s
        return drafts

    def warm_up(self) -> None:
        """Run the generator and the rule once, so that what compiles does so before the first request."""
        ids = np.tile(np.arange(8, dtype=np.int64), 4)
        request = Request(self.generator.fork(), ids.size - 1)
        self._tell(Row(0, request, ids, 1, True))
        if request.generator is not None:
            chain = self._ask(request, "propose", Context(ids, ids.size), 8)
            rule = CostRule(max_candidates=8, times={1: 1.0, 8: 1.0})
            rule.trim(Candidates.chain(range(4), [0.9] * 4))
            rule.record([Verification(ids[:1], 0, chain or Candidates.empty())], 0.0, 1.0)
        Rows(lambda: None).step(ids[None].astype(np.int32), np.array([ids.size]), [1])

    def _rule(self, num_rows: int) -> CostRule:
        return self._rules.setdefault(num_rows.bit_length(), CostRule(max_candidates=self.max_candidates))

    def _outcome(self, row: Row[Request]) -> Verification:
        """What became of the row's last candidates."""
        request, committed = row.state, row.ids[-row.num_new :]
        if row.is_new:
            request.num_prompt = row.ids.size - row.num_new
        candidates, request.pending = request.pending, None
        if candidates is None:
            return Verification(committed, 0)
        shared = min(len(candidates), row.num_new - 1)
        same = candidates.tokens[:shared] == committed[:shared]
        num_accepted = shared if same.all() else int(same.argmin())
        self.counts.accepted += num_accepted
        outcome = Verification(committed, num_accepted, candidates, np.arange(num_accepted))
        self._tell(row, outcome)
        return outcome

    def _tell(self, row: Row[Request], outcome: Verification | None = None) -> None:
        """Let the generator hear of all tokens it has not heard of."""
        request = row.state
        if not request.told:
            self._ask(request, "reset", row.ids[: request.num_prompt])
            request.told = request.num_prompt
        before = row.ids.size - (outcome.committed.size if outcome else 0)
        if request.told < before:
            self._ask(request, "update", Verification(row.ids[request.told : before], 0))
        if outcome is not None:
            self._ask(request, "update", outcome)
        request.told = row.ids.size

    def _propose(self, row: Row[Request], rule: CostRule, budget: int) -> list[int]:
        request, room = row.state, self.max_length - row.ids.size - 1
        budget = min(budget, room)
        if budget <= 0:
            return []
        if request.told < row.ids.size:
            self._tell(row)
        proposed = self._ask(request, "propose", Context(row.ids, request.num_prompt, room + 1), budget)
        if proposed is None:
            return []
        chain = proposed.best_chain()
        outside = (chain.tokens < 0) | (chain.tokens >= self.vocab_size)
        most = int(outside.argmax()) if outside.any() else len(chain)
        request.pending = rule.trim(chain.keep(range(min(most, budget))))
        self.counts.proposed += len(request.pending)
        return request.pending.tokens.tolist()

    def _ask(self, request: Request, method: str, *arguments: Any) -> Any:
        """Call the generator. One that raises is out for this request, and serving goes on."""
        if request.generator is None:
            return None
        try:
            answer = getattr(request.generator, method)(*arguments)
            if method == "propose" and not isinstance(answer, Candidates):
                raise GeneratorError(f"propose() returned a {type(answer).__name__}, not Candidates")
            return answer
        except Exception:
            name = f"{type(request.generator).__module__}.{type(request.generator).__qualname__}"
            request.generator = None
            self.counts.failed_requests += 1
            if self.counts.failed_requests == 1:
                _LOG.exception(
                    "candidate generator %s raised in %s(); the request goes on without candidates, "
                    "and further failures are counted only",
                    name,
                    method,
                )
            return None

    def _forget(self, request: Request) -> None:
        """A request is over: what its generator keeps on disk is written."""
        if hasattr(request.generator, "flush"):
            self._ask(request, "flush")

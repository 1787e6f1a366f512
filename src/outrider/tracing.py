"""What every round of a call was about, written down: a listener, and a generator that is overheard.

A trace file is JSON lines: a header, one of these records a round, and the call's stats last where it was not
interrupted. `outrider.report.trace` reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from outrider.contract import CandidateGenerator
from outrider.pieces import Pieces
from outrider.types import Candidates, Context, Ids, Verification
from outrider.verification.step import warped

if TYPE_CHECKING:
    from outrider.decoding import Lane
    from outrider.target.forward import Target


@final
class Overheard(CandidateGenerator):
    """Another generator, whose last proposal is kept as it came, before it is cut to the budget."""

    def __init__(self, inner: CandidateGenerator) -> None:
        self.inner = inner
        self.needs = inner.needs  # type: ignore[misc]
        self.proposed = Candidates.empty()

    def reset(self, prompt: Ids) -> None:
        self.proposed = Candidates.empty()
        self.inner.reset(prompt)

    def propose(self, context: Context, budget: int) -> Candidates:
        self.proposed = self.inner.propose(context, budget)
        return self.proposed

    def update(self, verification: Verification) -> None:
        self.proposed = Candidates.empty()
        self.inner.update(verification)

    def fork(self) -> Overheard:
        return Overheard(self.inner.fork())


@final
class Tracer:
    """A listener that writes one record a round of one sequence.

    A record holds what was proposed (`tokens`, `parents`, `sources`, `probabilities`, all before the cut to
    the budget), which of it was `verified` and `accepted` (indices), the target's probability and rank of
    each verified candidate given its parent (`target`, `ranks`), the target's likeliest tokens after the
    last committed token and after each candidate (`top`: one list longer than `tokens`), what was
    `committed`, and `ms` since the round before. Probabilities are those after temperature and truncation.

    **Arguments:**

    - `tokenizer`: Turns ids into text.
    - `generator`: Pass `.generator` to `outrider.generate` in its place.
    - `name`: Who proposed what names nobody.
    - `write`: Takes each record.
    - `num_top`: How many of the target's likeliest tokens are kept at a node.

    **Exact:** it only looks; each round costs it a pass over the verified rows' logits.
    """

    def __init__(
        self,
        tokenizer: Any,
        generator: CandidateGenerator,
        name: str,
        write: Callable[[dict[str, Any]], None],
        num_top: int = 5,
    ) -> None:
        self.generator = Overheard(generator)
        self._tokenizer = tokenizer
        self._pieces = Pieces(tokenizer)
        self._name = name
        self._write = write
        self._num_top = num_top
        self._num_rounds = 0
        self._named: set[int] = set()
        self._since = perf_counter()

    def committed(self, lane: Lane, verification: Verification, target: Target) -> None:
        elapsed = perf_counter() - self._since
        verified = verification.candidates
        proposed = self.generator.proposed if len(self.generator.proposed) else verified
        place = _places(proposed, verified)
        logits = target.outputs.logits[0, -(len(verified) + 1) :]
        probabilities = torch.cat([warped(lane.row, row) for row in logits]).softmax(dim=-1)
        names = proposed.sources or (self._name,) * len(proposed)
        accepted = [place[node] for node in verification.path.tolist()]
        committed = verification.committed.tolist()
        record = {
            "round": self._num_rounds,
            "ms": round(1000 * elapsed, 3),
            "tokens": proposed.tokens.tolist(),
            "parents": proposed.parents.tolist(),
            "sources": list(names),
            "probabilities": _rounded(proposed.probabilities),
            "drafted": _drafted(proposed),
            "verified": place,
            "accepted": accepted,
            "committed": committed,
            "pieces": [self._pieces.add(token) for token in committed],
            "origins": [names[node] for node in accepted] + ["target"] * (len(committed) - len(accepted)),
            "ended": lane.row.finished,
            "chains_only": not proposed.is_chain and not target.takes_trees,
            **self._opinions(verified, place, len(proposed), probabilities),
        }
        self._num_rounds += 1
        self._write(record | {"texts": self._texts(record)})
        self._since = perf_counter()

    def _opinions(
        self, verified: Candidates, place: list[int], num_proposed: int, probabilities: Tensor
    ) -> dict[str, Any]:
        """What the target thought: of each candidate, and in its stead."""
        best = probabilities.topk(min(self._num_top, probabilities.shape[-1]), dim=-1)
        lists = [
            [[token, round(p, 5)] for token, p in zip(tokens, ps, strict=True)]
            for tokens, ps in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        top: list[Any] = [lists[0]] + [None] * num_proposed
        own: list[float | None] = [None] * num_proposed
        ranks: list[int | None] = [None] * num_proposed
        for node, (token, parent) in enumerate(
            zip(verified.tokens.tolist(), verified.parents.tolist(), strict=True)
        ):
            row = probabilities[parent + 1]
            top[place[node] + 1] = lists[node + 1]
            own[place[node]] = round(float(row[token]), 5)
            ranks[place[node]] = int((row > row[token]).sum()) + 1
        return {"top": top, "target": own, "ranks": ranks}

    def _texts(self, record: dict[str, Any]) -> dict[str, str]:
        """Text of the ids that this record names first."""
        ids = {*record["tokens"], *record["committed"]}
        ids.update(token for row in record["top"] if row for token, _ in row)
        fresh = sorted(ids - self._named)
        self._named.update(fresh)
        return {str(token): self._tokenizer.decode([token]) for token in fresh}


def _places(proposed: Candidates, verified: Candidates) -> list[int]:
    """Where each verified candidate stands among the proposed ones."""
    if len(proposed) == len(verified):
        return list(range(len(verified)))
    free: dict[tuple[int, int], list[int]] = {}
    for node, edge in enumerate(zip(proposed.parents.tolist(), proposed.tokens.tolist(), strict=True)):
        free.setdefault(edge, []).append(node)
    place: list[int] = []
    for parent, token in zip(verified.parents.tolist(), verified.tokens.tolist(), strict=True):
        place.append(free[place[parent] if parent >= 0 else -1, token].pop(0))
    return place


def _rounded(probabilities: Any) -> list[float] | None:
    return None if probabilities is None else np.round(probabilities.astype(float), 5).tolist()


def _drafted(candidates: Candidates) -> list[float] | None:
    """The chance with which each candidate was drawn; None where nothing was drawn."""
    if candidates.draft_logits is None:
        return None
    chances = candidates.draft_logits.float().softmax(dim=-1).cpu().numpy()
    drawn = chances[np.arange(len(candidates)), candidates.tokens]
    return [round(float(chance), 5) for chance in drawn]

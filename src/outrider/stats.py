"""What a call, or many, cost and brought: the numbers behind every report. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from outrider.types import Verification


@dataclass(slots=True)
class Stats:
    """Counts and seconds of one call, or of several merged with `merge`.

    **Arguments:**

    - `num_prefills`: Forwards over a prompt; each commits one token.
    - `num_rounds`: Target forwards after that.
    - `num_drafts`: Of these, rounds that had candidates.
    - `num_candidates`, `num_accepted`: Verified, and accepted, candidates.
    - `num_committed`: New tokens, the target's own included.
    - `prefill_s`, `draft_s`, `target_s`, `verify_s`, `other_s`: Seconds in the prompt's forward, in the
        generator, in the target's forwards, in the accept rule, and everywhere else in the loop.
    - `accepted_by_depth`, `proposed_by_depth`: Element i counts candidates at depth i+1.
    - `origins`: For each new token of the (first) row, who it came from: "target" or a source's name. Of one
        call; `merge` takes the other's, so that what lives across calls does not grow with their texts.
    - `lossy`: Whether an accept rule that changes the distribution was used.
    - `exact`: "transformers" or "generators" where the bits of the target's logits are those of transformers'
        own forwards over one token, or at least the same whatever drafts; of many calls, what all of them had.
    """

    num_prefills: int = 0
    num_rounds: int = 0
    num_drafts: int = 0
    num_candidates: int = 0
    num_accepted: int = 0
    num_committed: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    accepted_by_depth: list[int] = field(default_factory=list)
    proposed_by_depth: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    lossy: bool = False
    exact: str = ""

    @property
    def mat(self) -> float:
        """Mean accepted tokens: committed per target forward after the prefill; plain decoding is 1.00."""
        return (self.num_committed - self.num_prefills) / self.num_rounds if self.num_rounds else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted candidates over proposed ones; 0 where none were proposed."""
        return self.num_accepted / self.num_candidates if self.num_candidates else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Element i: accepted over proposed candidates at depth i+1; in a tree several share a depth."""
        pairs = zip(self.accepted_by_depth, self.proposed_by_depth, strict=True)
        return [accepted / proposed if proposed else 0.0 for accepted, proposed in pairs]

    @property
    def total_s(self) -> float:
        """Seconds of the whole call."""
        return self.prefill_s + self.draft_s + self.target_s + self.verify_s + self.other_s

    def count(self, outcomes: Sequence[Verification], is_prefill: bool, source: str) -> None:
        """Count one round over the rows of a batch; `source` names who proposed what names nobody."""
        if is_prefill:
            self.num_prefills += len(outcomes)
        else:
            self.num_rounds += len(outcomes)
        for outcome in outcomes:
            self.num_drafts += len(outcome.candidates) > 0
            self.num_candidates += len(outcome.candidates)
            self.num_accepted += outcome.num_accepted
            self.num_committed += int(outcome.committed.size)
            self._count_depths(outcome)
        first = outcomes[0]
        names = first.candidates.sources
        self.origins += [names[node] for node in first.path.tolist()] if names else [source] * first.path.size
        self.origins += ["target"] * (int(first.committed.size) - first.path.size)

    def _count_depths(self, outcome: Verification) -> None:
        candidates = outcome.candidates
        if not len(candidates):
            return
        proposed = (
            [1] * len(candidates) if candidates.is_chain else np.bincount(candidates.depths())[1:].tolist()
        )
        for counts in (self.proposed_by_depth, self.accepted_by_depth):
            counts.extend([0] * (len(proposed) - len(counts)))
        for depth, count in enumerate(proposed):
            self.proposed_by_depth[depth] += count
        for depth in range(outcome.num_accepted):
            self.accepted_by_depth[depth] += 1

    def merge(self, other: Stats) -> None:
        """Add another call's numbers to these."""
        is_first = not self.num_prefills
        for name in Stats.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if name.endswith("_by_depth"):
                width = max(len(mine), len(theirs))
                pairs = zip(
                    mine + [0] * (width - len(mine)), theirs + [0] * (width - len(theirs)), strict=True
                )
                setattr(self, name, [a + b for a, b in pairs])
            elif name == "exact":
                if is_first:
                    self.exact = theirs
                elif mine != theirs:
                    self.exact = "generators" if mine and theirs else ""
            elif name == "lossy":
                self.lossy |= other.lossy
            elif name == "origins":
                self.origins = list(other.origins)
            else:
                setattr(self, name, mine + theirs)

    def to_dict(self) -> dict[str, Any]:
        """Every field, and `mat`, `acceptance_rate`, `acceptance_by_position` and `total_s`, as plain Python values."""
        return asdict(self) | {
            "mat": self.mat,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_by_position": self.acceptance_by_position,
            "total_s": self.total_s,
        }

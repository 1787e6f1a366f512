"""Propose nothing: every round is a plain step of the target."""

from __future__ import annotations

from typing import final

from outrider.contract import CandidateGenerator
from outrider.types import Candidates, Context


@final
class Generator(CandidateGenerator):
    """Plain decoding through the same loop. Cost per step: none. State: none."""

    def propose(self, context: Context, budget: int) -> Candidates:
        return Candidates.empty()

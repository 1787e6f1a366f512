"""The default: suffix statistics, the last logits' runners-up, and recycled logits, in one tree."""

from __future__ import annotations

from typing import Any, Self, final

from outrider.contract import CandidateGenerator, get
from outrider.types import Candidates, Context, Ids, Verification


@final
class Generator(CandidateGenerator):
    """`composite` of `suffix`, `anchors` and `token_recycling`: no second model, nothing to choose.

    Cost per step: theirs. State: theirs; see `composite`.

    **Arguments:**

    - `keep`: Recycled logits outlive the sequence.
    - `sources`: Further generators for the same tree: a memory, a corpus.
    - `eos_token_ids`: Nothing is proposed after one of these.
    """

    def __init__(
        self, *, keep: bool = False, sources: tuple[Any, ...] = (), eos_token_ids: tuple[int, ...] = ()
    ) -> None:
        self.keep = keep
        self.eos_token_ids = eos_token_ids
        composite: Any = get("composite")
        recycling: Any = get("token_recycling")
        self._tree: CandidateGenerator = composite(
            ["suffix", "anchors", recycling(keep=keep, eos_token_ids=eos_token_ids), *sources],
            eos_token_ids=eos_token_ids,
        )
        self.needs = self._tree.needs  # type: ignore[misc]

    def reset(self, prompt: Ids) -> None:
        self._tree.reset(prompt)

    def propose(self, context: Context, budget: int) -> Candidates:
        return self._tree.propose(context, budget)

    def update(self, verification: Verification) -> None:
        self._tree.update(verification)

    def fork(self) -> Self:
        other = type(self)(keep=self.keep, eos_token_ids=self.eos_token_ids)
        other._tree = self._tree.fork()
        other.needs = self.needs  # type: ignore[misc]
        return other

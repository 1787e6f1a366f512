"""Continue the context as its own suffixes were continued before: a tree, likeliest path first."""

from __future__ import annotations

from typing import Self, final

from outrider.contract import CandidateGenerator
from outrider.errors import OptionError
from outrider.index.suffix import SuffixIndex
from outrider.types import Candidates, Context, Ids, Verification


@final
class Generator(CandidateGenerator):
    """Suffix statistics of prompt and output, blended over match lengths.

    After SuffixDecoding (Oliaro 2024) and prediction by partial matching; here each node of the tree is
    matched anew against all of the text, so a path may splice pieces from several places.
    Cost per step: O(new tokens + budget). State: the index of this sequence, about 90 bytes a token.
    Kept and shared: how often each match length was right.

    **Arguments:**

    - `max_nodes`: Most candidates a round.
    - `max_depth`: Longest path.
    - `min_probability`: Paths less likely than this are not proposed.
    - `eos_token_ids`: Nothing is proposed after one of these.
    """

    def __init__(
        self,
        *,
        max_nodes: int = 60,
        max_depth: int = 48,
        min_probability: float = 0.01,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        if max_nodes < 0 or max_depth < 1 or not 0 < min_probability <= 1:
            raise OptionError(
                "max_nodes must be >= 0, max_depth >= 1 and min_probability in (0, 1], "
                f"not {max_nodes}, {max_depth} and {min_probability}"
            )
        self.max_nodes = max_nodes
        self.max_depth = max_depth
        self.min_probability = min_probability
        self.eos_token_ids = eos_token_ids
        self._index = SuffixIndex()

    def reset(self, prompt: Ids) -> None:
        self._index = SuffixIndex(self._index.counts)
        self._index.append(prompt)

    def propose(self, context: Context, budget: int) -> Candidates:
        self._index.sync(context.ids, context.num_prompt)
        tree = self._index.tree(
            context.ids,
            min(budget, self.max_nodes),
            max_depth=self.max_depth,
            least=self.min_probability,
            stop_tokens=self.eos_token_ids,
        )
        return Candidates(tree.tokens, tree.parents, tree.probabilities)

    def update(self, verification: Verification) -> None:
        self._index.append(verification.committed, learning=True)

    def fork(self) -> Self:
        other = type(self)(
            max_nodes=self.max_nodes,
            max_depth=self.max_depth,
            min_probability=self.min_probability,
            eos_token_ids=self.eos_token_ids,
        )
        other._index = SuffixIndex(self._index.counts)
        return other

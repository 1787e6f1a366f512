"""The last logits' runners-up as starting points, continued from the suffix index."""

from __future__ import annotations

from typing import ClassVar, Self, final

import numpy as np

from outrider.contract import CandidateGenerator
from outrider.errors import OptionError
from outrider.index.suffix import SuffixIndex
from outrider.types import Candidates, Context, Ids, Need, TopLogits, Verification

_DEPTH = 12


@final
class Generator(CandidateGenerator):
    """LogitSpec's observation (Liu 2025): the logits that chose the last token often hold the next one too.

    Each runner-up is a first candidate, worth what its rank was worth so far; what follows it comes from the
    suffix index. Cost per step: O(runners-up + budget). State: the index of this sequence.
    Kept and shared: the worth of ranks and of match lengths.

    **Arguments:**

    - `num_anchors`: Runners-up used.
    - `max_nodes`: Most candidates a round.
    - `eos_token_ids`: Nothing is proposed after one of these.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({TopLogits(8)})

    def __init__(
        self, *, num_anchors: int = 7, max_nodes: int = 60, eos_token_ids: tuple[int, ...] = ()
    ) -> None:
        if not num_anchors >= 1 or max_nodes < 0:
            raise OptionError(
                f"num_anchors must be >= 1 and max_nodes >= 0, not {num_anchors} and {max_nodes}"
            )
        self.num_anchors = num_anchors
        self.max_nodes = max_nodes
        self.eos_token_ids = eos_token_ids
        self._tried = np.full(num_anchors, 20.0)
        self._right = 20.0 * 0.06 / np.arange(1, num_anchors + 1)
        self._index = SuffixIndex()
        self._anchors: Ids = np.empty(0, np.int64)

    def reset(self, prompt: Ids) -> None:
        self._index = SuffixIndex(self._index.counts)
        self._index.append(prompt)
        self._anchors = np.empty(0, np.int64)

    def propose(self, context: Context, budget: int) -> Candidates:
        self._index.sync(context.ids, context.num_prompt)
        size = min(self._anchors.size, budget, self.max_nodes)
        if size <= 0:
            return Candidates.empty()
        worth = (self._right / self._tried)[: self._anchors.size]
        best = np.argsort(-worth, kind="stable")[:size]
        tokens, parents = [self._anchors[best]], [np.full(size, -1, np.int64)]
        chances = [worth[best].astype(np.float32)]
        left = min(budget, self.max_nodes) - size
        for at, anchor in enumerate(self._anchors[best]):
            if left <= 0:
                break
            if int(anchor) in self.eos_token_ids:
                continue
            tree = self._index.tree(
                np.append(context.ids[-32:], anchor),
                min(left, _DEPTH),
                least=min(1.0, 0.003 / float(chances[0][at])),
                stop_tokens=self.eos_token_ids,
            )
            base = size + sum(part.size for part in tokens[1:])
            tokens.append(tree.tokens)
            parents.append(np.where(tree.parents < 0, at, tree.parents + base))
            chances.append(tree.probabilities)
            left -= tree.tokens.size
        return Candidates(np.concatenate(tokens), np.concatenate(parents), np.concatenate(chances))

    def update(self, verification: Verification) -> None:
        committed = verification.committed
        if self._anchors.size and committed.size:
            self._tried[: self._anchors.size] = self._tried[: self._anchors.size] * 0.998 + 1
            self._right *= 0.998
            self._right[: self._anchors.size] += self._anchors == committed[0]
        self._index.append(committed, learning=True)
        self._anchors = np.empty(0, np.int64)
        if verification.top_tokens is not None and committed.size == verification.num_accepted + 1:
            row = verification.path[-1] + 1 if verification.path.size else 0
            top = np.asarray(verification.top_tokens[row], np.int64)
            self._anchors = top[top != committed[-1]][: self.num_anchors]

    def fork(self) -> Self:
        other = type(self)(
            num_anchors=self.num_anchors, max_nodes=self.max_nodes, eos_token_ids=self.eos_token_ids
        )
        other._index = SuffixIndex(self._index.counts)
        other._tried, other._right = self._tried, self._right
        return other

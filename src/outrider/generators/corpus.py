"""Continue the context as the user's own documents continue it (retrieval)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, final

import numpy as np

from outrider.contract import CandidateGenerator
from outrider.errors import OptionError
from outrider.index.corpus import Corpus, new_worth
from outrider.types import Candidates, Context, Ids, Verification

_TAIL = 16


@final
class Generator(CandidateGenerator):
    """Continuations of the context's longest match in a corpus, as a tree, best-first by count.

    After REST (He 2023), on a suffix array, with exact counts. Cost per step: O(log(corpus) + budget), and
    O(log(corpus)) a committed token. State: the last 16 tokens. Kept and shared: the corpus, and how often
    matches of each length were right.

    **Arguments:**

    - `corpus`: A `Corpus`, or the file that `outrider memory build` wrote.
    - `max_nodes`: Most candidates a round.
    - `max_depth`: Longest path.
    - `min_probability`: Paths less likely than this are not proposed.
    - `tokenizer`: The target's, to refuse a file of another one; the command line passes it.
    - `eos_token_ids`: Nothing is proposed after one of these.
    """

    def __init__(
        self,
        corpus: Corpus | str | Path | None = None,
        *,
        max_nodes: int = 60,
        max_depth: int = 32,
        min_probability: float = 0.01,
        tokenizer: Any = None,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        if corpus is None:
            raise OptionError(
                "the generator 'corpus' needs a file of 'outrider memory build'; write corpus:corpus=FILE"
            )
        if max_nodes < 0 or max_depth < 1 or not 0 < min_probability <= 1:
            raise OptionError(
                "max_nodes must be >= 0, max_depth >= 1 and min_probability in (0, 1], "
                f"not {max_nodes}, {max_depth} and {min_probability}"
            )
        self.corpus = corpus if isinstance(corpus, Corpus) else Corpus(corpus, tokenizer=tokenizer)
        self.max_nodes = max_nodes
        self.max_depth = max_depth
        self.min_probability = min_probability
        self.eos_token_ids = eos_token_ids
        self._worth = new_worth()
        self._tail: Ids = np.empty(0, np.int64)

    def reset(self, prompt: Ids) -> None:
        self._tail = prompt[-_TAIL:].copy()

    def propose(self, context: Context, budget: int) -> Candidates:
        tree = self.corpus.tree(
            context.ids[-_TAIL:],
            min(budget, self.max_nodes),
            self._worth,
            max_depth=self.max_depth,
            least=self.min_probability,
            stop_tokens=self.eos_token_ids,
        )
        return Candidates(tree.tokens, tree.parents, tree.probabilities)

    def update(self, verification: Verification) -> None:
        ids = np.concatenate([self._tail, verification.committed])
        self.corpus.learn(self._worth, ids, verification.committed.size)
        self._tail = ids[-_TAIL:]

    def fork(self) -> Self:
        other = type(self)(
            self.corpus,
            max_nodes=self.max_nodes,
            max_depth=self.max_depth,
            min_probability=self.min_probability,
            eos_token_ids=self.eos_token_ids,
        )
        other._worth = self._worth
        return other

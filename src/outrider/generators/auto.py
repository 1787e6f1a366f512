"""The default: suffix statistics, recycled logits and the last logits' runners-up, in one tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np

from outrider.contract import CandidateGenerator
from outrider.errors import OptionError
from outrider.generators.composite import merge
from outrider.generators.corpus import Generator as FromCorpus
from outrider.generators.ngram_cache import Generator as NGramCache
from outrider.generators.token_recycling import store_rows
from outrider.index.adjacency import K
from outrider.index.blend import SOURCES, Blend
from outrider.index.corpus import Corpus
from outrider.index.memory import Memory
from outrider.types import Candidates, Context, Ids, Need, TopLogits, Verification

_NONE: Ids = np.empty(0, np.int64)


@final
class Generator(CandidateGenerator):
    """`suffix`, `token_recycling` and `anchors`, grown as one tree: each node is continued by all three.

    Cost per step: O(verified nodes * 8 + budget). State: the index of this sequence and the adjacency table.
    Kept and shared: how often estimates came true; the table too, with `keep`.

    **Arguments:**

    - `keep`: The adjacency table outlives the sequence, and is shared by `fork`.
    - `max_nodes`: Most candidates a round.
    - `min_probability`: Paths less likely than this are not proposed.
    - `memory`: A `Memory`, or a file, of earlier requests' texts, to draw on and to add to.
    - `corpus`: A `Corpus`, or a file, of the user's own documents.
    - `sources`: Further generators, by name, whose candidates join the tree.
    - `tokenizer`: The target's, to refuse files of another one; the command line passes it.
    - `eos_token_ids`: Nothing is proposed after one of these.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({TopLogits(K)})

    def __init__(
        self,
        *,
        keep: bool = False,
        max_nodes: int = 60,
        min_probability: float = 0.01,
        memory: Memory | str | Path | None = None,
        corpus: Corpus | str | Path | None = None,
        sources: dict[str, CandidateGenerator] | None = None,
        tokenizer: Any = None,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        if max_nodes < 0 or not 0 < min_probability <= 1:
            raise OptionError(
                f"max_nodes must be >= 0 and min_probability in (0, 1], not {max_nodes} and {min_probability}"
            )
        self.keep = keep
        self.max_nodes = max_nodes
        self.min_probability = min_probability
        self.sources = dict(sources or {})
        if memory is not None:
            self.sources["memory"] = NGramCache(
                memory=memory, tokenizer=tokenizer, eos_token_ids=eos_token_ids
            )
        if corpus is not None:
            self.sources["corpus"] = FromCorpus(corpus, tokenizer=tokenizer, eos_token_ids=eos_token_ids)
        self.eos_token_ids = eos_token_ids
        needed: set[Any] = set(self.needs).union(*(source.needs for source in self.sources.values()))
        self.needs = frozenset(needed)  # type: ignore[misc]
        self._blend = Blend()
        self._anchors = _NONE

    def flush(self) -> None:
        """Put the sequence so far into the memory, and the memory into its file."""
        memory = self.sources.get("memory")
        if isinstance(memory, NGramCache):
            memory.flush()

    def reset(self, prompt: Ids) -> None:
        self._blend.restart()
        self._blend.suffix.append(prompt)
        if not self.keep:
            self._blend.adjacency.clear()
        self._anchors = _NONE
        for source in self.sources.values():
            source.reset(prompt)

    def propose(self, context: Context, budget: int) -> Candidates:
        most = min(budget, self.max_nodes)
        if most <= 0 or not context.ids.size:
            return Candidates.empty()
        self._blend.suffix.sync(context.ids, context.num_prompt)
        tokens, parents, probabilities, sources = self._blend.tree(
            context.ids,
            most,
            self._anchors,
            least=self.min_probability,
            stop_tokens=self.eos_token_ids,
        )
        names = tuple([SOURCES[source] for source in sources.tolist()])
        own = Candidates(tokens, parents, probabilities, sources=names)
        if not self.sources:
            return own
        return merge({"auto": own, **{n: s.propose(context, most) for n, s in self.sources.items()}}, most)

    def update(self, verification: Verification) -> None:
        committed = verification.committed
        ids = self._blend.suffix.ngrams.ids[: len(self._blend.suffix)]
        before, last = (int(ids[-2]) if ids.size > 1 else -1), (int(ids[-1]) if ids.size else -1)
        self._blend.learn(committed, self._anchors)
        store_rows(self._blend.adjacency, before, last, verification, learning=False)
        self._anchors = _NONE
        if verification.top_tokens is not None and committed.size == verification.num_accepted + 1:
            row = verification.path[-1] + 1 if verification.path.size else 0
            top = np.asarray(verification.top_tokens[row][:K], np.int64)
            self._anchors = top[top != committed[-1]]
        for source in self.sources.values():
            source.update(verification)

    def fork(self) -> Self:
        other = type(self)(
            keep=self.keep,
            max_nodes=self.max_nodes,
            min_probability=self.min_probability,
            sources={name: source.fork() for name, source in self.sources.items()},
            eos_token_ids=self.eos_token_ids,
        )
        other._blend = Blend(self._blend.kept, self._blend.adjacency if self.keep else None)
        return other

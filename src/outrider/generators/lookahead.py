"""Let the target refine its own guesses (Jacobi iteration), and propose n-grams that came of it."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar, final

import numpy as np

from outrider.contract import CandidateGenerator
from outrider.errors import OptionError
from outrider.generators.composite import merge
from outrider.types import Candidates, Context, Ids, Need, TopLogits, Verification


@final
class Generator(CandidateGenerator):
    """Lookahead decoding (Fu 2024) as far as a tree can hold it: its window is one chain of guesses.

    Each round the target also reads a chain of guesses at the coming tokens; its likeliest token at each place
    is the next round's guess there. The n-grams that end with such a token go into a pool, and those that begin
    with the last committed token are proposed. Cost per step: `window` candidates more, which rarely are
    accepted, and O(window * ngram_size). State: the guesses and the pool.

    **Arguments:**

    - `window`: Guesses a round.
    - `ngram_size`: Length of the pool's n-grams, the token they are found by included.
    - `max_ngrams`: n-grams kept, and proposed, a token.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({TopLogits(1)})

    def __init__(self, *, window: int = 8, ngram_size: int = 4, max_ngrams: int = 5) -> None:
        if window < 1 or ngram_size < 2 or max_ngrams < 1:
            raise OptionError(
                "window and max_ngrams must be >= 1 and ngram_size >= 2, "
                f"not {window}, {max_ngrams} and {ngram_size}"
            )
        self.window = window
        self.ngram_size = ngram_size
        self.max_ngrams = max_ngrams
        self._begin(np.empty(0, np.int64))

    def _begin(self, prompt: Ids) -> None:
        self._pool: dict[int, OrderedDict[tuple[int, ...], None]] = {}
        self._length = int(prompt.size)
        self._recent: list[int] = prompt[1 - self.ngram_size :].tolist()
        self._guesses: Ids = np.resize(prompt, self.window) if prompt.size else np.empty(0, np.int64)

    def reset(self, prompt: Ids) -> None:
        self._begin(prompt)
        for at in range(prompt.size - self.ngram_size + 1):
            self._keep(prompt[at : at + self.ngram_size].tolist())

    def _keep(self, ngram: list[int]) -> None:
        kept = self._pool.setdefault(ngram[0], OrderedDict())
        kept[tuple(ngram[1:])] = None
        kept.move_to_end(tuple(ngram[1:]))
        if len(kept) > self.max_ngrams:
            kept.popitem(last=False)

    def propose(self, context: Context, budget: int) -> Candidates:
        if not context.ids.size:
            return Candidates.empty()
        grams = list(self._pool.get(int(context.ids[-1]), ()))[::-1]
        trees = {
            f"pool {rank}": Candidates.chain(gram, np.full(len(gram), 0.4 / (rank + 1)))
            for rank, gram in enumerate(grams)
        }
        guesses = Candidates.chain(self._guesses, np.full(self._guesses.size, 0.3))
        return merge({**trees, "window": guesses}, budget)

    def update(self, verification: Verification) -> None:
        refined: dict[int, int] = {}
        if verification.top_tokens is not None:
            refined = self._refine(
                verification.candidates, np.asarray(verification.top_tokens[:, 0], np.int64)
            )
        for token in verification.committed.tolist():
            self._length += 1
            self._recent = [*self._recent, token][1 - self.ngram_size :]
        self._guesses = self._next_guesses(refined)

    def _refine(self, candidates: Candidates, top: Ids) -> dict[int, int]:
        """The target's own token at each place after the guesses that were verified, by position."""
        nodes = {
            (parent, token): node
            for node, (parent, token) in enumerate(
                zip(candidates.parents.tolist(), candidates.tokens.tolist(), strict=True)
            )
        }
        refined: dict[int, int] = {}
        path, node = list(self._recent), -1
        for position, guess in enumerate([*self._guesses.tolist(), -1], self._length):
            own = int(top[node + 1])
            refined[position] = own
            if len(path) >= self.ngram_size - 1:
                self._keep([*path[1 - self.ngram_size :], own])
            if (node, guess) not in nodes:
                break
            node = nodes[node, guess]
            path.append(guess)
        return refined

    def _next_guesses(self, refined: dict[int, int]) -> Ids:
        """What the target made of the guesses at places that are still open, filled up from the pool."""
        guesses: list[int] = []
        token = self._recent[-1] if self._recent else 0
        for position in range(self._length, self._length + self.window):
            known = self._pool.get(token)
            token = refined.get(position, next(reversed(known))[0] if known else token)
            guesses.append(token)
        return np.asarray(guesses, np.int64)

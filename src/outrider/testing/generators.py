"""Candidate generators that tests put in another's place: right, wrong, random, and hostile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import torch

from outrider.contract import CandidateGenerator
from outrider.types import Candidates, Context, Ids


@final
class ScriptedGenerator(CandidateGenerator):
    """Propose what it is told, round by round; then nothing.

    **Arguments:**

    - `script`: One entry a round: `Candidates`, token ids, or a function of (context, budget).
    - `repeat`: Begin again where the script ends.
    """

    def __init__(self, script: Sequence[Any], repeat: bool = True) -> None:
        self.script, self.repeat = list(script), repeat
        self._round = 0

    def reset(self, prompt: Ids) -> None:
        self._round = 0

    def propose(self, context: Context, budget: int) -> Candidates:
        if not self.script or (self._round >= len(self.script) and not self.repeat):
            return Candidates.empty()
        entry = self.script[self._round % len(self.script)]
        self._round += 1
        proposed = entry(context, budget) if callable(entry) else entry
        return proposed if isinstance(proposed, Candidates) else Candidates.chain(proposed)


@final
class OracleGenerator(CandidateGenerator):
    """Propose what the target will say, because it was told: the most that drafting can gain.

    **Arguments:**

    - `texts`: Whole texts, prompts included; each a sequence of ids.
    - `num_wrong`: Wrong siblings beside each right candidate, so that it is a tree.
    """

    def __init__(self, texts: Sequence[Any], num_wrong: int = 0) -> None:
        self.texts = [np.asarray(text, np.int64).reshape(-1) for text in texts]
        self.num_wrong = num_wrong

    def propose(self, context: Context, budget: int) -> Candidates:
        length = context.ids.size
        for text in self.texts:
            if text.size > length and np.array_equal(text[:length], context.ids):
                return self._tree(text[length : length + budget], budget)
        return Candidates.empty()

    def _tree(self, answer: Ids, budget: int) -> Candidates:
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in answer.tolist():
            for wrong in range(1, self.num_wrong + 1):
                if len(tokens) < budget - 1:
                    tokens.append(max(0, token - wrong) if token else wrong)
                    parents.append(parent)
            if len(tokens) < budget:
                tokens.append(token)
                parents.append(parent)
                parent = len(tokens) - 1
        return Candidates(np.array(tokens, np.int64), np.array(parents, np.int64))


@final
class RandomGenerator(CandidateGenerator):
    """Propose random trees of random tokens.

    **Arguments:**

    - `vocab`: Ids below this.
    - `seed`: Of its own random numbers, which go on from text to text.
    - `with_draft_logits`: Draw each token from random draft logits, and declare them.
    - `chains`: No branches.
    """

    def __init__(
        self, vocab: int, seed: int = 0, *, with_draft_logits: bool = False, chains: bool = False
    ) -> None:
        self.vocab, self.seed = vocab, seed
        self.with_draft_logits, self.chains = with_draft_logits, chains
        self._random = np.random.default_rng(seed)

    def propose(self, context: Context, budget: int) -> Candidates:
        size = int(self._random.integers(0, min(budget, 12) + 1))
        parents = np.array(
            [node - 1 if self.chains else self._random.integers(-1, node) for node in range(size)], np.int64
        )
        if not self.with_draft_logits:
            return Candidates(self._random.integers(0, self.vocab, size).astype(np.int64), parents)
        by_parent = self._random.normal(size=(size + 1, self.vocab)).astype(np.float32)
        logits = torch.from_numpy(by_parent[parents + 1])
        laws = logits.double().softmax(-1).numpy()
        tokens = [int(self._random.choice(self.vocab, p=law / law.sum())) for law in laws]
        return Candidates(np.array(tokens, np.int64), parents, draft_logits=logits)


def _too_many(context: Context, budget: int) -> Any:
    return Candidates.chain(np.resize(context.ids, 3 * min(budget, 64) + 7))


def _outside_vocabulary(context: Context, budget: int) -> Any:
    return Candidates.chain([int(context.ids[-1]), 2**40, -1, 0])


def _another_context(context: Context, budget: int) -> Any:
    return Candidates.chain(context.ids[: max(1, budget)])


def _all_equal(context: Context, budget: int) -> Any:
    size = max(1, min(budget, 16))
    return Candidates(np.full(size, context.ids[-1]), np.full(size, -1, np.int64))


def _sure_and_wrong(context: Context, budget: int) -> Any:
    tokens = np.roll(context.ids, 1)[: max(1, budget)]
    return Candidates.chain(tokens, probabilities=np.full(tokens.size, 1e9))


def _not_a_number(context: Context, budget: int) -> Any:
    return Candidates.chain([0, 1], probabilities=[np.nan, -np.inf])


def _narrow_ids(context: Context, budget: int) -> Any:
    return Candidates(context.ids[:2].astype(np.int32), np.array([-1, -1]))


def _raise(context: Context, budget: int) -> Any:
    raise RuntimeError("a generator that fails")


def _bad_parents(context: Context, budget: int) -> Any:
    return Candidates(np.array([0, 1]), np.array([1, 0]))


def _parents_changed_later(context: Context, budget: int) -> Any:
    candidates = Candidates(np.array([0, 1]), np.array([-1, 0]))
    candidates.parents[:] = [1, 7]
    return candidates


def _write_to_ids(context: Context, budget: int) -> Any:
    context.ids[:] = 0
    return Candidates.empty()


def _not_candidates(context: Context, budget: int) -> Any:
    return [1, 2, 3]


def _nothing(context: Context, budget: int) -> Any:
    return None


def _words(context: Context, budget: int) -> Any:
    return Candidates(np.array(["a", "b"]), np.array([-1, 0]))


MISCHIEF: tuple[Callable[[Context, int], Any], ...] = (
    _too_many,
    _outside_vocabulary,
    _another_context,
    _all_equal,
    _sure_and_wrong,
    _not_a_number,
    _narrow_ids,
)
"""Bad proposals that a loop must bear: the text stays the plain one."""

FAULTS: tuple[Callable[[Context, int], Any], ...] = (
    _raise,
    _bad_parents,
    _parents_changed_later,
    _write_to_ids,
    _not_candidates,
    _nothing,
    _words,
)
"""Broken generators: the text stays the plain one, or a `GeneratorError` says who broke what."""


@final
class AdversarialGenerator(CandidateGenerator):
    """Propose every kind of bad candidates in turn; see `MISCHIEF`.

    **Arguments:**

    - `kinds`: Functions of (context, budget); `FAULTS` are broken ones.
    """

    def __init__(self, kinds: Sequence[Callable[[Context, int], Any]] = MISCHIEF) -> None:
        self.kinds = tuple(kinds)
        self._round = 0

    def reset(self, prompt: Ids) -> None:
        self._round = 0

    def propose(self, context: Context, budget: int) -> Candidates:
        kind = self.kinds[self._round % len(self.kinds)]
        self._round += 1
        proposed: Candidates = kind(context, budget)
        return proposed

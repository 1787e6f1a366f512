"""What passes between the loop and a candidate generator. Frozen, and free of torch.

Token ids are NumPy arrays on the host. Tensors a generator asked for (`needs`) ride along untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_NO_IDS: Ids = np.empty(0, np.int64)
_CHAIN: Ids = np.arange(-1, 4096)  # the parents of a chain, however long it is used
_CHAIN.flags.writeable = False


def _chain_parents(length: int) -> Ids:
    """(length,) int64, read-only. Each token is the parent of the next."""
    return _CHAIN[:length] if length <= _CHAIN.size else np.arange(-1, length - 1)


@dataclass(frozen=True, slots=True)
class TopLogits:
    """Need: the target's `k` largest raw logits at every verified node (`Verification.top_tokens`)."""

    k: int = 8


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Need: the target's hidden states of the named layers (`Verification.hidden_states`)."""

    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scores:
    """Need: the target's float32 scores at every verified node (`Verification.scores`)."""


@dataclass(frozen=True, slots=True)
class TargetInputs:
    """Need: the target itself and what its forward is given (`Context.inputs`)."""


Need = TopLogits | HiddenStates | Scores | TargetInputs


@dataclass(frozen=True, slots=True)
class Context:
    """What is known when a generator is asked to propose.

    **Arguments:**

    - `ids`: (L,) int64. All committed tokens, prompt first; read-only.
    - `num_prompt`: How many of them are the prompt.
    - `max_new_tokens`: How many tokens may still be committed, this round's own included.
    - `encoder_ids`: (S,) int64. The encoder's input, for an encoder-decoder target of text; else None.
    - `inputs`: What the target's own forward is given besides ids, by name, as `generate()` prepared it
        (`encoder_outputs`, `pixel_values`, ...). For generators that run a model.
    - `draw`: Chooses a token from a (1, V) tensor of draft logits at a position as the target's verifier
        would: the argmax, or the draw with the same position-keyed noise; None outside the loop.
    - `placeholders`: (k,) int64. Ids that stand for images, videos and sound in a prompt. Not worth
        proposing: they are dropped, unless they were drawn.
    """

    ids: Ids
    num_prompt: int
    max_new_tokens: int = 2**31
    encoder_ids: Ids | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[Any, int], int] | None = None
    placeholders: Ids = field(default_factory=lambda: _NO_IDS)


@dataclass(frozen=True, slots=True)
class Candidates:
    """A tree of proposed tokens, hanging off the last committed token.

    **Arguments:**

    - `tokens`: (n,) int64. Parents come before their children. `n` may be 0.
    - `parents`: (n,) int64. Index of each token's parent in `tokens`; -1 is the last committed token.
    - `probabilities`: (n,) float32. The generator's own estimate that the target accepts the token,
        given that it accepted its parent; None when it has none.
    - `draft_logits`: (n, V) tensor. Logits, after all warpers, of the distribution each token was really
        drawn from; None means "not drawn at random", and is verified as a point mass.
    - `sources`: (n,) str. Who proposed each token; empty when the generator is the only source.

    `is_chain` says whether every token is the only child of the one before it. Ids are copied, and read-only from then on.

    **Raises:** `ValueError` where lengths differ, a parent does not come before its child, or ids are no
    whole numbers.
    """

    tokens: Ids
    parents: Ids
    probabilities: Floats | None = None
    draft_logits: Any = None
    sources: tuple[str, ...] = ()
    is_chain: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("tokens", "parents"):
            given = getattr(self, name)
            if not isinstance(given, np.ndarray) or given.dtype != np.int64 or given.flags.writeable:
                # A copy of its own, so that what was checked stays what is verified.
                if np.asarray(given).dtype.kind not in "iub" and np.size(given):
                    raise ValueError(f"{name} must be whole numbers, not {np.asarray(given).dtype}")
                own = np.array(given, dtype=np.int64)
                own.flags.writeable = False
                object.__setattr__(self, name, own)
        if self.probabilities is not None and not isinstance(self.probabilities, np.ndarray):
            object.__setattr__(self, "probabilities", np.array(self.probabilities, np.float32))
        if self.tokens.ndim != 1 or self.tokens.shape != self.parents.shape:
            raise ValueError(
                f"tokens and parents must be 1-D and equally long, not {self.tokens.shape} "
                f"and {self.parents.shape}"
            )
        before = _chain_parents(self.parents.size)
        object.__setattr__(self, "is_chain", bool((self.parents == before).all()))
        if not self.is_chain and (self.parents.min() < -1 or (self.parents > before).any()):
            raise ValueError("each parent must be -1 or come before its child")
        for name in ("probabilities", "draft_logits"):
            beside = getattr(self, name)
            if beside is not None and np.shape(beside)[:1] != self.tokens.shape:
                raise ValueError(f"{name} must hold one row for each of the {self.tokens.size} tokens")
        if self.sources and len(self.sources) != self.tokens.size:
            raise ValueError(f"sources must name one source for each of the {self.tokens.size} tokens")

    def __len__(self) -> int:
        return int(self.tokens.size)

    @property
    def num_branches(self) -> int:
        """How many tokens are not their parent's first child; 0 for a chain."""
        return 0 if self.is_chain else len(self) - len(set(self.parents.tolist()))

    @staticmethod
    def empty() -> Candidates:
        """No candidates: the round is a plain step."""
        return _EMPTY

    @staticmethod
    def chain(
        tokens: npt.ArrayLike,
        probabilities: npt.ArrayLike | None = None,
        draft_logits: Any = None,
        source: str | None = None,
    ) -> Candidates:
        """Candidates without branches: each token is the parent of the next."""
        ids = np.asarray(tokens).reshape(-1)
        probs = None if probabilities is None else np.asarray(probabilities, np.float32).reshape(-1)
        return Candidates(
            ids, _chain_parents(ids.size), probs, draft_logits, () if source is None else (source,) * ids.size
        )

    def depths(self) -> Ids:
        """(n,) int64. Distance of each token from the last committed one; the first level is 1."""
        if self.is_chain:
            return np.arange(1, len(self) + 1)
        depths = [0] * (len(self) + 1)
        for node, parent in enumerate(self.parents.tolist()):
            depths[node + 1] = depths[parent + 1] + 1
        return np.array(depths[1:], np.int64)

    def path_probabilities(self, default: float = 0.5) -> Floats:
        """(n,) float32. Estimate that the whole path down to each token is accepted."""
        own = np.full(len(self), default, np.float32) if self.probabilities is None else self.probabilities
        paths = np.ones(len(self) + 1, np.float32)
        for node, parent in enumerate(self.parents):
            paths[node + 1] = paths[parent + 1] * own[node]
        return paths[1:]

    def keep(self, nodes: npt.ArrayLike) -> Candidates:
        """The subtree of these nodes (ascending; a kept node's parent is kept too)."""
        index = np.asarray(nodes, dtype=np.int64).reshape(-1)
        if index.size == len(self):
            return self
        renumbered = np.full(len(self) + 1, -1, np.int64)
        renumbered[index + 1] = np.arange(index.size)
        return Candidates(
            self.tokens[index],
            renumbered[self.parents[index] + 1],
            None if self.probabilities is None else self.probabilities[index],
            None if self.draft_logits is None else self.draft_logits[index.tolist()],
            tuple(self.sources[i] for i in index) if self.sources else (),
        )

    def first_chain(self) -> Candidates:
        """The path of first children; itself when already a chain.

        Of candidates drawn at random the one chain that follows their law: a first child is drawn from all of
        it, and a choice by what was drawn, as `best_chain` makes it, would bend it.
        """
        node, path = -1, []
        for child, parent in enumerate(self.parents.tolist()):
            if parent == node:
                path.append(child)
                node = child
        return self.keep(path)

    def best_chain(self) -> Candidates:
        """The path to the leaf with the most accepted tokens to expect; itself when already a chain."""
        if self.is_chain:
            return self
        expected = np.zeros(len(self) + 1, np.float32)
        paths = self.path_probabilities()
        for node, parent in enumerate(self.parents):
            expected[node + 1] = expected[parent + 1] + paths[node]
        node, path = int(expected[1:].argmax()), []
        while node >= 0:
            path.append(node)
            node = int(self.parents[node])
        return self.keep(path[::-1])


_EMPTY = Candidates(_NO_IDS, _NO_IDS)


@dataclass(frozen=True, slots=True)
class Verification:
    """What a round brought.

    **Arguments:**

    - `committed`: (m,) int64. The tokens committed: the accepted path, then one of the target's own;
        shorter where the text ended inside.
    - `num_accepted`: Candidates among them.
    - `candidates`: What was verified (after trimming to the budget).
    - `path`: (num_accepted,) int64. The accepted nodes, as indices into `candidates`.
    - `top_tokens`, `top_logits`: (n+1, k) arrays, for `TopLogits`. Row 0 belongs to the last committed
        token, row i+1 to candidate i; largest first.
    - `hidden_states`: dict of layer to (n+1, D) tensor, for `HiddenStates`; rows as above.
    - `scores`: (n+1, V) float32 tensor, for `Scores`; processed where the verifier visited, raw elsewhere.
    """

    committed: Ids
    num_accepted: int
    candidates: Candidates = field(default_factory=Candidates.empty)
    path: Ids = field(default_factory=lambda: _NO_IDS)
    top_tokens: Ids | None = None
    top_logits: Floats | None = None
    hidden_states: Any = None
    scores: Any = None

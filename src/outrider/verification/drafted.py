"""What candidates drawn at random bring: the law each was drawn from."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.errors import GeneratorError, OptionError
from outrider.types import Candidates
from outrider.verification.chance import Chance, TorchChance
from outrider.verification.law import Law
from outrider.verification.step import Row, Verifier, warped


class DraftedVerifier(Verifier):
    """Base of the rules that divide by q; not an accept rule of its own.

    **Arguments:**

    - `seed`: Seeds coins of its own; None uses torch's global generator.
    - `chance`: Another source of coins, for tests.
    - `dtype`: What probabilities are computed in.
    """

    needs_draft_logits = True
    name = "this verification"

    def __init__(
        self, seed: int | None = None, *, chance: Chance | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self.chance: Chance = TorchChance(seed) if chance is None else chance
        self.dtype = dtype

    def law(self, scores: Tensor) -> Law:
        """The law of (1, V) or (V,) scores."""
        return Law(scores, self.dtype)

    def draft_laws(self, candidates: Candidates, logits: Tensor) -> DraftLaws:
        """q of each candidate, on the device of `logits`.

        **Raises:** `OptionError` where candidates bring no draft logits; `GeneratorError` where the
        tensor's shape is not (n, V).
        """
        given = candidates.draft_logits
        if given is None and len(candidates):
            raise OptionError(
                f"verification={self.name!r} needs candidates with draft logits, and these have none; "
                "use 'match' or 'keyed'"
            )
        if (
            given is not None
            and len(candidates)
            and tuple(given.shape) != (len(candidates), logits.shape[-1])
        ):
            raise GeneratorError(
                f"draft_logits must be {(len(candidates), logits.shape[-1])}, not {tuple(given.shape)}; pad "
                " a smaller vocabulary with -inf"
            )
        return DraftLaws(given, self.dtype, logits.device)

    def draw(self, row: Row, logits: Tensor, position: int) -> int:
        """A draw from the warped draft law, `draft_scores`."""
        return self.chance.pick(self.law(warped(row, logits)).full)


class DraftLaws:
    """q by node, each looked at when first asked for."""

    def __init__(self, logits: Tensor | None, dtype: torch.dtype, device: torch.device) -> None:
        self._logits, self._dtype, self._device = logits, dtype, device
        self._laws: dict[int, Law] = {}

    def __getitem__(self, node: int) -> Law:
        """The law that candidate `node` was drawn from."""
        if node not in self._laws:
            assert self._logits is not None
            self._laws[node] = Law(self._logits[node].to(self._device), self._dtype)
        return self._laws[node]


def require_chain(candidates: Candidates, name: str) -> None:
    """**Raises:** `OptionError` where candidates branch."""
    if not candidates.is_chain:
        raise OptionError(
            f"verification={name!r} is for chains, and these candidates branch; use 'recursive' "
            "or 'traversal'"
        )

"""Rules that change the distribution. Each is used only where it is asked for by its name, `lossy_...`."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from outrider.errors import OptionError
from outrider.types import Candidates
from outrider.verification.chance import Chance, TorchChance
from outrider.verification.drafted import DraftLaws
from outrider.verification.law import Law
from outrider.verification.recursive import RecursiveVerifier, children_of
from outrider.verification.step import Row, Verifier, descend


@final
class TypicalVerifier(Verifier):
    """Keep a candidate that the target finds typical: p(x) > min(epsilon, delta * exp(-entropy)).

    **Arguments:**

    - `epsilon`, `delta`: Medusa's threshold (Cai 2024).
    - `do_sample`: Draw the token where no candidate is typical; else take the most likely.

    **Lossy:** candidates are preferred to what the target would have drawn, so the text depends on the
    generator. Of several typical children the likeliest is kept.
    """

    lossy = True

    def __init__(
        self,
        seed: int | None = None,
        *,
        epsilon: float = 0.09,
        delta: float = 0.3,
        do_sample: bool = True,
        chance: Chance | None = None,
    ) -> None:
        if not (epsilon > 0 and delta > 0):
            raise OptionError("epsilon and delta must be above 0")
        self.epsilon, self.delta, self.do_sample = epsilon, delta, do_sample
        self.chance = TorchChance(seed) if chance is None else chance

    def verify(self, row: Row, candidates: Candidates, logits: Tensor) -> list[int]:
        children = children_of(candidates)

        def choose(node: int) -> tuple[int, Tensor]:
            scores = row.score(logits[node + 1 : node + 2])
            p = torch.softmax(scores[0], dim=-1, dtype=torch.float32)
            if children[node]:
                entropy = float(torch.special.entr(p).sum())
                bound = min(self.epsilon, self.delta * math.exp(-entropy))
                tokens = [int(candidates.tokens[child]) for child in children[node]]
                best = max(tokens, key=lambda token: float(p[token]))
                if float(p[best]) > bound:
                    return best, scores
            return (self.chance.pick(p) if self.do_sample else int(p.argmax())), scores

        return descend(row, candidates, choose)


@final
class EnsembleVerifier(RecursiveVerifier):
    """Verify against (1 - weight) * p + weight * q instead of p.

    **Arguments:**

    - `weight`: The draft's share, between 0 and 1; transformers calls it `assistant_ensemble_weight`.

    **Lossy:** wherever there is a candidate the law is a mixture with the draft's. Exact for weight 0.
    """

    name = "lossy_ensemble"
    lossy = True

    def __init__(self, seed: int | None = None, *, weight: float = 0.1, **options: object) -> None:
        super().__init__(seed, **options)  # type: ignore[arg-type]
        if not 0 <= weight <= 1:
            raise OptionError(f"weight must lie between 0 and 1, not {weight!r}")
        self.weight = weight

    def target_law(self, p: Law, children: list[int], laws: DraftLaws) -> Law | Tensor:
        return torch.lerp(p.full, laws[children[0]].full, self.weight) if children else p

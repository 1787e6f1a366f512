"""A candidate generator written for transformers, its own or somebody's, as an Outrider generator."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch

from outrider.contract import CandidateGenerator
from outrider.errors import GeneratorError, OptionError
from outrider.types import Candidates, Context, Ids, Scores, Verification


@final
class FromTransformers(CandidateGenerator):
    """Ask `get_candidates(input_ids)`, and tell `update_candidate_strategy` what came of it.

    The wrapped object gets copies: it cannot change the committed tokens. `scores` are processed where
    the verifier visited, and the target's raw logits elsewhere.
    """

    needs = frozenset({Scores()})

    def __init__(self, generator: Any, device: Any = "cpu") -> None:
        if getattr(generator, "requires_model_outputs", False):
            raise OptionError(
                f"{type(generator).__name__} reads the target's outputs through transformers' private loop; "
                "use it with model.generate(), or write it with `needs` for Outrider"
            )
        self.generator = generator
        self._device = device
        self._ids: Ids = np.empty(0, np.int64)

    def reset(self, prompt: Ids) -> None:
        self._ids = prompt.copy()

    def propose(self, context: Context, budget: int) -> Candidates:
        name = type(self.generator).__name__
        own = torch.tensor(context.ids[None], device=self._device)
        returned, logits = self.generator.get_candidates(own)
        ids = returned.detach().cpu().numpy()
        if ids.ndim != 2 or ids.shape[0] != 1:
            raise GeneratorError(f"{name}.get_candidates returned shape {ids.shape}, not (1, L + k)")
        if not np.array_equal(ids[0, : context.ids.size], context.ids):
            raise GeneratorError(
                f"{name}.get_candidates returned ids that do not begin with the ids it was given; "
                "return the whole sequence, candidates at its end"
            )
        tokens = ids[0, context.ids.size :][:budget]
        if logits is not None:
            logits = logits[0, : tokens.size]
        return Candidates.chain(tokens, draft_logits=logits, source=name)

    def update(self, verification: Verification) -> None:
        self._ids = np.concatenate([self._ids, verification.committed])
        num_candidates = len(verification.candidates)
        if verification.scores is None or not hasattr(self.generator, "update_candidate_strategy"):
            return
        self.generator.update_candidate_strategy(
            torch.tensor(self._ids[None], device=self._device),
            verification.scores[None, : num_candidates + 1],
            int(verification.committed.size) - 1,
        )

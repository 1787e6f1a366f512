"""A law over the vocabulary, computed as far as it is asked for."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from outrider.cores import one_thread
from outrider.errors import NonFiniteLogitsError
from outrider.verification.total import log_total


class Law:
    """softmax(scores). One token's probability costs one pass over the row; `full` is for where a rule stops.

    **Arguments:**

    - `scores`: (V,) or (1, V), any floating dtype. -inf means impossible.
    - `dtype`: What probabilities are computed in.

    **Raises:** `NonFiniteLogitsError` from `law[token]`, where a score is NaN or no token is possible.
    """

    def __init__(self, scores: Tensor, dtype: torch.dtype) -> None:
        self._scores, self._dtype = scores.detach().reshape(-1), dtype

    def __getitem__(self, token: int) -> float:
        """The probability of one token."""
        log = float(self._scores[token].to(self._dtype) - self._log_total)
        if math.isnan(log):
            raise NonFiniteLogitsError(
                "the scores hold NaN, or leave no token possible; check the model's weights "
                "and the logits processors"
            )
        return math.exp(log)

    @cached_property
    def _log_total(self) -> float | Tensor:
        """Left on an accelerator, so that a probability is one copy to the host."""
        if self._scores.device.type == "cpu" and self._dtype == torch.float32:
            return log_total(self._scores)
        return self._scores.to(self._dtype).logsumexp(-1)

    @cached_property
    def full(self) -> Tensor:
        """(V,) every token's probability."""
        with one_thread():
            return torch.softmax(self._scores, dim=-1, dtype=self._dtype)


def full(law: Law | Tensor) -> Tensor:
    """(V,) probabilities of a law, or of what is left of one."""
    return law if isinstance(law, Tensor) else law.full

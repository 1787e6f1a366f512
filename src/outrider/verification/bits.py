"""A row of scores as the integers its numbers are made of: read where it lies, in the model's own dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def bits_of(scores: Tensor) -> tuple[Any, int]:
    """(V,) integers of a row on the host, and how many places higher they stand in float32 (`race.widen`).

    float32 and bfloat16 are read where they lie; other dtypes are copied to float32 first.
    """
    flat = scores.detach().reshape(-1)
    if flat.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy(), 16
    return flat.float().view(torch.int32).numpy(), 0

"""The most likely token, whatever a row's dtype holds: ties, signed zeros, infinities, NaN of both signs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import NonFiniteLogitsError
from outrider.verification.step import peak_tokens

SPECIAL = [
    0x0000,
    0x8000,
    0x7F80,
    0xFF80,
    0x7FC0,
    0xFFC0,
    0x7C00,
    0xFC00,
    0x7E00,
    0xFE00,
    0x3F80,
    0xBF80,
    0x0001,
]
BITS = st.lists(st.one_of(st.sampled_from(SPECIAL), st.integers(0, 2**16 - 1)), min_size=1, max_size=40)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@given(bits=BITS, alone=st.booleans())
def test_half_precision_rows_by_their_bits(dtype: torch.dtype, bits: list[int], alone: bool) -> None:
    if alone:  # below zero everywhere
        bits = [each | 0x8000 for each in bits]
    row = torch.from_numpy(np.array([bits], np.uint16).view(np.int16)).view(dtype)
    peak_of = peak_tokens(row)
    if row.isnan().any():
        with pytest.raises(NonFiniteLogitsError):
            peak_of(0)
    else:
        assert peak_of(0) == int(row.float().numpy()[0].argmax())


def test_a_row_that_is_not_contiguous() -> None:
    logits = torch.randn(3, 4, 7).bfloat16().transpose(0, 2)[:, 1]
    wanted = [int(row.float().numpy().argmax()) for row in logits]
    peak_of = peak_tokens(logits)
    assert [peak_of(row) for row in range(len(wanted))] == wanted

"""Language models generate faster, with the same text.

`generate(model, ...)` is all that most need. Importing this package loads neither torch nor transformers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from outrider.contract import CandidateGenerator as CandidateGenerator
from outrider.contract import available as available
from outrider.contract import get as get
from outrider.errors import OutriderError as OutriderError
from outrider.stats import Stats as Stats
from outrider.types import Candidates as Candidates
from outrider.types import Context as Context
from outrider.types import HiddenStates as HiddenStates
from outrider.types import Scores as Scores
from outrider.types import TopLogits as TopLogits
from outrider.types import Verification as Verification

if TYPE_CHECKING:
    from outrider.generation import AssistedDecoding as AssistedDecoding
    from outrider.generation import generate as generate

logging.getLogger("outrider").addHandler(logging.NullHandler())

_NEED_TORCH = ("AssistedDecoding", "generate")


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        from outrider import generation

        return getattr(generation, name)
    raise AttributeError(f"module 'outrider' has no attribute {name!r}")

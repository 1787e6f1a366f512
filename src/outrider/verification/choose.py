"""From a name to a verifier."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from outrider.errors import OptionError, UnknownNameError
from outrider.verification.greedy import GreedyVerifier
from outrider.verification.k_seq import KSeqVerifier
from outrider.verification.keyed import KeyedVerifier
from outrider.verification.lossy import EnsembleVerifier, TypicalVerifier
from outrider.verification.matching import MatchVerifier
from outrider.verification.recursive import RecursiveVerifier
from outrider.verification.rejection import BlockVerifier, TokenVerifier
from outrider.verification.step import Verifier
from outrider.verification.traversal import TraversalVerifier

_SAMPLING: dict[str, Callable[..., Verifier]] = {
    "keyed": KeyedVerifier,
    "match": MatchVerifier,
    "block": BlockVerifier,
    "token": TokenVerifier,
    "traversal": TraversalVerifier,
    "k_seq": KSeqVerifier,
    "recursive": RecursiveVerifier,
    "lossy_typical": TypicalVerifier,
    "lossy_ensemble": EnsembleVerifier,
}


def available_verifiers() -> list[str]:
    """Names that `get_verifier` knows, "auto" first."""
    return ["auto", "greedy", *_SAMPLING]


def get_verifier(name: str, *, do_sample: bool, seed: int | None = None, **options: Any) -> Verifier:
    """The verifier of that name, for greedy decoding or for sampling.

    **Arguments:**

    - `name`: One of `available_verifiers()`. "auto" is "greedy" without sampling, "keyed" with it.
    - `do_sample`: What the caller's configuration asks for.
    - `seed`: For those that draw. None: torch's global generator.
    - `options`: A verifier's own settings.

    **Raises:** `UnknownNameError`, which suggests the nearest name; `OptionError` where the verifier would
    change what `do_sample` asks for.

    **Exact:** whatever the verifier says; those named `lossy_...` are not, and must be asked for by name.
    """
    if name not in available_verifiers():
        near = difflib.get_close_matches(name, available_verifiers(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(available_verifiers())}."
        raise UnknownNameError(f"there is no verification named {name!r}; {hint}")
    if name == "greedy" and do_sample:
        raise OptionError("verification='greedy' cannot sample; use 'auto', or do_sample=False")
    if name == "greedy" or (name == "auto" and not do_sample):
        return GreedyVerifier()
    if name == "lossy_typical":
        options["do_sample"] = do_sample
    elif not do_sample:
        raise OptionError(f"verification={name!r} draws its tokens; use 'auto', or do_sample=True")
    try:
        return _SAMPLING["keyed" if name == "auto" else name](seed=seed, **options)
    except TypeError as error:
        raise OptionError(f"verification={name!r} does not take these options: {error}") from error

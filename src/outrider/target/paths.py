"""Which ways of verifying a model gets, and why not the others: what `outrider doctor` tells."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from outrider.caches.snapshots import has_recurrent_state
from outrider.target.exact_rows import KINDS, Kind
from outrider.target.exactness import exactness
from outrider.target.masks import reason_against_trees
from outrider.target.probe import fresh_cache
from outrider.target.ragged import reason_against_rows
from outrider.target.recurrent import reason_against


@dataclass(frozen=True, slots=True)
class Path:
    """One way of verifying candidates.

    **Arguments:**

    - `name`: "chain", "tree", "batch", "exact=transformers" or "exact=generators".
    - `taken`: Whether the model gets it.
    - `why`: The reason, in words that follow the name.
    """

    name: str
    taken: bool
    why: str


def paths(model: PreTrainedModel) -> list[Path]:
    """The paths of a decoder-only model, each tried out on its own weights."""
    if getattr(model, "_is_stateful", False) or has_recurrent_state(fresh_cache(model)):
        return _recurrent_paths(reason_against(model))
    against = reason_against_trees(model)
    chain = Path("chain", True, "rejected candidates are rolled back by a number")
    if against is not None:
        rows = reason_against_rows(model, {"use_cache": True}, model.generation_config)
        return [
            chain,
            Path("tree", False, f"{against}; a tree's best chain is taken"),
            Path("batch", rows is None, rows or "rows of different lengths are moved to end together"),
        ]
    return [
        chain,
        Path("tree", True, "a node's logits over a tree are those over its path"),
        Path("batch", True, "each row has its own mask and positions"),
    ]


def _recurrent_paths(against: str | None) -> list[Path]:
    if against is not None:
        return [Path(name, False, against) for name in ("chain", "tree", "batch")]
    return [
        Path("chain", True, "the state of the last commit is kept, and accepted tokens are run again"),
        Path("tree", False, "a recurrent state follows one path; a tree's best chain is taken"),
        Path("batch", False, "a recurrent state follows one path"),
    ]


def exact_paths(model: PreTrainedModel) -> list[Path]:
    """The kinds of exactness that a model can have here, each tried in full on its own weights."""
    return [_exact_path(model, kind) for kind in KINDS]


def _exact_path(model: PreTrainedModel, kind: Kind) -> Path:
    found = exactness(model, kind, in_full=True)
    if found.max_rows == 1:
        return Path(f"exact={kind}", False, found.reason)
    prices = " and ".join(f"{price:.2f} at {size}" for size, price in sorted((found.prices or {}).items()))
    why = f"the same bits up to {found.max_rows} tokens a forward{', trees too' if found.takes_trees else ''}"
    return Path(
        f"exact={kind}", True, f"{why}; times the usual time: {prices} tokens of context" if prices else why
    )

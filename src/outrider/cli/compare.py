"""`outrider generate --compare`: the same prompt three ways, in turn, and what each took."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from outrider.cli.common import FREE_STYLE, progress_console
from outrider.cli.streaming import coloured

_ENOUGH_S = 20.0
_WARM_UP = 4


@dataclass
class Contestant:
    """One way to generate: its text, seconds of each repeat, and what it cost.

    `exact` says whose bits its logits have (`Stats.exact`); transformers' are its own.
    """

    name: str
    tokens: list[int]
    origins: list[str]
    seconds: list[float]
    mat: float = 1.0
    exact: str = ""

    @property
    def rate(self) -> float:
        """Tokens per second, prompt included; the median of the repeats."""
        return len(self.tokens) / median(self.seconds)


def compare(
    model: Any,
    ids: Any,
    make: Callable[[], dict[str, Any]],
    label: str,
    seed: int | None,
    exact: bool | str | None = None,
    **options: Any,
) -> list[Contestant]:
    """transformers' own decoding, Outrider drafting nothing, and Outrider drafting, interleaved.

    Each runs once, and up to three times while that keeps within a third of a minute. Every run drafts
    with a generator of its own from `make`, so that none has seen the text before.
    """
    import torch

    import outrider

    seed = random.randrange(2**31) if seed is None else seed

    def theirs(drafter: dict[str, Any], **options: Any) -> Any:
        torch.manual_seed(seed)
        return model.generate(ids, return_dict_in_generate=True, **options)

    def ours(drafter: dict[str, Any], **options: Any) -> Any:
        own = {"seed": seed, "exact": exact, **drafter}
        return outrider.generate(model, ids, return_dict_in_generate=True, **own, **options)

    ways: dict[str, tuple[Callable[..., Any], Callable[[], dict[str, Any]]]] = {
        "transformers": (theirs, dict),
        "outrider, drafting nothing": (ours, lambda: {"candidate_generator": "none"}),
        f"outrider, {label}": (ours, make),
    }
    found: dict[str, Contestant] = {}
    with progress_console.status("warming up") as status:
        for run, drafter_for in ways.values():
            run(drafter_for(), **{**options, "max_new_tokens": min(_WARM_UP, options["max_new_tokens"])})
        first = time.perf_counter()
        turns = 0
        while not turns or (turns < 3 and (time.perf_counter() - first) * (turns + 1) / turns < _ENOUGH_S):
            turns += 1
            for name, (run, drafter_for) in ways.items():
                status.update(f"{name} (turn {turns})")
                drafter = drafter_for()
                began = time.perf_counter()
                output = run(drafter, **options)
                seconds = time.perf_counter() - began
                tokens = output.sequences[0, ids.shape[1] :].tolist()
                stats = getattr(output, "stats", None)
                origins = stats.origins if stats else ["target"] * len(tokens)
                contestant = found.setdefault(name, Contestant(name, tokens, origins, []))
                contestant.seconds.append(seconds)
                if stats:
                    contestant.mat, contestant.exact = stats.mat, stats.exact
    return list(found.values())


def show(
    console: Console,
    model: Any,
    tokenizer: Any,
    ids: Any,
    contestants: list[Contestant],
    sampled: bool = False,
) -> None:
    """The texts side by side, and the table under them."""
    theirs, plain, drafted = contestants
    width = max(26, console.width // 3)
    panels = [
        Panel(coloured(tokenizer, way.tokens, way.origins), title=way.name, width=width)
        for way in contestants
    ]
    table = Table("", "tokens/s", "speedup", "MAT", "same text", box=None, pad_edge=False)
    for way in contestants:
        # Sampled, transformers draws another text; ours are one text with one seed.
        reference = plain if sampled else theirs
        table.add_row(
            way.name,
            f"{way.rate:.1f}",
            f"{way.rate / theirs.rate:.2f}x",
            f"{way.mat:.2f}",
            "another draw"
            if sampled and way is theirs
            else _sameness(model, ids, reference.tokens, way.tokens),
        )
    free = sum(origin != "target" for origin in drafted.origins)
    legend = Text(f"{free} of {len(drafted.tokens)} tokens came free", style=FREE_STYLE)
    same = "the same text as transformers, bit for bit"
    exactly = drafted.exact == "transformers" and drafted.tokens == theirs.tokens and not sampled
    turns = Text(f"; the median of {len(drafted.seconds)} runs of each, in turn", style="dim")
    claim = [Text(), Text(same, style="bold")] if exactly else []
    console.print(Group(Columns(panels, padding=0), legend + turns, Text(), table, *claim))


def _sameness(model: Any, ids: Any, plain: list[int], other: list[int]) -> str:
    """ "yes", or where the texts part and how close the target's two best logits are there."""
    if plain == other:
        return "yes"
    import torch

    at = next(
        (i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), min(len(plain), len(other))
    )
    context = torch.cat([ids, torch.tensor([plain[:at]], dtype=ids.dtype)], dim=1).to(model.device)
    with torch.no_grad():
        best = model(context).logits[0, -1].float().topk(2).values
    return f"to token {at}, where the two best logits are {float(best[0] - best[1]):.3g} apart"

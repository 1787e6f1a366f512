"""`outrider bench --replay`: generators on recorded texts, and the bounds beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from outrider.cli.common import console, progress_console
from outrider.errors import FileFormatError, OptionError


def replay_traces(path: Path, generators: str, controller: str | None, cost: float) -> None:
    """Print a row a generator: tokens a round, candidates, the speedup that the assumed cost allows."""
    from outrider.bench.contestants.choose import split_names
    from outrider.bench.replay import bounds, read_traces, replay
    from outrider.choosing import choose, make_generator, parse_spec
    from outrider.control import get_controller
    from outrider.flags import Flags

    if not path.is_file():
        raise OptionError(f"there is no file {str(path)!r}; record one with 'outrider trace record'")
    traces = list(read_traces(path))
    if not traces:
        raise FileFormatError(f"{path} holds no text; record some with 'outrider trace record'")
    categories = list(dict.fromkeys(trace.category for trace in traces))
    shown = categories if len(categories) > 1 else []
    table = Table(
        "", "tokens a round", "candidates a round", "speedup at most", "drafting, us a round", *shown,
        title=f"{len(traces)} texts, {sum(trace.output_ids.size for trace in traces)} tokens; a candidate costs {cost:g} of a forward",
        box=None, pad_edge=False, title_justify="left",
    )  # fmt: skip
    for name in split_names(generators):
        spec, options = parse_spec(name)
        generator, chosen = choose(make_generator(spec, **options), Flags(), None)
        if controller is not None:
            chosen = get_controller(int(controller) if controller.isdigit() else controller)
        with progress_console.status(f"replaying {name}"):
            replay(traces[:1], generator, chosen, cost=cost)  # what compiles, compiles here
            result = replay(traces, generator, chosen, cost=cost)
        table.add_row(
            name,
            f"{result.acceptance_length:.2f}",
            f"{result.num_candidates / max(result.num_rounds, 1):.1f}",
            f"{result.speedup:.2f}",
            f"{1e6 * result.draft_s / max(result.num_rounds, 1):.0f}",
            *(f"{result.by_category[category].acceptance_length:.2f}" for category in shown),
        )
    with progress_console.status("the bounds"):
        overall = bounds(traces)
        each: dict[str, Any] = {
            category: bounds([trace for trace in traces if trace.category == category]) for category in shown
        }
    labels = {"lz77": "best copy from anywhere (LZ77)", "last_token": "best copy after the last token"}
    for key, label in labels.items():
        cells = [f"{each[category][key]:.2f}" for category in shown]
        table.add_row(label, f"{overall[key]:.2f}", "–", "–", "–", *cells, style="dim")
    console.print(table)

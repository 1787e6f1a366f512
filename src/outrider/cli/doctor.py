"""`outrider doctor MODEL`: what this model does on this machine, and what drafting could bring it."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from outrider.cli.common import console, load_model, one_sentence, progress_console, writing

_MATS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_MAX_S = 6.0
_FORWARDS = (2, 4, 8, 16, 32)


def doctor(
    model: Annotated[str, typer.Argument(help="Folder, known name, .gguf file, or 'smollm2'.")],
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of the forwards that are timed.")] = 1,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")] = "auto",
    html: Annotated[Path | None, typer.Option(help="Write a page with the plots.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write the plots into this folder.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the model.")] = False,
) -> None:
    """Tell what a forward over k tokens costs here, which paths a model gets, and what drafting could bring."""
    with one_sentence():
        target, _ = load_model(model, dtype, trust_remote_code)
        from outrider.target.paths import exact_paths, paths
        from outrider.target.probe import difference_at_once, forward_times

        with progress_console.status("timing forwards"):
            times = forward_times(target, batch_size=batch_size, max_s=_MAX_S, anew=True)
        with progress_console.status("comparing one forward over 8 tokens with 8 forwards over one"):
            difference = difference_at_once(target)
            found = paths(target)
        with progress_console.status("comparing forwards bit for bit"):
            found += exact_paths(target)
        console.print(_title(target, batch_size), style="bold")
        console.print(_costs(times))
        console.print(_same(target, difference))
        console.print(_paths(found))
        console.print()
        console.print(_speedups(times))
        if html is not None:
            from outrider.report.doctor import doctor_page

            notes = [(path.name, f"{'yes' if path.taken else 'no'}: {path.why}") for path in found]
            with writing(html) as write:
                write(doctor_page(_title(target, batch_size).strip(), times.seconds, notes))
            progress_console.print(f"written to {html}", style="dim")
        if png is not None:
            from outrider.report.doctor import doctor_pictures

            for written in doctor_pictures(times.seconds, png):
                progress_console.print(f"written to {written}", style="dim")


def _title(model: Any, batch_size: int) -> str:
    import torch

    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    dtype = str(model.dtype).removeprefix("torch.")
    place = f"{torch.get_num_threads()} threads" if model.device.type == "cpu" else str(model.device)
    rows = "1 row" if batch_size == 1 else f"{batch_size} rows"
    return f"{type(model).__name__}, {millions:.0f} M parameters, {dtype}, {place}, {rows}\n"


def _costs(times: Any) -> Table:
    table = Table("tokens in a forward", "ms", "times T(1)", "", box=None, title_justify="left")
    for size in times.seconds:
        measured = "" if size in times.measured else "interpolated"
        table.add_row(str(size), f"{1e3 * times(size):.2f}", f"{times(size) / times(1):.2f}", measured)
    return table


def _same(model: Any, difference: float) -> str:
    import torch

    # A wrong mask, position or state moves logits by more than their spread.
    rounding = {torch.bfloat16: 0.5, torch.float16: 0.1}.get(model.dtype, 1e-3)
    verdict = (
        "only rounding" if difference <= rounding else "more than rounding: drafting would change the text"
    )
    return f"\n8 tokens in one forward against 8 forwards over one: {difference:.1e} of the logits' spread, {verdict}\n"


def _paths(found: list[Any]) -> Table:
    table = Table("path", "", "why", box=None)
    for path in found:
        table.add_row(path.name, "yes" if path.taken else "no", path.why)
    return table


def _speedups(times: Any) -> Table:
    """For each MAT, the speedup were drafting free, by the tokens that a forward holds."""
    headings = (f"forwards of {size}" for size in _FORWARDS)
    table = Table("largest speedup at MAT", *headings, box=None)
    for mat in _MATS:
        cells = [
            f"{times.largest_speedup(mat, size):.2f}x" if size >= ceil(mat) else "-" for size in _FORWARDS
        ]
        table.add_row(f"{mat:g}", *cells)
    return table

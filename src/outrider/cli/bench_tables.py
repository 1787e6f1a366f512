"""The tables that `outrider bench` ends with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.bench.metrics import Summary, summaries
from outrider.bench.records import Results


def show(console: Console, results: Results) -> None:
    """Every contestant, the speedup by category, and what failed."""
    header = results.header
    where = f"{header.model}, {header.dtype}, {header.device}, {header.threads} threads"
    overall = summaries(results)
    for batch in sorted({summary.batch for summary in overall}):
        title = where if batch == 1 else f"{where}, {batch} rows at once"
        console.print(_overall([summary for summary in overall if summary.batch == batch], title))
    by_category = summaries(results, by_category=True)
    if len({summary.category for summary in by_category}) > 1:
        for batch in sorted({summary.batch for summary in by_category}):
            console.print(_by_category([summary for summary in by_category if summary.batch == batch]))
    console.print(
        f"speedup over {header.baseline}: ratio of each question, then the mean, with its 95% interval",
        style="dim",
    )
    for failure in results.failures:
        console.print(
            f"{failure.contestant} failed at question {failure.question_id} (batch {failure.batch}): {failure.reason}",
            style="red",
            markup=False,
        )


def _overall(found: list[Summary], title: str) -> Table:
    table = Table(
        "", "tokens/s", "speedup", "worst", "decoding alone", "first token, s", "MAT", "accepted", "same text", "memory, MB",
        title=title, box=None, pad_edge=False, title_justify="left",
    )  # fmt: skip
    for summary in found:
        table.add_row(
            summary.contestant,
            f"{summary.tokens_per_s.value:.1f}",
            _or_dash(summary.speedup),
            _or_dash(summary.worst_speedup, "{:.2f}".format),
            _or_dash(summary.decode_speedup),
            f"{summary.prefill_s.value:.2f}",
            _or_dash(summary.mat, "{:.2f}".format),
            _or_dash(summary.acceptance_rate, "{:.0%}".format),
            _or_dash(summary.identical, "{:.0%}".format),
            f"{summary.peak_memory_bytes / 1e6:.0f}",
        )
    return table


def _by_category(found: list[Summary]) -> Table:
    contestants = list(dict.fromkeys(summary.contestant for summary in found))
    table = Table("speedup in", "questions", *contestants, box=None, pad_edge=False)
    for category in dict.fromkeys(summary.category for summary in found):
        held = {summary.contestant: summary for summary in found if summary.category == category}
        cells = [_or_dash(held[name].speedup) if name in held else "–" for name in contestants]
        table.add_row(category, str(max(summary.num_questions for summary in held.values())), *cells)
    return table


def _or_dash(value: Any, form: Callable[[Any], str] = str) -> str:
    return "–" if value is None else form(value)

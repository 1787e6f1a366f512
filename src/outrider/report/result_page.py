"""Results as one HTML page, as Markdown, and as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.bench.change import Change, changes
from outrider.bench.records import Header, Results
from outrider.errors import OptionError
from outrider.report.charts import Canvas, Chart, to_png, to_svg
from outrider.report.page import render, safe
from outrider.report.result import Cell, Table, facts, sections
from outrider.report.shapes import grouped_bars

_VERDICTS = {"faster": "faster", "slower": "slower", "noise": "no difference beyond noise"}


def result_page(named: Sequence[tuple[str, Results]]) -> str:
    """The page of one result, or of several, each compared with the first."""
    (first_name, first), *others = named
    compared = [_comparison(first_name, first, name, other) for name, other in others]
    return render(
        "result.html",
        title=f"{first.header.model}: Outrider benchmark",
        svg=lambda chart: safe(to_svg(chart)),
        results=[
            {
                "name": name,
                "header": one.header,
                "sections": sections(one),
                "facts": facts(one.header),
                "failures": one.failures,
            }
            for name, one in named
        ],
        comparisons=compared,
    )


def markdown(results: Results) -> str:
    """The sentence, the table of all contestants, speedup by category, and what is needed to run it again."""
    header = results.header
    parts = []
    for section in sections(results):
        parts += [_plain(section.sentence), _markdown_table(section.overall)]
        if section.by_category is not None:
            parts += [_plain(section.by_category.caption), _markdown_table(section.by_category)]
    parts += [
        f"{_plain(failure.contestant)} failed: {_plain(failure.reason)}" for failure in results.failures
    ]
    where = f"{header.device}, {header.threads} threads, {header.dtype}; {header.date[:10]}"
    parts.append(f"<code>{_plain(header.command)}</code> on {_plain(where)}; in brackets 95% intervals.")
    return "\n\n".join(parts) + "\n"


def pictures(results: Results, folder: Path) -> list[Path]:
    """One PNG a chart; the paths written.

    **Raises:** `OptionError` where the folder cannot be written.
    """
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for section in sections(results):
            for chart in section.charts:
                written.append(folder / f"{chart.name}.png")
                to_png(chart, written[-1])
    except OSError as error:
        raise OptionError(f"{folder} cannot be written ({error.strerror}); give another folder") from error
    return written


def _markdown_table(table: Table) -> str:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_plain(cell) for cell in cells) + " |"

    shown = [[_with_interval(cell) for cell in cells] for cells in table.rows]
    # Columns in which nobody has a value say nothing.
    kept = [
        at
        for at in range(len(table.columns))
        if at == 0 or any(cells[at].value is not None for cells in table.rows)
    ]
    lines = [row([table.columns[at] for at in kept]), row(["---"] * len(kept))]
    return "\n".join(lines + [row([cells[at] for at in kept]) for cells in shown])


def _with_interval(cell: Cell) -> str:
    return f"{cell.text} [{cell.interval}]" if cell.interval else cell.text


def _plain(text: str) -> str:
    """Text that cannot end a table's cell or begin markup."""
    for sign, escape in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " ")):
        text = text.replace(sign, escape)
    return text


def _comparison(first_name: str, first: Results, name: str, other: Results) -> dict[str, Any]:
    found = changes(first, other)
    return {
        "title": f"{name} against {first_name}",
        "sentence": _said(found),
        "differences": _differences(first.header, other.header),
        "table": _change_table(found),
        "chart": _change_chart(found) if found else None,
    }


def _said(found: Sequence[Change]) -> str:
    if not found:
        return "The two results share no contestant and question, so nothing can be compared."
    clear = [one for one in found if one.verdict != "noise"]
    if not clear:
        return f"Nothing changed beyond noise in {len(found)} comparison{'' if len(found) == 1 else 's'}."
    parts = [f"{one.contestant} is {one.verdict} ({one.ratio} times)" for one in clear]
    rest = len(found) - len(clear)
    return "; ".join(parts) + (
        f"; {rest} other{'' if rest == 1 else 's'} did not change beyond noise." if rest else "."
    )


def _differences(first: Header, other: Header) -> list[tuple[str, str, str]]:
    mine, theirs = dict(facts(first)), dict(facts(other))
    return [
        (name, mine[name], theirs[name]) for name in mine if mine[name] != theirs[name] and name != "Date"
    ]


def _change_table(found: Sequence[Change]) -> Table:
    rows = tuple(
        (
            Cell(one.contestant, one.contestant.lower()),
            Cell(str(one.batch), one.batch),
            Cell(f"{one.before:.2f}", one.before),
            Cell(f"{one.after:.2f}", one.after),
            Cell(f"{one.ratio.value:.2f}", one.ratio.value, f"{one.ratio.low:.2f}–{one.ratio.high:.2f}"),
            Cell(str(one.ratio.num), one.ratio.num),
            Cell(_VERDICTS[one.verdict], one.verdict),
        )
        for one in found
    )
    return Table(
        "change",
        "Speedups paired question by question; the change is the geometric mean of the ratios with its 95% bootstrap interval.",
        ("contestant", "rows at once", "before", "after", "change", "questions", "verdict"),
        rows,
    )


def _change_chart(found: Sequence[Change]) -> Chart:
    def draw(canvas: Canvas) -> None:
        grouped_bars(
            canvas, [one.contestant for one in found], [("change", "series-1")],
            [[(one.ratio.value, one.ratio.low, one.ratio.high)] for one in found], "speedup after over before (times)", "×",
            reference=1.0,
        )  # fmt: skip

    said = "; ".join(f"{one.contestant} {one.ratio}, {_VERDICTS[one.verdict]}" for one in found)
    return Chart(
        "change",
        "What changed",
        "Intervals that hold 1 are noise.",
        f"Bar chart of the change of the speedup: {said}.",
        draw,
    )

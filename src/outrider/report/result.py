"""What a result says: one sentence, charts and tables, from the metrics in `outrider.bench.metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from outrider.bench.metrics import Interval, Summary, chosen, summaries
from outrider.bench.records import PHASES, Header, Results
from outrider.report import theme
from outrider.report.charts import Canvas, Chart
from outrider.report.shapes import grouped_bars, lines, stacked_bars

_PHASES = {
    "draft": ("draft", "series-4"),
    "target": ("target forward", "plain"),
    "verify": ("verify", "series-6"),
    "other": ("the rest", "series-7"),
}
# Below so many questions an interval says nothing.
_FEWEST = 3


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """A table's entry: what is shown, what it is sorted by (None: last), and an interval in small print."""

    text: str
    value: float | str | None = None
    interval: str = ""


@final
@dataclass(frozen=True, slots=True)
class Table:
    """`rows` of cells under `columns`; the first column names the row, the others hold numbers."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@final
@dataclass(frozen=True, slots=True)
class Section:
    """One batch size of a result."""

    batch: int
    sentence: str
    overall: Table
    by_category: Table | None
    charts: tuple[Chart, ...]
    best: Summary | None


def sections(results: Results) -> list[Section]:
    """A section for each batch size; none where nothing was measured."""
    overall, by_category = summaries(results), summaries(results, by_category=True)
    found = []
    for batch in sorted({summary.batch for summary in overall}):
        own = [summary for summary in overall if summary.batch == batch]
        split = [summary for summary in by_category if summary.batch == batch]
        categories = list(dict.fromkeys(summary.category for summary in split))
        found.append(
            Section(
                batch,
                sentence(results.header, own),
                _overall_table(own, results),
                _category_table(split, categories) if len(categories) > 1 else None,
                tuple(_charts(results, own, split if len(categories) > 1 else [], batch)),
                best(results.header, own),
            )
        )
    return found


def best(header: Header, overall: Sequence[Summary]) -> Summary | None:
    """The fastest that is no baseline and keeps the text; None where no such one has a speedup."""
    kept = {one.name for one in header.contestants if not one.is_baseline and not one.lossy}
    rated = [one for one in overall if one.contestant in kept and one.speedup is not None]
    return max(rated, key=lambda one: one.speedup.value if one.speedup else 0.0, default=None)


def sentence(header: Header, overall: Sequence[Summary]) -> str:
    """What a person can repeat."""
    top = best(header, overall)
    if top is None or top.speedup is None:
        return f"Nothing was measured beside {header.baseline} on {header.model}."
    speedup = top.speedup
    spread = f"95% interval {speedup.low:.2f} to {speedup.high:.2f}, {_count(speedup.num, 'question')}"
    if speedup.num < _FEWEST:
        spread = f"{_count(speedup.num, 'question')}: too few for an interval"
    rows = "" if top.batch == 1 else f" at {top.batch} rows at once"
    same = "" if top.identical is None else f" {_sameness(top.identical)}"
    if speedup.num < _FEWEST:
        said = f"ran {speedup.value:.2f} times as fast with {top.contestant} as with {header.baseline}{rows}"
    elif speedup.low > 1.0:
        said = f"generates {speedup.value:.2f} times as fast with {top.contestant} as with {header.baseline}{rows}"
    elif speedup.high < 1.0:
        said = f"is slower with {top.contestant} than with {header.baseline}{rows}: {speedup.value:.2f} times as fast"
    else:
        said = f"is neither faster nor slower with {top.contestant} than with {header.baseline}{rows}: {speedup.value:.2f} times as fast"
    return f"{header.model} {said} ({spread}).{same}"


def _sameness(share: float) -> str:
    return "The texts are the same." if share == 1.0 else f"{share:.0%} of the texts are the same."


def facts(header: Header) -> list[tuple[str, str]]:
    """What is needed to run it again."""
    settings = ", ".join(f"{name} {_shown(value)}" for name, value in header.settings.items())
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    return [
        ("Command", header.command),
        ("Date", header.date),
        ("Machine", f"{header.device}, {_count(header.threads, 'thread')}, {header.machine}"),
        ("Model", f"{header.model}, {header.num_parameters / 1e6:,.0f} million parameters, {header.dtype}"),
        ("Data", f"{header.data}, {_count(header.num_questions, 'question')}"),
        ("Settings", settings),
        ("Seed", "none (greedy)" if header.seed is None else str(header.seed)),
        ("Versions", versions),
        ("Commit", header.git or "unknown"),
    ]


def _shown(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _interval(value: Interval | None, digits: int = 2) -> Cell:
    if value is None:
        return Cell("–")
    spread = f"{value.low:.{digits}f}–{value.high:.{digits}f}" if value.low < value.high else ""
    return Cell(f"{value.value:.{digits}f}", value.value, spread)


def _number(value: float | None, form: str = "{:.2f}") -> Cell:
    return Cell("–") if value is None else Cell(form.format(value), value)


def _name(text: str) -> Cell:
    return Cell(text, text.lower())


def _overall_table(overall: Sequence[Summary], results: Results) -> Table:
    lossy = {one.name for one in results.header.contestants if one.lossy}
    rows = [
        (
            _name(one.contestant + (" (lossy)" if one.contestant in lossy else "")),
            _interval(one.speedup),
            _number(one.worst_speedup),
            _interval(one.decode_speedup),
            _interval(one.tokens_per_s, 1),
            _number(1000 * one.prefill_s.value, "{:.0f}"),
            _number(one.mat),
            _number(one.acceptance_rate, "{:.0%}"),
            _number(one.identical, "{:.0%}"),
            _number(one.largest_gap, "{:.2g}"),
            _number(one.peak_memory_bytes / 1e6, "{:,.0f}"),
        )
        for one in overall
    ]
    return Table(
        "overall",
        f"All contestants. Speedup: tokens a second over {results.header.baseline}'s, question by question, then the mean.",
        (
            "contestant", "speedup", "worst", "decoding alone", "tokens/s", "first token, ms", "MAT", "accepted",
            "same text", "largest gap of logits", "memory, MB",
        ),
        tuple(rows),
    )  # fmt: skip


def _category_table(split: Sequence[Summary], categories: Sequence[str]) -> Table:
    names = list(dict.fromkeys(one.contestant for one in split))
    held = {(one.category, one.contestant): one for one in split}
    rows = []
    for category in categories:
        cells = [_name(category)]
        for name in names:
            one = held.get((category, name))
            cells.append(_interval(one.speedup if one else None))
        rows.append(tuple(cells))
    return Table("by-category", "Speedup by category.", ("category", *names), tuple(rows))


def _charts(
    results: Results, overall: Sequence[Summary], split: Sequence[Summary], batch: int
) -> list[Chart]:
    others = [one.name for one in results.header.contestants if one.name != results.header.baseline]
    roles = {name: theme.series(at) for at, name in enumerate(others)} | {results.header.baseline: "plain"}
    made = [
        _speedup_chart(results, overall, split, roles),
        _acceptance_chart(overall, roles),
        _phase_chart(results, overall, batch),
        _ideal_chart(results, overall, batch),
    ]
    suffix = "" if batch == 1 else f"-batch-{batch}"
    return [
        Chart(chart.name + suffix, chart.title, chart.caption, chart.alt, chart.draw)
        for chart in made
        if chart is not None
    ]


def _speedup_chart(
    results: Results, overall: Sequence[Summary], split: Sequence[Summary], roles: dict[str, str]
) -> Chart | None:
    baseline = results.header.baseline
    names = [one.contestant for one in overall if one.contestant != baseline and one.speedup]
    if not names:
        return None
    keys = [(name, roles[name]) for name in names]
    groups = ["all", *dict.fromkeys(one.category for one in split)]
    held = {(one.category or "all", one.contestant): one.speedup for one in (*overall, *split)}
    values = []
    for group in groups:
        found = [held.get((group, name)) for name in names]
        values.append([(v.value, v.low, v.high) if v else None for v in found])

    def draw(canvas: Canvas) -> None:
        grouped_bars(canvas, groups, keys, values, f"speedup over {baseline} (times)", "×", reference=1.0)

    said = "; ".join(f"{name} {held['all', name]}" for name in names)
    return Chart(
        "speedup",
        "Speedup by category" if len(groups) > 1 else "Speedup",
        f"Mean of the questions' ratios of tokens a second; lines are 95% bootstrap intervals over questions. The dashed line is {baseline}.",
        f"Bar chart of the speedup over {baseline}. Over all questions: {said}.",
        draw,
    )


def _acceptance_chart(overall: Sequence[Summary], roles: dict[str, str]) -> Chart | None:
    drawn = [one for one in overall if one.acceptance_by_position]
    if not drawn:
        return None
    keys = [(one.contestant, roles[one.contestant]) for one in drawn]
    points = [
        [(at + 1.0, 100 * share) for at, share in enumerate(one.acceptance_by_position)] for one in drawn
    ]

    def draw(canvas: Canvas) -> None:
        lines(
            canvas, keys, points, "position of the candidate in its round", "accepted (%)", 100, whole_x=True
        )

    said = "; ".join(f"{one.contestant} {one.acceptance_by_position[0]:.0%} at the first" for one in drawn)
    return Chart(
        "acceptance",
        "Acceptance by position",
        "Accepted over proposed candidates at each position. A tree proposes several at one position, of which one at most is accepted.",
        f"Line chart of the share of accepted candidates by position: {said}.",
        draw,
    )


def _phase_chart(results: Results, overall: Sequence[Summary], batch: int) -> Chart | None:
    names, values = [], []
    for one in overall:
        rounds = _rounds(results, one, batch)
        if rounds and one.phases:
            names.append(one.contestant)
            values.append([1000 * one.phases[phase] / rounds for phase in PHASES])
    if not names:
        return None

    def draw(canvas: Canvas) -> None:
        stacked_bars(
            canvas, names, [_PHASES[phase] for phase in PHASES], values, "time of a round (ms)", "ms"
        )

    said = "; ".join(f"{name} {sum(own):.1f} ms" for name, own in zip(names, values, strict=True))
    return Chart(
        "phases",
        "Where a round's time goes",
        "Mean time of a round after the prompt's, by phase. A longer round pays where it commits more tokens.",
        f"Stacked bar chart of the time of a round: {said}.",
        draw,
    )


def _rounds(results: Results, summary: Summary, batch: int) -> int:
    lines = chosen(results, summary.contestant, summary.category, batch)
    return sum(line.stats["num_rounds"] for line in lines if line.stats is not None)


def _ideal_chart(results: Results, overall: Sequence[Summary], batch: int) -> Chart | None:
    times = results.header.forward_times
    if 1 not in times or batch != 1:
        return None
    names, values = [], []
    for one in overall:
        rounds = _rounds(results, one, batch)
        if not rounds or one.mat is None or one.decode_speedup is None:
            continue
        own = chosen(results, one.contestant, one.category, batch)
        candidates = sum(line.stats["num_candidates"] for line in own if line.stats is not None)
        names.append(one.contestant)
        measured = one.decode_speedup
        ideal = ideal_speedup(times, one.mat, candidates / rounds)
        values.append([(measured.value, measured.low, measured.high), (ideal, ideal, ideal)])
    if not names:
        return None

    def draw(canvas: Canvas) -> None:
        grouped_bars(
            canvas,
            names,
            [("measured", "series-1"), ("ideal", "plain")],
            values,
            f"speedup of decoding alone over {results.header.baseline} (times)",
            "×",
            reference=1.0,
        )

    said = "; ".join(
        f"{name} {own[0][0]:.2f} of {own[1][0]:.2f}" for name, own in zip(names, values, strict=True)
    )
    return Chart(
        "ideal",
        "Measured against what the machine allows",
        "The ideal is MAT × T(1) / T(k): drafting and everything else free, T(k) the measured time of a forward over k tokens, k the mean of the run.",
        f"Bar chart of the measured speedup of decoding and the ideal: {said}.",
        draw,
    )


def ideal_speedup(times: dict[int, float], mat: float, num_candidates: float) -> float:
    """MAT * T(1) / T(k) at k = 1 + `num_candidates`, T interpolated."""
    sizes = sorted(times)
    cost = np.interp(1.0 + num_candidates, sizes, [times[size] for size in sizes])
    return float(mat * times[1] / cost)

"""Pictures of what a forward costs: T(k), and the speedup that each MAT would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from outrider.report import theme
from outrider.report.charts import Canvas, Chart, to_png, to_svg
from outrider.report.page import render, safe
from outrider.report.shapes import lines

MATS = (1.5, 2.0, 3.0, 4.0, 6.0)


def charts(seconds: Mapping[int, float], mats: Sequence[float] = MATS) -> list[Chart]:
    """T(k), and the speedup over k for each MAT.

    **Arguments:**

    - `seconds`: T(k): seconds of one forward over k new tokens, by k; holds k = 1.
    - `mats`: Tokens committed a round; a forward over k tokens commits k at most.
    """
    sizes = sorted(seconds)
    relative = {size: seconds[size] / seconds[1] for size in sizes}
    most = max(sizes)
    costs = [(float(size), 1e3 * seconds[size]) for size in sizes]

    def draw_costs(canvas: Canvas) -> None:
        lines(
            canvas, [("T(k)", "series-1"), ("k forwards over one token", "plain")],
            [costs, [(1.0, costs[0][1]), *((k, costs[0][1] * k) for k, _ in costs[1:] if k <= 8)]],
            "tokens in a forward, k", "time (ms)", logarithmic_x=True,
        )  # fmt: skip

    def draw_speedups(canvas: Canvas) -> None:
        keys = [(f"MAT {mat:g}", theme.series(at)) for at, mat in enumerate(mats)]
        lines(
            canvas, keys, [_speedups(relative, mat) for mat in mats], "tokens in a forward, k",
            "speedup over plain decoding (times)", logarithmic_x=True, reference=1.0,
        )  # fmt: skip

    said = ", ".join(f"{1e3 * seconds[size]:.1f} ms over {size}" for size in sizes)
    gains = "; ".join(
        f"MAT {mat:g}: {own[0][1]:.2f} times at {own[0][0]:g} tokens, {own[-1][1]:.2f} at {most}"
        for mat in mats
        if (own := _speedups(relative, mat))
    )
    return [
        Chart(
            "forward-time",
            "What a forward over k tokens costs",
            "T(k), measured here. While it is flat candidates are nearly free; a line as steep as the grey one gains nothing.",
            f"Line chart of the time of a forward: {said}.",
            draw_costs,
        ),
        Chart(
            "largest-speedup",
            "What a MAT could bring",
            "MAT × T(1) / T(k): the speedup were drafting and everything else free, by the tokens a forward holds. Under 1 a round costs more than it brings.",
            f"Line chart of the largest speedup by MAT and tokens in a forward. {gains}.",
            draw_speedups,
        ),
    ]


def _speedups(relative: Mapping[int, float], mat: float) -> list[tuple[float, float]]:
    """(k, speedup) from the fewest tokens that can commit `mat`."""
    sizes = sorted(relative)
    costs = [relative[size] for size in sizes]
    first = min(float(np.ceil(mat)), float(sizes[-1]))
    at = [first, *(float(size) for size in sizes if size > first)]
    return [(k, mat / float(np.interp(k, sizes, costs))) for k in at]


def doctor_page(title: str, seconds: Mapping[int, float], notes: Sequence[tuple[str, str]] = ()) -> str:
    """One HTML page: both charts, the table behind them, and `notes` as names and values."""
    return render(
        "doctor.html",
        title=title,
        charts=charts(seconds),
        svg=lambda chart: safe(to_svg(chart)),
        rows=[(size, 1e3 * seconds[size], seconds[size] / seconds[1]) for size in sorted(seconds)],
        notes=notes,
    )


def doctor_pictures(seconds: Mapping[int, float], folder: Path) -> list[Path]:
    """One PNG a chart; the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in charts(seconds):
        written.append(folder / f"{chart.name}.png")
        to_png(chart, written[-1])
    return written

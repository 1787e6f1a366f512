"""The shapes that charts are made of: grouped bars, stacked bars, lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.report.charts import Canvas

# A name in the legend, and its colour's role.
Key = tuple[str, str]


def grouped_bars(
    canvas: Canvas,
    groups: Sequence[str],
    series: Sequence[Key],
    values: Sequence[Sequence[tuple[float, float, float] | None]],
    label: str,
    unit: str = "",
    reference: float | None = None,
) -> None:
    """Horizontal bars, a group a row of `values`; each value is (middle, low, high), or None where there is none."""
    bar, gap = 0.19, 0.2
    left = 1.25 if canvas.is_narrow else 1.9
    height = sum(bar * len(series) + gap for _ in groups)
    axes = canvas.axes(height, left, right=0.55)
    at = height
    most = max((value[2] for row in values for value in row if value), default=1.0)
    for group, row in zip(groups, values, strict=True):
        top = at - gap / 2
        _row_label(canvas, axes, top - bar * len(series) / 2, left, group)
        for number, value in enumerate(row):
            if value is None:
                continue
            middle, low, high = value
            y = top - bar * (number + 0.5)
            name, role = series[number]
            (drawn,) = axes.barh([y], [middle], height=bar * 0.82, color=canvas.colour(role))
            said = f"{group}, {name}: {middle:.2f}{unit}"
            canvas.named(drawn, said + (f", 95% interval {low:.2f} to {high:.2f}" if low < high else ""))
            if low < high:
                axes.plot(
                    [low, high], [y, y], color=canvas.colour("ink"), linewidth=1.1, solid_capstyle="butt"
                )
            axes.annotate(
                f"{middle:.2f}", (max(high, middle), y), xytext=(4, 0), textcoords="offset points", va="center",
                fontsize="small", color=canvas.colour("muted"),
            )  # fmt: skip
        at -= bar * len(series) + gap
    axes.set_ylim(0, height)
    axes.set_xlim(0, most * 1.04)
    axes.set_yticks([])
    axes.xaxis.grid(True, color=canvas.colour("line"), linewidth=0.8)
    if reference is not None:
        axes.axvline(reference, color=canvas.colour("ink"), linewidth=1.1, linestyle=(0, (3, 2)))
    axes.set_xlabel(label)
    if len(series) > 1:
        _patches(canvas, axes, series)


def _row_label(canvas: Canvas, axes: Any, y: float, left: float, text: str) -> None:
    """A bar's name, right-aligned to the axes; y as data, `left` is the axes' left edge in inches."""
    from matplotlib.transforms import blended_transform_factory

    axes.text(
        left - 0.12, y, _cut(text, 16 if canvas.is_narrow else 27), ha="right", va="center", color=canvas.colour("ink"),
        transform=blended_transform_factory(canvas.figure.dpi_scale_trans, axes.transData),
    )  # fmt: skip


def stacked_bars(
    canvas: Canvas,
    rows: Sequence[str],
    parts: Sequence[Key],
    values: Sequence[Sequence[float]],
    label: str,
    unit: str,
) -> None:
    """One horizontal bar a row, made of its parts."""
    step = 0.42
    left = 1.25 if canvas.is_narrow else 2.2
    height = step * len(rows)
    axes = canvas.axes(height, left, right=0.65)
    for number, (row, own) in enumerate(zip(rows, values, strict=True)):
        y, start = height - step * (number + 0.5), 0.0
        _row_label(canvas, axes, y, left, row)
        for part, value in enumerate(own):
            (drawn,) = axes.barh(
                [y], [value], left=start, height=step * 0.58, color=canvas.colour(parts[part][1])
            )
            canvas.named(drawn, f"{row}, {parts[part][0]}: {value:.2f} {unit}")
            start += value
        axes.annotate(
            f"{start:.1f}", (start, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize="small",
            color=canvas.colour("muted"),
        )  # fmt: skip
    axes.set_ylim(0, height)
    axes.set_xlim(0, max((sum(own) for own in values), default=1.0) * 1.04 or 1.0)
    axes.set_yticks([])
    axes.xaxis.grid(True, color=canvas.colour("line"), linewidth=0.8)
    axes.set_xlabel(label)
    _patches(canvas, axes, parts)


def lines(
    canvas: Canvas,
    series: Sequence[Key],
    points: Sequence[Sequence[tuple[float, float]]],
    x_label: str,
    y_label: str,
    y_most: float | None = None,
    whole_x: bool = False,
    logarithmic_x: bool = False,
    reference: float | None = None,
) -> None:
    """One line a series; each has a marker of its own, so that colour is not all that tells them apart."""
    from matplotlib.ticker import MaxNLocator

    axes = canvas.axes(2.3 if canvas.is_narrow else 3.0, 0.6, right=0.2)
    handles = []
    for number, ((name, role), own) in enumerate(zip(series, points, strict=True)):
        x, y = [p[0] for p in own], [p[1] for p in own]
        (line,) = axes.plot(
            x, y, color=canvas.colour(role), marker="os^Dv<>P"[number % 8], markersize=5,
            linewidth=1.8, clip_on=False,
        )  # fmt: skip
        canvas.named(line, f"{name}: " + ", ".join(f"{b:.3g} at {a:g}" for a, b in own))
        handles.append(line)
    axes.set_ylim(0, y_most)
    if logarithmic_x:
        places = sorted({x for own in points for x, _ in own if int(x) & (int(x) - 1) == 0})
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.minorticks_off()
    if reference is not None:
        axes.axhline(reference, color=canvas.colour("ink"), linewidth=1.1, linestyle=(0, (3, 2)))
    if whole_x:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6 if canvas.is_narrow else 12))
    axes.yaxis.grid(True, color=canvas.colour("line"), linewidth=0.8)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    canvas.legend(axes, handles, [_cut(name, 34) for name, _ in series])


def _patches(canvas: Canvas, axes: Any, keys: Sequence[Key]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=canvas.colour(role)) for _, role in keys]
    canvas.legend(axes, handles, [_cut(name, 34) for name, _ in keys])


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

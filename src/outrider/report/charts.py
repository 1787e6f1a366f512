"""Charts: drawn once with Matplotlib, then SVG that follows the page's light or dark, or a PNG."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from outrider.errors import OptionError
from outrider.report import theme

Colour = Callable[[str], str]

WIDE, NARROW = 8.2, 3.7
_DPI = 100

# While an SVG is drawn each role has a colour of its own, which CSS variables then replace.
_STAND_INS = {role: f"#0101{at + 1:02x}" for at, role in enumerate(theme.ROLES)}


@final
@dataclass(frozen=True)
class Chart:
    """A chart before it has a form.

    **Arguments:**

    - `name`: Part of a file's name.
    - `title`, `caption`, `alt`: Its heading; what is under it; what it shows, in words with numbers.
    - `draw`: Draws onto a `Canvas`.
    """

    name: str
    title: str
    caption: str
    alt: str
    draw: Callable[[Canvas], None]


@final
@dataclass
class Canvas:
    """A figure in the making: its width in inches, its colours, and the words that its marks carry."""

    figure: Any
    width: float
    colour: Colour
    words: list[str] = field(default_factory=list)

    @property
    def is_narrow(self) -> bool:
        return self.width < WIDE

    def axes(
        self, height: float, left: float, right: float = 0.25, top: float = 0.1, bottom: float = 0.55
    ) -> Any:
        """The one set of axes; margins and height are inches."""
        self.figure.set_size_inches(self.width, height + top + bottom)
        total = height + top + bottom
        axes = self.figure.add_axes(
            (left / self.width, bottom / total, (self.width - left - right) / self.width, height / total)
        )
        axes.set_facecolor("none")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(self.colour("line"))
        axes.tick_params(colors=self.colour("muted"), length=0, pad=6)
        axes.xaxis.label.set_color(self.colour("muted"))
        axes.yaxis.label.set_color(self.colour("muted"))
        axes.set_axisbelow(True)
        return axes

    def named(self, artist: Any, words: str) -> None:
        """Give a mark the words that a pointer over it, and a screen reader, get."""
        artist.set_gid(f"mark:{len(self.words)}")
        self.words.append(words)

    def legend(self, axes: Any, handles: Sequence[Any], labels: Sequence[str]) -> None:
        """Above the axes, in as many columns as fit."""
        widest = max((len(label) for label in labels), default=1)
        columns = max(1, min(len(labels), int((self.width - 0.3) / (0.1 * widest + 0.45))))
        rows = -(-len(labels) // columns)
        size = self.figure.get_size_inches()
        extra = 0.24 * rows + 0.1
        box = axes.get_position()
        total = size[1] + extra
        self.figure.set_size_inches(size[0], total)
        axes.set_position((box.x0, box.y0 * size[1] / total, box.width, box.height * size[1] / total))
        self.figure.legend(
            handles, labels, loc="upper left", bbox_to_anchor=(0.05 / size[0], 1.0), ncols=columns, frameon=False,
            borderpad=0, borderaxespad=0, handlelength=1.1, handleheight=0.8, columnspacing=1.4,
            labelcolor=self.colour("ink"),
        )  # fmt: skip


def to_svg(chart: Chart) -> str:
    """Two SVGs, for wide pages and for phones; the style sheet shows one."""
    return "".join(_svg(chart, width, name) for width, name in ((WIDE, "wide"), (NARROW, "narrow")))


def to_png(chart: Chart, path: Path) -> None:
    """A picture on the light ground, 1640 pixels wide."""
    with _drawn(chart, WIDE, lambda role: theme.ROLES[role][0]) as (figure, _):
        figure.savefig(path, format="png", dpi=2 * _DPI, facecolor=theme.ROLES["panel"][0])


def _svg(chart: Chart, width: float, name: str) -> str:
    with _drawn(chart, width, _STAND_INS.__getitem__) as (figure, words):
        buffer = io.StringIO()
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for role, stand_in in _STAND_INS.items():
        text = text.replace(stand_in, f"var(--{role})")
    for number, said in enumerate(words):
        text = text.replace(f'<g id="mark:{number}">', f'<g class="mark"><title>{html.escape(said)}</title>')
    used = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    size = re.search(r'viewBox="[\d.]+ [\d.]+ ([\d.]+) ([\d.]+)"', text)
    assert size is not None
    opening = (
        f'<svg class="{name}" role="img" aria-label="{html.escape(chart.alt)}" viewBox="0 0 {size[1]} {size[2]}" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1)


@contextmanager
def _drawn(chart: Chart, width: float, colour: Colour) -> Iterator[tuple[Any, list[str]]]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError("charts need Matplotlib; run: pip install 'outrider[report]'") from error
    settings: Any = {
        "font.size": 9.5 if width >= WIDE else 9,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "svg.fonttype": "none",
        "svg.hashsalt": f"{chart.name}-{width}",
        "text.color": colour("ink"),
        "text.parse_math": False,
    }
    with matplotlib.rc_context(settings):
        canvas = Canvas(Figure(dpi=_DPI), width, colour)
        chart.draw(canvas)
        yield canvas.figure, canvas.words

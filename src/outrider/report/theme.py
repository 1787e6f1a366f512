"""The colours of pages and pictures, for light and for dark, each legible on its ground.

Text has a contrast of at least 4.5 to the ground, lines and bars of at least 3; `tests/report/test_theme.py`
computes it.
"""

from __future__ import annotations

from typing import Final

# (light, dark)
ROLES: Final[dict[str, tuple[str, str]]] = {
    "ground": ("#fcfbf8", "#151619"),
    "panel": ("#ffffff", "#1d1f24"),
    "ink": ("#1d1c1a", "#edebe6"),
    "muted": ("#5d5a54", "#aba79f"),
    "line": ("#dedad2", "#383b42"),
    "plain": ("#77736c", "#8e8b85"),
    "series-1": ("#1f5fa6", "#6fb1f5"),
    "series-2": ("#b4530a", "#f0a35e"),
    "series-3": ("#1c7a4b", "#63cf98"),
    "series-4": ("#8446ad", "#c99bee"),
    "series-5": ("#b0304a", "#f48a9b"),
    "series-6": ("#0b7580", "#56c9d3"),
    "series-7": ("#7d6300", "#dcbf4d"),
    "series-8": ("#5a5fb5", "#a3a8f5"),
}
SERIES: Final = tuple(name for name in ROLES if name.startswith("series-"))


def series(number: int) -> str:
    """The role of the n-th thing drawn; they begin again after the last."""
    return SERIES[number % len(SERIES)]


def variables(dark: bool) -> str:
    """CSS: each role as a variable."""
    return "".join(f"--{name}:{pair[dark]};" for name, pair in ROLES.items())


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio of two #rrggbb colours: 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

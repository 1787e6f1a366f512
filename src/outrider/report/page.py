"""From a template to one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import OptionError
from outrider.report import theme

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent / "templates"


def render(template: str, **context: Any) -> str:
    """The page. All that `context` holds is escaped, save what is marked safe.

    **Raises:** `OptionError` where Jinja2 is not installed.
    """
    return _environment().get_template(template).render(**context) + "\n"


def safe(markup: str) -> Any:
    """Markup that Outrider itself made, kept as it is."""
    from markupsafe import Markup

    return Markup(markup)


def embedded(value: Any) -> Any:
    """JSON that may stand inside a script element, whatever strings it holds."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for sign, escape in (
        ("&", "\\u0026"),
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(sign, escape)
    return safe(text)


def _asset(name: str) -> Any:
    return safe((_FOLDER / name).read_text(encoding="utf-8"))


@cache
def _environment() -> Environment:
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise OptionError("pages need Jinja2; run: pip install 'outrider[report]'") from error
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        asset=_asset,
        embedded=embedded,
        light=safe(theme.variables(dark=False)),
        dark=safe(theme.variables(dark=True)),
    )
    return environment

"""`outrider report`: a page, pictures and Markdown from what `outrider bench` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.common import console, one_sentence, progress_console, writing
from outrider.errors import OptionError


def report(
    result: Annotated[
        list[Path],
        typer.Argument(help="What 'outrider bench --out' wrote; others are compared with the first."),
    ],
    out: Annotated[Path | None, typer.Option(help="Write one HTML page that needs no network.")] = None,
    png: Annotated[
        Path | None, typer.Option(help="Write the first result's charts into this folder.")
    ] = None,
    md: Annotated[Path | None, typer.Option(help="Write the first result's tables as Markdown.")] = None,
) -> None:
    """Make a page, pictures or Markdown from results; without either, say the result in a sentence."""
    with one_sentence():
        from outrider.bench.records import read_results
        from outrider.report.result import sections
        from outrider.report.result_page import markdown, pictures, result_page

        if len(set(result)) < len(result):
            raise OptionError("the same result was given twice; give each once")
        named = [(path.stem, read_results(path)) for path in result]
        first = named[0][1]
        if not first.measurements:
            raise OptionError(f"{result[0]} holds no measurement, so there is nothing to report")
        for path, text in ((out, lambda: result_page(named)), (md, lambda: markdown(first))):
            if path is not None:
                made = text()
                with writing(path) as write:
                    write(made.rstrip("\n"))
                progress_console.print(f"written to {path}", style="dim")
        if png is not None:
            for written in pictures(first, png):
                progress_console.print(f"written to {written}", style="dim")
        for section in sections(first):
            console.print(section.sentence)

"""`outrider generators`: the names that --generator takes."""

from __future__ import annotations

from rich.table import Table

from outrider.cli.common import console, one_sentence


def generators() -> None:
    """List the candidate generators."""
    from outrider.contract import available, get

    with one_sentence():
        table = Table("name", "what it does", box=None)
        for name in available():
            cls = get(name)
            table.add_row(name, (cls.__doc__ or "").strip().split("\n")[0])
        console.print(table)

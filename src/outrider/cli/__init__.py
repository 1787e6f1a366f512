"""The command line: one command a file, arguments to calls."""

from __future__ import annotations

import typer

from outrider.cli.bench import bench
from outrider.cli.chat import chat
from outrider.cli.doctor import doctor
from outrider.cli.generate import generate
from outrider.cli.generators import generators
from outrider.cli.memory import memory
from outrider.cli.record import record
from outrider.cli.report import report
from outrider.cli.serve import serve
from outrider.cli.trace import trace

app = typer.Typer(
    help="Language models generate faster, with the same text.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command()(chat)
app.command()(generators)
app.command()(doctor)
app.add_typer(memory, name="memory")
app.command()(bench)
app.command()(report)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve)
app.add_typer(trace, name="trace")
trace.command()(record)

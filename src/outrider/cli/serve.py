"""`outrider serve MODEL`: vLLM with our drafts."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from typing import Annotated

import typer

from outrider.cli.common import one_sentence, progress_console


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Folder, known name, or 'smollm2'.")],
    generator: Annotated[str, typer.Option(help="NAME or FILE.py, then :key=value,...")] = "suffix",
    max_candidates: Annotated[int, typer.Option(min=1, help="Most candidates of a request and step.")] = 16,
    dry_run: Annotated[bool, typer.Option(help="Say the command, and do not run it.")] = False,
) -> None:
    """Serve a model with vLLM, drafting with a generator; all other options are vLLM's own."""
    from outrider.engines._vllm_server import command, environment

    with one_sentence(), tempfile.TemporaryDirectory(prefix="outrider-metrics-") as metrics_folder:
        run = command(model, generator, context.args, max_candidates=max_candidates)
        if model == "smollm2":
            with progress_console.status("preparing smollm2") as status:
                from outrider.models import small_model_folder

                run[run.index(model)] = str(small_model_folder(status.update))
        needed = environment(metrics_folder)
        assignments = [f"{name}={shlex.quote(value)}" for name, value in needed.items()]
        print(" ".join([*assignments, shlex.join(run)]), file=sys.stderr, flush=True)
        if not dry_run:
            raise typer.Exit(_run(run, {**os.environ, **needed}))


def _run(command: list[str], environment: dict[str, str]) -> int:
    """The server's exit status. Signals reach it through us alone, so that Ctrl-C comes once."""
    server = subprocess.Popen(command, env=environment, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: server.send_signal(number))
    return server.wait()

"""`outrider trace`: who proposed which token, what the target thought of it, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.common import (
    console,
    encode,
    load_model,
    one_sentence,
    parse_generator,
    progress_console,
    read_prompt,
    sampling_options,
    writing,
)
from outrider.errors import OptionError

trace = typer.Typer(
    help="Who proposed which token, what the target thought of it, and what became of it.",
    invoke_without_command=True,
)

Rounds = Annotated[
    int | None, typer.Option("--round", min=0, help="Show this round's tree; 0 is the prompt's.")
]
Page = Annotated[Path | None, typer.Option("--html", help="Write a page with a slider over the rounds.")]


@trace.callback()
def generate(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Folder, known name, .gguf file, or 'smollm2'.")] = "",
    prompt: Annotated[str | None, typer.Option(help="The prompt; '-' reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from this file.")] = None,
    generator: Annotated[
        str, typer.Option(help="NAME:key=value,... or FILE.py; see 'outrider generators'.")
    ] = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="With a temperature: the same text each time.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")] = "auto",
    raw: Annotated[bool, typer.Option("--raw", help="Do not use the chat template.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the trace in this file, for 'trace show'.")] = None,
    html: Page = None,
    number: Rounds = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the model.")] = False,
) -> None:
    """Generate from a prompt, and show how each token came. Ctrl-C ends it; what was generated is shown."""
    if context.invoked_subcommand is not None:
        return
    with one_sentence():
        if not model:
            raise OptionError(
                "there is no model; give one with --model, or show a file with 'trace show FILE'"
            )
        text = read_prompt(prompt, file)
        spec, generator_options = parse_generator(generator)
        from outrider.choosing import choose, generator_maker
        from outrider.flags import Flags

        make = generator_maker(spec, generator_options)
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, **sampling_options(temperature)}
        target, tokenizer = load_model(model, dtype, trust_remote_code)
        drafter, controller = choose(make(tokenizer), Flags(), None)
        ids = encode(tokenizer, text, raw)

        from outrider.report.trace import Header, header_line
        from outrider.tracing import Tracer

        header = Header(
            model=model,
            generator=generator,
            prompt=text,
            num_prompt=int(ids.shape[1]),
            settings={**options, "seed": seed, "dtype": str(target.dtype).removeprefix("torch.")},
            versions={name: version(name) for name in ("outrider", "torch", "transformers")},
            date=datetime.now().astimezone().isoformat(timespec="seconds"),
        )
        lines: list[str] = []
        with writing(out) as keep:

            def write(record: dict[str, Any]) -> None:
                lines.append(json.dumps(record))
                keep(lines[-1])

            write(header_line(header))
            tracer = Tracer(tokenizer, drafter, generator, write)
            _generate(target, ids, tracer, write, controller=controller, seed=seed, **options)
        _show(lines, str(out or "the trace"), number, html)


@trace.command()
def show(
    file: Annotated[Path, typer.Argument(help="What 'outrider trace --out' wrote.")],
    number: Rounds = None,
    html: Page = None,
) -> None:
    """Show a trace that was kept."""
    with one_sentence():
        from outrider.report.trace import read_trace

        _render(read_trace(file), number, html)


def _generate(
    target: Any, ids: Any, tracer: Any, write: Callable[[dict[str, Any]], None], **options: Any
) -> None:
    import outrider

    with progress_console.status("generating"):
        try:
            output = outrider.generate(
                target,
                ids,
                candidate_generator=tracer.generator,
                listeners=(tracer,),
                return_dict_in_generate=True,
                **options,
            )
        except KeyboardInterrupt:
            progress_console.print("interrupted; this is the text up to there", style="dim")
            return
    write({"stats": output.stats.to_dict()})


def _show(lines: list[str], name: str, number: int | None, html: Path | None) -> None:
    from outrider.report.trace import parse_trace

    _render(parse_trace(lines, name), number, html)


def _render(found: Any, number: int | None, html: Path | None) -> None:
    from outrider.report.trace_terminal import round_view, text_view

    if number is None or number >= len(found.rounds):
        console.print(text_view(found))
    if html is not None:
        from outrider.report.trace_page import trace_page

        with writing(html) as write:
            write(trace_page(found))
        progress_console.print(f"written to {html}", style="dim")
    if number is not None:  # last, since it may be refused, and what was measured is not lost
        console.print(round_view(found, number))

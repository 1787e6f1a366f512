"""`outrider bench`: contestants in turn on a set of questions, or on recorded texts without a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.common import console, load_model, one_sentence, progress_console
from outrider.errors import OptionError


def bench(
    model: Annotated[str | None, typer.Option(help="Folder, known name, .gguf file, or 'smollm2'.")] = None,
    data: Annotated[
        str, typer.Option(help="'builtin', or a file: .jsonl, .json, or plain lines.")
    ] = "builtin",
    field: Annotated[str | None, typer.Option(help="The field of the file that holds the prompt.")] = None,
    category: Annotated[str, typer.Option(help="Only these categories, comma-separated.")] = "",
    generators: Annotated[
        str, typer.Option(help="Comma-separated: NAME:key=value,..., or mine:FILE.py.")
    ] = "auto",
    baseline: Annotated[
        str,
        typer.Option(
            help="Comma-separated, the first is compared with: transformers, vllm, llama_cpp, economize, flashspec, with options."
        ),
    ] = "transformers",
    batch: Annotated[str, typer.Option(help="Rows at once, comma-separated.")] = "1",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")] = "auto",
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="With a temperature.")] = 0,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many questions, from all categories in turn.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Go through the set so often.")] = 1,
    raw: Annotated[bool, typer.Option("--raw", help="Do not use the chat template.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Generators live through the run, as in a server.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The result, JSON lines.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted --out.")] = False,
    replay: Annotated[
        Path | None, typer.Option(help="Recorded texts of 'outrider trace record', in place of a model.")
    ] = None,
    controller: Annotated[
        str | None, typer.Option(help="With --replay: cost_rule, heuristic, fixed, or a number.")
    ] = None,
    cost: Annotated[
        float, typer.Option(help="With --replay: what a candidate adds, in forwards over one token.")
    ] = 0.05,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the model.")] = False,
) -> None:
    """Measure candidate generators beside baselines, question by question. Ctrl-C keeps what was measured."""
    with one_sentence():
        if replay is not None:
            from outrider.cli.replay import replay_traces

            replay_traces(replay, generators, controller, cost)
            return
        if model is None:
            raise OptionError(
                "there is nothing to measure; name a model with --model, or texts with --replay"
            )
        from outrider.bench.data import read_questions, select
        from outrider.bench.run import Settings

        wanted = [name.strip() for name in category.split(",") if name.strip()]
        questions = select(read_questions(data, field=field), limit=limit, categories=wanted)
        settings = Settings(max_new_tokens, temperature, seed, _batches(batch), repeat, raw)
        path = out or Path(f"bench-{datetime.now():%Y%m%d-%H%M%S}.jsonl")
        if resume and out is None:
            raise OptionError("--resume goes on with a result; name it with --out")
        if path.exists() and path.stat().st_size and not resume:
            raise OptionError(f"{path} exists; go on with it with --resume, or name another with --out")
        target, tokenizer = load_model(model, dtype, trust_remote_code)
        with _ways(generators, baseline, target, tokenizer, model, seed, keep) as ways:
            from outrider.bench.header import make_header

            with progress_console.status("measuring T(k)"):
                header = make_header(
                    target,
                    ways,
                    settings,
                    model_name=model,
                    data=data,
                    num_questions=len(questions),
                    options={"limit": limit, "categories": wanted, "field": field, "keep": keep},
                )
            _measure(target, tokenizer, ways, questions, settings, header, path, resume)


@contextmanager
def _ways(
    generators: str, baseline: str, target: Any, tokenizer: Any, model: str, seed: int, keep: bool
) -> Iterator[list[Any]]:
    from outrider.bench.contestants.choose import make_ways, split_names

    ways = make_ways(
        split_names(generators),
        split_names(baseline),
        target,
        model_name=model,
        tokenizer=tokenizer,
        seed=seed,
        keep=keep,
    )
    try:
        yield ways
    finally:
        for way in ways:
            way.close()


def _batches(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1 or len(set(sizes)) != len(sizes):
        raise OptionError(f"--batch takes different numbers of at least 1, as in 1,8, not {text!r}")
    return sizes


def _measure(
    target: Any,
    tokenizer: Any,
    ways: list[Any],
    questions: list[Any],
    settings: Any,
    header: Any,
    path: Path,
    resume: bool,
) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    from outrider.bench.header import check_same
    from outrider.bench.records import read_results, write_line
    from outrider.bench.run import Run, open_result, plan
    from outrider.cli.bench_tables import show

    file, done = open_result(path, resume)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with file:
        if done is None:
            write_line(file, header)
        else:
            check_same(done.header, header, path)
        steps = plan(questions, settings)
        run = Run(target, tokenizer, ways, settings, file, done)
        interrupted = False
        try:
            with Progress(*columns, TimeLeft(), console=progress_console, transient=True) as progress:
                bar = progress.add_task("warming up", total=len(steps) * len(ways))
                run.warm_up(steps, lambda name: progress.update(bar, description=f"warming up {name}"))
                for line in run.measure(steps):
                    name = f"{line.category} {line.question_id[:20]}" if line is not None else "(passed over)"
                    progress.update(bar, advance=1, description=name)
        except KeyboardInterrupt:
            interrupted = True
    show(console, read_results(path))
    if interrupted:
        console.print(f"interrupted; go on with: --resume --out {path}", style="yellow")
    console.print(f"written to {path}; see it with: outrider report {path} --out page.html", style="dim")
    if interrupted:
        raise typer.Exit(130)

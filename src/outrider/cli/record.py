"""`outrider trace record`: what a model writes, for 'outrider bench --replay'."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.common import load_model, one_sentence, progress_console
from outrider.errors import OptionError


def record(
    model: Annotated[str, typer.Option(help="Folder, known name, .gguf file, or 'smollm2'.")],
    out: Annotated[Path, typer.Option(help="The texts, JSON lines.")],
    data: Annotated[
        str, typer.Option(help="'builtin', or a file: .jsonl, .json, or plain lines.")
    ] = "builtin",
    field: Annotated[str | None, typer.Option(help="The field of the file that holds the prompt.")] = None,
    category: Annotated[str, typer.Option(help="Only these categories, comma-separated.")] = "",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many questions, from all categories in turn.")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="Largest logits kept of each token; 0 keeps none.")] = 8,
    raw: Annotated[bool, typer.Option("--raw", help="Do not use the chat template.")] = False,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")] = "auto",
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the model.")] = False,
) -> None:
    """Record greedy texts, for 'outrider bench --replay'. Ctrl-C keeps the whole ones."""
    with one_sentence():
        from rich.progress import Progress

        from outrider.bench.data import read_questions, select
        from outrider.bench.texts import record_text, write_trace

        if out.exists() and out.stat().st_size:
            raise OptionError(f"{out} exists; name another with --out, or delete it")
        wanted = [name.strip() for name in category.split(",") if name.strip()]
        questions = select(read_questions(data, field=field), limit=limit, categories=wanted)
        target, tokenizer = load_model(model, dtype, trust_remote_code)
        with open(out, "a", encoding="utf-8") as file, Progress(console=progress_console) as progress:
            bar = progress.add_task("recording", total=sum(len(question.turns) for question in questions))
            for question in questions:
                for text in record_text(target, tokenizer, question, max_new_tokens, top=top, raw=raw):
                    write_trace(file, text)
                    progress.advance(bar)

"""`outrider memory`: indexes on disk: corpora of the user's documents, and what requests left behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from outrider.cli.common import console, load_tokenizer, one_sentence, progress_console
from outrider.errors import FileFormatError, OptionError

memory = typer.Typer(
    help="Indexes on disk: corpora of your documents, and memories of earlier requests.",
    no_args_is_help=True,
)

Paths = Annotated[list[Path], typer.Argument(help="Files, and folders to take all files of.")]


@memory.command()
def build(
    files: Paths,
    tokenizer: Annotated[str, typer.Option(help="The model whose tokenizer encodes them.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="'ray' spreads the parts over a Ray cluster.")
    ] = "local",
    part_tokens: Annotated[int, typer.Option(min=1, help="Tokens sorted at once; 20 bytes each.")] = 1 << 24,
    trust_remote_code: Annotated[bool, typer.Option(help="Run code that comes with the model.")] = False,
) -> None:
    """Index documents or code, for '--generator corpus:corpus=FILE' or 'auto:corpus=FILE'."""
    with one_sentence():
        from outrider.index.documents import find_files, is_text

        _can_write(out)
        texts = [file for file in find_files(files) if is_text(file)]
        if not texts:
            raise OptionError("none of these files is UTF-8 text, so there is nothing to index")
        num_tokens = (_on_ray if engine == "ray" else _here)(
            texts, tokenizer, out, part_tokens, trust_remote_code
        )
        console.print(
            f"{out}: {num_tokens:,} tokens of {len(texts):,} files, {_megabytes(out)}", soft_wrap=True
        )


def _here(texts: list[Path], name: str, out: Path, part_tokens: int, trust_remote_code: bool) -> int:
    from outrider.index import corpus
    from outrider.index.documents import read

    tokenizer = load_tokenizer(name, trust_remote_code)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    with _progress("reading", sum(file.stat().st_size for file in texts)) as (advance, say):

        def heard(size: int) -> None:
            say("reading")
            advance(size)

        return corpus.build(
            read(texts, tokenizer, heard),
            out,
            tokenizer=tokenizer,
            part_tokens=part_tokens,
            on_part=lambda size: say(f"sorting {size:,} tokens"),
        )


def _on_ray(texts: list[Path], name: str, out: Path, part_tokens: int, trust_remote_code: bool) -> int:
    from outrider.index.on_ray import build_on_ray
    from outrider.models import load_tokenizer as load

    with progress_console.status("building on Ray") as status:
        sizes: list[int] = []

        def heard(size: int) -> None:
            sizes.append(size)
            status.update(f"building on Ray: {len(sizes)} parts, {sum(sizes):,} tokens")

        return build_on_ray(
            texts, out, partial(load, name, trust_remote_code), part_bytes=4 * part_tokens, on_part=heard
        )


@memory.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Corpora of one tokenizer.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
) -> None:
    """Put corpora that were built apart, perhaps on several machines, into one file."""
    with one_sentence():
        from outrider.index import corpus

        _can_write(out)
        with progress_console.status("merging"):
            num_tokens = corpus.merge(files, out)
        console.print(f"{out}: {num_tokens:,} tokens, {_megabytes(out)}", soft_wrap=True)


@memory.command()
def info(
    file: Annotated[Path, typer.Argument(help="A corpus or a memory.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="Say no where the file is not of this model's tokenizer.")
    ] = None,
) -> None:
    """Check a file, and say what it holds."""
    with one_sentence():
        table = Table.grid(padding=(0, 2))
        owner = None if tokenizer is None else load_tokenizer(tokenizer)
        for name, value in _contents(file, owner).items():
            table.add_row(name, value)
        console.print(table)


def _contents(file: Path, tokenizer: Any) -> dict[str, str]:
    from outrider.index import corpus
    from outrider.index import memory as memories
    from outrider.index.files import read_magic

    magic = read_magic(file)
    if magic == corpus.MAGIC:
        held = corpus.Corpus(file, tokenizer=tokenizer)
        return {
            "kind": "corpus",
            "tokens": f"{len(held):,}",
            "parts": str(held.num_parts),
            "tokenizer": held.header["tokenizer"],
            "size": _megabytes(file),
        }
    if magic == memories.MAGIC:
        kept = memories.Memory.load(file, tokenizer=tokenizer)
        return {
            "kind": "memory",
            "namespace": kept.namespace,
            "tokens": f"{len(kept):,}",
            "tokenizer": kept.tokenizer or "not said",
            "size": _megabytes(file),
        }
    raise FileFormatError(f"{file} is neither a corpus nor a memory; 'outrider memory build' makes one")


def _can_write(out: Path) -> None:
    """**Raises:** `OptionError` before the work, where the result has no place."""
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise OptionError(f"--out {out} is no file in a folder that is there; give another path")


def _megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:,.1f} MB"


@contextmanager
def _progress(what: str, total: int) -> Iterator[tuple[Callable[[int], None], Callable[[str], None]]]:
    """A bar over bytes; what moves it on, and what changes its text."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console) as bar:
        task = bar.add_task(what, total=total)
        yield (
            lambda size: bar.update(task, advance=size),
            lambda text: bar.update(task, description=text),
        )

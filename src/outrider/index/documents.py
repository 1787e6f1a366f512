"""A user's files as token ids, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outrider.errors import OptionError
from outrider.types import Ids

_PIECE = 1 << 18
_AT_ONCE = 1 << 20


def find_files(paths: Sequence[str | Path]) -> list[Path]:
    """The files among `paths` and below the folders among them, hidden ones left out, in order.

    **Raises:** `OptionError` where a path is not there, or nothing is found.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += [
                file
                for file in sorted(path.rglob("*"))
                if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
            ]
        elif path.is_file():
            found.append(path)
        else:
            raise OptionError(f"there is no file or folder {str(path)!r}; give the paths of documents")
    if not found:
        raise OptionError("there are no files in these folders; give the paths of documents")
    return list(dict.fromkeys(found))


def is_text(path: Path) -> bool:
    """Whether a file's first 64 KB are UTF-8 without zero bytes."""
    with open(path, "rb") as file:
        start = file.read(1 << 16)
    if b"\0" in start:
        return False
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(start) - 4 and len(start) == 1 << 16
    return True


def _pieces(path: Path) -> Iterator[str]:
    """A file's text, cut after a line where it is long; bytes that are no UTF-8 become U+FFFD."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        while text := file.read(_PIECE):
            yield text + file.readline(_PIECE)


def read(
    files: Iterable[Path], tokenizer: Any, on_bytes: Callable[[int], None] | None = None
) -> Iterator[Ids]:
    """(L,) int64 ids of each file, without special tokens.

    Many pieces go to the tokenizer at once, since a fast one then works on every core.

    **Arguments:**

    - `on_bytes`: Called with the size of what was just encoded.
    """
    texts: list[str] = []
    ends: list[bool] = []
    size = 0
    open_document: list[Ids] = []

    def encoded() -> Iterator[Ids]:
        rows = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        for ids, ended in zip(rows["input_ids"], ends, strict=True):
            open_document.append(np.asarray(ids, np.int64))
            if ended:
                yield np.concatenate(open_document)
                open_document.clear()
        if on_bytes is not None:
            on_bytes(size)

    for file in files:
        for piece in _pieces(file):
            texts.append(piece)
            ends.append(False)
            size += len(piece.encode("utf-8", "surrogatepass"))
            if size >= _AT_ONCE:
                yield from encoded()
                texts, ends, size = [], [], 0
        if texts:
            ends[-1] = True
        elif open_document:
            yield np.concatenate(open_document)
            open_document.clear()
    if texts:
        yield from encoded()

"""One format for what Outrider keeps on disk: data with a checked header, written at once or not at all.

8 bytes of magic, the body's length as a little-endian uint64, the body, a header of JSON, and the SHA-256 of
the header, which holds the body's own. Nothing in it is ever run.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from outrider.errors import FileFormatError

BODY = 16
_BLOCK = 1 << 20


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when all of it is on disk: a reader sees old or new."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


class Body:
    """Writes a file's body piece by piece, and closes it with a header."""

    def __init__(self, file: BinaryIO, magic: bytes) -> None:
        self._file, self._magic = file, magic
        self._digest = hashlib.sha256()
        self.size = 0
        file.write(magic + bytes(BODY - len(magic)))

    def write(self, piece: Any) -> None:
        """Append bytes, or a contiguous array's."""
        view = memoryview(piece).cast("B") if len(piece) else memoryview(b"")
        self._file.write(view)
        self._digest.update(view)
        self.size += view.nbytes

    def close(self, header: dict[str, Any]) -> None:
        """End the body, and write the header after it."""
        data = json.dumps({**header, "sha256": self._digest.hexdigest()}).encode()
        self._file.write(data + hashlib.sha256(data).digest())
        self._file.seek(len(self._magic))
        self._file.write(struct.pack("<Q", self.size))


def read_magic(path: str | Path) -> bytes:
    """The first 8 bytes, which tell what a file is."""
    with open(path, "rb") as file:
        return file.read(8)


def read_header(path: str | Path, magic: bytes, what: str) -> tuple[dict[str, Any], int]:
    """The header, and the body's length in bytes; the body begins at `BODY`.

    **Raises:** `FileFormatError` where the file is no such `what`, or its header is not whole.
    """
    if not Path(path).is_file():
        raise FileFormatError(f"there is no {what} file {str(path)!r}; 'outrider memory build' makes one")
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        start = file.read(BODY)
        if start[: len(magic)] != magic or len(start) < BODY:
            raise FileFormatError(f"{path} is no Outrider {what}, or is damaged; build it anew")
        (length,) = struct.unpack("<Q", start[len(magic) :])
        if BODY + length + 34 > size:
            raise FileFormatError(f"{path} is damaged: it ends too early; build it anew")
        file.seek(BODY + length)
        rest = file.read()
    data, digest = rest[:-32], rest[-32:]
    if hashlib.sha256(data).digest() != digest:
        raise FileFormatError(f"{path} is damaged: its header is not what was written; build it anew")
    header: dict[str, Any] = json.loads(data)
    return header, length


def check_body(
    path: str | Path, header: dict[str, Any], length: int, on_bytes: Callable[[int], None] | None = None
) -> None:
    """Read all of the body. **Raises:** `FileFormatError` where it is not what was written."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        file.seek(BODY)
        while length > 0 and (block := file.read(min(_BLOCK, length))):
            digest.update(block)
            length -= len(block)
            if on_bytes is not None:
                on_bytes(len(block))
    if digest.hexdigest() != header.get("sha256"):
        raise FileFormatError(f"{path} is damaged: its contents are not what was written; build it anew")


def check_owner(path: str | Path, what: str, wanted: str | None, found: Any) -> None:
    """**Raises:** `FileFormatError` where the file belongs to another `what`; None takes any."""
    if wanted is not None and wanted != found:
        raise FileFormatError(f"{path} belongs to {what} {found!r}, not {wanted!r}; use another file")


def fingerprint(tokenizer: Any) -> str:
    """What identifies a tokenizer: a digest of its vocabulary, or the string given instead of one."""
    if isinstance(tokenizer, str):
        return tokenizer
    digest = hashlib.sha256()
    for token, index in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        digest.update(f"{index}\0{token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]

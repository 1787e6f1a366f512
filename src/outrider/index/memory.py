"""Token sequences kept across requests, in one namespace, bounded, in one file.

File: 8 bytes of magic, a length, that many bytes of JSON, the token ids as little-endian int32, and a SHA-256
of all before it. It is data only: what is not as described is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
import threading
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from outrider.errors import FileFormatError
from outrider.index.ngram import SEPARATOR
from outrider.index.suffix import SuffixIndex, SuffixTree

_MAGIC = b"OUTRMEM1"


@final
class Memory:
    """A suffix index over past sequences. Thread-safe. O(1) a token, amortised; O(budget) a tree.

    **Arguments:**

    - `namespace`: Whose texts these are; nothing crosses from one to another.
    - `tokenizer`: What identifies the tokenizer; a file of another one is refused.
    - `max_tokens`: When a quarter more than this is held, the oldest sequences leave.
    """

    def __init__(self, namespace: str, *, tokenizer: str = "", max_tokens: int = 1_000_000) -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
        self.namespace = namespace
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self._index = SuffixIndex()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._index)

    def add(self, ids: npt.ArrayLike) -> None:
        """Keep a finished sequence."""
        new = np.asarray(ids, np.int32).reshape(-1)[-self.max_tokens :]
        with self._lock:
            self._index.append(np.append(new, np.int32(SEPARATOR)))
            if len(self._index) > self.max_tokens + self.max_tokens // 4 + 1:
                self._evict()

    def _evict(self) -> None:
        held = self._index.ngrams.ids[: len(self._index)]
        ends = np.flatnonzero(held == SEPARATOR)
        first = ends[np.searchsorted(ends, len(held) - self.max_tokens - 2)] + 1
        index = SuffixIndex(self._index.counts)
        index.append(held[first:])
        self._index = index

    def tree(self, tail: npt.NDArray[Any], budget: int, **options: Any) -> SuffixTree:
        """As `SuffixIndex.tree`."""
        with self._lock:
            return self._index.tree(tail, budget, **options)

    def save(self, path: str | Path) -> None:
        """Write to one file, atomically: a reader sees the old one or the new one."""
        with self._lock:
            ids = self._index.ngrams.ids[: len(self._index)].astype("<i4").tobytes()
        header = json.dumps(
            {"namespace": self.namespace, "tokenizer": self.tokenizer, "num_ids": len(ids) // 4}
        ).encode()
        body = _MAGIC + struct.pack("<I", len(header)) + header + ids
        target = Path(path)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(body + hashlib.sha256(body).digest())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise

    @classmethod
    def load(
        cls, path: str | Path, namespace: str, *, tokenizer: str = "", max_tokens: int = 1_000_000
    ) -> Self:
        """Read what `save` wrote.

        **Raises:** `FileFormatError` for a damaged file, another namespace's, or another tokenizer's.
        """
        data = Path(path).read_bytes()
        body, digest = data[:-32], data[-32:]
        if body[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != digest:
            raise FileFormatError(f"{path} is no Outrider memory, or is damaged; delete it to begin anew")
        try:
            (length,) = struct.unpack_from("<I", body, len(_MAGIC))
            start = len(_MAGIC) + 4
            header = json.loads(body[start : start + length])
            ids = np.frombuffer(body, "<i4", offset=start + length)
            found, made_for, num_ids = header["namespace"], header["tokenizer"], header["num_ids"]
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise FileFormatError(f"{path} is damaged: {error}; delete it to begin anew") from error
        if num_ids != ids.size or (ids < SEPARATOR).any():
            raise FileFormatError(f"{path} is damaged: its ids are not as declared; delete it to begin anew")
        for what, wanted, there in (
            ("namespace", namespace, found),
            ("tokenizer", tokenizer, made_for),
        ):
            if wanted != there:
                raise FileFormatError(f"{path} belongs to {what} {there!r}, not {wanted!r}; use another file")
        memory = cls(namespace, tokenizer=tokenizer, max_tokens=max_tokens)
        memory._index.append(ids)
        if len(memory) > max_tokens:
            memory._evict()
        return memory

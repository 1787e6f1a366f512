"""Token sequences kept across requests, in one namespace, bounded, in one file.

The file's body (see `outrider.index.files`) is the token ids as little-endian int32.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import numpy.typing as npt

from outrider.errors import FileFormatError
from outrider.index.files import BODY, Body, check_body, check_owner, fingerprint, read_header, replacing
from outrider.index.ngram import SEPARATOR
from outrider.index.suffix import SuffixIndex, SuffixTree

MAGIC = b"OUTRMEM1"


@final
class Memory:
    """A suffix index over past sequences. Thread-safe. O(1) a token, amortised; O(budget) a tree.

    **Arguments:**

    - `namespace`: Whose texts these are; nothing crosses from one to another.
    - `tokenizer`: Whose ids they are, or its fingerprint; a file of another one is refused.
    - `max_tokens`: When a quarter more than this is held, the oldest sequences leave.
    """

    def __init__(self, namespace: str, *, tokenizer: Any = "", max_tokens: int = 1_000_000) -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
        self.namespace = namespace
        self.tokenizer = fingerprint(tokenizer)
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
            ids = self._index.ngrams.ids[: len(self._index)].astype("<i4")
        with replacing(path) as file:
            body = Body(file, MAGIC)
            body.write(ids)
            body.close({"namespace": self.namespace, "tokenizer": self.tokenizer})

    @classmethod
    def load(
        cls,
        path: str | Path,
        namespace: str | None = None,
        *,
        tokenizer: Any = None,
        max_tokens: int = 1_000_000,
    ) -> Self:
        """Read what `save` wrote. None takes any namespace, any tokenizer.

        **Raises:** `FileFormatError` for a damaged file, another namespace's, or another tokenizer's.
        """
        header, length = read_header(path, MAGIC, "memory")
        check_owner(path, "namespace", namespace, header.get("namespace"))
        check_owner(
            path, "tokenizer", None if tokenizer is None else fingerprint(tokenizer), header.get("tokenizer")
        )
        check_body(path, header, length)
        ids = np.fromfile(path, "<i4", length // 4, offset=BODY)
        if (ids < SEPARATOR).any():
            raise FileFormatError(f"{path} is damaged: it holds ids below 0; build it anew")
        memory = cls(header["namespace"], tokenizer=header["tokenizer"], max_tokens=max_tokens)
        memory._index.append(ids)
        if len(memory) > max_tokens:
            memory._evict()
        return memory

    @classmethod
    def open(cls, path: str | Path, namespace: str = "default", *, tokenizer: Any = None) -> Self:
        """The memory in a file; an empty one where there is no file yet."""
        if Path(path).exists():
            return cls.load(path, namespace, tokenizer=tokenizer)
        return cls(namespace, tokenizer=tokenizer or "")

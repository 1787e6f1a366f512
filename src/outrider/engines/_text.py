"""Text from bytes as they come: whole characters, held back where a stop string may have begun."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import final

from outrider.errors import OptionError


@final
class TextStream:
    """Bytes in, text out, cut before the first stop string.

    What is returned is final: never part of a stop string, never half a character. O(longest stop string)
    a call.

    **Arguments:**

    - `stop`: Strings that end the text; none is empty.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        if any(not string for string in stop):
            raise OptionError("a stop string is empty, so it would end every text; leave it out")
        self._stops = [string.encode() for string in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = b""
        self.stopped = False

    def push(self, new: bytes) -> str:
        """Add bytes; the text that is now certain."""
        if self.stopped:
            return ""
        data = self._held + new
        found = [at for at in (data.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, b""
            return self._decoder.decode(data[: min(found)], final=True)
        keep = max((_overlap(data, stop) for stop in self._stops), default=0)
        self._held = data[len(data) - keep :]
        return self._decoder.decode(data[: len(data) - keep])

    def finish(self) -> str:
        """The text held back, once no more comes."""
        held, self._held = self._held, b""
        return self._decoder.decode(held, final=True)


def _overlap(data: bytes, stop: bytes) -> int:
    """Length of the longest end of `data` that begins `stop`, and is not all of it."""
    for size in range(min(len(data), len(stop) - 1), 0, -1):
        if data.endswith(stop[:size]):
            return size
    return 0

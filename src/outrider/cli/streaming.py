"""Text as it comes, each piece coloured by where it came from."""

from __future__ import annotations

from typing import Any, Self, final

from rich.console import Console
from rich.text import Text

from outrider.cli.common import FREE_STYLE
from outrider.pieces import Pieces
from outrider.stats import Stats


@final
class ConsoleStreamer:
    """A streamer that prints, tokens that came free in another colour, and waits visibly for the first.

    Used in a `with`, it keeps what it printed when interrupted.
    """

    def __init__(self, tokenizer: Any, console: Console, waiting: Console) -> None:
        self._pieces = Pieces(tokenizer)
        self._console = console
        self._status = waiting.status("reading the prompt")

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def put(self, tokens: Any) -> None:
        """The prompt is not shown."""

    def put_token(self, token: int, is_free: bool) -> None:
        self._status.stop()
        self._print(self._pieces.add(token), is_free)

    def end(self) -> None:
        self._print(self._pieces.rest(), False)
        self._console.print()

    def _print(self, piece: str, is_free: bool) -> None:
        self._console.print(Text(piece, style=FREE_STYLE if is_free else ""), end="", soft_wrap=True)


def coloured(tokenizer: Any, tokens: list[int], origins: list[str]) -> Text:
    """The whole text, tokens that came free in another colour."""
    pieces, text = Pieces(tokenizer), Text()
    for token, origin in zip(tokens, origins, strict=False):
        text.append(pieces.add(token), style="" if origin == "target" else FREE_STYLE)
    return text.append(pieces.rest())


def summary(stats: Stats) -> str:
    """What a text took, in one line."""
    rate = stats.num_committed / max(stats.total_s, 1e-9)
    return f"{stats.num_committed} tokens, {stats.num_accepted} of them free, {rate:.1f} tokens/s, MAT {stats.mat:.2f}"

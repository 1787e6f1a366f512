"""Text as it comes, each piece coloured by where it came from."""

from __future__ import annotations

from typing import Any, final

from rich.console import Console
from rich.text import Text

from outrider.cli.common import FREE_STYLE
from outrider.pieces import Pieces


@final
class ConsoleStreamer:
    """A transformers streamer that prints, and keeps what it printed when interrupted."""

    def __init__(self, tokenizer: Any, console: Console) -> None:
        self._pieces = Pieces(tokenizer)
        self._console = console
        self._prompt_seen = False

    def put(self, tokens: Any) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        for token in tokens.reshape(-1).tolist():
            self._console.print(Text(self._pieces.add(token)), end="", soft_wrap=True)

    def end(self) -> None:
        self._console.print()


def coloured(tokenizer: Any, tokens: list[int], origins: list[str]) -> Text:
    """The whole text, tokens that came free in another colour."""
    pieces, text = Pieces(tokenizer), Text()
    for token, origin in zip(tokens, origins, strict=False):
        text.append(pieces.add(token), style="" if origin == "target" else FREE_STYLE)
    return text

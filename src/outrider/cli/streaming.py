"""Text as it comes, each piece coloured by where it came from."""

from __future__ import annotations

from typing import Any, final

from rich.console import Console
from rich.text import Text

from outrider.cli.common import FREE_STYLE


@final
class Pieces:
    """Turns tokens into text a piece at a time; a character that spans tokens waits for its last one."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        """The text that this token completes; often a word, sometimes nothing."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        if text.endswith("�"):
            return ""
        piece = text[len(self._shown) :]
        self._shown = text
        # What a line break ended is not decoded again.
        if piece.endswith("\n"):
            self._tokens, self._shown = [], ""
        return piece


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

"""From tokens to text, a token at a time."""

from __future__ import annotations

from typing import Any, final


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

    def rest(self) -> str:
        """What still waited for a token that did not come."""
        text: str = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        return text[len(self._shown) :]

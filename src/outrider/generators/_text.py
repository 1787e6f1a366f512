"""Text that follows given ids, as ids."""

from __future__ import annotations

from typing import Any

from outrider.types import Ids


def decode(tokenizer: Any, ids: Ids) -> str:
    """The text of ids, special tokens included, spaces as they are."""
    text: str = tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def encode_after(tokenizer: Any, tail: Ids, text: str) -> list[int]:
    """The ids of `text` where it follows `tail`.

    Many tokenizers encode a text's beginning differently, so it is encoded together with the tail's text, and
    alone only where the two run together.
    """
    before = decode(tokenizer, tail)
    base = _encode(tokenizer, before)
    whole = _encode(tokenizer, before + text)
    if whole[: len(base)] == base:
        return whole[len(base) :]
    return _encode(tokenizer, text)


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids

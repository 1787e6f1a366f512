"""Propose what the user knows will be written: boilerplate, schemas, phrases."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from outrider.contract import CandidateGenerator
from outrider.errors import FileFormatError, OptionError
from outrider.generators._text import decode, encode_after
from outrider.generators.composite import merge
from outrider.types import Candidates, Context, Ids, Verification

HOLE = "<*>"
_WINDOW = 512
_TAIL = 8


@dataclass(frozen=True, slots=True)
class Rule:
    """A text that is often written.

    **Arguments:**

    - `text`: The text. `<*>` stands for anything: what comes after it is proposed from its first character on.
    - `after`: The text is proposed whenever this was just written; empty: once the first `starts` of its own
        characters were.
    - `starts`: As above.
    """

    text: str
    after: str = ""
    starts: int = 6

    def __post_init__(self) -> None:
        if not self.text.replace(HOLE, ""):
            raise OptionError("a rule's text is empty; write what is to be proposed")
        if self.starts < 1:
            raise OptionError(f"a rule's starts must be at least 1, not {self.starts}")
        if self.text.startswith(HOLE) and not self.after:
            raise OptionError("a rule that begins with a hole needs 'after'; write what comes before it")

    def rest(self, written: str) -> str:
        """What this rule says comes next in a text that ends with `written`; empty where it says nothing."""
        first, *others = self.text.split(HOLE)
        least = 0 if self.after else max(1, min(self.starts, len(first) - 1))
        opening = _ended_with(written, self.after, first, least)
        begun = written.rfind(self.after + first)
        if opening or begun < 0:
            return opening
        at = begun + len(self.after + first)
        for segment in filter(None, others):
            found = written.find(segment, at)
            if found < 0:
                return _ended_with(written[at:], "", segment, 1)
            at = found + len(segment)
        return ""


def _ended_with(written: str, after: str, segment: str, least: int) -> str:
    """The rest of `segment` where `written` ends with `after` and the longest beginning of it."""
    for size in range(min(len(segment) - 1, len(written)), least - 1, -1):
        if written.endswith(after + segment[:size]):
            return segment[size:]
    return ""


def read_rules(path: str | Path) -> list[Rule]:
    """The rules of a TOML file: `[[rule]]` with `text`, and `after` or `starts` if wanted.

    **Raises:** `FileFormatError` for anything else.
    """
    try:
        entries = tomllib.loads(Path(path).read_text(encoding="utf-8"))["rule"]
        return [Rule(**entry) for entry in entries]
    except (
        OSError,
        UnicodeDecodeError,
        tomllib.TOMLDecodeError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise FileFormatError(
            f"{path} is no file of rules: {type(error).__name__}: {error}; write TOML with [[rule]] and text = '...'"
        ) from error


@final
class Generator(CandidateGenerator):
    """The rest of every template that the text is inside of, found in the text itself and not in its tokens.

    Cost per step: one decoding of the last tokens, and O(their text) a rule. State: none. Kept and shared:
    how often each rule was right.

    **Arguments:**

    - `rules`: Texts, `Rule`s, or a TOML file of them (`read_rules`).
    - `tokenizer`: The target's; the command line passes it.
    """

    def __init__(
        self, rules: Sequence[str | Rule] | str | Path | None = None, *, tokenizer: Any = None
    ) -> None:
        if rules is None:
            raise OptionError(
                "the generator 'rules' needs rules; pass texts, or a TOML file: rules:rules=FILE"
            )
        if tokenizer is None:
            raise OptionError("the generator 'rules' works on text; pass tokenizer=...")
        given = read_rules(rules) if isinstance(rules, str | Path) else rules
        self.rules = [Rule(rule) if isinstance(rule, str) else rule for rule in given]
        if not self.rules:
            raise OptionError("there is no rule among these; give at least one text")
        self.tokenizer = tokenizer
        self._tried, self._right = np.full(len(self.rules), 4.0), np.full(len(self.rules), 3.4)
        self._spoke: dict[int, Ids] = {}

    def reset(self, prompt: Ids) -> None:
        self._spoke = {}

    def propose(self, context: Context, budget: int) -> Candidates:
        self._spoke = {}
        if budget <= 0:
            return Candidates.empty()
        written = decode(self.tokenizer, context.ids[-_WINDOW:])
        trees: dict[str, Candidates] = {}
        for number, rule in enumerate(self.rules):
            rest = rule.rest(written)
            if not rest:
                continue
            tokens = encode_after(self.tokenizer, context.ids[-_TAIL:], rest)[:budget]
            chance = float(self._right[number] / self._tried[number])
            trees[f"rule {number}"] = Candidates.chain(tokens, np.full(len(tokens), chance))
            self._spoke[number] = np.asarray(tokens, np.int64)
        return merge(trees, budget)

    def update(self, verification: Verification) -> None:
        for number, tokens in self._spoke.items():
            compared = min(tokens.size, verification.committed.size)
            wrong = np.flatnonzero(tokens[:compared] != verification.committed[:compared])
            right = int(wrong[0]) if wrong.size else compared
            self._tried[number] = self._tried[number] * 0.99 + min(right + 1, compared)
            self._right[number] = self._right[number] * 0.99 + right
        self._spoke = {}

    def fork(self) -> Self:
        other = type(self)(self.rules, tokenizer=self.tokenizer)
        other._tried, other._right = self._tried, self._right
        return other

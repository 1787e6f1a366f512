"""Questions to measure on: Spec-Bench's and ShareGPT's formats, JSON lines, plain lines, and the set that ships.

The shipped set, `builtin`, was written for this project: eight questions each of chat, code edit, code
completion, JSON extraction, summary, translation, retrieval (RAG), maths and multi-turn. Free of torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, final

from outrider.errors import FileFormatError, OptionError

BUILTIN = "builtin"

# Names under which files keep a prompt, in the order in which they are looked for.
_PROMPT_FIELDS = ("turns", "prompt", "question", "instruction", "text", "messages", "conversations")
_ID_FIELDS = ("question_id", "id", "task_id")
_CATEGORY_FIELDS = ("category", "task")
_USER_ROLES = ("user", "human")


@final
@dataclass(frozen=True, slots=True)
class Question:
    """What a user says, turn after turn; never empty."""

    id: str
    category: str
    turns: tuple[str, ...]


def read_questions(data: str, *, field: str | None = None) -> list[Question]:
    """Questions of a file, or of the shipped set.

    **Arguments:**

    - `data`: "builtin"; a `.jsonl` file, an object a line (Spec-Bench's question.jsonl, or any with a field
        for the prompt); a `.json` file, a list of conversations as ShareGPT's, or of such objects; any other
        file is plain text, a prompt a line.
    - `field`: The field that holds the prompt, or the list of turns; None: the first known one.

    **Raises:** `OptionError` where there is no such file; `FileFormatError` naming the line or the entry that
    is malformed, lacks the field, or where there is no question at all.
    """
    if data == BUILTIN:
        text = resources.files("outrider.bench").joinpath("builtin.jsonl").read_text(encoding="utf-8")
        return list(_json_lines(text, BUILTIN, None))
    path = Path(data)
    if not path.is_file():
        raise OptionError(
            f"there is no file {data!r} to take questions from; give a file, or --data {BUILTIN}"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{data} is not UTF-8 text (byte {error.start}); convert it first") from error
    readers = {".jsonl": _json_lines, ".json": _json_list}
    if path.suffix in readers:
        questions = list(readers[path.suffix](text, data, field))
    else:
        questions = [
            Question(str(number), "all", (line,))
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
    if not questions:
        raise FileFormatError(f"{data} holds no question; give a file with at least one")
    _check_ids(questions, data)
    return questions


def select(
    questions: Sequence[Question], *, limit: int | None = None, categories: Sequence[str] = ()
) -> list[Question]:
    """At most `limit` questions, of these categories, taken from the categories in turn; the file's order.

    **Raises:** `OptionError` for a category that no question has.
    """
    by_category: dict[str, list[Question]] = {}
    for question in questions:
        by_category.setdefault(question.category, []).append(question)
    if unknown := [name for name in categories if name not in by_category]:
        raise OptionError(
            f"no question is of category {unknown[0]!r}; there are {', '.join(sorted(by_category))}"
        )
    held = [by_category[name] for name in (categories or by_category)]
    rounds = [row[at] for at in range(max(map(len, held))) for row in held if at < len(row)]
    wanted = {question.id for question in rounds[:limit]}
    return [question for question in questions if question.id in wanted]


def _json_lines(text: str, name: str, field: str | None) -> Iterator[Question]:
    # Not splitlines(): JSON strings may hold line separators that it breaks at.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"line {number} of {name}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise FileFormatError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error
        yield _question(entry, where, str(number), field)


def _json_list(text: str, name: str, field: str | None) -> Iterator[Question]:
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileFormatError(
            f"line {error.lineno} of {name} is not JSON: {error.msg} at column {error.colno}"
        ) from error
    if not isinstance(entries, list):
        raise FileFormatError(f"{name} is not a list of questions; name it .jsonl if it has one a line")
    for number, entry in enumerate(entries, 1):
        yield _question(entry, f"entry {number} of {name}", str(number), field)


def _question(entry: Any, where: str, number: str, field: str | None) -> Question:
    if not isinstance(entry, dict):
        raise FileFormatError(f"{where} is not an object with a prompt")
    name = field or next((known for known in _PROMPT_FIELDS if known in entry), None)
    if name is None or name not in entry:
        looked_for = f"field {field!r}" if field else f"field named {', '.join(_PROMPT_FIELDS)}"
        raise FileFormatError(
            f"{where} has no {looked_for}; it has {', '.join(map(str, entry)) or 'none'}: name one with --field"
        )
    held = entry[name]
    turns = tuple(held) if isinstance(held, list) else (held,)
    if turns and all(isinstance(turn, dict) for turn in turns):
        turns = tuple(_said(turn) for turn in turns if turn.get("from", turn.get("role")) in _USER_ROLES)
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise FileFormatError(f"the field {name!r} in {where} holds no text to ask")
    id_, category = (
        next((str(entry[known]) for known in fields if known in entry), default)
        for fields, default in ((_ID_FIELDS, number), (_CATEGORY_FIELDS, "all"))
    )
    return Question(id_, category, turns)


def _said(message: dict[str, Any]) -> Any:
    return message.get("value", message.get("content"))


def _check_ids(questions: Sequence[Question], name: str) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise FileFormatError(f"{name} has two questions with the id {question.id!r}; ids must differ")
        seen.add(question.id)

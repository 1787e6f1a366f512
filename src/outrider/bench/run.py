"""Measure contestants on questions, in turn, and write every measurement down as it is made."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, final

import torch

from outrider.bench.contestants import Answer, Asked, Way
from outrider.bench.data import Question
from outrider.bench.records import Failure, Measurement, Results, parse_results, write_line
from outrider.errors import FileFormatError, OptionError, OutriderError

WARMUP_TOKENS = 32

Tokens = tuple[tuple[int, ...], ...]


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """What every contestant is asked alike.

    **Arguments:**

    - `batches`: Rows at once; the whole set is measured for each.
    - `repeat`: How often the whole set is gone through.
    - `raw`: Leave the chat template out.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    batches: tuple[int, ...] = (1,)
    repeat: int = 1
    raw: bool = False


@final
@dataclass(frozen=True, slots=True)
class Step:
    """A turn of a question, or of a batch of questions that have as many turns."""

    questions: tuple[Question, ...]
    turn: int
    batch: int
    repeat: int

    @property
    def question_id(self) -> str:
        """The questions' ids, joined by "+"."""
        return "+".join(question.id for question in self.questions)

    @property
    def key(self) -> tuple[str, int, int, int]:
        """As `Measurement.key`."""
        return self.question_id, self.turn, self.batch, self.repeat


def plan(questions: Sequence[Question], settings: Settings) -> list[Step]:
    """Every step in order: repeats, batch sizes, questions, turns.

    A batch holds questions of one category and as many turns; a category's last may hold fewer.
    """
    steps = []
    for repeat in range(1, settings.repeat + 1):
        for batch in settings.batches:
            for group in _groups(questions, batch):
                for turn in range(1, len(group[0].turns) + 1):
                    steps.append(Step(group, turn, batch, repeat))
    return steps


def _groups(questions: Sequence[Question], batch: int) -> Iterator[tuple[Question, ...]]:
    if batch == 1:
        yield from ((question,) for question in questions)
        return
    alike: dict[tuple[str, int], list[Question]] = {}
    for question in questions:
        alike.setdefault((question.category, len(question.turns)), []).append(question)
    for held in alike.values():
        for start in range(0, len(held), batch):
            yield tuple(held[start : start + batch])


@final
class Run:
    """One measurement of everything.

    A later turn's prompt holds the baseline's answers to the earlier ones, for every contestant, so that all
    are asked the same. A contestant that fails is written down, and not asked again at that batch size.

    **Arguments:**

    - `ways`: The contestants, the baseline first.
    - `file`: Open for appending; its header is written already.
    - `done`: What an interrupted run measured before.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        ways: Sequence[Way],
        settings: Settings,
        file: IO[str],
        done: Results | None = None,
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._ways, self._settings, self._file = list(ways), settings, file
        self._failed: set[tuple[str, int]] = set()
        lines = done.measurements if done is not None else ()
        self._tokens = {(line.contestant, line.key): line.token_ids for line in lines}
        # With a temperature, other engines draw numbers of their own.
        self._comparable = [
            way.contestant.name
            for way in ways
            if not settings.temperature or way.contestant.engine == "outrider"
        ]

    def warm_up(self, steps: Sequence[Step], told: Callable[[str], None] = lambda _: None) -> None:
        """Every contestant once at each batch size, unmeasured: what compiles or loads late does so here."""
        first = {step.batch: step for step in reversed(steps) if step.turn == 1}
        for step in first.values():
            asked = self._asked(step)
            asked = replace(asked, max_new_tokens=min(WARMUP_TOKENS, asked.max_new_tokens))
            for way in self._ways:
                told(way.contestant.name)
                self._answer(way, step, asked)

    def measure(self, steps: Sequence[Step]) -> Iterator[Measurement | None]:
        """Go through the steps, and yield each measurement once it is written; None for one not to be had."""
        for step in steps:
            asked = self._asked(step)
            for way in self._ways:
                name = way.contestant.name
                if (name, step.batch) in self._failed or (name, step.key) in self._tokens:
                    yield None
                    continue
                answer = self._answer(way, step, asked)
                if answer is None:
                    yield None
                    continue
                self._tokens[name, step.key] = answer.token_ids
                line = self._measurement(way, step, asked, answer)
                write_line(self._file, line)
                yield line

    def _answer(self, way: Way, step: Step, asked: Asked) -> Answer | None:
        """What the contestant says; where it fails, that is written down."""
        name = way.contestant.name
        try:
            return way.answer(asked)
        except Exception as error:
            self._failed.add((name, step.batch))
            reason = " ".join(str(error).split()) or type(error).__name__
            if not isinstance(error, OutriderError):
                reason = f"{type(error).__name__}: {reason}"
            where = (step.question_id, step.turn, step.batch, step.repeat)
            write_line(self._file, Failure(name, reason[:500], *where))
            return None

    def _asked(self, step: Step) -> Asked:
        prompts = []
        for row, question in enumerate(step.questions):
            answers = [
                self._text(self._earlier(replace(step, turn=turn), row)) for turn in range(1, step.turn)
            ]
            prompts.append(encode(self._tokenizer, question.turns[: step.turn], answers, self._settings.raw))
        settings = self._settings
        return Asked(tuple(prompts), settings.max_new_tokens, settings.temperature, settings.seed)

    def _earlier(self, step: Step, row: int) -> tuple[int, ...]:
        """The first contestant's answer to an earlier turn: the baseline's unless it failed; none, none."""
        for way in self._ways:
            if (tokens := self._tokens.get((way.contestant.name, step.key))) is not None:
                return tokens[row]
        return ()

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _measurement(self, way: Way, step: Step, asked: Asked, answer: Answer) -> Measurement:
        same, first, gap = self._compared(way, step, asked, answer.token_ids)
        stats = None if answer.stats is None else answer.stats.to_dict()
        origins = [] if stats is None else stats.pop("origins")
        texts = "\0".join(self._text(row) for row in answer.token_ids)
        return Measurement(
            contestant=way.contestant.name,
            category=step.questions[0].category,
            question_id=step.question_id,
            turn=step.turn,
            batch=step.batch,
            repeat=step.repeat,
            num_prompt=sum(map(len, asked.prompts)),
            prefill_s=answer.prefill_s,
            decode_s=answer.decode_s,
            num_new_tokens=sum(map(len, answer.token_ids)),
            token_ids=answer.token_ids,
            text_sha256=hashlib.sha256(texts.encode()).hexdigest(),
            stats=stats,
            accepted_by_source={name: origins.count(name) for name in dict.fromkeys(origins)},
            same_as_baseline=same,
            first_difference=first,
            logit_gap=gap,
            peak_memory_bytes=answer.peak_memory_bytes,
        )

    def _compared(
        self, way: Way, step: Step, asked: Asked, tokens: Tokens
    ) -> tuple[bool | None, int | None, float | None]:
        """Whether the tokens are those of the first contestant that could have the same, and where not."""
        name, (first, *others) = way.contestant.name, self._comparable or [""]
        expected = self._tokens.get((first, step.key))
        if expected is None or name not in others:
            return None, None, None
        for prompt, ours, theirs in zip(asked.prompts, tokens, expected, strict=True):
            if ours != theirs:
                pairs = enumerate(zip(ours, theirs, strict=False))
                at = next((at for at, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
                return False, at, self._gap(prompt, ours, theirs, at)
        return True, None, None

    def _gap(
        self, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int], at: int
    ) -> float | None:
        """Between the logits of the two tokens; None where one text merely goes on."""
        if at >= min(len(ours), len(theirs)):
            return None
        ids = torch.tensor([[*prompt, *ours[:at]]], device=self._model.device)
        with torch.no_grad():
            logits = self._model(ids).logits[0, -1].float()
        return float((logits[ours[at]] - logits[theirs[at]]).abs())


def encode(tokenizer: Any, turns: Sequence[str], answers: Sequence[str], raw: bool) -> tuple[int, ...]:
    """Token ids of a conversation up to the next answer; plain text where there is no chat template.

    **Raises:** `OptionError` for a prompt without a token.
    """
    if raw or not tokenizer.chat_template:
        parts = [part for pair in zip(turns, answers, strict=False) for part in pair]
        ids = tokenizer("\n\n".join([*parts, turns[-1]]))["input_ids"]
    else:
        messages: list[dict[str, str]] = []
        for said, answer in zip(turns, [*answers, ""], strict=True):
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
        ids = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
    if not ids:
        raise OptionError(f"the prompt {turns[-1]!r} has no token; leave it out")
    return tuple(ids)


def open_result(path: Path, resume: bool) -> tuple[IO[str], Results | None]:
    """The result file, open for appending, and what it holds already.

    A last line that was cut off in the writing is dropped.

    **Raises:** `OptionError` where there is a file and `resume` was not asked for; `FileFormatError` where it
    is no result.
    """
    if path.exists() and path.stat().st_size and not resume:
        raise OptionError(f"{path} exists; go on with it with --resume, or name another with --out")
    file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - the caller's to close
    file.seek(0)
    text = file.read()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.truncate(len(whole.encode()))
    if not whole:
        return file, None
    try:
        return file, parse_results(whole.splitlines(), str(path))
    except FileFormatError:
        file.close()
        raise

"""The result file of `outrider bench`: JSON lines, a header first, then one line a measurement or a failure.

    {"kind": "run", "format": 1, ...}          Header, once
    {"kind": "measurement", ...}               Measurement: one contestant, one question (or batch), one repeat
    {"kind": "failure", ...}                   Failure: what a contestant could not do, in one sentence

Every line is written whole and flushed, so that an interrupted run is a shorter result and no damaged one.
Metrics over these lines are defined in `outrider.bench.metrics` and nowhere else. Free of torch.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, ClassVar, final

from outrider.errors import FileFormatError

FORMAT = 1

PHASES = ("draft", "target", "verify", "other")

_STATS = {
    *("mat", "num_prefills", "num_rounds", "num_candidates", "num_accepted", "num_committed"),
    *("accepted_by_depth", "proposed_by_depth"),
    *(f"{phase}_s" for phase in PHASES),
}


@final
@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to generate.

    **Arguments:**

    - `name`: As asked for on the command line; what measurements refer to. Unique in a run.
    - `engine`: "outrider", "transformers", "vllm", "llama_cpp", "economize" or "flashspec".
    - `is_baseline`: Asked for with --baseline.
    - `options`: Its settings, parsed.
    - `version`: Of the engine's package.
    - `lossy`: Whether it may change what is generated.
    """

    name: str
    engine: str
    is_baseline: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    lossy: bool = False


@final
@dataclass(frozen=True, slots=True)
class Header:
    """What is needed to run it again.

    **Arguments:**

    - `versions`: Of outrider, torch, transformers, numpy and python.
    - `machine`: Operating system and architecture.
    - `device`: The CPU's or the GPU's name; `device_type` is "cpu" or "cuda".
    - `threads`: torch's threads within an operation.
    - `dtype`: Of the model's weights, as in "float32".
    - `num_parameters`: Of the model.
    - `data`: The file's path, or "builtin"; `num_questions` is how many of it were asked for.
    - `settings`: max_new_tokens, temperature, batch (list), repeat, limit, raw, warmup.
    - `contestants`: In the order in which they take turns.
    - `baseline`: The contestant that speedups and texts are compared with.
    - `seed`: Of keyed sampling; None where greedy.
    - `git`: Commit of the working directory, "-dirty" behind it where files were changed; "" where none.
    - `command`: The command line.
    - `date`: Begin, ISO 8601 with the offset.
    - `forward_times`: T(k): seconds of one forward over k new tokens; empty where it cannot be measured.
    - `lossy`: Whether any contestant may change what is generated.
    """

    kind: ClassVar[str] = "run"

    versions: dict[str, str]
    machine: str
    device: str
    device_type: str
    threads: int
    dtype: str
    model: str
    num_parameters: int
    data: str
    num_questions: int
    settings: dict[str, Any]
    contestants: tuple[Contestant, ...]
    baseline: str
    seed: int | None
    git: str
    command: str
    date: str
    forward_times: dict[int, float]
    lossy: bool
    format: int = FORMAT


@final
@dataclass(frozen=True, slots=True)
class Measurement:
    """One contestant on one question, or on one batch of questions of a category.

    **Arguments:**

    - `contestant`: Its name in the header.
    - `question_id`: Of the question; a batch's ids are joined by "+".
    - `turn`: From 1. A later turn's prompt holds the baseline's earlier answers, for every contestant.
    - `batch`: Rows asked for at once; a category's last batch may have fewer.
    - `repeat`: From 1.
    - `num_prompt`: Prompt tokens of all rows.
    - `prefill_s`: Seconds to the first token; `decode_s`: seconds after it.
    - `num_new_tokens`: Of all rows.
    - `token_ids`: The new tokens of each row, end of sequence included.
    - `text_sha256`: Of the rows' decoded texts, joined by a NUL.
    - `stats`: `outrider.Stats.to_dict()` without `origins`: mat, num_rounds, num_candidates, num_accepted,
        accepted_by_depth and proposed_by_depth (element i: position i+1), draft_s, target_s, verify_s,
        other_s, lossy; None for other engines.
    - `accepted_by_source`: Tokens of the first row by who they came from: "target" or a source's name.
    - `same_as_baseline`: Whether all rows' tokens are the baseline's; None for the baseline itself, or
        where it has none.
    - `first_difference`: Position of the first new token that differs (first such row); None where none does.
    - `logit_gap`: How far the target's logits of the two tokens are apart there; 0 would be a tie.
    - `peak_memory_bytes`: Of the process (CPU) or of the device's allocator (GPU) up to then.
    """

    kind: ClassVar[str] = "measurement"

    contestant: str
    category: str
    question_id: str
    turn: int
    batch: int
    repeat: int
    num_prompt: int
    prefill_s: float
    decode_s: float
    num_new_tokens: int
    token_ids: tuple[tuple[int, ...], ...]
    text_sha256: str
    stats: dict[str, Any] | None
    accepted_by_source: dict[str, int]
    same_as_baseline: bool | None
    first_difference: int | None
    logit_gap: float | None
    peak_memory_bytes: int

    def __post_init__(self) -> None:
        if self.stats is not None and (missing := _STATS - self.stats.keys()):
            raise ValueError(f"its stats have no {min(missing)!r}")

    @property
    def total_s(self) -> float:
        """Seconds of the call, prompt included."""
        return self.prefill_s + self.decode_s

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What was asked: question, turn, batch and repeat; equal for contestants to be compared."""
        return self.question_id, self.turn, self.batch, self.repeat

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of the rounds after the prompt, by phase; empty where the engine does not tell."""
        return {} if self.stats is None else {phase: float(self.stats[f"{phase}_s"]) for phase in PHASES}


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """What a contestant could not do.

    **Arguments:**

    - `reason`: One sentence.
    - `question_id`, `turn`, `batch`, `repeat`: Where. A contestant that failed is not asked again at that
        batch size, unless the run is resumed.
    """

    kind: ClassVar[str] = "failure"

    contestant: str
    reason: str
    question_id: str
    turn: int
    batch: int
    repeat: int


@final
@dataclass(frozen=True, slots=True)
class Results:
    """A result file, read."""

    header: Header
    measurements: tuple[Measurement, ...]
    failures: tuple[Failure, ...]


Line = Header | Measurement | Failure


def write_line(file: IO[str], line: Line) -> None:
    """Append one line, and flush it."""
    file.write(json.dumps({"kind": line.kind, **asdict(line)}, separators=(",", ":")) + "\n")
    file.flush()


def read_results(path: str | Path) -> Results:
    """A result file.

    **Raises:** `FileFormatError` naming the line that is malformed, or a file that is no result.
    """
    try:
        with open(path, encoding="utf-8") as lines:
            return parse_results(lines, str(path))
    except OSError as error:
        raise FileFormatError(
            f"the result {str(path)!r} cannot be read ({error.strerror}); give a file that 'outrider bench' wrote"
        ) from error
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{path} is not UTF-8 text (byte {error.start}); give a file that 'outrider bench' wrote"
        ) from error


def parse_results(lines: Iterable[str], name: str) -> Results:
    """As `read_results`, from lines; `name` is what errors call the file."""
    header: Header | None = None
    measurements: list[Measurement] = []
    failures: list[Failure] = []
    for number, text in enumerate(lines, 1):
        try:
            line = parse_line(text)
            if isinstance(line, Header) != (header is None):
                raise ValueError("a result begins with one line of kind 'run'")
            if isinstance(line, Header):
                header = line
                known = {contestant.name for contestant in line.contestants}
            elif line.contestant not in known:
                raise ValueError(f"the header knows no contestant {line.contestant!r}")
            elif isinstance(line, Measurement):
                measurements.append(line)
            else:
                failures.append(line)
        except ValueError as error:
            raise FileFormatError(f"line {number} of {name} is no line of a bench result: {error}") from error
    if header is None:
        raise FileFormatError(f"{name} is empty; give a file that 'outrider bench' wrote")
    return Results(header, tuple(measurements), tuple(failures))


def parse_line(text: str) -> Line:
    """One line. **Raises:** `ValueError` telling what is wrong with it."""
    held = json.loads(text)
    if not isinstance(held, dict):
        raise ValueError("it is not an object")
    kind = held.pop("kind", None)
    cls = next((cls for cls in (Header, Measurement, Failure) if cls.kind == kind), None)
    if cls is None:
        raise ValueError(f"its kind is {kind!r}, not run, measurement or failure")
    if cls is Header and held.get("format") != FORMAT:
        raise ValueError(f"its format is {held.get('format')!r}, and this version reads {FORMAT}")
    line: Line = built(cls, held)
    return line


def built(cls: type[Any], held: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    names = {part.name for part in fields(cls)}
    if missing := names - held.keys():
        raise ValueError(f"it has no {min(missing)!r}")
    if unknown := held.keys() - names:
        raise ValueError(f"it has an unknown field {min(unknown)!r}")
    return cls(**{name: _checked(held[name], hints[name], name) for name in names})


def _checked(value: Any, hint: Any, name: str) -> Any:
    """`value` as the type `hint` says, tuples and integer keys restored from JSON."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is types.UnionType:
        if value is None and type(None) in arguments:
            return None
        return _checked(value, arguments[0], name)
    if origin is tuple and isinstance(value, list):
        return tuple(_checked(part, arguments[0], name) for part in value)
    if origin is dict and isinstance(value, dict):
        to_key = arguments[0]
        return {to_key(key): _checked(part, arguments[1], name) for key, part in value.items()}
    if hint is Contestant and isinstance(value, dict):
        return built(Contestant, value)
    if hint is float and type(value) in (int, float):
        return float(value)
    if hint in (int, str, bool) and type(value) is hint:
        return value
    raise ValueError(f"its {name!r} is {json.dumps(value)[:40]}, not what belongs there")

"""A trace file, read: each round's tree, who proposed what, what the target thought, and why it was so."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, final

from outrider.bench.records import built
from outrider.errors import FileFormatError

TRACE_FORMAT = "outrider-trace"
TRACE_VERSION = 1

Status = Literal["accepted", "rejected", "unreached", "cut"]


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """A token, and the target's probability of it."""

    text: str
    probability: float


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """Committed text, and who it came from: "target" or a source's name."""

    text: str
    origin: str
    round: int


@final
@dataclass(frozen=True, slots=True)
class Node:
    """A candidate.

    **Arguments:**

    - `text`, `parent`, `depth`: Its token; its parent's index, -1 for the last committed token; from 1.
    - `source`, `estimate`, `drafted`: Who proposed it; with which probability of acceptance; with which
        probability it was drawn. None where that is not known.
    - `target`, `rank`: The target's probability of it, and its place among all tokens; None if not verified.
    - `top`: What the target would put after it; likeliest first.
    - `status`, `reason`: What became of it; why it was not accepted ("" where it was).
    """

    text: str
    parent: int
    depth: int
    source: str
    estimate: float | None
    drafted: float | None
    target: float | None
    rank: int | None
    top: tuple[Choice, ...]
    status: Status
    reason: str


@final
@dataclass(frozen=True, slots=True)
class Round:
    """One round: its candidates, what the target put after the last committed token, what was committed."""

    number: int
    ms: float
    top: tuple[Choice, ...]
    nodes: tuple[Node, ...]
    pieces: tuple[Piece, ...]

    @property
    def num_accepted(self) -> int:
        return sum(node.status == "accepted" for node in self.nodes)

    @property
    def num_verified(self) -> int:
        return sum(node.status != "cut" for node in self.nodes)


@final
@dataclass(frozen=True, slots=True)
class Header:
    """What was traced."""

    model: str
    generator: str
    prompt: str
    num_prompt: int
    settings: dict[str, Any]
    versions: dict[str, str]
    date: str


@final
@dataclass(frozen=True, slots=True)
class Trace:
    """A whole call; `stats` is None where it was interrupted."""

    header: Header
    rounds: tuple[Round, ...]
    stats: dict[str, Any] | None

    @property
    def pieces(self) -> list[Piece]:
        return [piece for one in self.rounds for piece in one.pieces]

    @property
    def sources(self) -> list[str]:
        """Everybody who proposed, the most often accepted first."""
        counts: dict[str, int] = {}
        for one in self.rounds:
            for node in one.nodes:
                counts[node.source] = counts.get(node.source, 0) + (node.status == "accepted")
        return sorted(counts, key=lambda name: (-counts[name], name))

    @property
    def mat(self) -> float:
        """Mean accepted tokens of the rounds after the prompt's; 1 where there were none."""
        rounds = self.rounds[1:]
        return sum(len(one.pieces) for one in rounds) / len(rounds) if rounds else 1.0

    @property
    def summary(self) -> str:
        """One sentence."""
        pieces = self.pieces
        free = sum(piece.origin != "target" for piece in pieces)
        return (
            f"{len(pieces)} tokens in {len(self.rounds)} forwards: {free} came free, "
            f"{len(pieces) - free} are the target's own; MAT {self.mat:.2f}."
        )


@dataclass(frozen=True, slots=True)
class _Record:
    """A round's line, as `outrider.tracing.Tracer` writes it."""

    round: int
    ms: float
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    sources: tuple[str, ...]
    probabilities: tuple[float, ...] | None
    drafted: tuple[float, ...] | None
    verified: tuple[int, ...]
    accepted: tuple[int, ...]
    committed: tuple[int, ...]
    pieces: tuple[str, ...]
    origins: tuple[str, ...]
    ended: bool
    chains_only: bool
    top: tuple[tuple[tuple[Any, ...], ...] | None, ...]
    target: tuple[float | None, ...]
    ranks: tuple[int | None, ...]
    texts: dict[str, str]

    def __post_init__(self) -> None:
        num = len(self.tokens)
        beside = ("parents", "sources", "probabilities", "drafted", "target", "ranks")
        for name in beside:
            held = getattr(self, name)
            if held is not None and len(held) != num:
                raise ValueError(f"its {name!r} has {len(held)} entries for {num} tokens")
        if len(self.top) != num + 1 or self.top[0] is None:
            raise ValueError("its 'top' must have one entry more than its tokens, and begin with a list")
        if any(not -1 <= parent < node for node, parent in enumerate(self.parents)):
            raise ValueError("its 'parents' must each be -1 or come before the child")
        if any(not 0 <= node < num for node in (*self.verified, *self.accepted)):
            raise ValueError("it names a candidate that it does not hold")
        if not len(self.committed) == len(self.pieces) == len(self.origins):
            raise ValueError("its 'committed', 'pieces' and 'origins' must be equally long")
        if not set(self.accepted) <= set(self.verified) or len(self.accepted) > len(self.committed):
            raise ValueError("its 'accepted' must be verified and committed")
        for row in self.top:
            for entry in row or ():
                if len(entry) != 2 or type(entry[0]) is not int or type(entry[1]) not in (int, float):
                    raise ValueError("its 'top' must hold pairs of a token and a probability")


def read_trace(path: str | Path) -> Trace:
    """A trace file.

    **Raises:** `FileFormatError` naming the line that is malformed, or a file that is no trace.
    """
    try:
        with open(path, encoding="utf-8") as lines:
            return parse_trace(lines, str(path))
    except OSError as error:
        raise FileFormatError(
            f"the trace {str(path)!r} cannot be read ({error.strerror}); give a file that 'outrider trace --out' wrote"
        ) from error
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{path} is not UTF-8 text (byte {error.start}); give a file that 'outrider trace --out' wrote"
        ) from error


def parse_trace(lines: Iterable[str], name: str) -> Trace:
    """As `read_trace`, from lines; `name` is what errors call the file."""
    header: Header | None = None
    rounds: list[Round] = []
    stats: dict[str, Any] | None = None
    texts: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        try:
            held = json.loads(line)
            if not isinstance(held, dict):
                raise ValueError("it is not an object")
            if header is None:
                header = _header(held)
            elif stats is not None:
                raise ValueError("nothing may follow the stats")
            elif set(held) == {"stats"} and isinstance(held["stats"], dict):
                stats = held["stats"]
            else:
                record: _Record = built(_Record, held)
                texts.update(record.texts)
                rounds.append(_round(record, texts))
        except ValueError as error:
            raise FileFormatError(f"line {number} of {name} is no line of a trace: {error}") from error
    if header is None:
        raise FileFormatError(f"{name} is empty; give a file that 'outrider trace --out' wrote")
    if not rounds:
        raise FileFormatError(f"{name} holds no round, so there is nothing to show")
    return Trace(header, tuple(rounds), stats)


def _header(held: dict[str, Any]) -> Header:
    if held.pop("format", None) != TRACE_FORMAT:
        raise ValueError(f"a trace begins with an object whose format is {TRACE_FORMAT!r}")
    if (version := held.pop("version", None)) != TRACE_VERSION:
        raise ValueError(f"its version is {version!r}, and this Outrider reads {TRACE_VERSION}")
    header: Header = built(Header, held)
    return header


def header_line(header: Header) -> dict[str, Any]:
    """What `read_trace` expects first."""
    held = {part.name: getattr(header, part.name) for part in fields(header)}
    return {"format": TRACE_FORMAT, "version": TRACE_VERSION, **held}


def _round(record: _Record, texts: dict[str, str]) -> Round:
    def text(token: int) -> str:
        return texts.get(str(token), f"<{token}>")

    def choices(row: Sequence[Sequence[Any]] | None) -> tuple[Choice, ...]:
        return tuple(Choice(text(token), float(p)) for token, p in row or ())

    depths = [0] * (len(record.tokens) + 1)
    for node, parent in enumerate(record.parents):
        depths[node + 1] = depths[parent + 1] + 1
    nodes = []
    for node, token in enumerate(record.tokens):
        status, reason = _outcome(record, node, text)
        nodes.append(
            Node(
                text=text(token),
                parent=record.parents[node],
                depth=depths[node + 1],
                source=record.sources[node],
                estimate=record.probabilities[node] if record.probabilities else None,
                drafted=record.drafted[node] if record.drafted else None,
                target=record.target[node],
                rank=record.ranks[node],
                top=choices(record.top[node + 1]),
                status=status,
                reason=reason,
            )
        )
    pieces = tuple(
        Piece(piece, origin, record.round)
        for piece, origin in zip(record.pieces, record.origins, strict=True)
    )
    return Round(record.round, record.ms, choices(record.top[0]), tuple(nodes), pieces)


def _outcome(record: _Record, node: int, text: Any) -> tuple[Status, str]:
    """What became of a candidate, and why."""
    if node in record.accepted:
        return "accepted", ""
    if node not in record.verified:
        limit = "this model takes chains only" if record.chains_only else "the round's budget was smaller"
        return "cut", f"not verified: {limit}"
    parent = record.parents[node]
    if parent >= 0 and parent not in record.accepted:
        return "unreached", f"not reached: {text(record.tokens[parent])!r} before it was not accepted"
    depth = record.accepted.index(parent) + 1 if parent >= 0 else 0
    if depth >= len(record.committed):
        return "unreached", "not reached: the text ended before it"
    chosen = record.committed[depth]
    row = next((r for r in (record.top[parent + 1],) if r), ())
    chance = next((p for token, p in row if token == chosen), None)
    known = "" if chance is None else f" (probability {chance:.2f})"
    own = record.target[node]
    gave = "" if own is None else f", and gave this {own:.2g}"
    if chosen == record.tokens[node]:
        return "rejected", f"rejected by the accept rule, which then drew the same token{known}"
    return "rejected", f"the target chose {text(chosen)!r} here{known}{gave}"

"""What is measured against what: ways to generate, each behind the same two calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outrider.bench.records import Contestant
from outrider.stats import Stats


@dataclass(frozen=True, slots=True)
class Asked:
    """Prompts to continue at once, and how.

    **Arguments:**

    - `prompts`: Token ids of each row; any lengths.
    - `temperature`: 0 is greedy.
    - `seed`: With a temperature.
    """

    prompts: tuple[tuple[int, ...], ...]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it.

    **Arguments:**

    - `token_ids`: New tokens of each row, end of sequence included and nothing after it.
    - `prefill_s`, `decode_s`: Seconds to the first token, and after it.
    - `stats`: Where the engine tells.
    """

    token_ids: tuple[tuple[int, ...], ...]
    prefill_s: float
    decode_s: float
    peak_memory_bytes: int
    stats: Stats | None = None


class Way(Protocol):
    """One contestant at work."""

    @property
    def contestant(self) -> Contestant:
        """What the result file calls it."""

    def answer(self, asked: Asked) -> Answer:
        """Generate. Whatever it raises is the contestant's failure, and not the run's."""

    def close(self) -> None:
        """Let go of processes and memory."""

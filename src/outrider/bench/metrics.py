"""What is computed from a result file: the only place where a metric is defined. Free of torch.

Rate: new tokens a second; of decoding alone, tokens after each row's first a second after the first.
Speedup: a contestant's rate over the baseline's, question by question, then the mean over questions.
A question's rate is the median over its repeats; its turns count together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import final

import numpy as np
import numpy.typing as npt

from outrider.bench.records import PHASES, Measurement, Results

_RESAMPLES = 2000


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """A value, and the 95% bootstrap interval around it; `num` is how many values it is made of."""

    value: float
    low: float
    high: float
    num: int

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@final
@dataclass(frozen=True, slots=True)
class Summary:
    """One contestant over some questions.

    **Arguments:**

    - `category`: "" for all.
    - `speedup`, `decode_speedup`: Over the baseline; None where they share no question.
    - `worst_speedup`: Of the slowest question.
    - `tokens_per_s`, `decode_tokens_per_s`: Median over questions.
    - `prefill_s`: Median over measurements.
    - `mat`: Tokens a target forward after the prompt's, over all rounds; None where the engine does not tell.
    - `acceptance_rate`: Accepted over proposed candidates; None as above, or where none were proposed.
    - `acceptance_by_position`: Element i: accepted over proposed at depth i+1.
    - `phases`: Seconds of the rounds after the prompt, by phase.
    - `identical`: Share of measurements whose tokens are the baseline's; None where nothing was compared.
    - `largest_gap`: Of the logits at first differences; None where none differs.
    - `peak_memory_bytes`: The largest.
    """

    contestant: str
    category: str
    batch: int
    num_questions: int
    speedup: Interval | None
    decode_speedup: Interval | None
    worst_speedup: float | None
    tokens_per_s: Interval
    decode_tokens_per_s: Interval
    prefill_s: Interval
    mat: float | None
    acceptance_rate: float | None
    acceptance_by_position: tuple[float, ...]
    phases: dict[str, float]
    identical: float | None
    largest_gap: float | None
    peak_memory_bytes: int


def interval(
    values: Sequence[float], statistic: Callable[..., npt.NDArray[np.float64]] = np.mean, seed: int = 0
) -> Interval:
    """`statistic` of the values and its 95% percentile bootstrap interval; values are not to be empty."""
    sample = np.asarray(values, np.float64)
    picks = np.random.default_rng(seed).integers(0, sample.size, (_RESAMPLES, sample.size))
    low, high = np.percentile(statistic(sample[picks], axis=1), [2.5, 97.5])
    return Interval(float(statistic(sample)), float(low), float(high), sample.size)


def chosen(
    results: Results, contestant: str, category: str = "", batch: int | None = None
) -> list[Measurement]:
    """Measurements of a contestant, of a category ("": all), of a batch size (None: all)."""
    return [
        line
        for line in results.measurements
        if line.contestant == contestant and category in ("", line.category) and batch in (None, line.batch)
    ]


def rates(measurements: Iterable[Measurement], *, decode: bool = False) -> dict[tuple[str, int], float]:
    """Tokens a second of each (question, batch): median over repeats, its turns summed."""
    spent: dict[tuple[str, int], dict[int, list[tuple[float, float]]]] = {}
    for line in measurements:
        tokens = line.num_new_tokens - (len(line.token_ids) if decode else 0)
        seconds = line.decode_s if decode else line.total_s
        spent.setdefault((line.question_id, line.batch), {}).setdefault(line.repeat, []).append(
            (tokens, seconds)
        )
    found = {}
    for question, repeats in spent.items():
        sums = [np.sum(turns, axis=0) for turns in repeats.values()]
        known = [float(tokens / seconds) for tokens, seconds in sums if tokens > 0 and seconds > 0]
        if known:
            found[question] = median(known)
    return found


def speedups(
    results: Results,
    contestant: str,
    *,
    baseline: str | None = None,
    category: str = "",
    batch: int | None = None,
    decode: bool = False,
) -> dict[tuple[str, int], float]:
    """Rate over the baseline's for each (question, batch); only turns and repeats that both have count."""
    mine = {line.key: line for line in chosen(results, contestant, category, batch)}
    other = chosen(results, baseline or results.header.baseline, category, batch)
    theirs = {line.key: line for line in other}
    both = [key for key in mine if key in theirs]
    own = rates([mine[key] for key in both], decode=decode)
    base = rates([theirs[key] for key in both], decode=decode)
    return {question: rate / base[question] for question, rate in own.items() if question in base}


def summarize(
    results: Results, contestant: str, *, category: str = "", batch: int, baseline: str | None = None
) -> Summary | None:
    """The summary of a contestant; None where nothing of it was measured."""
    lines = chosen(results, contestant, category, batch)
    per_question, decoding = rates(lines), rates(lines, decode=True)
    if not per_question:
        return None
    ratios, decode_ratios = (
        list(
            speedups(
                results, contestant, baseline=baseline, category=category, batch=batch, decode=decode
            ).values()
        )
        for decode in (False, True)
    )
    stats = [line.stats for line in lines if line.stats is not None]
    num_rounds = sum(held["num_rounds"] for held in stats)
    num_after = sum(held["num_committed"] - held["num_prefills"] for held in stats)
    num_proposed = sum(held["num_candidates"] for held in stats)
    num_accepted = sum(held["num_accepted"] for held in stats)
    compared = [line.same_as_baseline for line in lines if line.same_as_baseline is not None]
    gaps = [line.logit_gap for line in lines if line.logit_gap is not None]
    return Summary(
        contestant=contestant,
        category=category,
        batch=batch,
        num_questions=len(per_question),
        speedup=interval(ratios) if ratios else None,
        decode_speedup=interval(decode_ratios) if decode_ratios else None,
        worst_speedup=min(ratios, default=None),
        tokens_per_s=interval(list(per_question.values()), np.median),
        decode_tokens_per_s=interval(list(decoding.values()) or [0.0], np.median),
        prefill_s=interval([line.prefill_s for line in lines], np.median),
        mat=num_after / num_rounds if num_rounds else None,
        acceptance_rate=num_accepted / num_proposed if num_proposed else None,
        acceptance_by_position=acceptance_by_position(lines),
        phases={phase: sum(line.phases.get(phase, 0.0) for line in lines) for phase in PHASES}
        if stats
        else {},
        identical=sum(compared) / len(compared) if compared else None,
        largest_gap=max(gaps, default=None),
        peak_memory_bytes=max(line.peak_memory_bytes for line in lines),
    )


def summaries(results: Results, *, by_category: bool = False) -> list[Summary]:
    """Every contestant at every batch size, over all questions, or category by category."""
    categories = list(dict.fromkeys(line.category for line in results.measurements)) if by_category else [""]
    batches = sorted({line.batch for line in results.measurements})
    found = [
        summarize(results, contestant.name, category=category, batch=batch)
        for batch in batches
        for category in categories
        for contestant in results.header.contestants
    ]
    return [summary for summary in found if summary is not None]


def acceptance_by_position(measurements: Iterable[Measurement]) -> tuple[float, ...]:
    """Accepted over proposed candidates at each depth; in a tree, several are proposed at one depth."""
    proposed, accepted = [], []
    for line in measurements:
        if line.stats is not None:
            proposed.append(line.stats["proposed_by_depth"])
            accepted.append(line.stats["accepted_by_depth"])
    width = max(map(len, proposed), default=0)
    sums = [
        np.sum([list(row) + [0] * (width - len(row)) for row in rows], axis=0) if rows else np.zeros(0)
        for rows in (proposed, accepted)
    ]
    return tuple(float(a / p) for p, a in zip(*sums, strict=True) if p > 0)

"""Whether a contestant got faster between two results, or whether that is noise. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from outrider.bench.metrics import Interval, interval, speedups
from outrider.bench.records import Results

Verdict = Literal["faster", "slower", "noise"]


@final
@dataclass(frozen=True, slots=True)
class Change:
    """One contestant's speedup in two results, paired by question.

    **Arguments:**

    - `before`, `after`: Mean speedup over its own result's baseline, over the questions both have.
    - `ratio`: After over before: the geometric mean of the questions' ratios, with the 95% bootstrap interval
        over questions.
    """

    contestant: str
    batch: int
    before: float
    after: float
    ratio: Interval

    @property
    def verdict(self) -> Verdict:
        """ "noise" where the interval holds 1, or where there are too few questions to tell."""
        if self.ratio.num < 3 or self.ratio.low <= 1.0 <= self.ratio.high:
            return "noise"
        return "faster" if self.ratio.value > 1.0 else "slower"


def changes(before: Results, after: Results) -> list[Change]:
    """What both results measured, contestant by contestant; each over its own baseline, so that machines may differ.

    The baselines themselves are not listed: over themselves they are 1.
    """
    found = []
    names = {one.name for one in before.header.contestants} - {before.header.baseline, after.header.baseline}
    for contestant in (one.name for one in after.header.contestants if one.name in names):
        for batch in sorted({line.batch for line in after.measurements}):
            old = speedups(before, contestant, batch=batch)
            new = speedups(after, contestant, batch=batch)
            both = [question for question in old if question in new]
            if not both:
                continue
            logs = [float(np.log(new[question] / old[question])) for question in both]
            spread = interval(logs)
            low, middle, high = (float(np.exp(part)) for part in (spread.low, spread.value, spread.high))
            ratio = Interval(middle, low, high, spread.num)
            means = [float(np.mean([side[question] for question in both])) for side in (old, new)]
            found.append(Change(contestant, batch, means[0], means[1], ratio))
    return found

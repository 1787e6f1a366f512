"""Record what a model writes, as traces that `replay` decodes again without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any, ClassVar, final

import numpy as np
import torch

import outrider
from outrider.bench.data import Question
from outrider.bench.replay import Trace
from outrider.bench.run import encode
from outrider.choosing import make_generator
from outrider.contract import CandidateGenerator
from outrider.control import CostRule
from outrider.types import Candidates, Context, Ids, Need, TopLogits, Verification


@final
class Recorder(CandidateGenerator):
    """Drafts as another generator does, and keeps the top logits that chose each committed token.

    **Arguments:**

    - `inner`: Who proposes.
    - `top`: How many logits to keep.
    """

    needs: ClassVar[frozenset[Need]] = frozenset()

    def __init__(self, inner: CandidateGenerator, top: int) -> None:
        self._inner, self._top = inner, top
        width = max([top, *(need.k for need in inner.needs if isinstance(need, TopLogits))])
        others = {need for need in inner.needs if not isinstance(need, TopLogits)}
        self.needs = frozenset({*others, TopLogits(width)})  # type: ignore[misc]
        self.top_tokens: list[Any] = []
        self.top_logits: list[Any] = []

    def reset(self, prompt: Ids) -> None:
        self.top_tokens, self.top_logits = [], []
        self._inner.reset(prompt)

    def propose(self, context: Context, budget: int) -> Candidates:
        return self._inner.propose(context, budget)

    def update(self, verification: Verification) -> None:
        assert verification.top_tokens is not None and verification.top_logits is not None
        rows = [0, *(int(node) + 1 for node in verification.path)][: verification.committed.size]
        self.top_tokens += list(verification.top_tokens[rows, : self._top])
        self.top_logits += list(verification.top_logits[rows, : self._top])
        self._inner.update(verification)


def record_text(
    model: Any, tokenizer: Any, question: Question, max_new_tokens: int, *, top: int = 8, raw: bool = False
) -> Iterator[Trace]:
    """Greedy traces of a question, one a turn; what the model said is part of the next turn's prompt."""
    answers: list[str] = []
    for turn in range(1, len(question.turns) + 1):
        prompt = encode(tokenizer, question.turns[:turn], answers, raw)
        ids = torch.tensor([prompt], device=model.device)
        recorder = Recorder(make_generator("auto"), top) if top else None
        sequence = outrider.generate(
            model,
            ids,
            attention_mask=torch.ones_like(ids),
            candidate_generator=recorder or "auto",
            controller=CostRule(),
            max_new_tokens=max_new_tokens,
            do_sample=False,
        )[0].tolist()
        output = sequence[len(prompt) :]
        answers.append(tokenizer.decode(output, skip_special_tokens=True))
        yield Trace(
            np.asarray(prompt, np.int64),
            np.asarray(output, np.int64),
            question.category,
            None if recorder is None else np.asarray(recorder.top_tokens, np.int64),
            None if recorder is None else np.asarray(recorder.top_logits, np.float32),
        )


def write_trace(file: IO[str], trace: Trace) -> None:
    """Append one line, and flush it."""
    held: dict[str, Any] = {
        "category": trace.category,
        "prompt_ids": trace.prompt_ids.tolist(),
        "output_ids": trace.output_ids.tolist(),
    }
    if trace.top_tokens is not None and trace.top_logits is not None:
        held["top_tokens"] = trace.top_tokens.tolist()
        held["top_logits"] = [[round(value, 4) for value in row] for row in trace.top_logits.tolist()]
    file.write(json.dumps(held, separators=(",", ":")) + "\n")
    file.flush()

"""The same distribution as plain sampling: a test of the joint law of the first tokens."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.generation.logits_process import LogitsProcessorList

from outrider.choosing import make_generator
from outrider.testing.enumeration import Law
from outrider.types import Candidates, Context, Verification
from outrider.verification import Row, Stopping, Verifier, get_verifier

Tokens = tuple[int, ...]


def assert_same_law(
    generator: Any,
    model: Any,
    *,
    verification: str = "keyed",
    prompt: Tensor | None = None,
    length: int = 2,
    num_samples: int = 20_000,
    budget: int = 4,
    seed: int = 0,
    min_p: float = 1e-3,
    processors: LogitsProcessorList | None = None,
) -> float:
    """The first `length` tokens follow the target's own joint law (G-test against enumeration).

    The model runs once for every prefix, and the rounds on its table, so tens of thousands of texts
    take seconds. A total variation of 0.05 is found with near certainty.

    **Arguments:**

    - `generator`: What `outrider.generate` takes as `candidate_generator`; it must not need hidden states.
    - `model`: A target of few tokens, such as `tiny_target(5)`.
    - `verification`: The accept rule's name.
    - `prompt`: (1, L) int64; one random where None.
    - `budget`: Most candidates a round.
    - `seed`: Of the draws. The outcome is reproducible.
    - `min_p`: Fail below this p value.
    - `processors`: Logits processors that act on both sides.

    **Returns:** the p value.

    **Raises:** `AssertionError` with the p value and the worst cell.
    """
    ids = prompt if prompt is not None else torch.randint(model.config.vocab_size, (1, 6))
    table = Table(model, ids, length, processors or LogitsProcessorList())
    drafter = make_generator(generator)
    torch.manual_seed(seed)
    rule = get_verifier(verification, do_sample=True, seed=seed)
    counts: Counter[Tokens] = Counter()
    for sample in range(num_samples):
        counts[_sample(drafter, rule, table, sample, budget)] += 1
    p, worst = g_test(counts, table.joint_law())
    assert p >= min_p, (
        f"{type(drafter).__name__} under verification={verification!r}: the law of the first {length} tokens "
        f"is not the target's (p = {p:.2g}, {num_samples} samples; worst at {worst})"
    )
    return p


class Table:
    """A model's logits for every continuation of a prompt by fewer than `length` tokens."""

    def __init__(self, model: Any, prompt: Tensor, length: int, processors: LogitsProcessorList) -> None:
        self.prompt, self.length, self.processors = prompt, length, processors
        self.vocab: int = model.config.vocab_size
        self._logits: dict[Tokens, Tensor] = {}
        texts: list[Tokens] = [()]
        for _ in range(length):
            rows = torch.tensor([[*prompt[0].tolist(), *text] for text in texts])
            with torch.no_grad():
                logits = model(rows, attention_mask=torch.ones_like(rows)).logits[:, -1].float()
            self._logits |= dict(zip(texts, logits, strict=True))
            texts = [(*text, token) for text in texts for token in range(self.vocab)]

    def tree_logits(self, candidates: Candidates, text: Tokens) -> Tensor:
        """(n+1, V), as a forward over the tree would give them; nodes past the table are uniform."""
        texts = [text]
        for token, parent in zip(candidates.tokens.tolist(), candidates.parents.tolist(), strict=True):
            texts.append((*texts[parent + 1], token))
        uniform = torch.zeros(self.vocab)
        return torch.stack([self._logits.get(node, uniform) for node in texts])

    def joint_law(self) -> Law:
        """Probability of every continuation of `length` tokens."""
        law: Law = {(): 1.0}
        for _ in range(self.length):
            longer: Law = {}
            for text, weight in law.items():
                ids: Any = torch.tensor([[*self.prompt[0].tolist(), *text]])
                scores: Any = self._logits[text][None].clone()
                chances = self.processors(ids, scores)[0].double().softmax(-1).tolist()
                longer |= {(*text, token): weight * chance for token, chance in enumerate(chances)}
            law = longer
        return law


def g_test(counts: Counter[Tokens], law: Law, min_expected: float = 5.0) -> tuple[float, Any]:
    """p value of a G-test of counts against a law, and the cell that fits worst.

    Cells that expect fewer than `min_expected` are pooled; a count where the law has none gives 0.
    """
    total = sum(counts.values())
    impossible = next((text for text, n in counts.items() if n and law.get(text, 0.0) <= 0.0), None)
    if impossible is not None:
        return 0.0, impossible
    seen: list[float] = []
    expected: list[float] = []
    names: list[Any] = []
    rest = [0.0, 0.0]
    for text, chance in law.items():
        if total * chance < min_expected:
            rest = [rest[0] + counts[text], rest[1] + total * chance]
        else:
            seen.append(float(counts[text]))
            expected.append(total * chance)
            names.append(text)
    if rest[1] > 0.0:
        seen.append(rest[0])
        expected.append(rest[1])
        names.append("rare texts")
    observed, mean = np.array(seen), np.array(expected)
    mean *= observed.sum() / mean.sum()
    terms = observed * np.log(np.where(observed > 0, observed, 1.0) / mean)
    worst = names[int(np.abs((observed - mean) / np.sqrt(mean)).argmax())]
    return _chi2_tail(2 * float(terms.sum()), len(seen) - 1), worst


def _chi2_tail(statistic: float, freedom: int) -> float:
    if freedom < 1:
        return 1.0
    half = torch.tensor([freedom / 2, max(statistic, 0.0) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _sample(drafter: Any, rule: Verifier, table: Table, sample: int, budget: int) -> Tokens:
    """The first `table.length` tokens of one text, by rounds."""
    row = Row(table.prompt, table.processors, Stopping([]), stream=sample)
    drafter.reset(row.ids)
    num_prompt = row.length
    while row.length - num_prompt < table.length:
        text = tuple(row.ids[num_prompt:].tolist())
        context = Context(row.ids, num_prompt, 2**31, draw=lambda logits, at: rule.draw(row, logits, at))
        candidates = drafter.propose(context, budget)
        if len(candidates) > budget:
            candidates = candidates.keep(range(budget))
        before = row.length
        path = rule.verify(row, candidates, table.tree_logits(candidates, text))
        logits = table.tree_logits(candidates, text)
        top = logits.topk(min(8, table.vocab), dim=-1)
        drafter.update(
            Verification(
                row.ids[before:].copy(),
                len(path),
                candidates,
                np.asarray(path, dtype=np.int64),
                top_tokens=top.indices.numpy(),
                top_logits=top.values.numpy(),
                scores=logits,
            )
        )
    return tuple(row.ids[num_prompt : num_prompt + table.length].tolist())

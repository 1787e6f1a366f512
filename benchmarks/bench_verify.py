"""Milliseconds of the accept rules for one round: 32 candidates, a vocabulary of 150,000.

python benchmarks/bench_verify.py
"""

from __future__ import annotations

import time

import torch
from transformers.generation import logits_process as lp
from transformers.generation.logits_process import LogitsProcessorList

from outrider.types import Candidates
from outrider.verification import Row, Stopping, get_verifier

VOCAB, SIZE, ROUNDS = 151_936, 32, 10


def milliseconds(name: str, num_right: int, warpers: LogitsProcessorList) -> float:
    """Best of a few rounds over a chain whose first `num_right` candidates are the target's likeliest."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(SIZE + 1, VOCAB, generator=random) * 3
    logits[:, 7] = 60.0
    tokens = [7] * num_right + [8] * (SIZE - num_right)
    candidates = Candidates.chain(tokens, draft_logits=logits[:SIZE])
    verifier = get_verifier(name, do_sample=name != "greedy", seed=0)
    best = float("inf")
    for _ in range(ROUNDS):
        row = Row(torch.zeros(1, 64, dtype=torch.long), warpers, Stopping([]))
        began = time.perf_counter()
        verifier.verify(row, candidates, logits)
        best = min(best, time.perf_counter() - began)
    return 1e3 * best


if __name__ == "__main__":
    torch.set_num_threads(1)
    warpers = LogitsProcessorList([lp.TemperatureLogitsWarper(0.8), lp.TopKLogitsWarper(50)])
    print(f"{SIZE} candidates, vocabulary {VOCAB}, one thread; ms a round")
    print(f"{'rule':12}{'0 right':>10}{'4 right':>10}{'32 right':>10}{'4, top_k=50':>13}")
    for name in ("greedy", "keyed", "match", "token", "block"):
        plain = [milliseconds(name, right, LogitsProcessorList()) for right in (0, 4, 32)]
        print(
            f"{name:12}" + "".join(f"{ms:10.2f}" for ms in plain) + f"{milliseconds(name, 4, warpers):13.2f}"
        )

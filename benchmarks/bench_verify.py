"""Milliseconds of the accept rules for one round of 32 candidates, and their share of the target's forward.

python benchmarks/bench_verify.py [--dtype float32] [--threads 1] [--repeats 15]

A round is one forward of the target over 33 tokens: random models of the shapes of Qwen2.5-0.5B and 1.5B, with
their vocabulary of 151,936. Drafting is left out, so a share of a whole round is smaller still.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.generation import logits_process as lp
from transformers.generation.logits_process import LogitsProcessorList

from outrider.cores import use_physical_cores
from outrider.types import Candidates
from outrider.verification import Row, Stopping, get_verifier

VOCAB, SIZE = 151_936, 32
RULES = ("greedy", "keyed", "match", "token", "block")
RIGHT = (0, 4, SIZE)
SHAPES = {
    "0.5B": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14),
    "1.5B": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12),
}
LIKELY, UNLIKELY = 7, 8


def forward_ms(shape: dict[str, int], dtype: torch.dtype, repeats: int) -> float:
    """Best of a few forwards of a random model over 33 tokens, without a cache."""
    config = Qwen2Config(vocab_size=VOCAB, num_key_value_heads=2, tie_word_embeddings=True, **shape)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    model = Qwen2ForCausalLM(config).eval()
    torch.set_default_dtype(before)
    ids = torch.arange(SIZE + 1)[None]
    with torch.inference_mode():
        return best_ms([lambda: model(ids)], repeats)[0]


def best_ms(calls: list, repeats: int) -> list[float]:
    """The best time of each call, the calls taken in turn."""
    best = [float("inf")] * len(calls)
    for _ in range(repeats):
        for at, call in enumerate(calls):
            began = time.perf_counter()
            call()
            best[at] = min(best[at], 1e3 * (time.perf_counter() - began))
    return best


def target_logits(dtype: torch.dtype) -> Tensor:
    """(33, V): as wide as a language model's, with one token all but certain in every row."""
    logits = torch.randn(SIZE + 1, VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    logits[:, LIKELY], logits[:, UNLIKELY] = 40.0, -10.0
    return logits.to(dtype)


def round_of(name: str, num_right: int, logits: Tensor, warpers: LogitsProcessorList):
    """A round over a chain whose first `num_right` candidates are accepted and the others are not."""
    drafted = logits[:SIZE].clone()
    drafted[num_right:, UNLIKELY] = 60.0
    tokens = [LIKELY] * num_right + [UNLIKELY] * (SIZE - num_right)
    candidates = Candidates.chain(tokens, draft_logits=drafted)
    verifier = get_verifier(name, do_sample=name != "greedy", seed=0)

    def verify() -> None:
        row = Row(torch.zeros(1, 64, dtype=torch.long), warpers, Stopping([]))
        path = verifier.verify(row, candidates, logits)
        assert len(path) == num_right

    return verify


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--threads", type=int, help="as many as physical cores otherwise")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--shapes", default="0.5B,1.5B", help="of the targets; may be empty")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    else:
        use_physical_cores()
    dtype = getattr(torch, options.dtype)
    logits = target_logits(dtype)
    warpers = LogitsProcessorList([lp.TemperatureLogitsWarper(0.8), lp.TopKLogitsWarper(50)])
    cases = [(name, right, LogitsProcessorList()) for name in RULES for right in RIGHT]
    cases += [(name, 4, warpers) for name in RULES]
    calls = [round_of(name, right, logits, processors) for name, right, processors in cases]
    verify = dict(zip([(n, r, bool(p)) for n, r, p in cases], best_ms(calls, options.repeats), strict=True))
    forward = {
        name: forward_ms(shape, dtype, options.repeats)
        for name, shape in SHAPES.items()
        if name in options.shapes.split(",")
    }

    print(f"{SIZE} candidates, vocabulary {VOCAB}, {options.dtype}, {torch.get_num_threads()} threads")
    print("forward over 33 tokens, ms: " + ", ".join(f"{name} {ms:.0f}" for name, ms in forward.items()))
    shares = [f"of {name}, {right} right" for name in forward for right in RIGHT]
    columns = ["rule", *(f"{right} right, ms" for right in RIGHT), "4, top_k=50, ms", *shares]
    print("| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|")
    for name in RULES:
        plain = [verify[name, right, False] for right in RIGHT]
        cells = [f"{ms:.2f}" for ms in [*plain, verify[name, 4, True]]]
        cells += [f"{ms / whole:.2%}" for whole in forward.values() for ms in plain]
        print("| " + " | ".join([name, *cells]) + " |")


if __name__ == "__main__":
    main()

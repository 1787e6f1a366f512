"""Whether a process that serves request after request stays as large as it was: its memory, by requests.

    make bench-memory

A tiny model, prompts of 5 to 200 tokens, texts of 1 to 60; one AssistedDecoding for each generator serves all of
its requests.
"""

from __future__ import annotations

import argparse
import gc
import random
from collections.abc import Iterator
from typing import Any

import psutil
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from outrider import AssistedDecoding

GENERATORS = ("auto", "prompt_lookup", "suffix")


def tiny_model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def resident_mib() -> float:
    """Memory of this process that is held, in MiB, once what nobody refers to is collected."""
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20


def serve(model: Any, num_requests: int, every: int) -> Iterator[tuple[int, float]]:
    """Serve requests of all lengths, the generators in turn; yield how many are done, and the memory held."""
    decodings = [AssistedDecoding(name) for name in GENERATORS]
    lengths = random.Random(0)
    for request in range(1, num_requests + 1):
        half = torch.randint(3, 256, (1, lengths.randint(3, 100)))
        model.generate(
            torch.cat([half, half], 1),
            custom_generate=decodings[request % len(decodings)],
            do_sample=False,
            max_new_tokens=lengths.randint(1, 60),
        )
        if request % every == 0:
            yield request, resident_mib()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--requests", type=int, default=2000)
    arguments.add_argument("--every", type=int, default=500)
    given = arguments.parse_args()
    torch.set_num_threads(1)
    model = tiny_model()
    print(f"{'requests':>8} {'resident':>12}")
    print(f"{0:>8} {resident_mib():>8.1f} MiB")
    for request, held in serve(model, given.requests, given.every):
        print(f"{request:>8} {held:>8.1f} MiB", flush=True)


if __name__ == "__main__":
    main()

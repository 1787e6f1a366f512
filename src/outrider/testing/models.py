"""Tiny targets: real transformers models, small enough to run thousands of times."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel


def tiny_target(
    vocab_size: int = 32,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    spread: float = 0.5,
    **config: Any,
) -> PreTrainedModel:
    """A Llama of two layers and 32 dimensions with random weights, in evaluation mode.

    **Arguments:**

    - `vocab_size`: Five or fewer make laws over several tokens enumerable.
    - `seed`: Which weights. torch's global generator is left as it was.
    - `spread`: Standard deviation of the weights; large enough that texts do not repeat one token.
    - `config`: Fields of `LlamaConfig`.
    """
    fields: dict[str, Any] = dict(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=spread,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**(fields | config)))
    model.generation_config.eos_token_id = config.get("eos_token_id")
    target: Any = model
    return target.to(dtype).eval()


def tiny_prompts(vocab_size: int, num: int = 4, length: int = 8, seed: int = 0) -> list[torch.Tensor]:
    """`num` prompts, (1, L) int64, of different lengths up to `length`; half of each repeats itself."""
    random = torch.Generator().manual_seed(seed)
    prompts = []
    for i in range(num):
        size = max(1, length - i)
        half = torch.randint(0, vocab_size, ((size + 1) // 2,), generator=random)
        prompts.append(half.repeat(2)[None, :size])
    return prompts

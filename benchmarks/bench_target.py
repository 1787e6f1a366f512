"""The in-place cache beside transformers' DynamicCache: forwards, memory, rollback, commits.

    python benchmarks/bench_target.py [--layers 8] [--contexts 512 2048 8000] [--json results.json]

A llama of random weights; K and V of the context are random too, since only their size matters here. Times
are medians of interleaved runs, in milliseconds, on one thread unless OMP_NUM_THREADS says otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from outrider.caches.in_place import InPlaceCache
from outrider.target.masks import SharedHeads

SIZES = (1, 8, 32)


def make_model(num_layers: int) -> LlamaForCausalLM:
    """SmolLM2-135M's shape, with `num_layers` of its 30 layers and a small vocabulary."""
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=num_layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=16384,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def filled(cache: Any, config: LlamaConfig, length: int, batch: int = 1) -> Any:
    """`cache` with `length` random entries in every layer."""
    for index in range(config.num_hidden_layers):
        states = torch.randn(batch, config.num_key_value_heads, length, config.head_dim)
        cache.update(states, states, index)
    return cache


def timed(work: Callable[[], Any]) -> float:
    """Milliseconds of one call."""
    start = perf_counter()
    work()
    return (perf_counter() - start) * 1e3


def forwards(model: LlamaForCausalLM, context: int, repeats: int) -> list[dict[str, Any]]:
    """Time of a forward and its rollback, both caches in turn."""
    caches = {
        "dynamic": filled(DynamicCache(config=model.config), model.config, context),
        "in_place": filled(InPlaceCache(model.config, context + 256), model.config, context),
    }
    rows = []
    for size in SIZES:
        ids = torch.randint(0, 1024, (1, size))
        times: dict[str, list[float]] = {name: [] for name in (*caches, "shared")}
        crops: dict[str, list[float]] = {name: [] for name in caches}
        for _ in range(repeats):
            for name, cache in caches.items():
                times[name].append(timed(partial(model, ids, cache=cache)))
                crops[name].append(timed(partial(cache.crop, -size)))
            with SharedHeads(model.device):
                times["shared"].append(timed(partial(model, ids, cache=caches["in_place"])))
            caches["in_place"].crop(-size)
        row: dict[str, Any] = {"context": context, "tokens": size}
        for name in caches:
            row[f"{name}_ms"] = round(median(times[name]), 3)
            row[f"{name}_crop_ms"] = round(median(crops[name]), 4)
        row["shared_heads_ms"] = round(median(times["shared"]), 3)
        row["in_place_ratio"] = round(row["dynamic_ms"] / row["in_place_ms"], 2)
        row["shared_ratio"] = round(row["dynamic_ms"] / row["shared_heads_ms"], 2)
        rows.append(row)
    return rows


def memory(model: LlamaForCausalLM, context: int) -> dict[str, Any]:
    """Bytes held for `context` + 100 entries, reached one by one, against the least possible."""
    capacity = context + 100
    cache = filled(InPlaceCache(model.config, capacity), model.config, context)
    states = torch.zeros(1, model.config.num_key_value_heads, 1, model.config.head_dim)
    for _ in range(100):
        for index in range(model.config.num_hidden_layers):
            cache.update(states, states, index)
    config = model.config
    least = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4 * capacity
    return {
        "context": context,
        "bytes": cache.num_bytes,
        "least": least,
        "ratio": round(cache.num_bytes / least, 3),
    }


def commits(model: LlamaForCausalLM, context: int, repeats: int) -> list[dict[str, Any]]:
    """Time to keep a path of a tree of 32 nodes, by the path's length."""
    cache = filled(InPlaceCache(model.config, context + 256), model.config, context)
    states = torch.zeros(1, model.config.num_key_value_heads, 33, model.config.head_dim)
    rows = []
    for length in (1, 4, 8):
        path = list(range(1, 2 * length, 2))
        times = []
        for _ in range(repeats):
            for index in range(model.config.num_hidden_layers):
                cache.update(states, states, index)
            times.append(timed(partial(cache.keep_path, context + 1, path)))
            cache.crop(context - cache.get_seq_length())
        rows.append({"context": context, "path": length, "ms": round(median(times), 3)})
    return rows


def main() -> None:
    """Run, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 8000])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    model = make_model(options.layers)
    with torch.no_grad():
        results: dict[str, Any] = {
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32",
            "layers": options.layers,
            "forwards": [row for n in options.contexts for row in forwards(model, n, options.repeats)],
            "memory": [memory(model, n) for n in options.contexts],
            "tree_commits": [row for n in options.contexts for row in commits(model, n, options.repeats)],
        }
    print(results["machine"], f"{options.layers} layers", sep=", ")
    for name in ("forwards", "memory", "tree_commits"):
        print(f"\n{name}")
        rows = results[name]
        print("  ".join(f"{key:>16}" for key in rows[0]))
        for row in rows:
            print("  ".join(f"{value:>16}" for value in row.values()))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

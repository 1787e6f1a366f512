"""The indexes beside others' lookups, on the same tokens, in one run. Run: python benchmarks/bench_index.py

Others run where they are installed: in this environment, or in that of an interpreter given with --python
(any number of them), in a process of its own: arctic-inference's suffix tree, vLLM's n-gram proposer,
llama-cpp-python's prompt lookup. Every query asks for 16 tokens after the last 20 of a position of the text.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

SIZES = (1_000, 100_000, 1_000_000)
NUM_QUERIES = 300
BUDGET = 16
Row = dict[str, Any]


def text(size: int, seed: int = 0) -> np.ndarray:
    """Half Zipf noise, half copies of what came before."""
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, 30001)
    ids = rng.choice(30000, size, p=chances / chances.sum())
    for start in range(0, size - 400, 400):
        source = rng.integers(0, start + 1)
        ids[start + 200 : start + 400] = ids[source : source + 200]
    return ids.astype(np.int64)


def places(ids: np.ndarray) -> np.ndarray:
    """Where queries end."""
    return np.random.default_rng(1).integers(20, ids.size - 1, NUM_QUERIES)


def timed(calls: Iterator[Callable[[], Any]]) -> dict[str, float]:
    """Median and 99th percentile of the calls, in microseconds; the first three warm up."""
    spent = []
    for call in calls:
        start = perf_counter()
        call()
        spent.append(perf_counter() - start)
    return {
        "query_us": float(np.median(spent[3:]) * 1e6),
        "query_p99_us": float(np.percentile(spent[3:], 99) * 1e6),
    }


def outrider_suffix(ids: np.ndarray) -> Row:
    """Our suffix index."""
    from outrider.index.suffix import SuffixIndex

    SuffixIndex().append(text(1000))
    index = SuffixIndex()
    start = perf_counter()
    index.append(ids)
    rate = ids.size / (perf_counter() - start)
    row = timed((lambda at=at: index.tree(ids[at - 20 : at], BUDGET)) for at in places(ids))
    index.append([1], learning=True)
    spent = []
    for token in ids[:300]:
        start = perf_counter()
        index.append([token], learning=True)
        spent.append(perf_counter() - start)
    return {
        "append_per_s": rate,
        **row,
        "learn_us": float(np.median(spent) * 1e6),
        "bytes": index.ngrams.num_bytes / len(index),
    }


def arctic(ids: np.ndarray) -> Row:
    """arctic-inference's suffix tree over one prompt, free to fill the tree whatever the match's length."""
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    cache = SuffixDecodingCache(max_tree_depth=24)
    start = perf_counter()
    cache.start_request(0, ids.astype(np.int32))
    rate = ids.size / (perf_counter() - start)
    row = timed(
        (
            lambda at=at: cache.speculate(
                0,
                ids[at - 20 : at].astype(np.int32),
                max_spec_tokens=BUDGET,
                max_spec_factor=float(BUDGET),
                min_token_prob=0.01,
                use_tree_spec=True,
            )
        )
        for at in places(ids)
    )
    return {"append_per_s": rate, **row}


def vllm(ids: np.ndarray) -> Row:
    """vLLM's n-gram proposer, which scans the context anew for each query, at 1 to 5 tokens."""
    from vllm.v1.spec_decode import ngram_proposer

    find = ngram_proposer._find_longest_matched_ngram_and_propose_tokens
    contexts = [np.append(ids, ids[at - 20 : at]).astype(np.int32) for at in places(ids)[:50]]
    return timed(
        (
            lambda context=context: find(
                origin_tokens=context, min_ngram=1, max_ngram=5, max_model_len=context.size + 100, k=BUDGET
            )
        )
        for context in contexts
    )


def llama_cpp(ids: np.ndarray) -> Row:
    """llama-cpp-python's prompt lookup, which scans the context anew for each query."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    draft = LlamaPromptLookupDecoding(max_ngram_size=5, num_pred_tokens=BUDGET)
    contexts = [np.append(ids, ids[at - 20 : at]).astype(np.int32) for at in places(ids)[:50]]
    return timed((lambda context=context: draft(context)) for context in contexts)


PEERS = {"arctic-inference": arctic, "vllm": vllm, "llama-cpp-python": llama_cpp}


def peers() -> None:
    """One line of JSON for each peer that is installed here, and each size."""
    for name, run in PEERS.items():
        for size in SIZES:
            try:
                row = run(text(size))
            except ImportError:
                break
            print(json.dumps({"name": name, "size": size, **row}), flush=True)


def corpus(size: int) -> None:
    """Build a corpus, and query it."""
    from outrider.index.corpus import Corpus, build

    ids = text(size, seed=3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus"
        start = perf_counter()
        build(np.array_split(ids, 100), path)
        built = perf_counter() - start
        start = perf_counter()
        held = Corpus(path)
        opened = perf_counter() - start
        row = timed((lambda at=at: held.tree(ids[at - 20 : at], BUDGET)) for at in places(ids))
        print(
            f"corpus of {size:,} tokens: built in {built:.1f} s, opened and checked in {opened:.2f} s, "
            f"tree of {BUDGET} {row['query_us']:.0f} us (p99 {row['query_p99_us']:.0f}), "
            f"{path.stat().st_size / size:.1f} bytes a token"
        )


def show(name: str, size: int, row: Row) -> None:
    """A line."""
    parts = [f"{size:>9,} tokens: {name:<18}"]
    if "append_per_s" in row:
        parts.append(f"append {row['append_per_s']:>9,.0f}/s")
    parts.append(f"{BUDGET} tokens {row['query_us']:>8,.0f} us (p99 {row['query_p99_us']:,.0f})")
    if "bytes" in row:
        parts.append(f"learn and append one {row['learn_us']:.1f} us, {row['bytes']:.0f} bytes a token")
    print(", ".join(parts), flush=True)


def main() -> None:
    """Ours and the others', size by size; then the corpus."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--python", action="append", default=[], help="An interpreter where peers are installed."
    )
    parser.add_argument("--peers-only", action="store_true")
    parser.add_argument("--corpus-tokens", type=int, default=10_000_000)
    options = parser.parse_args()
    if options.peers_only:
        peers()
        return
    for size in SIZES:
        show("outrider", size, outrider_suffix(text(size)))
    for python in [sys.executable, *options.python]:
        found = subprocess.run(
            [python, __file__, "--peers-only"], capture_output=True, text=True, check=False
        )
        for line in found.stdout.splitlines():
            if line.startswith('{"name"'):
                row = json.loads(line)
                show(row.pop("name"), row.pop("size"), row)
    corpus(options.corpus_tokens)


if __name__ == "__main__":
    main()

"""Figures of the suffix index: append rate, tree query, bytes a token. Run: python benchmarks/bench_index.py"""

from __future__ import annotations

from time import perf_counter

import numpy as np

from outrider.index.suffix import SuffixIndex


def text(size: int) -> np.ndarray:
    """Half Zipf noise, half copies of what came before."""
    rng = np.random.default_rng(0)
    chances = 1 / np.arange(1, 30001)
    ids = rng.choice(30000, size, p=chances / chances.sum())
    for start in range(0, size - 400, 400):
        source = rng.integers(0, start + 1)
        ids[start + 200 : start + 400] = ids[source : source + 200]
    return ids


def main() -> None:
    """Print a line a size."""
    SuffixIndex().append(text(1000))
    for size in (1_000, 100_000, 1_000_000):
        ids, index = text(size), SuffixIndex()
        start = perf_counter()
        index.append(ids)
        rate = size / (perf_counter() - start)
        tails = [ids[at : at + 20] for at in np.random.default_rng(1).integers(0, size - 30, 300)]
        index.tree(tails[0], 16)
        spent = []
        for tail in tails:
            start = perf_counter()
            index.tree(tail, 16)
            spent.append(perf_counter() - start)
        token = []
        for new in ids[:300]:
            start = perf_counter()
            index.append([new], learning=True)
            token.append(perf_counter() - start)
        print(
            f"{size:>9,} tokens: append {rate:,.0f}/s, tree of 16 {np.median(spent) * 1e6:.0f} us, "
            f"learn and append one {np.median(token[5:]) * 1e6:.1f} us, "
            f"{index.ngrams.num_bytes / len(index):.0f} bytes a token"
        )


if __name__ == "__main__":
    main()

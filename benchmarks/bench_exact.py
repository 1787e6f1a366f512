"""The exact modes on the small model in bfloat16: what they cost, and whether they hold.

    python benchmarks/bench_exact.py              # what they cost
    python benchmarks/bench_exact.py --prove      # whether every text and every logit is the same

The price is measured on one text: a logits processor makes every way commit what transformers' greedy decoding
gave, so that no way is luckier in its text than another. The ways take turns, question by question.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import outrider
from outrider.bench.data import read_questions
from outrider.models import load
from outrider.testing import AdversarialGenerator, OracleGenerator

_KINDS = ("transformers", "generators")
console = Console(width=120)


class Forced:
    """A logits processor under which `text` (L,) is what gets committed."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self.text[ids.shape[1]]] = 0.0
        return forced


def prompts(tokenizer: Any, num: int) -> list[Tensor]:
    """(1, L) ids of questions of all categories of the set that ships."""
    questions = read_questions("builtin")
    step = len(questions) / num
    said = (questions[int(i * step)].turns[0] for i in range(num))
    options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], **options)["input_ids"]
        for text in said
    ]


def price(model: Any, texts: list[tuple[Tensor, Tensor]], generators: list[str]) -> Table:
    """Speed on the same text, relative to no exactness at all."""
    table = Table("generator", "exact", "tokens/s", "of the speed without", "MAT", "candidates a round")
    for generator in generators:
        ways = {kind: outrider.AssistedDecoding(generator, exact=kind) for kind in (False, *_KINDS)}
        seconds: dict[Any, float] = defaultdict(float)
        for way in ways.values():  # what was found out about the model is at hand, and code is compiled
            model.generate(texts[0][0], custom_generate=way, max_new_tokens=8, do_sample=False)
            way.stats = outrider.Stats()
        for ids, text in track(texts, generator, console=console, transient=True):
            for kind, way in ways.items():
                began = time.perf_counter()
                model.generate(
                    ids,
                    custom_generate=way,
                    max_new_tokens=text.numel() - ids.shape[1],
                    do_sample=False,
                    logits_processor=[Forced(text)],
                )
                seconds[kind] += time.perf_counter() - began
        for kind, way in ways.items():
            rate = way.stats.num_committed / seconds[kind]
            usual = ways[False].stats.num_committed / seconds[False]
            table.add_row(
                generator,
                str(kind),
                f"{rate:.1f}",
                f"{rate / usual:.2f}",
                f"{way.stats.mat:.2f}",
                f"{way.stats.num_candidates / max(way.stats.num_rounds, 1):.1f}",
            )
    return table


def proof(model: Any, asked: list[Tensor], num_new: int, kinds: list[str]) -> Table:
    """How many texts, and all their logits, are those of decoding without candidates."""
    ways: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "none": lambda ids, text: "none",
        "prompt_lookup": lambda ids, text: "prompt_lookup",
        "auto": lambda ids, text: "auto",
        "oracle": lambda ids, text: OracleGenerator([text.numpy()]),
        "adversarial": lambda ids, text: AdversarialGenerator(),
    }
    table = Table("exact", "generator", "same text", "same logits, bit for bit", "MAT", "exact in all")
    common = {
        "max_new_tokens": num_new,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_logits": True,
    }
    for kind in kinds:
        same: dict[str, list[float]] = {name: [0, 0, 0, 0, 0] for name in ways}
        for ids in track(asked, kind, console=console, transient=True):
            if kind == "transformers":
                plain = model.generate(ids, **common)
            else:
                plain = outrider.generate(model, ids, candidate_generator="none", exact=kind, **common)
            logits = torch.cat(plain.logits)
            for name, make in ways.items():
                drafted = outrider.generate(
                    model, ids, candidate_generator=make(ids, plain.sequences[0]), exact=kind, **common
                )
                found = same[name]
                found[0] += torch.equal(drafted.sequences, plain.sequences)
                found[1] += torch.equal(torch.cat(drafted.logits), logits)
                found[2] += drafted.stats.num_committed - drafted.stats.num_prefills
                found[3] += drafted.stats.num_rounds
                found[4] += drafted.stats.exact == kind
        for name, (texts, bits, tokens, rounds, held) in same.items():
            row = (f"{texts:.0f} of {len(asked)}", f"{bits:.0f} of {len(asked)}", f"{tokens / rounds:.2f}")
            table.add_row(kind, name, *row, f"{held:.0f} of {len(asked)}")
    return table


def main(
    model: str = "smollm2",
    prove: Annotated[bool, typer.Option("--prove", help="Compare texts and logits instead.")] = False,
    num_prompts: Annotated[int, typer.Option(help="14 for the price, 64 for the proof.")] = 0,
    num_new: Annotated[int, typer.Option(help="120 for the price, 200 for the proof.")] = 0,
    generators: Annotated[
        str, typer.Option(help="comma-separated; for the price")
    ] = "none,prompt_lookup,auto",
    kinds: Annotated[str, typer.Option(help="comma-separated; for the proof")] = ",".join(_KINDS),
) -> None:
    """Print a table."""
    target, tokenizer = load(model, dtype=torch.bfloat16)
    asked = prompts(tokenizer, num_prompts or (64 if prove else 14))
    console.print(f"{platform.machine()}, {torch.get_num_threads()} threads, bfloat16, {len(asked)} prompts")
    if prove:
        console.print(proof(target, asked, num_new or 200, kinds.split(",")))
        return
    texts = [
        (ids, target.generate(ids, max_new_tokens=num_new or 120, do_sample=False)[0])
        for ids in track(asked, "transformers' texts", console=console, transient=True)
    ]
    console.print(price(target, texts, generators.split(",")))


if __name__ == "__main__":
    typer.run(main)

"""The loop beside transformers' own: a generator that knows the answer, at several draft lengths.

For each context, dtype and draft length, three contestants decode the same text in turn: transformers'
greedy `generate()`, its assisted decoding fed by the same generator, and Outrider. Only what comes after
the first token is timed, so that the prompt's forward is left out; a clock inside the model's forward
separates it from the host's work around it.

    python benchmarks/bench_loop.py --model smollm2
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import outrider
from outrider.models import load


@dataclass
class Watch:
    """A streamer that notes when tokens came, and when each of the model's forwards began and ended."""

    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    forwards: list[tuple[float, float]] = field(default_factory=list)
    prompt_seen: bool = False

    def put(self, tokens: Any) -> None:
        if self.prompt_seen:
            self.times.append(time.perf_counter())
            self.counts.append(tokens.numel())
        self.prompt_seen = True

    def end(self) -> None:
        pass


@dataclass
class Result:
    """Seconds of one decode after its first put."""

    tokens: int
    total_s: float
    forward_s: float
    rounds: int

    @property
    def rate(self) -> float:
        return self.tokens / self.total_s

    @property
    def host_ms(self) -> float:
        return 1e3 * (self.total_s - self.forward_s) / self.rounds


class Oracle:
    """transformers' contract; proposes the next `length` tokens of a known text."""

    requires_model_outputs = False

    def __init__(self, text: torch.Tensor, length: int) -> None:
        self.text, self.length = text, length
        self.num_drafting_tokens = length

    def get_candidates(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, None]:
        known = self.text[:, : input_ids.shape[1] + self.length]
        # Its last token is left to the target: transformers' loop has no room left there.
        return (
            known[:, : max(input_ids.shape[1], self.text.shape[1] - 1)] if self.length else input_ids
        ), None

    def update_candidate_strategy(self, *_: Any) -> None:
        pass


def timed(model: Any, run: Callable[[Watch], Any]) -> Result:
    """Run one contestant under a watch."""
    watch = Watch()
    plain = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return plain(*args, **kwargs)
        finally:
            watch.forwards.append((began, time.perf_counter()))

    forward.__signature__ = __import__("inspect").signature(plain)  # type: ignore[attr-defined]
    model.forward = forward
    try:
        run(watch)
    finally:
        del model.forward
    # Only what began after the first token: a prompt may run in several forwards, and a model be tried out.
    after = [end - began for began, end in watch.forwards if began >= watch.times[0]]
    return Result(sum(watch.counts[1:]), watch.times[-1] - watch.times[0], sum(after), len(after))


def following(text: torch.Tensor, length: int) -> Callable[[Any], Any]:
    """A generator that knows the text."""
    known = text[0].numpy()
    return lambda so_far: known[len(so_far) : len(so_far) + length]


def contestants(
    model: Any, ids: torch.Tensor, text: torch.Tensor, length: int, num_new: int
) -> dict[str, Any]:
    """The three ways to decode, each taking a watch."""
    common = {"max_new_tokens": num_new, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def assisted(watch: Watch) -> None:
        model._get_candidate_generator = lambda **_: Oracle(text, length)
        try:
            model.generate(ids, streamer=watch, prompt_lookup_num_tokens=1, **common)
        finally:
            del model._get_candidate_generator

    oracle = following(text, length) if length else "none"
    return {
        "greedy": lambda watch: model.generate(ids, streamer=watch, **common),
        "assisted": assisted,
        "outrider": lambda watch: outrider.generate(
            model, ids, streamer=watch, candidate_generator=oracle, **common
        ),
    }


def main(
    model: str = "smollm2",
    dtype: Annotated[str, typer.Option(help="comma-separated")] = "float32,bfloat16",
    context: Annotated[str, typer.Option(help="comma-separated prompt lengths")] = "100,4000",
    lengths: Annotated[str, typer.Option(help="comma-separated draft lengths")] = "0,1,4,8,16,32",
    num_new: int = 66,
    repeat: int = 3,
) -> None:
    """Print a row for each dtype, context and draft length."""
    table = Table(
        "dtype", "context", "drafts", "greedy tok/s", "assisted tok/s", "outrider tok/s", "x greedy", "x assisted",
        "host ms/round", "host share", "same text", title=f"{platform.machine()}, {torch.get_num_threads()} threads",
    )  # fmt: skip
    with Progress(transient=True) as progress:
        for dtype_name in dtype.split(","):
            target, _ = load(model, dtype=getattr(torch, dtype_name))
            limit = target.config.vocab_size
            for size in map(int, context.split(",")):
                ids = torch.randint(100, limit, (1, size), generator=torch.Generator().manual_seed(0))
                text = target.generate(
                    ids, max_new_tokens=num_new, do_sample=False, eos_token_id=None, pad_token_id=0
                )
                bar = progress.add_task(f"{dtype_name} {size}", total=repeat * 3 * len(lengths.split(",")))
                for length in map(int, lengths.split(",")):
                    results: dict[str, list[Result]] = {}
                    for _ in range(repeat):
                        for name, run in contestants(target, ids, text, length, num_new).items():
                            results.setdefault(name, []).append(timed(target, run))
                            progress.advance(bar)
                    ours = results["outrider"]
                    ratio = {
                        name: median(o.rate / r.rate for o, r in zip(ours, results[name], strict=True))
                        for name in ("greedy", "assisted")
                    }
                    final = outrider.generate(
                        target, ids, candidate_generator=following(text, length),
                        max_new_tokens=num_new, do_sample=False, eos_token_id=None, pad_token_id=0,
                    )  # fmt: skip
                    table.add_row(
                        dtype_name, str(size), str(length),
                        *(f"{median(r.rate for r in results[n]):.1f}" for n in ("greedy", "assisted", "outrider")),
                        f"{ratio['greedy']:.2f}", f"{ratio['assisted']:.2f}",
                        f"{median(o.host_ms for o in ours):.2f}",
                        f"{median(1 - o.forward_s / o.total_s for o in ours):.1%}",
                        "yes" if torch.equal(final, text) else "no",
                    )  # fmt: skip
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)

"""What every candidate generator owes the loop, tried one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from outrider.choosing import make_generator
from outrider.contract import CandidateGenerator
from outrider.control import Fixed
from outrider.generation import generate
from outrider.testing.lossless import assert_drafter_invariant, assert_lossless
from outrider.testing.models import tiny_prompts, tiny_target
from outrider.types import Candidates, Context, Ids, Verification

Proposal = tuple[tuple[int, ...], tuple[int, ...]]


def check_generator(
    factory: Callable[[], Any], model: Any = None, *, remembers: bool = False, max_new_tokens: int = 24
) -> None:
    """Run every check that a candidate generator's author needs.

    Each proposal is well formed and within the budget; greedy text and keyed sampling are plain
    decoding's; a prompt of one token works; `reset` forgets; `fork` is independent; the same call
    gives the same proposals.

    **Arguments:**

    - `factory`: Makes a fresh generator: anything `outrider.generate` takes as `candidate_generator`.
    - `model`: The target; a tiny one where None.
    - `remembers`: The generator learns across sequences on purpose; skips `reset` forgets.

    **Raises:** `AssertionError` that says what is owed.
    """
    target = tiny_target(32) if model is None else model
    check_proposals(factory, target, max_new_tokens=max_new_tokens)
    assert_lossless(factory(), target, budgets=(1, 7), max_new_tokens=max_new_tokens)
    assert_drafter_invariant(target, [factory()], max_new_tokens=max_new_tokens)
    check_repeatable(factory, target, max_new_tokens=max_new_tokens)
    if not remembers:
        check_reset(factory, target, max_new_tokens=max_new_tokens)
    check_fork(factory, target, max_new_tokens=max_new_tokens)


def check_proposals(factory: Callable[[], Any], model: Any, *, max_new_tokens: int = 24) -> None:
    """Every proposal is valid `Candidates` within the budget, for long prompts and for one token."""
    vocab = model.config.get_text_config().vocab_size
    for ids in [*tiny_prompts(vocab, num=2, length=24), torch.zeros(1, 1, dtype=torch.long)]:
        for budget in (1, 2, 16):
            _propose_all(factory(), model, ids, budget, max_new_tokens, check=vocab)


def check_repeatable(factory: Callable[[], Any], model: Any, *, max_new_tokens: int = 24) -> None:
    """Two fresh generators propose the same for the same text, given the same torch seed."""
    (ids,) = tiny_prompts(model.config.get_text_config().vocab_size, num=1, length=24)
    first, second = (_propose_all(factory(), model, ids, 8, max_new_tokens) for _ in range(2))
    assert first == second, (
        "the same prompt and the same seed must give the same proposals; seed your own random numbers"
    )


def check_reset(factory: Callable[[], Any], model: Any, *, max_new_tokens: int = 24) -> None:
    """After `reset` a generator proposes what a fresh one would."""
    other, ids = tiny_prompts(model.config.get_text_config().vocab_size, num=2, length=24)
    used = make_generator(factory())
    _propose_all(used, model, other, 8, max_new_tokens)
    assert _propose_all(used, model, ids, 8, max_new_tokens) == _propose_all(
        factory(), model, ids, 8, max_new_tokens
    ), "reset(prompt) must forget the sequence before; pass remembers=True if it is meant to learn from it"


def check_fork(factory: Callable[[], Any], model: Any, *, max_new_tokens: int = 24) -> None:
    """What a fork sees does not change what its origin proposes."""
    other, ids = tiny_prompts(model.config.get_text_config().vocab_size, num=2, length=24)
    origin = make_generator(factory())
    fork = origin.fork()
    assert fork is not origin, "fork() must return another object"
    prompt = ids[0].numpy()
    context = Context(prompt, prompt.size, draw=_likeliest, inputs={"target": model})
    origin.reset(prompt)
    torch.manual_seed(0)
    before = origin.fork().propose(context, 8)
    _propose_all(fork, model, other, 8, max_new_tokens)
    torch.manual_seed(0)
    after = origin.propose(context, 8)
    assert _key(before) == _key(after), "a fork must own its sequence's state; override fork() to share less"


class _Watch(CandidateGenerator):
    """Passes everything on to a generator, and keeps or checks what it proposes."""

    def __init__(self, inner: CandidateGenerator, vocab: int | None) -> None:
        self.inner, self.vocab = inner, vocab
        self.needs = inner.needs  # type: ignore[misc]
        self.proposals: list[Proposal] = []

    def reset(self, prompt: Ids) -> None:
        self.inner.reset(prompt)

    def propose(self, context: Context, budget: int) -> Candidates:
        before = context.ids.copy()
        candidates = self.inner.propose(context, budget)
        assert np.array_equal(before, context.ids), "propose() must leave context.ids alone"
        if self.vocab is not None:
            check_candidates(candidates, budget, self.vocab)
        self.proposals.append(_key(candidates))
        return candidates

    def update(self, verification: Verification) -> None:
        self.inner.update(verification)


def check_candidates(candidates: Any, budget: int, vocab: int) -> None:
    """**Raises:** `AssertionError` where a proposal is not what the contract says."""
    assert isinstance(candidates, Candidates), (
        f"propose() must return Candidates, not {type(candidates).__name__}"
    )
    size = len(candidates)
    assert size <= budget, f"propose() was asked for {budget} candidates at most and returned {size}"
    for name in ("tokens", "parents"):
        array = getattr(candidates, name)
        assert array.dtype == np.int64 and array.shape == (size,), f"{name} must be (n,) int64"
    if not size:
        return
    assert candidates.tokens.min() >= 0 and candidates.tokens.max() < vocab, (
        "tokens must be ids of the vocabulary"
    )
    chances = candidates.probabilities
    if chances is not None:
        assert chances.shape == (size,), "probabilities must be (n,)"
        assert ((chances >= 0) & (chances <= 1)).all(), "probabilities must lie between 0 and 1"
    logits = candidates.draft_logits
    if logits is not None:
        assert tuple(logits.shape) == (size, vocab), (
            f"draft_logits must be {(size, vocab)}, not {tuple(logits.shape)}"
        )
        own = logits[torch.arange(size), torch.tensor(candidates.tokens)]
        assert bool((own > -torch.inf).all()), "a token was drawn that its own draft_logits make impossible"
    assert len(candidates.sources) in (0, size), "sources must be empty or (n,)"


def _propose_all(
    generator: Any, model: Any, ids: Any, budget: int, max_new_tokens: int, check: int | None = None
) -> list[Proposal]:
    watch = _Watch(make_generator(generator), check)
    torch.manual_seed(0)
    try:
        generate(
            model,
            ids,
            candidate_generator=watch,
            controller=Fixed(budget),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            attention_mask=torch.ones_like(ids),
        )
    except Exception as error:
        if isinstance(error.__cause__, AssertionError):
            raise error.__cause__ from None
        raise
    return watch.proposals


def _likeliest(logits: Any, position: int) -> int:
    return int(logits.argmax())


def _key(candidates: Any) -> Proposal:
    if not isinstance(candidates, Candidates):
        return (), ()
    return tuple(candidates.tokens.tolist()), tuple(candidates.parents.tolist())

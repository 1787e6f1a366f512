"""llama.cpp through llama-cpp-python: a draft model for its own loop, and a loop of ours. Free of torch.

    Llama(model_path=..., draft_model=outrider.engines.llama_cpp.DraftModel("suffix"))
    outrider.engines.llama_cpp.generate(llama, "Once upon a time")

Llama's own loop with a draft model keeps and copies the logits of every token; `generate` does not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

import numpy as np
import numpy.typing as npt

from outrider.contract import CandidateGenerator
from outrider.control import Controller, CostRule
from outrider.drafting import Clock, ask, propose, source_name
from outrider.engines._llama import LlamaSequence
from outrider.engines._sampling import GREEDY
from outrider.engines._sampling import Sampling as Sampling
from outrider.engines._spec import DEFAULT, generator_for
from outrider.engines._text import TextStream
from outrider.errors import OptionError
from outrider.stats import Stats
from outrider.types import Candidates, Context, Floats, Ids, Verification

ENGINE = "llama.cpp"
_INT32 = 2**31


@final
class DraftModel:
    """A candidate generator as llama-cpp-python's `draft_model`: called once a round with all tokens so far.

    Tokens that go on from the last call are one sequence, and only the new ones are copied; anything else,
    or more new tokens than a round can bring, begins a new sequence. The time between calls is taken for the
    target's forward, and the controller leaves out what does not pay.

    **Arguments:**

    - `spec`: `NAME:key=value,...`, or a generator, its class, or a function from ids to ids.
    - `controller`: None is the cost rule.
    - `vocab_size`: Ids from it on are not proposed: llama.cpp fails on them.

    **Raises:** `OptionError` for a generator that needs more than token ids.

    **Exact:** llama-cpp-python samples at each position and compares.
    """

    def __init__(
        self, spec: Any = DEFAULT, *, controller: Controller | None = None, vocab_size: int = _INT32
    ) -> None:
        self.generator = generator_for(ENGINE, spec)
        self.controller = controller or CostRule()
        self.vocab_size = vocab_size
        self.stats = Stats()
        self._ids: Ids = np.empty(1024, np.int64)
        self._length = self._num_prompt = 0
        self._candidates = Candidates.empty()
        self._draft_s = 0.0
        self._returned_at: float | None = None

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **_: Any) -> npt.NDArray[np.intc]:
        clock = Clock()
        with clock("draft"):
            target_s = 0.0 if self._returned_at is None else perf_counter() - self._returned_at
            if not self._goes_on(input_ids):
                target_s = 0.0
                self._begin(input_ids[:-1])
            self._commit(input_ids[self._length :], target_s)
            self._candidates = propose(
                self.generator,
                Context(_read_only(self._ids[: self._length]), self._num_prompt),
                self.controller.budget(1),
                self.controller,
                vocab_size=self.vocab_size,
                trees=False,
            )
        self._draft_s = clock.draft_s
        clock.spend(self.stats)
        self._returned_at = perf_counter()
        return self._candidates.tokens.astype(np.intc)

    def _goes_on(self, input_ids: npt.NDArray[np.intc]) -> bool:
        """Whether these are the last call's tokens and what one round can bring."""
        known = self._length
        return (
            0 < known < input_ids.size <= known + len(self._candidates) + 1
            and (input_ids[:known] == self._ids[:known]).all()
        )

    def _begin(self, prompt: npt.NDArray[np.intc]) -> None:
        self._length = self._num_prompt = 0
        self._candidates = Candidates.empty()
        self._append(prompt)
        self._num_prompt = self._length
        ask(self.generator, "reset", self._ids[: self._length].copy())

    def _append(self, new: npt.NDArray[np.intc]) -> None:
        total = self._length + new.size
        if total > self._ids.size:
            self._ids = np.concatenate([self._ids[: self._length], np.empty(2 * total, np.int64)])
        self._ids[self._length : total] = new
        self._length = total

    def _commit(self, new: npt.NDArray[np.intc], target_s: float) -> None:
        """Tell generator and controller what the last round brought."""
        candidates, committed = self._candidates, new.astype(np.int64)
        different = np.flatnonzero(
            candidates.tokens[: new.size - 1] != committed[: len(candidates)][: new.size - 1]
        )
        num_accepted = int(different[0]) if different.size else max(0, new.size - 1)
        outcome = Verification(committed, num_accepted, candidates, np.arange(num_accepted))
        self._append(new)
        ask(self.generator, "update", outcome)
        self.controller.record([outcome], self._draft_s, target_s)
        self.stats.count([outcome], is_prefill=target_s == 0, source=source_name(self.generator))
        self.stats.target_s += target_s


@dataclass(frozen=True)
class Completion:
    """What `generate` returns.

    **Arguments:**

    - `text`: Without the prompt, cut before the first stop string.
    - `tokens`: (n,) int64. The new ids; the one that ended the text is among them.
    - `finish_reason`: "stop" where the model or a stop string ended it, else "length".
    - `stats`: Counts and seconds.
    """

    text: str
    tokens: Ids
    finish_reason: str
    stats: Stats


def generate(
    llama: Any,
    prompt: str | Sequence[int],
    *,
    candidate_generator: Any = DEFAULT,
    max_tokens: int = 128,
    sampling: Sampling = GREEDY,
    stop: Sequence[str] = (),
    streamer: Callable[[str], None] | None = None,
    controller: Controller | None = None,
) -> Completion:
    """Generate with a `Llama`, with candidates that are verified in one `llama_decode`.

    **Arguments:**

    - `llama`: A `llama_cpp.Llama`; its cache is used and left in order, so its own methods go on from it.
        Make it without `draft_model` and `logits_all`: they are not needed, and cost time.
    - `prompt`: Text, or token ids.
    - `candidate_generator`: `NAME:key=value,...`, or a generator, its class, or a function from ids to ids.
        What is named by text is kept with the `Llama`, with what it has learnt.
    - `max_tokens`: Most new tokens; the context's end may come first.
    - `sampling`: Greedy, or a `Sampling`.
    - `stop`: Strings that end the text.
    - `streamer`: Called with each piece of text once it is certain.
    - `controller`: None is the cost rule, kept with the `Llama` likewise, so that T(k) is measured once.

    **Raises:** `OptionError`, `UnsupportedModelError`, `GeneratorError`, each one sentence.

    **Exact:** with `Llama(..., flash_attn=True)` and quantised weights greedy text is llama.cpp's own: on a
    CPU its logits are then the same bits however many tokens a forward holds. Without, it rounds forwards
    over several tokens otherwise, by up to one logit, and near ties may fall otherwise; docs/engines.md.
    """
    with LlamaSequence(llama) as target:
        kept_generator, kept_controller = _kept_with(llama, candidate_generator)
        run = _Run(
            target,
            kept_generator,
            controller or kept_controller,
            sampling,
            TextStream([stop] if isinstance(stop, str) else stop),
            _prompt_ids(llama, prompt, target.max_length),
            max_tokens,
        )
        while not run.finish_reason:
            piece = run.round()
            if streamer is not None and piece:
                streamer(piece)
    return run.completion()


@final
class _Run:
    """One call of `generate`: a round at a time."""

    def __init__(
        self,
        target: LlamaSequence,
        generator: CandidateGenerator,
        controller: Controller,
        sampling: Sampling,
        text: TextStream,
        prompt: Ids,
        max_tokens: int,
    ) -> None:
        if max_tokens < 1:
            raise OptionError(f"max_tokens must be at least 1, not {max_tokens}")
        self.target, self.generator, self.controller = target, generator, controller
        self.sampling, self.text = sampling, text
        self.finish_reason = ""
        self.stats, self._clock = Stats(), Clock()
        self._pieces: list[str] = []
        self._num_prompt = self._length = prompt.size
        self._end = min(prompt.size + max_tokens, target.max_length)
        self._ids = np.concatenate([prompt, np.empty(self._end - prompt.size, np.int64)])
        self._seed = sampling.new_seed()
        ask(generator, "reset", prompt.copy())

    def round(self) -> str:
        """Propose, forward, verify, commit; the text that became certain."""
        is_first = self._length == self._num_prompt
        with self._clock("draft"):
            candidates = Candidates.empty() if is_first else self._propose()
        with self._clock("prefill" if is_first else "target"):
            logits = self._forward(candidates)
        with self._clock("verify"):
            outcome, piece = self._verify(candidates, logits)
            self.target.crop(self._length - 1)
        with self._clock("draft"):
            ask(self.generator, "update", outcome)
        self.controller.record([outcome], self._clock.draft_s, self._clock.target_s)
        self.stats.count([outcome], is_prefill=is_first, source=source_name(self.generator))
        self._clock.spend(self.stats)
        return piece

    def _propose(self) -> Candidates:
        left = self._end - self._length
        budget = min(self.controller.budget(1), left - 1, self.target.max_forward - 1)
        return propose(
            self.generator,
            Context(_read_only(self._ids[: self._length]), self._num_prompt, left),
            budget,
            self.controller,
            vocab_size=self.target.vocab_size,
            trees=False,
        )

    def _forward(self, candidates: Candidates) -> Floats:
        committed = self._ids[: self._length]
        if self._length == self._num_prompt:
            return self.target.forward(self.target.begin(committed), every=False)
        return self.target.forward(np.append(committed[-1:], candidates.tokens), every=True)

    def _verify(self, candidates: Candidates, logits: Floats) -> tuple[Verification, str]:
        """Commit the target's choices for as long as the candidates foresaw them."""
        start, piece = self._length, ""
        for scores in logits:
            token = self.sampling.choose(scores, self._seed, self._length)
            self._ids[self._length] = token
            self._length += 1
            piece += self.text.push(self.target.piece(token))
            if self.target.ends(token) or self.text.stopped:
                self.finish_reason = "stop"
            elif self._length == self._end:
                self.finish_reason = "length"
            at = self._length - start - 1
            if self.finish_reason or at >= len(candidates) or token != candidates.tokens[at]:
                break
        if self.finish_reason:
            piece += self.text.finish()
        self._pieces.append(piece)
        committed = self._ids[start : self._length].copy()
        foreseen = candidates.tokens[: committed.size]
        num_accepted = int((foreseen == committed[: foreseen.size]).sum())
        return Verification(committed, num_accepted, candidates, np.arange(num_accepted)), piece

    def completion(self) -> Completion:
        tokens = self._ids[self._num_prompt : self._length].copy()
        return Completion("".join(self._pieces), tokens, self.finish_reason, self.stats)


# For each Llama: what was named by text, and the controller that has measured it.
_kept: weakref.WeakKeyDictionary[Any, dict[str, tuple[CandidateGenerator, Controller]]] = (
    weakref.WeakKeyDictionary()
)


def _kept_with(llama: Any, spec: Any) -> tuple[CandidateGenerator, Controller]:
    if not isinstance(spec, str):
        generator = generator_for(ENGINE, spec)
        return generator, _kept_with(llama, "none")[1]
    kept = _kept.setdefault(llama, {})
    if spec not in kept:
        kept[spec] = generator_for(ENGINE, spec), CostRule()
    return kept[spec]


def _prompt_ids(llama: Any, prompt: str | Sequence[int], max_length: int) -> Ids:
    if isinstance(prompt, str):
        prompt = llama.tokenize(prompt.encode(), special=True)
    ids = np.asarray(prompt, np.int64).reshape(-1)
    if not ids.size:
        raise OptionError("the prompt is empty, so there is nothing to continue; pass at least one token")
    if ids.min() < 0 or ids.max() >= llama.n_vocab():
        raise OptionError(
            f"the prompt holds ids outside the vocabulary of {llama.n_vocab()}; use this model's tokenizer"
        )
    if ids.size >= max_length:
        raise OptionError(
            f"the prompt has {ids.size} tokens, and the context holds {max_length}; give Llama a larger n_ctx"
        )
    return ids


def _read_only(ids: Ids) -> Ids:
    view = ids[:]
    view.flags.writeable = False
    return view

"""Propose what a grammar forces."""

from __future__ import annotations

from typing import Any, Self, final

import numpy as np

from outrider.contract import CandidateGenerator
from outrider.errors import OptionError
from outrider.generators._text import encode_after
from outrider.types import Candidates, Context, Ids, Verification

_TAIL = 8


class _XGrammar:
    """xgrammar's matcher, by the few verbs that are needed here."""

    def __init__(self, grammar: Any) -> None:
        from xgrammar import GrammarMatcher

        self._grammar = grammar
        self._matcher = GrammarMatcher(grammar)
        self._mask = np.empty((1, (grammar.tokenizer_info.vocab_size + 31) // 32), np.int32)

    def fork(self) -> _XGrammar:
        return _XGrammar(self._grammar)

    def restart(self) -> None:
        self._matcher.reset()

    def take(self, token: int) -> bool:
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token))

    def undo(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)

    def mask(self) -> Any:
        """The allowed tokens, a bit each; None where all are, or the text has ended."""
        if self._matcher.is_terminated():
            return None
        self._mask.fill(-1)
        return self._mask[0] if self._matcher.fill_next_token_bitmask(self._mask) else None

    def forced(self) -> str:
        return "" if self._matcher.is_terminated() else self._matcher.find_jump_forward_string()


class _Guidance:
    """llguidance's matcher, likewise."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher.deep_copy()
        self._matcher.reset()

    def fork(self) -> _Guidance:
        return _Guidance(self._matcher)

    def restart(self) -> None:
        self._matcher.reset()

    def take(self, token: int) -> bool:
        return not self._matcher.is_stopped() and self._matcher.try_consume_tokens([token]) == 1

    def undo(self, num_tokens: int) -> None:
        if num_tokens:
            self._matcher.rollback(num_tokens)

    def mask(self) -> Any:
        return (
            None if self._matcher.is_stopped() else np.frombuffer(self._matcher.compute_bitmask(), np.int32)
        )

    def forced(self) -> str:
        if self._matcher.is_stopped():
            return ""
        return bytes(self._matcher.compute_ff_bytes()).decode("utf-8", "ignore")


def _only(mask: Any) -> int:
    """The one token that a mask allows; -1 where it allows another number of them."""
    words = np.flatnonzero(mask)
    if words.size != 1:
        return -1
    word = int(mask[words[0]]) & 0xFFFFFFFF
    return int(words[0]) * 32 + word.bit_length() - 1 if word & (word - 1) == 0 else -1


@final
class Generator(CandidateGenerator):
    """Jump-forward decoding (SGLang 2024), made exact: what is proposed is verified.

    A token that is the only one allowed has probability 1. Forced text that could be split into tokens in
    another way is proposed as the tokenizer splits it. The grammar itself is kept by the logits processor that
    the caller passes to `generate`; this generator follows a matcher of its own.
    Cost per step: a mask a proposed token. State: the matcher. Kept and shared: how often forced text was
    split as proposed.

    **Arguments:**

    - `grammar`: An `xgrammar.CompiledGrammar`, or an `llguidance.LLMatcher`.
    - `tokenizer`: The target's.
    """

    def __init__(self, grammar: Any = None, *, tokenizer: Any = None) -> None:
        if grammar is None or tokenizer is None:
            raise OptionError(
                "the generator 'constrained' needs a grammar and the tokenizer; pass "
                "Generator(xgrammar.CompiledGrammar or llguidance.LLMatcher, tokenizer=...)"
            )
        if hasattr(grammar, "compute_ff_bytes"):
            self._matcher: Any = _Guidance(grammar)
        elif hasattr(grammar, "tokenizer_info"):
            self._matcher = _XGrammar(grammar)
        elif isinstance(grammar, _XGrammar | _Guidance):
            self._matcher = grammar.fork()
        else:
            raise OptionError(
                f"a {type(grammar).__name__} is no grammar that 'constrained' can follow; "
                "pass an xgrammar.CompiledGrammar or an llguidance.LLMatcher"
            )
        self.tokenizer = tokenizer
        self._splits = np.array([4.0, 3.6])  # tried, right
        self._follows = True
        self._free: list[bool] = []

    def reset(self, prompt: Ids) -> None:
        self._matcher.restart()
        self._follows = True
        self._free = []

    def propose(self, context: Context, budget: int) -> Candidates:
        tokens: list[int] = []
        self._free = []
        forced: list[int] = []
        while self._follows and len(tokens) < budget:
            mask = self._matcher.mask()
            if mask is None:
                break
            token = _only(mask)
            if token < 0 and not forced and (text := self._matcher.forced()):
                tail = np.append(context.ids[-_TAIL:], np.asarray(tokens, np.int64))[-_TAIL:]
                forced = encode_after(self.tokenizer, tail, text)
            self._free.append(token >= 0)
            if token < 0:
                token = forced.pop(0) if forced else -1
            elif forced and forced.pop(0) != token:
                forced = []
            if token < 0 or not self._matcher.take(token):
                self._free.pop()
                break
            tokens.append(token)
        self._matcher.undo(len(tokens))
        chance = float(self._splits[1] / self._splits[0])
        return Candidates.chain(tokens, [1.0 if free else chance for free in self._free])

    def update(self, verification: Verification) -> None:
        accepted = verification.num_accepted
        for number, free in enumerate(self._free[: accepted + 1]):
            if not free and number < len(verification.candidates):
                self._splits = self._splits * 0.99 + [1.0, float(number < accepted)]
        for token in verification.committed.tolist():
            # A text that leaves the grammar is decoded without it, or has ended: nothing is forced any more.
            self._follows = self._follows and self._matcher.take(token)

    def fork(self) -> Self:
        other = type(self)(self._matcher, tokenizer=self.tokenizer)
        other._splits = self._splits
        return other

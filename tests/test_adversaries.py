"""Any generator, any end, any processor, any budget, any cache: the text is plain decoding's, or one clear error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, StaticCache

import outrider
from outrider import AssistedDecoding, CandidateGenerator, Candidates
from outrider.control import Fixed
from outrider.errors import GeneratorError
from outrider.types import Context, Verification
from outrider.versions import CACHE, can_be_cropped
from tests.tiny import VOCAB, prompt, snapshot, tiny

NEW = 14
KINDS = (
    "right", "too long", "no such token", "negative", "an end", "past the end", "another's prefix",
    "a random tree", "a right tree", "nothing", "raises", "no candidates at all", "floats",
)  # fmt: skip


class Adversary(CandidateGenerator):
    """Does what its script says, round by round, and again from its beginning."""

    def __init__(self, script: list[str], text: list[int], ends: list[int], seed: int) -> None:
        self.script, self.text, self.ends = script, text, ends
        self.random = np.random.default_rng(seed)
        self.round = 0

    def reset(self, prompt: Any) -> None:
        self.round = 0

    def propose(self, context: Context, budget: int) -> Any:
        kind = self.script[self.round % len(self.script)]
        self.round += 1
        right = self.text[context.ids.size : context.ids.size + budget]
        anything = self.random.integers(0, VOCAB, 9).tolist()
        if kind == "raises":
            raise RuntimeError("a fault of mine")
        if kind == "no candidates at all":
            return [1, 2, 3]
        if kind == "a random tree":
            return Candidates(
                np.array(anything, np.int64),
                np.array([self.random.integers(-1, i) for i in range(9)], np.int64),
            )
        if kind == "a right tree":
            tokens = [token for answer in right for token in ((answer + 1) % VOCAB, answer)]
            parents = [2 * (i // 2) - 1 for i in range(len(tokens))]
            return Candidates(np.array(tokens, np.int64), np.array(parents, np.int64))
        return Candidates.chain(
            {
                "right": right,
                "too long": right + anything * 9,
                "no such token": [*right[:2], VOCAB + 5, *right[2:]],
                "negative": [*right[:1], -7, *right[1:]],
                "an end": [*right[:2], *self.ends, *right[2:]],
                "past the end": right + self.ends + anything,
                "another's prefix": self.text[: budget + 1],
                "nothing": [],
                "floats": [0.5, 1.5],
            }[kind]
        )


def cache_for(kind: str, model: Any, ids: Tensor) -> dict[str, Any]:
    # A static window cannot be rolled back, and is refused.
    if kind == "static" and model.config.model_type == "llama":
        cache = StaticCache(config=model.config, max_cache_len=ids.shape[1] + NEW)
        return {CACHE: cache} if can_be_cropped(cache) else {}
    if kind == "offered":
        return {CACHE: DynamicCache(config=model.config)}
    if kind == "begun":
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids[:, :4], **{CACHE: cache}, use_cache=True)
        return {CACHE: cache, "attention_mask": torch.ones_like(ids)}
    return {}


@given(
    script=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    end=st.sampled_from([None, 1, 2, 3, 5, 8, NEW - 1]),
    processors=st.sampled_from(
        [
            {},
            {"repetition_penalty": 1.3},
            {"no_repeat_ngram_size": 2},
            {"min_new_tokens": 6},
            {"bad_words_ids": [[7]]},
        ]
    ),
    budget=st.sampled_from([0, 1, 2, 7, 60]),
    cache=st.sampled_from(["own", "static", "offered", "begun"]),
    name=st.sampled_from(["llama", "gemma2", "t5"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_text_is_plain_decodings_or_one_error_names_the_generator(
    script: list[str],
    end: int | None,
    processors: dict[str, Any],
    budget: int,
    cache: str,
    name: str,
    seed: int,
) -> None:
    model, ids = tiny(name), prompt(10, seed)
    flags: dict[str, Any] = {"do_sample": False, "max_new_tokens": NEW, **processors}
    start = 1 if name == "t5" else 10
    free = model.generate(ids, **flags)[0].tolist()
    ends = [] if end is None else [free[start + end], VOCAB - 2]
    flags |= {"eos_token_id": ends} if ends else {}
    own = {} if name == "t5" else cache_for(cache, model, ids)
    wanted = model.generate(ids, **flags)
    before = snapshot(model)
    adversary = Adversary(script, free, ends, seed)
    try:
        output = outrider.generate(
            model, ids, candidate_generator=adversary, controller=Fixed(budget), return_dict_in_generate=True,
            **flags, **own,
        )  # fmt: skip
    except GeneratorError as error:
        assert "Adversary" in str(error) and "\n" not in str(error)
        assert {"raises", "no candidates at all", "floats"} & set(script)
    else:
        assert output.sequences.tolist() == wanted.tolist()
        assert output.stats.num_committed == wanted.shape[1] - start
        if own:
            assert own[CACHE].get_seq_length() == wanted.shape[1] - 1
    assert snapshot(model) == before


class Interrupting(CandidateGenerator):
    """Proposes what it learnt, and stops everything at its `at`-th call."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.at, self.error, self.calls = at, error, 0
        self.known: list[int] = []

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise self.error

    def reset(self, prompt: Any) -> None:
        self._call()
        self.known = prompt.tolist()

    def propose(self, context: Context, budget: int) -> Candidates:
        self._call()
        assert self.known == context.ids.tolist()
        return Candidates.chain(self.known[-3:])

    def update(self, verification: Verification) -> None:
        self._call()
        self.known += verification.committed.tolist()


@pytest.mark.parametrize("at", range(1, 12))
def test_an_interruption_in_the_generator_leaves_all_usable(at: int) -> None:
    model, flags = tiny("llama"), {"do_sample": False, "max_new_tokens": NEW}
    wanted, before = model.generate(prompt(), **flags), snapshot(model)
    generator = Interrupting(at, KeyboardInterrupt)
    decoding = AssistedDecoding(generator)
    with pytest.raises(KeyboardInterrupt):
        model.generate(prompt(), custom_generate=decoding, **flags)
    assert snapshot(model) == before
    for _ in range(2):
        assert model.generate(prompt(), custom_generate=decoding, **flags).tolist() == wanted.tolist()


@pytest.mark.parametrize("name", ["llama", "gemma2", "t5"])
@pytest.mark.parametrize("drafter", ["prompt_lookup", "auto", "early exit"])
def test_an_interruption_in_any_forward_leaves_all_usable(name: str, drafter: str) -> None:
    model, flags = tiny(name), {"do_sample": False, "max_new_tokens": NEW}
    wanted, before = model.generate(prompt(), **flags), snapshot(model)
    decoding = (
        AssistedDecoding(assistant_early_exit=1, assistant_confidence_threshold=0.0)
        if drafter == "early exit"
        else AssistedDecoding(drafter)
    )
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    for at in (0, 1, 3):
        calls = 0

        def stop(*_: Any, at: int = at) -> None:
            nonlocal calls
            calls += 1
            if calls > at:
                raise KeyboardInterrupt

        # The last linear layer runs once a forward: the interruption falls inside one.
        handle = layers[-1].register_forward_hook(stop)
        try:
            with pytest.raises(KeyboardInterrupt):
                model.generate(prompt(), custom_generate=decoding, **flags)
        finally:
            handle.remove()
        assert snapshot(model) == before
        assert model.generate(prompt(), custom_generate=decoding, **flags).tolist() == wanted.tolist()


def test_threads_with_generators_of_their_own_share_a_model() -> None:
    import threading

    model, flags = tiny("llama"), {"do_sample": False, "max_new_tokens": NEW}
    names = ["prompt_lookup", "auto", "suffix", "token_recycling", "none"]
    wanted = [model.generate(prompt(seed=seed), **flags).tolist() for seed in range(5)]
    got: dict[int, Any] = {}

    def work(index: int) -> None:
        ids = prompt(seed=index)
        got[index] = outrider.generate(model, ids, candidate_generator=names[index], **flags).tolist()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got.get(index) for index in range(5)] == wanted

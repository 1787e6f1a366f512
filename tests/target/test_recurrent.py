"""Recurrent models decode chains of candidates to the text that they decode without, or say why they cannot."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import outrider
from outrider.caches.in_place import InPlaceCache
from outrider.caches.snapshots import has_recurrent_state
from outrider.errors import UnsupportedModelError
from outrider.generators.draft_model import Generator as DraftModel
from outrider.target.recurrent import RecurrentState, reason_against
from outrider.versions import CACHE
from tests.target.architectures import RECURRENT, VOCAB, tiny

REFUSED = {
    "falcon_mamba": r"computes something else over several tokens than one at a time, from layer 0",
    "recurrent_gemma": r"computes something else over several tokens than one at a time, from layer 0",
    **(
        {
            name: "computes something else over several tokens than one at a time, from layer 0"
            for name in ("mamba", "mamba2")
        }
        if CACHE != "cache"  # transformers below 5.20
        else {}
    ),
    "minimax": "keeps its state outside transformers' Cache",
    "rwkv": "keeps its state outside transformers' Cache",
    "xlstm": "keeps its state outside transformers' Cache",
}
TAKEN = [name for name in RECURRENT if name not in REFUSED]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TAKEN)
def test_greedy_text_is_that_of_plain_decoding(name: str) -> None:
    check_text(name, in_place=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["falcon_h1", "qwen3_next", "lfm2"])
def test_the_cache_of_transformers_does_too(name: str) -> None:
    check_text(name, in_place=False)


def check_text(name: str, in_place: bool) -> None:
    model = tiny(name)
    assert reason_against(model) is None
    prompt = torch.randint(3, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1))
    wanted = model.generate(prompt, max_new_tokens=30, do_sample=False)[0].tolist()
    cache = InPlaceCache(model.config) if in_place else DynamicCache(config=model.config)
    assert has_recurrent_state(cache)
    rng = np.random.default_rng(0)
    with torch.no_grad():
        ids = prompt[0].tolist()
        ids.append(int(model(prompt, **{CACHE: cache}, use_cache=True).logits[0, -1].argmax()))
        state = RecurrentState(cache, max_pending=12)
        num_accepted = num_rounds = 0
        while len(ids) < len(wanted):
            right = wanted[len(ids) : len(ids) + rng.integers(0, 6)]
            candidates = [token if rng.random() < 0.8 else int(rng.integers(3, VOCAB)) for token in right]
            candidates = [] if state.is_full else candidates
            state.before_forward()
            run = torch.tensor([ids[len(ids) - 1 - state.num_pending :] + candidates])
            assert run.shape[1] == state.num_pending + 1 + len(candidates)
            best = (
                model(run, **{CACHE: cache}, use_cache=True)
                .logits[0]
                .argmax(-1)[state.num_pending :]
                .tolist()
            )
            accepted = 0
            while accepted < len(candidates) and candidates[accepted] == best[accepted]:
                accepted += 1
            ids += [*candidates[:accepted], best[accepted]]
            state.commit(1 + len(candidates), 1 + accepted)
            num_accepted += accepted
            num_rounds += 1
    assert ids[: len(wanted)] == wanted
    assert num_accepted > 10
    assert num_rounds < 30


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_taken_back_is_refused_by_name(name: str) -> None:
    model = tiny(name)
    reason = reason_against(model)
    assert reason is not None
    assert type(model).__name__ in reason
    assert REFUSED[name] in reason


def test_an_unknown_layer_is_refused() -> None:
    class Strange:
        pass

    cache = DynamicCache()
    cache.layers = [Strange()]
    with pytest.raises(UnsupportedModelError, match="a Strange keeps no state"):
        RecurrentState(cache)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in RECURRENT if name not in ("minimax", "rwkv", "xlstm")])
def test_generate_gives_plain_text_with_every_kind_of_drafter(name: str) -> None:
    model = tiny(name)
    prompt = torch.randint(3, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1))
    settings: dict[str, Any] = {"max_new_tokens": 30, "do_sample": False, "return_dict_in_generate": True}
    wanted = model.generate(prompt, **settings).sequences
    answer = wanted[0].tolist()

    def half_right(ids: list[int]) -> list[int]:
        return [token if at % 4 else 1 for at, token in enumerate(answer)][len(ids) : len(ids) + 6]

    drafters: dict[str, dict[str, Any]] = {
        "oracle": {"candidate_generator": lambda ids: answer[len(ids) : len(ids) + 5]},
        "half right": {"candidate_generator": half_right},
        "guesses": {"candidate_generator": lambda ids: [4, 5, 6]},
        "itself": {"assistant_model": tiny(name), "assistant_confidence_threshold": 0.0},
    }
    for drafter, given in drafters.items():
        if name in REFUSED:
            with pytest.raises(UnsupportedModelError, match=f"{REFUSED[name]}|runs without a cache here"):
                outrider.generate(model, prompt, **settings, **given)
            continue
        output = outrider.generate(model, prompt, **settings, **given)
        assert output.sequences.tolist() == wanted.tolist(), drafter
        if drafter in ("oracle", "itself"):
            assert output.stats.mat > 2, drafter


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in RECURRENT if name not in ("minimax", "rwkv", "xlstm")])
def test_a_recurrent_model_drafts_for_another(name: str) -> None:
    target = tiny("llama")
    prompt = torch.randint(3, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1))
    wanted = target.generate(prompt, max_new_tokens=20, do_sample=False)
    drafts = DraftModel(tiny(name), confidence_threshold=0.0, num_tokens=4)
    for _ in range(2):  # the second text begins where the first left the draft model
        assert (
            outrider.generate(
                target, prompt, max_new_tokens=20, do_sample=False, candidate_generator=drafts
            ).tolist()
            == wanted.tolist()
        )


@pytest.mark.filterwarnings("ignore")
def test_logits_of_every_candidate_or_an_error() -> None:
    model = tiny("llama")
    whole = model.forward

    @functools.wraps(whole)
    def last_only(*args: Any, **kwargs: Any) -> Any:
        return whole(*args, **kwargs | {"logits_to_keep": 1})

    model.forward = last_only
    with pytest.raises(UnsupportedModelError, match="gave logits of 1 of 4 tokens"):
        outrider.generate(
            model, torch.tensor([[5, 6, 7]]), max_new_tokens=9, do_sample=False,
            candidate_generator=lambda ids: [4, 5, 6],
        )  # fmt: skip

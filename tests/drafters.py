"""One of each kind of drafter, and whether all of them leave a text, a model and an error as they should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import outrider
from outrider import CandidateGenerator, Candidates
from outrider.errors import OutriderError
from outrider.types import Context
from tests.tiny import VOCAB, draft_model, oracle, prompt, snapshot

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}
KINDS = ("prompt_lookup", "auto", "draft model", "oracle", "adversary", "right tree")


class RightTree(CandidateGenerator):
    """Beside each token of `text` (1, L) a wrong one: a tree in every round."""

    def __init__(self, text: Tensor) -> None:
        self.text = text[0].tolist()

    def propose(self, context: Context, budget: int) -> Candidates:
        right = self.text[context.ids.size : context.ids.size + min(budget, 5)]
        tokens = [token for answer in right for token in ((answer + 1) % VOCAB, answer)]
        parents = [2 * (i // 2) - 1 for i in range(len(tokens))]
        return Candidates(np.array(tokens, np.int64), np.array(parents, np.int64))


def drafter(kind: str, text: Tensor, name: str = "llama") -> dict[str, Any]:
    """The arguments of `generate` that choose a drafter; `text` is what it shall know, `name` what drafts."""
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "draft model": lambda: {"assistant_model": draft_model(name, 0)},
        "oracle": lambda: {"candidate_generator": oracle(text)},
        "adversary": lambda: {"candidate_generator": oracle(text, 5, wrong_every=3)},
        "right tree": lambda: {"candidate_generator": RightTree(text)},
    }
    return made[kind]() if kind in made else {"candidate_generator": kind}


def assert_plain_text(
    model: Any,
    name: str = "llama",
    ids: Tensor | None = None,
    kinds: Sequence[str] = KINDS,
    **flags: Any,
) -> None:
    """With every drafter: plain text, from fewer forwards where it is known, and a model as it was.

    **Arguments:**

    - `flags`: Of both; a function is called anew for each call.
    """
    ids = prompt() if ids is None else ids
    before = snapshot(model)

    def fresh() -> dict[str, Any]:
        return GREEDY | {key: value() if callable(value) else value for key, value in flags.items()}

    wanted = model.generate(input_ids=ids, **fresh())
    for kind in kinds:
        choice = drafter(kind, wanted, name)
        output = outrider.generate(model, ids, **choice, **fresh(), return_dict_in_generate=True)
        assert torch.equal(output.sequences, wanted), kind
        if kind in ("oracle", "right tree"):
            assert output.stats.num_rounds < GREEDY["max_new_tokens"], kind
    assert snapshot(model) == before


def assert_refused(
    model: Any, said: str, name: str = "llama", ids: Tensor | None = None, **flags: Any
) -> None:
    """With every drafter one sentence, that says `said`; without one plain text."""
    ids = prompt() if ids is None else ids
    before = snapshot(model)

    def fresh() -> dict[str, Any]:
        return GREEDY | {key: value() if callable(value) else value for key, value in flags.items()}

    wanted = model.generate(input_ids=ids, **fresh())
    assert torch.equal(outrider.generate(model, ids, candidate_generator="none", **fresh()), wanted)
    for kind in KINDS:
        with pytest.raises(OutriderError, match=said) as error:
            outrider.generate(model, ids, **drafter(kind, wanted, name), **fresh())
        assert "\n" not in str(error.value)
    assert snapshot(model) == before

"""What can be tried of the SGLang plugin without SGLang: its arrays, its states, its check of signatures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider.contract import CandidateGenerator
from outrider.engines.sglang import Drafts, changed_parameters, register
from outrider.errors import OptionError
from outrider.types import Candidates, Context, Verification


class Tree(CandidateGenerator):
    """Two branches: 5 6, and 7; notes what it hears."""

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    def reset(self, prompt: Any) -> None:
        self.heard.append(("reset", prompt.tolist()))

    def propose(self, context: Context, budget: int) -> Candidates:
        return Candidates([5, 7, 6, 10**9], [-1, -1, 0, 0])

    def update(self, verification: Verification) -> None:
        self.heard.append((verification.committed.tolist(), verification.path.tolist()))

    def fork(self) -> Tree:
        return Tree(self.heard)


def test_the_arrays_are_the_n_gram_paths() -> None:
    tokens, mask = Drafts(Tree([]), 5, vocab_size=100).prepare(["a"], [np.array([1, 2, 3])])
    assert tokens.tolist() == [3, 5, 7, 6, 0]
    assert mask.reshape(5, 5).astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 0, 0, 1],
    ]


def test_requests_keep_their_states_when_rows_move_and_lose_them_when_they_leave() -> None:
    heard: list[Any] = []
    drafts = Drafts(Tree(heard), 4)
    drafts.prepare(["a", "b"], [np.array([1]), np.array([2])])
    drafts.prepare(["b", "a"], [np.array([2, 7, 9]), np.array([1, 5, 6, 8])])
    drafts.prepare(["a"], [np.array([1, 5, 6, 8, 0])])
    drafts.prepare(["b"], [np.array([2, 7, 9])])
    assert heard == [
        ("reset", [1]),
        ("reset", [2]),
        ([7, 9], [1]),
        ([5, 6, 8], [0, 2]),
        ([0], []),
        ("reset", [2, 7, 9]),
    ]


def test_a_changed_signature_is_told() -> None:
    def register(name: str, *, spec_class: type) -> None: ...

    def _update_ngram_corpus(self: Any, batch: Any) -> None: ...

    changes = changed_parameters({"register": register, "_update_ngram_corpus": _update_ngram_corpus})
    assert changes == [
        "register takes (name, spec_class), not (name, supports_overlap, validate_server_args, spec_class)"
    ]


def test_the_released_interface_is_the_one_this_was_written_for() -> None:
    pytest.importorskip("sglang", reason="SGLang is not installed; it needs a GPU build")
    register()


def test_a_generator_that_cannot_run_is_refused_before_sglang_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OUTRIDER", "token_recycling")
    with pytest.raises(OptionError, match="which SGLang does not show"):
        register()

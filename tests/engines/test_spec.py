"""What may be written for an engine, and what is refused before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.contract import CandidateGenerator
from outrider.engines._spec import generator_for
from outrider.errors import OptionError, UnknownNameError
from outrider.generators.composite import Generator as Composite
from outrider.generators.suffix import Generator as Suffix
from outrider.types import Candidates, Context, HiddenStates


class Hidden(CandidateGenerator):
    needs = frozenset({HiddenStates((3,))})

    def propose(self, context: Context, budget: int) -> Candidates:
        return Candidates.empty()


def test_names_options_objects_and_functions() -> None:
    assert isinstance(generator_for("vLLM"), Suffix)
    assert isinstance(generator_for("vLLM", ""), Suffix)
    made: Any = generator_for("vLLM", "suffix:max_nodes=7", max_depth=3)
    assert (made.max_nodes, made.max_depth) == (7, 3)
    own = Suffix()
    assert generator_for("vLLM", own) is own
    proposed = generator_for("vLLM", lambda ids: [1, 2]).propose(Context(np.arange(3), 3), 8)
    assert proposed.tokens.tolist() == [1, 2]


def test_a_memory_joins_the_tree_and_outlives_the_sequence(tmp_path: Path) -> None:
    file = tmp_path / "texts"
    generator = generator_for("vLLM", f"suffix:memory={file},namespace=mine")
    assert isinstance(generator, Composite)
    assert not file.exists()
    text = np.arange(40)
    for _ in range(2):
        generator.reset(text[:4])
        first = generator.propose(Context(text[:4], 4), 8).tokens.tolist()
        from outrider.types import Verification

        generator.update(Verification(text[4:], 0))
    assert first[:3] == [], "the prompt is not remembered"
    generator.reset(text[:1])
    proposed = generator.propose(Context(np.array([99, 10, 11, 12]), 4), 8)
    assert proposed.tokens[0] == 13
    assert set(proposed.sources) == {"ngram_cache"}
    assert file.exists()
    again = generator_for("vLLM", f"suffix:memory={file},namespace=mine")
    again.reset(text[:1])
    assert again.propose(Context(np.array([99, 10, 11, 12]), 4), 8).tokens[0] == 13


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("token_recycling", "the target's logits, which llama.cpp does not show"),
        ("auto", "the target's logits"),
        ("composite", "the target's logits"),
        (Hidden(), "the target's hidden states"),
        (Hidden, "the target's hidden states"),
        ("draft_model:early_exit=2", "the target's own forward"),
        ("suffix:3", "is no option"),
        ("suffix:depth=3", "cannot be made"),
        ("suffix:max_nodes=-1", "max_nodes must be >= 0"),
        ("suffix:max_nodes=many", "an option's value does not fit"),
        (3, "must be a generator"),
    ],
)
def test_refusals_are_one_sentence(spec: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        generator_for("llama.cpp", spec)
    assert "\n" not in str(caught.value)


def test_unknown_names_suggest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'suffix'"):
        generator_for("llama.cpp", "sufix")

"""What one request said is proposed in the next."""

import numpy as np
import pytest

from outrider.contract import get
from outrider.errors import FileFormatError
from outrider.index.memory import Memory
from outrider.testing import assert_same_law, tiny_target
from outrider.types import Context
from tests.generators.helpers import decode

NGramCache = get("ngram_cache")


def test_the_second_request_is_faster():
    text = np.random.default_rng(0).permutation(200)
    generator = NGramCache()
    assert decode(generator, text[:20], text[20:]) == 180
    assert decode(generator, text[:20], text[20:]) < 30
    assert decode(generator.fork(), text[:20], text[20:]) < 30


def test_prompts_are_kept_only_if_asked():
    for prompts in (False, True):
        generator = NGramCache(prompts=prompts)
        assert len(generator.propose(Context(np.empty(0, np.int64), 0), 5)) == 0
        generator.reset(np.array([1, 2, 3]))
        generator.reset(np.array([1]))
        assert len(generator.propose(Context(np.array([1, 2]), 2), 5)) == (1 if prompts else 0)


def test_drawn_candidates_carry_their_own_law():
    memory = Memory("m")
    memory.add(np.random.default_rng(0).integers(0, 5, 300))
    generator = NGramCache(memory=memory, vocab_size=5)
    assert_same_law(generator, tiny_target(5), verification="block", budget=2, num_samples=1500)


def test_a_file_outlives_the_object(tmp_path):
    path = tmp_path / "kept"
    text = np.random.default_rng(0).permutation(200)
    first = NGramCache(memory=path, namespace="me", tokenizer="t")
    decode(first, text[:20], text[20:])
    first.flush()
    assert decode(NGramCache(memory=path, namespace="me", tokenizer="t"), text[:20], text[20:]) < 30
    with pytest.raises(FileFormatError, match="namespace"):
        NGramCache(memory=path, tokenizer="t")

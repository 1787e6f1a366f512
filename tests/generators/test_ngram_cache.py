"""What one request said is proposed in the next."""

import numpy as np

from outrider.contract import get
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

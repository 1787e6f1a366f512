"""The suffix generator, committed token by committed token."""

import numpy as np
import pytest

from outrider.contract import get
from outrider.errors import OptionError
from outrider.types import Context
from tests.generators.helpers import check, decode

Suffix = get("suffix")


def propose(generator, ids, budget=16):
    candidates = generator.propose(Context(np.asarray(ids, np.int64), len(ids)), budget)
    check(candidates, budget)
    return candidates


def test_repetition_is_fast():
    text = np.tile(np.arange(15), 20)
    assert decode(Suffix(), text[:30], text[30:], budget=30) < 20


def test_empty_prompt_and_no_budget():
    assert len(propose(Suffix(), [])) == 0
    assert len(propose(Suffix(), [1, 1, 1], 0)) == 0


def test_state_after_rejections_is_that_of_the_committed_tokens():
    ids = np.random.default_rng(1).integers(0, 5, 120)
    worked, fresh = Suffix(), Suffix()
    decode(worked, ids[:20], ids[20:])
    fresh._index.counts = worked._index.counts
    assert propose(worked, ids).tokens.tolist() == propose(fresh, ids).tokens.tolist()
    assert (worked._index.counts == fresh._index.counts).all()


def test_reset_forgets_and_fork_is_independent():
    generator = Suffix()
    propose(generator, [1, 2, 3, 1])
    fork = generator.fork()
    generator.reset(np.array([1]))
    assert len(propose(generator, [1])) == 0
    assert propose(fork, [7, 8, 7]).tokens[0] == 8
    assert len(propose(generator, [1])) == 0
    assert fork._index.counts is generator._index.counts


def test_options_are_checked():
    with pytest.raises(OptionError):
        Suffix(max_depth=0)

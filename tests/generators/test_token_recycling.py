"""Token recycling on logits from a known table."""

import numpy as np
import pytest

from outrider.contract import get
from outrider.errors import OptionError
from outrider.types import Candidates, Context, Verification
from tests.generators.helpers import check, decode

TokenRecycling = get("token_recycling")


def propose(generator, ids, budget=16):
    candidates = generator.propose(Context(np.asarray(ids, np.int64), len(ids)), budget)
    check(candidates, budget)
    return candidates


def see(generator, before, last, committed, top):
    tokens = np.array([top])
    generator.reset(np.array([before, last]))
    generator.update(
        Verification(
            np.array([committed]),
            0,
            top_tokens=tokens,
            top_logits=-np.arange(len(top), dtype=np.float32)[None],
        )
    )


def test_proposes_the_largest_logits_by_rank():
    generator = TokenRecycling()
    see(generator, 3, 4, 9, [9, 8, 7, 6, 5, 4, 3, 2])
    tree = propose(generator, [3, 4], 5)
    assert tree.tokens[0] == 9
    assert (tree.parents[:3] == -1).all()
    assert propose(generator, [1, 4], 5).tokens[0] == 9, "falls back from the pair to the token"
    assert len(propose(generator, [3, 5], 5)) == 0


def test_rejected_nodes_are_recycled():
    generator = TokenRecycling()
    generator.reset(np.array([1, 2]))
    candidates = Candidates.chain([3, 4])
    tops = np.array([[7, 0], [40, 41], [50, 51]])
    generator.update(
        Verification(np.array([7]), 0, candidates, top_tokens=tops, top_logits=np.zeros((3, 2), np.float32))
    )
    assert set(propose(generator, [2, 3], 2).tokens.tolist()) >= {40}
    assert set(propose(generator, [3, 4], 2).tokens.tolist()) >= {50}


def test_a_chain_of_certainties_is_fast():
    text = np.random.default_rng(0).integers(0, 40, 200)
    following = {}

    def top(ids):
        rng = np.random.default_rng(int(ids[-1]))
        tokens = rng.permutation(40)[:8]
        return tokens, np.array([9, 1, 0, 0, -1, -1, -2, -3])

    output = [int(text[0])]
    for _ in range(199):
        output.append(int(top(np.array(output))[0][0]))
    assert not following
    assert decode(TokenRecycling(), output[:1], output[1:], top=top) < 100


def test_empty_prompt_reset_keep_and_fork():
    generator = TokenRecycling()
    assert len(propose(generator, [])) == 0
    generator.reset(np.empty(0, np.int64))
    generator.update(Verification(np.array([1]), 0))
    see(generator, 3, 4, 9, [9, 8])
    assert len(propose(generator.fork(), [3, 4])) == 0
    generator.reset(np.array([3, 4]))
    assert len(propose(generator, [3, 4])) == 0
    kept = TokenRecycling(keep=True)
    see(kept, 3, 4, 9, [9, 8])
    kept.reset(np.array([3, 4]))
    assert len(propose(kept, [3, 4]))
    assert len(propose(kept.fork(), [3, 4]))


def test_options_are_checked():
    with pytest.raises(OptionError):
        TokenRecycling(min_probability=0)

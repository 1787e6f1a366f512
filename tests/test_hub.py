"""Where a model is looked for, and how soon one that is nowhere is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from outrider.errors import UnsupportedModelError
from outrider.hub import is_local


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A hub: `answer` is what asking it returns or raises, `cached` what its cache holds."""
    state: dict[str, Any] = {"answer": None, "cached": None, "asked": 0}

    def model_info(self: Any, name: str, timeout: float) -> Any:
        state["asked"] += 1
        assert timeout <= 5
        if isinstance(state["answer"], Exception):
            raise state["answer"]
        return state["answer"]

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: state["cached"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return state


def test_a_folder_is_never_asked_for(hub: dict[str, Any], tmp_path: Path) -> None:
    assert is_local(str(tmp_path))
    assert hub["asked"] == 0


@pytest.mark.parametrize("name", ["./none", "/no/such", "~/none", "a/b/c", "a\\b"])
def test_a_path_is_never_asked_for(hub: dict[str, Any], name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="there is no folder"):
        is_local(name)
    assert hub["asked"] == 0


def test_a_hub_that_answers_is_used(hub: dict[str, Any]) -> None:
    assert not is_local("somebody/something")
    assert hub["asked"] == 1


def test_a_hub_that_does_not_answer_is_asked_once(hub: dict[str, Any]) -> None:
    hub["answer"] = ConnectionError("no network")
    with pytest.raises(UnsupportedModelError, match="cannot be reached: ConnectionError"):
        is_local("somebody/something")
    assert hub["asked"] == 1
    hub["cached"] = "/cache/config.json"
    assert is_local("somebody/something")


def test_offline_only_the_cache_counts(hub: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UnsupportedModelError, match="HF_HUB_OFFLINE is set"):
        is_local("somebody/something")
    hub["cached"] = "/cache/config.json"
    assert is_local("somebody/something")
    assert hub["asked"] == 0

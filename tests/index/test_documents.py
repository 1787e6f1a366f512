"""Files become ids whole, in order, one document each."""

import numpy as np
import pytest

from outrider.errors import OptionError
from outrider.index import documents
from outrider.index.documents import find_files, is_text, read


class Letters:
    """One id a character."""

    def __call__(self, texts, **options):
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}


def test_long_files_are_read_in_pieces_and_stay_one_document(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "_PIECE", 7)
    monkeypatch.setattr(documents, "_AT_ONCE", 20)
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("ab\né"), size)) for size in (0, 1, 6, 7, 8, 20, 21, 200)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
    heard: list[int] = []
    found = list(read(find_files([tmp_path]), Letters(), heard.append))
    assert ["".join(map(chr, ids)) for ids in found] == [text for text in texts if text]
    assert sum(heard) == sum(len(text.encode()) for text in texts)


def test_files_are_found_and_others_left_out(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("b/two.txt", "one.txt", ".hidden"):
        (tmp_path / name).write_text("x")
    (tmp_path / "picture").write_bytes(b"\x89\0\xff")
    found = find_files([tmp_path, tmp_path / "one.txt"])
    assert [file.name for file in found] == ["two.txt", "one.txt", "picture"]
    assert [is_text(file) for file in found] == [True, True, False]
    with pytest.raises(OptionError, match="there is no file"):
        find_files([tmp_path / "missing"])

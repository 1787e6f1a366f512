"""Memory across requests: bounded, and its file checked."""

import threading

import numpy as np
import pytest

from outrider.errors import FileFormatError
from outrider.index.memory import Memory


def test_what_was_added_is_found_and_nothing_crosses_sequences():
    memory = Memory("me")
    memory.add([1, 2, 3])
    memory.add([4, 5])
    assert memory.tree(np.array([1, 2]), 4).tokens.tolist() == [3]
    assert memory.tree(np.array([3]), 4).tokens.size == 0


def test_the_oldest_sequences_leave():
    memory = Memory("me", max_tokens=50)
    for start in range(0, 1000, 10):
        memory.add(np.arange(start, start + 10))
        assert len(memory) <= 63
    assert memory.tree(np.array([0]), 1).tokens.size == 0
    assert memory.tree(np.array([995]), 1).tokens.tolist() == [996]


def test_a_file_brings_it_back_or_is_refused(tmp_path):
    path = tmp_path / "memory"
    memory = Memory("me", tokenizer="t")
    memory.add([1, 2, 3])
    memory.save(path)
    assert Memory.load(path, "me", tokenizer="t").tree(np.array([1]), 1).tokens.tolist() == [2]
    assert [file.name for file in tmp_path.iterdir()] == ["memory"]
    with pytest.raises(FileFormatError, match="tokenizer"):
        Memory.load(path, "me", tokenizer="other")
    with pytest.raises(FileFormatError, match="namespace"):
        Memory.load(path, "you", tokenizer="t")
    data = path.read_bytes()
    for damaged in (data[:-1], data[:20], b"", data[:-40] + b"x" + data[-39:], data[:17] + b"x" + data[18:]):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="damaged"):
            Memory.load(path, "me", tokenizer="t")


def test_threads():
    memory = Memory("me", max_tokens=500)

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(50):
            memory.add(rng.integers(0, 50, 20))
            memory.tree(rng.integers(0, 50, 5), 8)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < len(memory) <= 626

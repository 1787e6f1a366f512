"""The corpus index against brute force; its file; its parts."""

import pickle
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import FileFormatError, OptionError
from outrider.index.corpus import Corpus, build, merge, new_worth, suffix_array

documents = st.lists(st.lists(st.integers(0, 3), max_size=25), min_size=1, max_size=5).filter(any)


def continuations(texts, query):
    """The longest tail of `query` that is followed by a token or an end, and what followed it."""
    for length in range(min(len(query), 16), 0, -1):
        found = [
            (doc[at + length :])
            for doc in texts
            for at in range(len(doc) - length + 1)
            if doc[at : at + length] == query[-length:]
        ]
        if found:
            return length, found
    return 0, []


@settings(max_examples=60, deadline=None)
@given(texts=documents, query=st.lists(st.integers(0, 3), min_size=1, max_size=20), part=st.integers(1, 60))
def test_a_tree_is_brute_force_whatever_the_parts(tmp_path_factory, texts, query, part):
    path = tmp_path_factory.getbasetemp() / "property.corpus"
    build(texts, path, part_tokens=part)
    corpus = Corpus(path)
    assert len(corpus) == sum(len(text) + 1 for text in texts if text)
    tree = corpus.tree(np.array(query), 64, max_depth=3, least=1e-9)
    length, found = continuations(texts, query)
    counts = Counter(tuple(rest[:depth]) for rest in found for depth in (1, 2, 3) if len(rest) >= depth)
    above = {-1: ((), len(found), 1.0)}
    order = []
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        path_above, total, chance = above[parent]
        here = (*path_above, token)
        worth = tree.probabilities[node] * total / counts[here]
        above[node] = (here, counts[here], chance * tree.probabilities[node])
        order.append(above[node][2])
        assert tree.match_lengths[node] == length + len(path_above)
        assert 0 < worth <= 1
    assert {held for held, _, _ in above.values()} - {()} == set(counts)
    assert all(a >= b - 1e-6 for a, b in pairwise(order))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, 300, 70000]), max_size=40))
def test_suffixes_are_in_order(tokens):
    array = np.array(tokens, np.uint32)
    expected = sorted((i for i in range(len(tokens)) if tokens[i]), key=lambda i: tokens[i:])
    assert suffix_array(array).tolist() == expected


def test_what_is_common_is_found_in_a_large_range(tmp_path):
    rng = np.random.default_rng(0)
    following = rng.permutation(np.repeat([5, 6, 7, *range(100, 400)], [500, 300, 150, *[1] * 300]))
    text = np.stack([np.full_like(following, 1), following], 1).reshape(-1)
    build([text], tmp_path / "c")
    tree = Corpus(tmp_path / "c").tree(np.array([9, 1]), 3, max_depth=1)
    assert tree.tokens.tolist() == [5, 6, 7]
    assert tree.probabilities[0] / tree.probabilities[2] == pytest.approx(500 / 150)


def test_nothing_follows_a_stop_token_and_learning_counts(tmp_path):
    build([[1, 2, 3, 4]], tmp_path / "c")
    corpus, worth = Corpus(tmp_path / "c"), new_worth()
    assert corpus.tree(np.array([1]), 8, least=1e-9, stop_tokens=(3,)).tokens.tolist() == [2, 3]
    before = worth.copy()
    corpus.learn(worth, np.array([1, 2, 3, 9]), 3)
    assert worth[1].sum() == pytest.approx(before[1].sum() + 2, abs=0.1)
    assert worth[0].sum() == pytest.approx(before[0].sum() + 3, abs=0.1)


def test_a_file_is_checked(tmp_path):
    path = tmp_path / "c"
    build([[1, 2, 3]], path, tokenizer="mine")
    assert [file.name for file in tmp_path.iterdir()] == ["c"]
    Corpus(path, tokenizer="mine")
    with pytest.raises(FileFormatError, match="tokenizer"):
        Corpus(path, tokenizer="other")
    data = path.read_bytes()
    for at in (0, 8, 20, len(data) - 50, len(data) - 1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(FileFormatError, match="damaged"):
            Corpus(path)
    for end in (0, 5, 40, len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(FileFormatError, match="damaged"):
            Corpus(path)


def test_a_failed_build_leaves_what_was_there(tmp_path):
    path = tmp_path / "c"
    build([[1, 2, 3]], path)
    before = path.read_bytes()

    def broken():
        yield [1, 2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(broken(), path)
    with pytest.raises(OptionError, match="no text"):
        build([[]], path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["c"]


def test_merged_files_are_one(tmp_path):
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 9, 200) for _ in range(3)]
    for number, text in enumerate(texts):
        build([text], tmp_path / f"{number}", tokenizer="t")
    build(texts, tmp_path / "all", tokenizer="t")
    merge([tmp_path / f"{number}" for number in range(3)], tmp_path / "merged")
    merged, whole = Corpus(tmp_path / "merged", tokenizer="t"), Corpus(tmp_path / "all")
    assert merged.num_parts == 3
    for at in range(5, 200, 20):
        ours, theirs = (one.tree(texts[0][:at], 10) for one in (merged, whole))
        assert sorted(ours.probabilities) == pytest.approx(sorted(theirs.probabilities))
    again = pickle.loads(pickle.dumps(merged))
    assert (again.tree(texts[0][:50], 10).tokens == merged.tree(texts[0][:50], 10).tokens).all()
    build([[1]], tmp_path / "foreign", tokenizer="u")
    with pytest.raises(FileFormatError, match="tokenizer"):
        merge([tmp_path / "merged", tmp_path / "foreign"], tmp_path / "out")

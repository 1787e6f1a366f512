"""A forward over a tree gives the logits of forwards over its paths; a kept path goes on as a chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from outrider.caches.in_place import InPlaceCache
from outrider.target.masks import ancestors, supports_tree, tree_inputs
from outrider.types import Candidates
from outrider.versions import CACHE
from tests.target.architectures import ALIBI, ENCODER_DECODER, FULL, VOCAB, WINDOWED, tiny

NO_TREES = {*ALIBI, *ENCODER_DECODER, "gpt_neo"}
TREES = [name for name in (*FULL, *WINDOWED) if name not in NO_TREES]


def random_tree(size: int, seed: int) -> Candidates:
    rng = np.random.default_rng(seed)
    parents = np.array([rng.integers(max(-1, node - 4), node) for node in range(size)], np.int64)
    return Candidates(rng.integers(3, VOCAB, size), parents)


def path_to(tree: Candidates, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = int(tree.parents[node])
    return path[::-1]


def run(model: PreTrainedModel, ids: torch.Tensor, cache: InPlaceCache, **kwargs: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=ids, **{CACHE: cache}, use_cache=True, **kwargs).logits[0]
    return logits


def test_ancestors_of_a_small_tree() -> None:
    tree = Candidates(np.array([5, 6, 7, 8]), np.array([-1, 0, -1, 0]))
    wanted = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 1, 0, 0, 1]]
    assert ancestors(tree).astype(int).tolist() == wanted


@pytest.mark.parametrize("attention", [None, "eager"])
@pytest.mark.parametrize("name", TREES)
def test_tree_logits_are_those_of_its_paths(name: str, attention: str | None) -> None:
    model = tiny(name, attention)
    assert supports_tree(model)
    text = torch.randint(3, VOCAB, (1, 40), generator=torch.Generator().manual_seed(1))
    trees, chains = InPlaceCache(model.config), InPlaceCache(model.config)
    run(model, text[:, :9], trees)
    run(model, text[:, :9], chains)
    length, last = 9, text[:, 9:10]
    for seed, size in enumerate((5, 12, 1, 20, 8, 3)):
        tree = random_tree(size, seed)
        ids = torch.cat([last, torch.tensor(tree.tokens)[None]], 1)
        inputs = tree_inputs(model, {"input_ids": ids, CACHE: trees}, tree, trees)
        del inputs[CACHE]
        nodes = run(model, inputs.pop("input_ids"), trees, **inputs)
        for leaf in range(size):
            path = path_to(tree, leaf)
            rows = torch.tensor([0, *(node + 1 for node in path)])
            chain = run(model, ids[:, rows], chains)
            torch.testing.assert_close(nodes[rows], chain, atol=3e-4, rtol=1e-4)
            assert torch.equal(nodes[rows].argmax(-1), chain.argmax(-1))
            chains.crop(-len(rows))
        kept = path_to(tree, size - 1)
        trees.keep_path(length + 1, kept)
        run(model, ids[:, [0, *(node + 1 for node in kept)]], chains)
        length += len(kept) + 1
        assert trees.get_seq_length() == chains.get_seq_length() == length
        last = torch.tensor([[seed + 5]])


@pytest.mark.parametrize("name", sorted(NO_TREES))
def test_models_that_cannot_take_trees_say_so(name: str) -> None:
    assert not supports_tree(tiny(name))


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "llama4_text"])
def test_left_padding_and_rounded_lengths(name: str) -> None:
    model = tiny(name)
    text = torch.randint(3, VOCAB, (1, 30), generator=torch.Generator().manual_seed(2))
    padded = torch.cat([torch.zeros(1, 6, dtype=torch.long), text], 1)
    mask = (torch.arange(36) >= 6).long()[None]
    positions = (torch.arange(36) - 6).clamp(min=0)[None]
    bare, cache = InPlaceCache(model.config), InPlaceCache(model.config)
    run(model, text, bare)
    run(model, padded, cache, attention_mask=mask, position_ids=positions)
    tree = random_tree(8, 3)
    ids = torch.cat([text[:, :1], torch.tensor(tree.tokens)[None]], 1)
    wanted = tree_inputs(model, {"input_ids": ids}, tree, bare)
    mask = torch.cat([mask, torch.ones(1, 9, dtype=torch.long)], 1)
    got = tree_inputs(model, {"input_ids": ids, "attention_mask": mask}, tree, cache)
    assert torch.equal(wanted["position_ids"], got["position_ids"])
    one, other = run(model, cache=bare, ids=wanted.pop("input_ids"), **wanted), None
    other = run(model, cache=cache, ids=got.pop("input_ids"), **got)
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_trees_under_rounded_lengths(name: str) -> None:
    model = tiny(name)
    text = torch.randint(3, VOCAB, (1, 30), generator=torch.Generator().manual_seed(2))
    exact, rounded = InPlaceCache(model.config), InPlaceCache(model.config, multiple=32)
    tree = random_tree(8, 3)
    ids = torch.cat([text[:, :1], torch.tensor(tree.tokens)[None]], 1)
    logits = []
    for cache in (exact, rounded):
        run(model, text, cache)
        inputs = tree_inputs(model, {"input_ids": ids}, tree, cache)
        logits.append(run(model, inputs.pop("input_ids"), cache, **inputs))
    torch.testing.assert_close(*logits, atol=1e-4, rtol=1e-4)

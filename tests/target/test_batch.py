"""Rows of a batch accept different lengths, finish at different times, and read as each row alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from outrider.errors import UnsupportedModelError
from outrider.target.batch import BatchTarget
from outrider.types import Candidates
from tests.target.architectures import ALIBI, VOCAB, tiny
from tests.target.test_masks import TREES


def decode(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    generation_config: GenerationConfig,
    answers: list[list[int]],
    lengths: list[int],
    min_holes: int,
    **kwargs: Any,
) -> torch.Tensor:
    """Greedy decoding of a batch with candidates that are right at random: a small loop for `generate()`."""
    del kwargs["logits_processor"], kwargs["stopping_criteria"]
    target = BatchTarget(model, kwargs, generation_config, min_holes=min_holes)
    ids = [row.tolist() for row in input_ids]
    ends = [len(row) + length for row, length in zip(ids, lengths, strict=True)]
    rng, num_rounds = np.random.default_rng(0), 0
    alive = list(range(len(ids)))
    while alive:
        rows: list[Any] = [
            SimpleNamespace(index=i, ids=np.array(ids[i]), tensor=lambda i=i: torch.tensor([ids[i]]))
            for i in alive
        ]
        proposals = [propose(answers[i][len(ids[i]) :], rng) for i in alive]
        if not target.takes_trees:
            proposals = [tree.best_chain() for tree in proposals]
        if not target.is_prefilled:
            proposals = [Candidates.empty()] * len(alive)
        paths, counts = [], []
        for i, tree, logits in zip(alive, proposals, target.forward(rows, proposals), strict=True):
            best, path, node = logits.argmax(-1).tolist(), [], -1
            while True:
                ids[i].append(best[node + 1])
                children = [
                    c for c in range(len(tree)) if tree.parents[c] == node and tree.tokens[c] == ids[i][-1]
                ]
                if not children:
                    break
                node = children[0]
                path.append(node)
            paths.append(np.array(path, np.int64))
            counts.append(len(path) + 1)
        target.commit(paths, counts)
        num_rounds += 1
        alive = [i for i in alive if len(ids[i]) < ends[i]]
    assert num_rounds < max(lengths)
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row[:end]) for row, end in zip(ids, ends, strict=True)], batch_first=True
    )


def propose(answer: list[int], rng: np.random.Generator) -> Candidates:
    """A tree with the right path for some steps, and wrong siblings beside it."""
    tokens, parents, at = [], [], -1
    for token in answer[: rng.integers(0, 6)]:
        parents += [at, at]
        wrong = int(rng.integers(3, VOCAB))
        tokens += [wrong if wrong != token else wrong - 1, token if rng.random() < 0.85 else 1]
        at = len(tokens) - 1
    return Candidates(np.array(tokens, np.int64), np.array(parents, np.int64))


@pytest.mark.parametrize("name", [*TREES, *ALIBI, "gpt_neo"])
def test_each_row_reads_as_that_row_alone(name: str) -> None:
    check_rows(name, min_holes=4)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_holes_that_are_left_change_nothing(name: str) -> None:
    check_rows(name, min_holes=10_000)


def check_rows(name: str, min_holes: int) -> None:
    model, prompts = tiny(name), [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14], [15, 16, 17, 18, 19]]
    lengths = [28, 16, 22]
    padded = torch.zeros(3, 7, dtype=torch.long)
    mask = torch.zeros(3, 7, dtype=torch.long)
    answers = []
    for index, (ids, length) in enumerate(zip(prompts, lengths, strict=True)):
        padded[index, 7 - len(ids) :] = torch.tensor(ids)
        mask[index, 7 - len(ids) :] = 1
        alone = model.generate(torch.tensor([ids]), max_new_tokens=length, do_sample=False)[0].tolist()
        answers.append([0] * (7 - len(ids)) + alone)
    settings = {"answers": answers, "lengths": lengths, "min_holes": min_holes, "attention_mask": mask}
    got = model.generate(padded, custom_generate=decode, max_new_tokens=28, do_sample=False, **settings)
    for row, answer in zip(got.tolist(), answers, strict=True):
        assert row[: len(answer)] == answer


def test_what_cannot_be_batched_says_so() -> None:
    settings = {"answers": [], "lengths": [], "min_holes": 1, "max_new_tokens": 5, "do_sample": False}
    with pytest.raises(UnsupportedModelError, match="MambaForCausalLM cannot verify a batch here"):
        tiny("mamba").generate(torch.tensor([[5, 6], [7, 8]]), custom_generate=decode, **settings)

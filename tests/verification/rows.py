"""Rows without a model, for tests of the rules alone."""

from __future__ import annotations

import numpy as np
import torch
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from outrider.types import Candidates
from outrider.verification import Row, Stopping


def make_row(prompt=(0,), processors=(), *, eos=None, max_length=None, **options):
    criteria = []
    if eos is not None:
        criteria.append(EosTokenCriteria(torch.tensor(eos)))
    if max_length is not None:
        criteria.append(MaxLengthCriteria(max_length))
    ids = torch.tensor([list(prompt)])
    return Row(ids, LogitsProcessorList(processors), Stopping(criteria), **options)


def new_tokens(row):
    return row.ids[row.num_prompt :].tolist()


def random_tree(rng, vocab, size):
    """Any tree, equal siblings included."""
    parents = [int(rng.integers(-1, node)) if node else -1 for node in range(size)]
    return Candidates(rng.integers(0, vocab, size).astype(np.int64), np.array(parents, np.int64))


def decode(model, verifier, propose, num_tokens, processors=(), **options):
    """Rounds over a toy model until `num_tokens` are committed."""
    options.setdefault("max_length", 1 + num_tokens)
    row = make_row(processors=processors, **options)
    while not row.finished:
        prefix = tuple(row.ids.tolist())
        tree = propose(prefix)
        verifier.verify(row, tree, model.tree_logits(tree, prefix))
    return new_tokens(row)

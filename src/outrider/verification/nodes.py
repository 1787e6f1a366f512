"""Processed scores of every node of a tree, for the rules that must see below what they accept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.types import Candidates
from outrider.verification.stateless import refuse_stateful
from outrider.verification.step import Row


class NodeScores:
    """Scores by node (-1: the last committed token), each processed on that node's own prefix.

    **Raises:** `OptionError` where a processor keeps state from call to call.

    **Exact:** for processors that are functions of ids and scores; others are refused, since plain
    decoding would call them for committed tokens only.
    """

    def __init__(self, row: Row, candidates: Candidates, logits: Tensor) -> None:
        self._row, self._candidates, self._logits = row, candidates, logits
        self._scores: dict[int, Tensor] = {}
        if row.processors and not row.is_stateless:
            refuse_stateful(row.processors, row.tensor(), logits[:1].float())
            row.is_stateless = True

    def __getitem__(self, node: int) -> Tensor:
        """(1, V), as `Row.score` gives them."""
        if node not in self._scores:
            scores = self._logits[node + 1 : node + 2]
            if self._row.wants_scores:
                scores = scores.to(torch.float32, copy=bool(self._row.processors))
            if self._row.processors:
                ids: Any = self._row.tensor_with(self._prefix(node))
                scores = self._row.processors(ids, scores)
            self._scores[node] = scores
        return self._scores[node]

    def _prefix(self, node: int) -> Any:
        tokens = []
        while node >= 0:
            tokens.append(self._candidates.tokens[node])
            node = int(self._candidates.parents[node])
        return np.array(tokens[::-1], np.int64)

    def commit(self, path: list[int], last: int) -> list[int]:
        """Commit the nodes of `path` and one token more; returns the nodes that the text had room for."""
        tokens = [int(self._candidates.tokens[node]) for node in path] + [last]
        for done, (before, token) in enumerate(zip([-1, *path], tokens, strict=True)):
            if self._row.keep_logits:
                self._row.logits.append(self._logits[before + 1 : before + 2].float().clone())
            if self._row.commit(token, self[before]):
                return path[: done + 1]
        return path

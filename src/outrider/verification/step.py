"""What a verifier sees of a row: its committed ids, its logits processors, where its text ends.

Processors and stopping criteria see exactly the calls plain decoding would make: once for each committed
token, in order, on the committed prefix. A verifier walks the tree through `score` and `commit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers.generation import logits_process
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from outrider.errors import NonFiniteLogitsError
from outrider.types import Candidates, Ids

_GROWTH = 1024
# The bits of infinity in half precisions.
_INFINITY = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
_WARPERS = (
    logits_process.TemperatureLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.TopPLogitsWarper,
    logits_process.MinPLogitsWarper,
    logits_process.TypicalLogitsWarper,
    logits_process.EpsilonLogitsWarper,
    logits_process.EtaLogitsWarper,
)


class Stopping:
    """transformers' stopping criteria, asked token by token.

    End-of-sequence and length limits are answered on the host; every other criterion, the user's own
    too, is called as it is.
    """

    def __init__(self, criteria: Iterable[Any]) -> None:
        self.max_length = 2**31
        self.eos: set[int] = set()
        self.others: list[Any] = []
        for criterion in criteria:
            if type(criterion) is MaxLengthCriteria:
                self.max_length = min(self.max_length, criterion.max_length)
            elif type(criterion) is EosTokenCriteria:
                self.eos.update(criterion.eos_token_id.reshape(-1).tolist())
            else:
                self.others.append(criterion)

    def ends(self, token: int, length: int, ids: Callable[[], Tensor], scores: Any) -> bool:
        """Whether a text of `length` tokens, the last one `token`, ends here."""
        ended = token in self.eos or length >= self.max_length
        for criterion in self.others:
            ended |= bool(criterion(ids(), scores).any())
        return ended


@dataclass
class Row:
    """One sequence as it grows: ids on the device and on the host, and what acts on them.

    **Arguments:**

    - `device_ids`: (1, L) int64. The prompt.
    - `processors`, `stopping`: What plain decoding would apply to this row.
    - `keep_scores`: Keep the processed scores of every committed token, (1, V) float32 each.
    - `index`: The row's number in its batch.
    - `num_padding`: Ids of the prompt that are padding. `position` counts without them.
    - `stream`: Which of the seed's streams of noise the row draws from.
    - `keep_logits`: Keep the raw logits of every committed token likewise.
    - `finished`: Whether the text has ended.
    - `is_stateless`: Whether the processors were tried, and keep no state from call to call.
    - `scores`, `logits`: What was kept. Stopping criteria see the scores as plain decoding shows them.
    """

    device_ids: Tensor
    processors: LogitsProcessorList
    stopping: Stopping
    keep_scores: bool = False
    keep_logits: bool = False
    index: int = 0
    num_padding: int = 0
    stream: int = 0
    finished: bool = False
    is_stateless: bool = False
    scores: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.length = self.num_prompt = self._num_on_device = self.device_ids.shape[1]
        given = self.device_ids
        self._shares = given.device.type == "cpu" and given.dtype == torch.int64
        self._host: Ids = given[0].cpu().numpy()
        self._device = given
        self._make_room(self.length)

    @property
    def ids(self) -> Ids:
        """(L,) int64 on the host. All committed tokens; read-only."""
        view = self._host[: self.length]
        view.flags.writeable = False
        return view

    @property
    def position(self) -> int:
        """Where the next token stands in the text: committed tokens before it, without padding."""
        return self.length - self.num_padding

    def tensor(self) -> Tensor:
        """(1, L) int64 on the target's device. All committed tokens."""
        return self._on_device(self.length)

    def tensor_with(self, tokens: Ids) -> Tensor:
        """(1, L + n) int64 on the target's device. All committed tokens, then these."""
        end = self.length + tokens.size
        if end > self._host.size:
            self._make_room(end)
        self._host[self.length : end] = tokens
        return self._on_device(end)

    def _on_device(self, end: int) -> Tensor:
        """The first `end` ids; on a CPU the host's own memory, elsewhere a copy brought up to date."""
        if not self._shares:
            start = self._num_on_device
            self._device[:, start:end] = self._memory[:, start:end]
            self._num_on_device = self.length
        return self._device[:, :end]

    def _make_room(self, needed: int) -> None:
        """Memory for `needed` ids and as many more, the committed ones in it."""
        size = 2 * needed + _GROWTH
        memory = torch.empty(1, size, dtype=torch.int64)
        host: Ids = memory[0].numpy()
        device = memory if self._shares else self.device_ids.new_empty(1, size)
        host[: self._host.size] = self._host
        device[:, : self._device.shape[1]] = self._device
        self._memory, self._host, self._device = memory, host, device

    def score(self, logits: Tensor) -> Tensor:
        """Processed scores, (1, V), of the next token: float32, or the logits themselves where none is to be kept.

        `logits` is that node's raw row (1, V).
        """
        if not self.wants_scores:
            return logits
        # The copy keeps processors that write in place away from logits another node may share.
        scores = logits.to(torch.float32, copy=bool(self.processors) or self.keep_logits)
        if self.keep_logits:
            self.logits.append(scores.clone() if self.processors else scores)
        if not self.processors:
            return scores
        return self.processors(self.tensor(), scores)  # type: ignore[arg-type]

    def commit(self, token: int, scores: Tensor | None) -> bool:
        """Append a token that came from `scores` (1, V); True where the text ends with it."""
        if self.length == self._host.size:
            self._make_room(self.length)
        self._host[self.length] = token
        self.length += 1
        if self.keep_scores and scores is not None:
            self.scores.append(scores.clone())
        seen = tuple(self.scores) if self.keep_scores else None
        self.finished = self.stopping.ends(token, self.length, self.tensor, seen)
        return self.finished

    @property
    def wants_scores(self) -> bool:
        """Whether someone looks at every token's scores, so that none may be skipped."""
        return bool(self.processors) or self.keep_scores or self.keep_logits


class Verifier(ABC):
    """An accept rule.

    `needs_draft_logits` says that it divides by the distribution candidates were drawn from; `lossy` that
    it changes the distribution, which stats and reports must then say.
    """

    needs_draft_logits = False
    lossy = False

    @abstractmethod
    def verify(self, row: Row, candidates: Candidates, logits: Tensor) -> list[int]:
        """Commit tokens to `row`; return the accepted path, as indices into `candidates`.

        **Arguments:**

        - `candidates`: A tree of n nodes.
        - `logits`: (n+1, V) raw logits. Row 0 follows the last committed token, row i+1 candidate i.

        Commits the path's tokens and one of the target's own, fewer where the text ends inside. The
        returned path never holds a node whose token was not committed.
        """

    def draw(self, row: Row, logits: Tensor, position: int) -> int:
        """What a draft model should propose at `position` from its own (1, V) logits: the likeliest token.

        A verifier that draws its tokens overrides this to draw the draft with the same randomness.
        """
        return int(logits.argmax())


def warped(row: Row, logits: Tensor) -> Tensor:
    """A draft model's (1, V) logits after the row's warpers, float32: what candidates are best drawn from.

    Only temperature and truncation act: they look at no ids and keep no state, so that a draft at any
    position may use them.

    **Exact:** any draft law is verified exactly; this one is near the target's.
    """
    scores = logits.to(torch.float32, copy=True).reshape(1, -1)
    for processor in row.processors:
        if type(processor) in _WARPERS:
            scores = processor(None, scores)
    return scores


def walk(row: Row, candidates: Candidates, logits: Tensor, select: Callable[[Tensor, int], int]) -> list[int]:
    """Go down the tree while `select` picks a child. What `Verifier.verify` returns.

    `select(scores, position)` chooses the token at `position` from what `Row.score` gives.
    """

    def choose(node: int) -> tuple[int, Tensor]:
        scores = row.score(logits[node + 1 : node + 2])
        return select(scores, row.length), scores

    return descend(row, candidates, choose)


def descend(
    row: Row, candidates: Candidates, choose: Callable[[int], tuple[int, Tensor | None]]
) -> list[int]:
    """Go down the tree while `choose` picks a child's token. What `Verifier.verify` returns.

    `choose(node)` gives the token that follows `node` (-1: the last committed token) and the (1, V)
    scores it came from; None where nobody looks at them. Called once for each committed token.
    """
    # The first of equal children: later ones are written first.
    edges = zip(candidates.parents.tolist(), candidates.tokens.tolist(), range(len(candidates)), strict=True)
    child_of = {(parent, token): node for parent, token, node in reversed(list(edges))}
    node, path = -1, []
    while True:
        token, scores = choose(node)
        ended = row.commit(token, scores)
        child = child_of.get((node, token))
        if child is not None:
            path.append(child)
        if ended or child is None:
            return path
        node = child


def peak_token(logits: Tensor) -> int:
    """The most likely token of one row (1, V), the first of equals. On the host.

    **Raises:** `NonFiniteLogitsError` where the row holds NaN.
    """
    return peak_tokens(logits)(0)


def peak_tokens(logits: Tensor) -> Callable[[int], int]:
    """The most likely token of any row of (n, V), the first of equals. On the host.

    On a CPU a row is looked at when asked for; on an accelerator all are at once, with one copy to the host.

    **Raises:** `NonFiniteLogitsError`, when a row is asked for that holds NaN.
    """
    if logits.device.type != "cpu":
        peak, index = logits.max(dim=-1)
        best = torch.where(peak.isnan(), -1, index).tolist()
        return lambda row: _found(best[row])
    # NumPy's argmax is three to fifty times faster here, with the same ties and NaN.
    logits = logits.detach() if logits.requires_grad else logits
    rows = logits.numpy() if logits.dtype == torch.float32 else None
    bits = logits.view(torch.int16).numpy() if logits.dtype in _INFINITY else None

    def peak_of(row: int) -> int:
        if bits is not None and (token := _peak_of_bits(bits[row], _INFINITY[logits.dtype])) >= 0:
            return token
        scores = rows[row] if rows is not None else logits[row].float().numpy()
        token = int(scores.argmax())
        return _found(token if scores[token] == scores[token] else -1)

    return peak_of


def _peak_of_bits(bits: npt.NDArray[np.int16], infinity: int) -> int:
    """The first most likely token by a half-precision row's bits, without widening it; -1 where they do not tell.

    Numbers above zero are in the order of their bits; a NaN lies beyond an infinity.
    """
    token = int(bits.argmax())
    tells = 0 < bits[token] <= infinity and bits.view(np.uint16).max() <= infinity + 2**15
    return token if tells else -1


def _found(token: int) -> int:
    if token < 0:
        raise NonFiniteLogitsError(
            "the target returned NaN logits, so no token can be chosen; load the model in float32 "
            "or check its weights"
        )
    return token

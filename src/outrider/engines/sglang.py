"""SGLang's plugin: a candidate generator as the drafts of its n-gram path. Written against 0.5.23; not run on a GPU.

    OUTRIDER=suffix sglang serve MODEL --speculative-algorithm OUTRIDER --speculative-num-draft-tokens 12

The entry point `sglang.srt.plugins` calls `register`. SGLang's own worker verifies, keeps the cache and the
graphs; only where its drafts come from is replaced. Its width is fixed: short drafts are padded.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from outrider.contract import CandidateGenerator
from outrider.control import Fixed
from outrider.drafting import ask, propose
from outrider.engines._spec import DEFAULT, generator_for
from outrider.errors import OptionError
from outrider.types import Candidates, Context, Ids, Verification

NAME = "OUTRIDER"
BUILT_FOR = "0.5.23"
_INT32 = 2**31
_PARAMETERS = {
    "register": ["name", "supports_overlap", "validate_server_args", "spec_class"],
    "_prepare_draft_tokens": ["self", "batch"],
    "_update_ngram_corpus": ["self", "batch"],
}


def changed_parameters(functions: dict[str, Callable[..., Any]]) -> list[str]:
    """What is not as in the SGLang this was written for, a phrase each."""
    found = []
    for name, function in functions.items():
        has = [parameter for parameter in inspect.signature(function).parameters if parameter != "cls"]
        if has != _PARAMETERS[name]:
            found.append(f"{name} takes ({', '.join(has)}), not ({', '.join(_PARAMETERS[name])})")
    return found


def register() -> None:
    """Register the algorithm `OUTRIDER`. SGLang calls it in each of its processes.

    **Raises:** `OptionError` where the generator in the environment's `OUTRIDER` cannot run here, or SGLang's
    interface has changed.
    """
    spec = os.environ.get("OUTRIDER", DEFAULT)
    generator_for("SGLang", spec)
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    _refuse_changes({"register": SpeculativeAlgorithm.register})

    class Algorithm(CustomSpecAlgo):
        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def carries_draft_hidden_states(self) -> bool:
            return False

        def need_topk(self) -> bool:
            return False

        def create_future_map(self, device: Any, pool: Any, *flags: bool, **named: bool) -> Any:
            from sglang.srt.managers.overlap_utils import FutureMap

            return FutureMap(device, self, pool, *flags, **named)

        def handle_server_args(self, server_args: Any) -> None:
            from sglang.srt.arg_groups.speculative_hook import _handle_ngram

            _handle_ngram(server_args)

    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=Algorithm)(
        lambda server_args: _worker_class(spec)
    )


def _refuse_changes(functions: dict[str, Callable[..., Any]]) -> None:
    changes = changed_parameters(functions)
    if changes:
        raise OptionError(
            f"this SGLang's interface differs from {BUILT_FOR}'s: {'; '.join(changes)}; install sglang=={BUILT_FOR}"
        )


def _worker_class(spec: str) -> Any:
    """SGLang's n-gram worker with another source of drafts."""
    from sglang.srt.speculative.ngram_worker import NGRAMWorker

    _refuse_changes({name: getattr(NGRAMWorker, name) for name in list(_PARAMETERS)[1:]})

    class Worker(NGRAMWorker):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._drafts = Drafts(spec, self.draft_token_num, int(self.model_runner.model_config.vocab_size))

        def clear_cache_pool(self) -> None:
            super().clear_cache_pool()
            self._drafts.keep_only(())

        def _prepare_draft_tokens(self, batch: Any) -> tuple[Any, Any]:
            texts = [
                np.concatenate(
                    [np.asarray(request.origin_input_ids_unpadded), np.asarray(request.output_ids), new]
                )
                for request, new in zip(batch.reqs, self._unprocessed(batch), strict=True)
            ]
            names = [request.rid for request in batch.reqs]
            return self._drafts.prepare(names, [text.astype(np.int64) for text in texts])

        def _unprocessed(self, batch: Any) -> list[Ids]:
            """Each row's tokens of the last round, where overlap has them not yet in `output_ids`."""
            if not self.enable_overlap or batch.grammar_needs_sync():
                return [np.empty(0, np.int64)] * len(batch.reqs)
            info = batch.spec_info
            counts = info.accept_lens.cpu().numpy()
            tokens, width = info.accept_tokens.cpu().numpy().reshape(-1), self.draft_token_num
            return [tokens[row * width : row * width + count] for row, count in enumerate(counts)]

        def _update_ngram_corpus(self, batch: Any) -> None:
            """Nothing: the drafts learn from the texts themselves."""

    return Worker


@final
class Drafts:
    """A generator a request, and their candidates in the arrays that SGLang's n-gram path verifies.

    **Arguments:**

    - `spec`: As `generator_for` takes it.
    - `width`: Nodes a row, the last committed token included.
    - `vocab_size`: Other ids are dropped.
    """

    def __init__(self, spec: Any, width: int, vocab_size: int = _INT32) -> None:
        self._first = generator_for("SGLang", spec)
        self.width = width
        self.vocab_size = vocab_size
        self._requests: dict[str, tuple[CandidateGenerator, int, Candidates]] = {}

    def keep_only(self, names: Sequence[str]) -> None:
        """Drop the state of every other request."""
        self._requests = {name: self._requests[name] for name in names if name in self._requests}

    def prepare(
        self, names: Sequence[str], texts: Sequence[Ids]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Draft for each request's text so far.

        **Returns:** (rows * width,) int64 tokens, node 0 of a row its last token, padding token 0 under it; and
        (rows * width * width,) bool, whether node j is node i or above it.
        """
        self.keep_only(names)
        tokens = np.zeros((len(names), self.width), np.int64)
        mask = np.zeros((len(names), self.width, self.width), bool)
        mask[:, :, 0] = mask[:, range(self.width), range(self.width)] = True
        for row, (name, text) in enumerate(zip(names, texts, strict=True)):
            candidates = self._candidates(name, text)
            tokens[row, 0] = text[-1]
            tokens[row, 1 : len(candidates) + 1] = candidates.tokens
            for node, parent in enumerate(candidates.parents):
                mask[row, node + 1] |= mask[row, parent + 1]
        return tokens.reshape(-1), mask.reshape(-1)

    def _candidates(self, name: str, text: Ids) -> Candidates:
        generator, length, last = self._requests.get(name) or (self._first.fork(), 0, Candidates.empty())
        if length == 0 or text.size < length:
            ask(generator, "reset", text)
        elif text.size > length:
            ask(generator, "update", _outcome(last, text[length:]))
        context = Context(text, text.size)
        candidates = propose(
            generator,
            context,
            self.width - 1,
            Fixed(self.width - 1),
            vocab_size=self.vocab_size,
            trees=True,
        )
        self._requests[name] = generator, text.size, candidates
        return candidates


def _outcome(candidates: Candidates, committed: Ids) -> Verification:
    """What the text says of the last candidates."""
    path: list[int] = []
    above = -1
    for node, (token, parent) in enumerate(zip(candidates.tokens, candidates.parents, strict=True)):
        if parent == above and len(path) < committed.size - 1 and token == committed[len(path)]:
            path.append(node)
            above = node
    return Verification(committed, len(path), candidates, np.asarray(path, np.int64))

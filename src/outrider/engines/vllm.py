"""vLLM's hook for drafts from outside, `method: custom_class`, filled by any generator that needs ids alone.

    vllm serve MODEL --speculative-config '{"model": "outrider.engines.vllm.Proposer", "num_speculative_tokens": 16}'

vLLM verifies and samples; nothing here can change a text.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from outrider.engines._drafting import Drafting
from outrider.engines._spec import generator_for
from outrider.engines._vllm_hook import check_hook
from outrider.errors import OptionError, UnsupportedModelError

_LOG = logging.getLogger("vllm.outrider")  # under vLLM's own logger, so that its settings hold

ENVIRONMENT = "OUTRIDER"


@final
class Proposer:
    """Made by vLLM in the worker whose drafts it verifies, and called after every step of its batch.

    Which generator: `additional_config={"outrider": "suffix:max_depth=32"}`, or a mapping with `generator`,
    its options, and `force` (draft for hybrid models all the same); else the environment's `OUTRIDER`; else
    `suffix`, with no memory across requests.

    **Raises:** `OptionError` and `UnsupportedModelError`, before the model is loaded.
    """

    def __init__(self, vllm_config: Any) -> None:
        options = _options(vllm_config)
        force = bool(options.pop("force", False))
        check_hook()
        _refuse_hybrid(vllm_config.model_config, force)
        self._drafting = Drafting(
            generator_for("vLLM", options.pop("generator", None), **options),
            max_candidates=vllm_config.speculative_config.num_speculative_tokens,
            max_length=vllm_config.model_config.max_model_len,
            vocab_size=vllm_config.model_config.get_vocab_size(),
        )
        self._is_output_rank = _is_output_rank()
        self._metrics = _Metrics() if self._is_output_rank else None

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is no draft model; what compiles does so now, not at the first request."""
        if self._is_output_rank:
            self._drafting.warm_up()

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[Any],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Each row's candidates: at most `num_speculative_tokens`, [] where none pays."""
        if self._metrics is None:
            return [[] for _ in sampled_token_ids]
        drafts = self._drafting.step(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        self._metrics.show(self._drafting)
        return drafts


def _options(vllm_config: Any) -> dict[str, Any]:
    """The generator's specification and options, from the configuration or the environment."""
    given = getattr(vllm_config, "additional_config", None)
    own = given.get("outrider") if isinstance(given, Mapping) else None
    if own is None:
        own = os.environ.get(ENVIRONMENT) or {}
    if isinstance(own, str):
        return {"generator": own}
    if not isinstance(own, Mapping):
        raise OptionError(
            f"additional_config['outrider'] must be a generator's name or a mapping, not {own!r}"
        )
    return dict(own)


def _refuse_hybrid(model_config: Any, force: bool) -> None:
    recurrent = [
        what
        for what in ("is_hybrid", "is_attention_free", "has_inner_state")
        if getattr(model_config, what, False)
    ]
    if not recurrent:
        return
    message = (
        f"{getattr(model_config, 'model', 'the model')} has recurrent layers ({recurrent[0]}), and vLLM has "
        "corrupted the output of such models when a step brings no candidates for a row (vLLM issue 39273)"
    )
    if not force:
        raise UnsupportedModelError(
            f"{message}; serve it without a speculative configuration, or set "
            "additional_config={'outrider': {'force': true}}"
        )
    _LOG.warning("%s; drafting all the same, as was forced", message)


def _is_output_rank() -> bool:
    """Whether this worker's drafts are those that vLLM schedules: tensor-parallel rank 0 of its stage."""
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank()) == 0


@final
class _Metrics:
    """`outrider_*` beside vLLM's own metrics.

    They reach /metrics where PROMETHEUS_MULTIPROC_DIR is set, as `outrider serve` does: the worker is another
    process than the server.
    """

    def __init__(self) -> None:
        from prometheus_client import REGISTRY, Counter

        about = {
            "steps": "Steps of the batch that the hook saw.",
            "steps_asked": "Steps in which generators were asked.",
            "proposed": "Candidates proposed.",
            "accepted": "Candidates accepted.",
            "failed_requests": "Requests whose generator raised.",
            "seconds": "Seconds spent in the hook.",
        }
        known = getattr(REGISTRY, "_names_to_collectors", {})
        self._counters: dict[str, Any] = {}
        for name, text in about.items():
            full = f"outrider_{name}"
            self._counters[name] = known.get(full) or Counter(full, text)
        self._shown = dict.fromkeys(about, 0.0)

    def show(self, drafting: Drafting) -> None:
        for name, counter in self._counters.items():
            now = getattr(drafting.counts, name)
            if now > self._shown[name]:
                counter.inc(now - self._shown[name])
                self._shown[name] = now

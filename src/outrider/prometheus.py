"""Counters for Prometheus under vLLM's names, so that dashboards made for vLLM show Outrider too.

    import outrider.prometheus

    decoding = outrider.AssistedDecoding()
    outrider.prometheus.watch(decoding, model_name="my-model")

They are read from `decoding.stats` when they are asked for, and cost the loop nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, final

from outrider.errors import OptionError
from outrider.stats import Stats

_COUNTERS = {
    "vllm:spec_decode_num_drafts": ("num_drafts", "Rounds that had candidates."),
    "vllm:spec_decode_num_draft_tokens": ("num_candidates", "Candidates verified."),
    "vllm:spec_decode_num_accepted_tokens": ("num_accepted", "Candidates accepted."),
    "vllm:generation_tokens": ("num_committed", "New tokens, the target's own included."),
}
_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


class HasStats(Protocol):
    """What is watched: an `AssistedDecoding`."""

    stats: Stats


def watch(decoding: HasStats, *, model_name: str, engine: str = "0", registry: Any = None) -> Any:
    """Register the counters of `decoding`.

    **Arguments:**

    - `model_name`, `engine`: The labels that vLLM's counters have.
    - `registry`: prometheus_client's; None: its global one.

    **Returns:** the collector, for `registry.unregister`.

    **Raises:** `OptionError` where prometheus_client is not installed.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise OptionError(
            "counters for Prometheus need prometheus_client; run: pip install 'outrider[metrics]'"
        ) from error
    collector = StatsCollector(decoding, {"model_name": model_name, "engine": engine})
    (registry or REGISTRY).register(collector)
    return collector


@final
class StatsCollector:
    """prometheus_client's contract: a collector of what `decoding.stats` holds now."""

    def __init__(self, decoding: HasStats, labels: dict[str, str]) -> None:
        self._decoding, self._labels = decoding, labels

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        stats, values = self._decoding.stats, list(self._labels.values())
        for name, (field, text) in _COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=list(self._labels))
            family.add_metric(values, getattr(stats, field))
            yield family
        family = CounterMetricFamily(
            _BY_POSITION, "Accepted candidates by depth, the first is 0.", labels=[*self._labels, "position"]
        )
        for position, count in enumerate(list(stats.accepted_by_depth)):
            family.add_metric([*values, str(position)], count)
        yield family

"""What a running program shows of itself: merged stats, Prometheus counters, log lines, profiler ranges."""

import logging
import subprocess
import sys

import pytest
import torch
from prometheus_client import CollectorRegistry

import outrider
import outrider.prometheus
from outrider import decoding as loop
from outrider.errors import OptionError
from outrider.stats import Stats
from tests.tiny import prompt, tiny


def decode(decoding, seed=1):
    return tiny("llama").generate(
        prompt(seed=seed),
        custom_generate=decoding,
        max_new_tokens=24,
        do_sample=False,
        return_dict_in_generate=True,
    )


def test_counters_are_the_merged_stats_of_all_calls():
    registry, decoding = CollectorRegistry(), outrider.AssistedDecoding("prompt_lookup")
    outrider.prometheus.watch(decoding, model_name="tiny", registry=registry)
    each = []
    for seed in (1, 2):
        each.append(decode(decoding, seed).stats)
        total = Stats()
        for stats in each:
            total.merge(stats)
        assert decoding.stats.to_dict() == total.to_dict()
        assert decoding.stats.origins == each[-1].origins
        labels = {"model_name": "tiny", "engine": "0"}
        for name, value in {
            "vllm:spec_decode_num_drafts_total": total.num_drafts,
            "vllm:spec_decode_num_draft_tokens_total": total.num_candidates,
            "vllm:spec_decode_num_accepted_tokens_total": total.num_accepted,
            "vllm:generation_tokens_total": total.num_committed,
        }.items():
            assert registry.get_sample_value(name, labels) == value
        for position, count in enumerate(total.accepted_by_depth):
            found = registry.get_sample_value(
                "vllm:spec_decode_num_accepted_tokens_per_pos_total", labels | {"position": str(position)}
            )
            assert found == count
    assert total.num_committed == 48 and 0 < total.num_drafts <= total.num_rounds
    assert sum(total.accepted_by_depth) == total.num_accepted


def test_acceptance_by_position():
    stats = Stats(proposed_by_depth=[4, 2, 0], accepted_by_depth=[3, 1, 0])
    assert stats.acceptance_by_position == stats.to_dict()["acceptance_by_position"] == [0.75, 0.5, 0.0]


def test_without_prometheus_client_the_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(OptionError, match="metrics"):
        outrider.prometheus.watch(outrider.AssistedDecoding("none"), model_name="x")


def test_logging_tells_what_was_chosen_and_what_came_of_it(caplog):
    with caplog.at_level(logging.DEBUG, logger="outrider"):
        stats = decode(outrider.AssistedDecoding("prompt_lookup")).stats
    lines = [record.getMessage() for record in caplog.records]
    assert any("prompt_lookup" in line and "Fixed" in line and "GreedyVerifier" in line for line in lines)
    assert any(f"24 tokens in {stats.num_rounds} rounds" in line for line in lines)


def test_logging_is_silent_by_default():
    code = "import logging, outrider; logging.getLogger('outrider.generation').error('heard')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_profiler_ranges_open_and_close_around_every_phase(monkeypatch):
    class Ranges:
        def __init__(self):
            self.names, self.open = [], 0

        def range_push(self, name):
            self.open += 1
            self.names.append(name)

        def range_pop(self):
            self.open -= 1

    ranges = Ranges()
    monkeypatch.setattr(loop, "_NVTX", ranges)
    stats = decode(outrider.AssistedDecoding("prompt_lookup")).stats
    assert ranges.open == 0
    assert ranges.names.count("outrider.target") == stats.num_rounds
    assert {"outrider.prefill", "outrider.draft", "outrider.verify"} <= set(ranges.names)


def test_profiler_ranges_are_asked_for_by_the_environment():
    code = "import outrider.decoding as loop; print(loop._NVTX is not None)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"OUTRIDER_NVTX": "1", "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.stdout.strip() == str(torch.cuda.is_available())

"""Lines of a bench result, made up for tests of what reads them."""

from typing import Any

from outrider.bench.records import Contestant, Header, Measurement
from outrider.stats import Stats

HEADER = Header(
    versions={"outrider": "0.1.0"}, machine="Linux x86_64", device="some CPU", device_type="cpu", threads=1,
    dtype="float32", model="tiny", num_parameters=1000, data="builtin", num_questions=2,
    settings={"max_new_tokens": 8}, contestants=(Contestant("plain", "transformers", True), Contestant("auto", "outrider")),
    baseline="plain", seed=None, git="", command="outrider bench", date="2026-12-01T05:00:00+00:00",
    forward_times={1: 0.01, 8: 0.02}, lossy=False,
)  # fmt: skip


def stats(**counts: Any) -> dict[str, Any]:
    """What `Measurement.stats` holds."""
    held = Stats(**counts).to_dict()
    del held["origins"]
    return held


def measurement(contestant: str = "auto", **changes: Any) -> Measurement:
    """A measurement of 4 tokens in 0.3 s."""
    held: dict[str, Any] = {
        "contestant": contestant, "category": "chat", "question_id": "1", "turn": 1, "batch": 1, "repeat": 1,
        "num_prompt": 5, "prefill_s": 0.1, "decode_s": 0.2, "num_new_tokens": 4,
        "token_ids": ((1, 2, 3, 4),), "text_sha256": "ab", "stats": stats() if contestant == "auto" else None,
        "accepted_by_source": {}, "same_as_baseline": None, "first_difference": None, "logit_gap": None,
        "peak_memory_bytes": 1,
    }  # fmt: skip
    return Measurement(**held | changes)

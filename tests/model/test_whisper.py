"""Whisper tiny reads three spoken sentences: assisted, the transcript is the unassisted one, in fewer forwards."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import AssistedDecoding
from tests.model import whisper

WORDS = ("boat crossed the wide river", "the captain walks along the", "rain tomorrow in the north")
NAMES = ("boat", "captain", "weather")

# transformers' own message about Whisper's own settings.
pytestmark = [
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def loaded() -> Any:
    return whisper.load()


def drafters(model: Any) -> dict[str, dict[str, Any]]:
    return {
        "prompt lookup": {"prompt_lookup_num_tokens": 6},
        "early exit": {"assistant_early_exit": 3},
        "its own assistant": {"assistant_model": model},
    }


def read(
    loaded: Any, drafter: str | None, *names: str, gap_s: float = 0.0, **options: Any
) -> tuple[str, int]:
    """The transcript, and how many forwards of the whole decoder it took."""
    model, tokenizer, extractor = loaded
    sound = whisper.sound(*names, gap_s=gap_s)
    if sound.size > 30 * whisper.RATE:
        inputs = extractor(
            sound, sampling_rate=whisper.RATE, return_tensors="pt", truncation=False, padding="longest",
            return_attention_mask=True,
        )  # fmt: skip
    else:
        inputs = extractor(sound, sampling_rate=whisper.RATE, return_tensors="pt")
    if drafter is not None:
        decoding = AssistedDecoding(**drafters(model)[drafter])
        ids = model.generate(**inputs, custom_generate=decoding, **options)
        num_forwards = decoding.stats.num_prefills + decoding.stats.num_rounds
        return tokenizer.decode(ids[0], skip_special_tokens=True), num_forwards
    calls: list[int] = []
    hook = model.model.decoder.register_forward_hook(lambda *_: calls.append(1))
    ids = model.generate(**inputs, **options)
    hook.remove()
    return tokenizer.decode(ids[0], skip_special_tokens=True), len(calls)


def test_short_sound(loaded: Any) -> None:
    plain, num_plain = read(loaded, None, *NAMES)
    assert all(words in plain for words in WORDS)
    for drafter, fewest in {"prompt lookup": 0, "early exit": 1, "its own assistant": num_plain // 3}.items():
        text, num_forwards = read(loaded, drafter, *NAMES)
        assert text == plain, drafter
        assert num_forwards <= num_plain - fewest, (drafter, num_forwards, num_plain)


def test_long_sound_in_segments(loaded: Any) -> None:
    options: dict[str, Any] = {"return_timestamps": True, "condition_on_prev_tokens": True}
    names = NAMES * 3
    plain, num_plain = read(loaded, None, *names, gap_s=0.4, **options)
    assert all(words in plain for words in WORDS)
    for drafter in drafters(loaded[0]):
        text, num_forwards = read(loaded, drafter, *names, gap_s=0.4, **options)
        assert text == plain, drafter
        assert num_forwards < num_plain, (drafter, num_forwards, num_plain)

"""Metrics on results whose numbers are known."""

import pytest

from outrider.bench.metrics import acceptance_by_position, interval, speedups, summaries, summarize
from outrider.bench.records import Results
from tests.bench.lines import HEADER, measurement, stats


def results(*lines):
    return Results(HEADER, lines, ())


def test_speedup_is_the_ratio_of_each_question_then_the_mean():
    held = results(
        measurement("plain", question_id="1", prefill_s=0.0, decode_s=1.0),
        measurement("auto", question_id="1", prefill_s=0.0, decode_s=0.25),
        measurement("plain", question_id="2", prefill_s=0.0, decode_s=2.0, num_new_tokens=40),
        measurement("auto", question_id="2", prefill_s=0.0, decode_s=1.0, num_new_tokens=40),
        measurement("plain", question_id="3", prefill_s=0.0, decode_s=9.0),
    )
    assert speedups(held, "auto") == pytest.approx({("1", 1): 4.0, ("2", 1): 2.0})
    summary = summarize(held, "auto", batch=1)
    assert summary is not None and summary.speedup is not None
    assert summary.speedup.value == pytest.approx(3.0)
    assert (summary.speedup.low, summary.speedup.high) == pytest.approx((2.0, 4.0))
    assert summary.worst_speedup == pytest.approx(2.0)
    assert summarize(held, "plain", batch=1).speedup.value == pytest.approx(1.0)


def test_a_question_is_the_median_of_its_repeats_and_the_sum_of_its_turns():
    held = results(
        *(
            measurement("auto", repeat=repeat, turn=turn, prefill_s=0.0, decode_s=seconds)
            for repeat, seconds in ((1, 1.0), (2, 2.0), (3, 50.0))
            for turn in (1, 2)
        )
    )
    assert summarize(held, "auto", batch=1).tokens_per_s.value == pytest.approx(8 / 4)


def test_decoding_alone_leaves_out_the_prompt_and_each_rows_first_token():
    held = results(
        measurement("auto", batch=4, token_ids=((1,), (2,)), num_new_tokens=10, prefill_s=5.0, decode_s=2.0)
    )
    assert summarize(held, "auto", batch=4).decode_tokens_per_s.value == pytest.approx(4.0)


def test_mat_acceptance_and_sameness_count_every_round():
    held = results(
        measurement(
            stats=stats(
                num_rounds=2,
                num_prefills=1,
                num_committed=7,
                num_candidates=8,
                num_accepted=4,
                proposed_by_depth=[4, 4],
                accepted_by_depth=[3, 1],
            ),
            same_as_baseline=True,
        ),
        measurement(
            repeat=2,
            stats=stats(
                num_rounds=4,
                num_prefills=1,
                num_committed=7,
                num_candidates=2,
                num_accepted=1,
                proposed_by_depth=[2],
                accepted_by_depth=[1],
            ),
            same_as_baseline=False,
            first_difference=3,
            logit_gap=0.1,
        ),
    )
    summary = summarize(held, "auto", batch=1)
    assert summary.mat == pytest.approx(12 / 6)
    assert summary.acceptance_rate == pytest.approx(0.5)
    assert acceptance_by_position(held.measurements) == pytest.approx((4 / 6, 1 / 4))
    assert summary.identical == 0.5 and summary.largest_gap == 0.1


def test_the_interval_holds_the_value_and_narrows_with_more_of_them():
    few, many = interval([1.0, 2.0, 3.0]), interval([1.0, 2.0, 3.0] * 30)
    assert few.low <= few.value <= few.high
    assert many.high - many.low < few.high - few.low


def test_categories_and_batches_are_apart():
    held = results(
        measurement("plain"), measurement("auto"), measurement("auto", category="code", question_id="2"),
        measurement("auto", batch=8, question_id="3"),
    )  # fmt: skip
    found = {(s.contestant, s.batch, s.category) for s in summaries(held, by_category=True)}
    assert found == {("plain", 1, "chat"), ("auto", 1, "chat"), ("auto", 1, "code"), ("auto", 8, "chat")}

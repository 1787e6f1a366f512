"""A report says what its result says, whatever strings that holds."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from outrider.bench.change import changes
from outrider.bench.metrics import summaries
from outrider.report.charts import to_svg
from outrider.report.doctor import MATS, charts, doctor_page
from outrider.report.result import ideal_speedup, sections
from outrider.report.result_page import markdown, pictures, result_page
from tests.report.results import CATEGORIES, header, results


def test_the_sentence_holds_the_metrics_own_numbers() -> None:
    held = results()
    (section,) = sections(held)
    fastest = next(one for one in summaries(held) if one.contestant == "auto")
    assert fastest.speedup is not None
    assert f"{fastest.speedup.value:.2f} times as fast with auto as with transformers" in section.sentence
    assert f"{fastest.speedup.low:.2f} to {fastest.speedup.high:.2f}, 32 questions" in section.sentence
    assert "The texts are the same." in section.sentence


def test_no_sentence_claims_what_is_not_clear() -> None:
    slow = dict.fromkeys(("none", "prompt_lookup", "auto"), 0.5)
    assert "is slower" in sections(results(paces=slow))[0].sentence
    level = dict.fromkeys(("none", "prompt_lookup", "auto"), 1.0)
    assert "neither faster nor slower" in sections(results(paces=level))[0].sentence
    few = results(per_category=1, categories=("chat",))
    assert "too few for an interval" in sections(few)[0].sentence


def test_tables_and_charts_hold_every_contestant_and_category() -> None:
    (section,) = sections(results())
    assert [row[0].text for row in section.overall.rows] == ["transformers", "none", "prompt_lookup", "auto"]
    assert section.by_category is not None
    assert [row[0].text for row in section.by_category.rows] == list(CATEGORIES)
    assert [chart.name for chart in section.charts] == ["speedup", "acceptance", "phases", "ideal"]
    assert all(len(row) == len(section.overall.columns) for row in section.overall.rows)


def test_a_chart_is_two_whole_svgs_with_every_bar() -> None:
    charts = {chart.name: chart for chart in sections(results())[0].charts}
    for name, num_marks in (("speedup", 9 * 3), ("acceptance", 2), ("phases", 3 * 4), ("ideal", 3 * 2)):
        markup = to_svg(charts[name])
        wide, narrow = ElementTree.fromstring(f"<figure>{markup}</figure>")
        for svg in (wide, narrow):
            assert svg.get("role") == "img" and svg.get("aria-label")
        assert markup.count('class="mark"') == 2 * num_marks
        assert not re.search(r"#0101", markup) and "var(--ink)" in markup
        ids = re.findall(r' id="([^"]+)"', markup)
        assert len(ids) == len(set(ids))


def test_the_ideal_is_mat_over_what_a_forward_costs() -> None:
    times = {1: 0.1, 4: 0.12, 16: 0.2}
    assert ideal_speedup(times, 1.0, 0.0) == pytest.approx(1.0)
    assert ideal_speedup(times, 3.0, 3.0) == pytest.approx(3.0 * 0.1 / 0.12)
    assert ideal_speedup(times, 3.0, 9.0) == pytest.approx(3.0 * 0.1 / 0.16)


def test_a_real_change_is_told_from_noise() -> None:
    before, noise, better = results(0), results(1), results(2, {"auto": 2.6})
    assert {one.verdict for one in changes(before, noise)} == {"noise"}
    verdicts = {one.contestant: one.verdict for one in changes(before, better)}
    assert verdicts == {"none": "noise", "prompt_lookup": "noise", "auto": "faster"}
    assert {one.contestant: one.verdict for one in changes(better, before)}["auto"] == "slower"
    page = result_page([("before", before), ("after", better)])
    assert "auto is faster" in page and "2 others did not change beyond noise." in page


def test_noise_is_seldom_called_a_change() -> None:
    calls = [one.verdict for seed in range(40) for one in changes(results(seed), results(100 + seed))]
    assert sum(verdict != "noise" for verdict in calls) <= 0.12 * len(calls)


HOSTILE = """</script><script>alert(1)</script><img src=x onerror="alert(1)">' $x^2$ | \n{{ 7*7 }}"""


def test_no_string_of_a_file_becomes_markup() -> None:
    def spoil(name: str) -> str:
        return name + HOSTILE

    held = results(per_category=1, categories=tuple(map(spoil, CATEGORIES)))
    contestants = tuple(dataclasses.replace(one, name=spoil(one.name)) for one in held.header.contestants)
    spoilt = dataclasses.replace(
        held,
        header=header(
            contestants=contestants, baseline=spoil("transformers"), model=HOSTILE, device=HOSTILE, command=HOSTILE,
            settings={HOSTILE: HOSTILE}, versions={HOSTILE: HOSTILE}, git=HOSTILE, date=HOSTILE, data=HOSTILE,
        ),
        measurements=tuple(dataclasses.replace(line, contestant=spoil(line.contestant)) for line in held.measurements),
        failures=tuple(dataclasses.replace(line, contestant=spoil(line.contestant), reason=HOSTILE) for line in held.failures),
    )  # fmt: skip
    page = result_page([(HOSTILE, spoilt), ("other", spoilt)])
    assert "<img" not in page and "alert(1)</script>" not in page and "{{" in page
    assert page.count("<script>") == 1
    written = markdown(spoilt)
    assert "<img" not in written and "<script" not in written
    table = [line for line in written.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table[:6]}) == 1


def test_a_page_needs_no_network() -> None:
    page = result_page([("one", results())])
    assert all(
        target.startswith(("#", "data:"))
        for target in re.findall(r"(?:src|href)=(\S+)", page.replace('="', "="))
    )
    assert "url(http" not in page and "@import" not in page


def test_pictures_are_pngs(tmp_path: Path) -> None:
    written = pictures(results(per_category=1), tmp_path / "pictures")
    assert [path.name for path in written] == ["speedup.png", "acceptance.png", "phases.png", "ideal.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_doctor_draws_what_was_measured() -> None:
    seconds = {1: 0.1, 4: 0.11, 16: 0.2, 64: 0.6}
    costs, gains = charts(seconds)
    assert "100.0 ms over 1" in costs.alt and "600.0 ms over 64" in costs.alt
    assert "MAT 3: 2.81 times at 3 tokens, 0.50 at 64" in gains.alt
    page = doctor_page(HOSTILE, seconds, [(HOSTILE, HOSTILE)])
    assert "<img" not in page and page.count('class="mark"') == 2 * (2 + len(MATS))

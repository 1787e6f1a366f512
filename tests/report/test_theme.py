"""Colours are legible in light and in dark."""

from __future__ import annotations

import pytest

from outrider.report.theme import ROLES, SERIES, contrast


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("ground", ["ground", "panel"])
def test_text_and_marks_stand_out(dark: bool, ground: str) -> None:
    for role in ("ink", "muted", "series-1"):
        assert contrast(ROLES[role][dark], ROLES[ground][dark]) >= 4.5, role
    for role in (*SERIES, "plain"):
        assert contrast(ROLES[role][dark], ROLES[ground][dark]) >= 3.0, role

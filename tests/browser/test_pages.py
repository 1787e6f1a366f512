"""The pages in headless Chromium: `make test-browser`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.report.doctor import doctor_page
from outrider.report.result_page import result_page
from outrider.report.theme import ROLES, contrast
from outrider.report.trace import parse_trace
from outrider.report.trace_page import trace_page
from tests.report.results import CATEGORIES, results
from tests.report.test_trace import traced

pytestmark = pytest.mark.browser

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "result": result_page([("one", results())]),
        "comparison": result_page([("one", results()), ("other", results(1, {"auto": 2.6}))]),
        "trace": trace_page(parse_trace(traced(budget=4)[1], "lines")),
        "doctor": doctor_page("A model", {1: 0.1, 4: 0.11, 16: 0.2, 64: 0.6}),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


class Opened:
    """A page that was opened, and what it complained of or asked the network for."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, *_: object) -> None:
        self.context.close()
        assert self.complaints == []
        assert [url for url in self.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("name", ["result", "comparison", "trace", "doctor"])
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_opens_fits_and_is_legible(
    browser: Any, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    with Opened(browser, pages[name], width, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ground, ink = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        dark = scheme == "dark"
        assert (_hex(ground), _hex(ink)) == (ROLES["ground"][dark], ROLES["ink"][dark])
        texts = page.evaluate(
            "[...document.querySelectorAll('p, h1, h2, td, th, dt, dd, svg text')]"
            ".filter(e => e.textContent.trim() && e.getClientRects().length)"
            ".map(e => e.tagName === 'text' ? getComputedStyle(e).fill : getComputedStyle(e).color)"
        )
        assert texts
        assert min(contrast(_hex(colour), ROLES["ground"][dark]) for colour in set(texts)) >= 4.5


@pytest.mark.parametrize(("width", "shown"), [(1280, "wide"), (360, "narrow")])
def test_a_chart_has_its_bars(browser: Any, pages: dict[str, Path], width: int, shown: str) -> None:
    with Opened(browser, pages["result"], width) as page:
        chart = page.locator(f"figure[data-chart=speedup] svg.{shown}")
        assert chart.is_visible() and page.locator("figure[data-chart=speedup] svg:visible").count() == 1
        bars = chart.locator("g.mark path")
        assert bars.count() == 3 * (len(CATEGORIES) + 1)
        boxes = [bars.nth(number).bounding_box() for number in range(bars.count())]
        assert all(box["width"] > 20 and box["height"] > 3 for box in boxes)
        # auto is drawn third of each group, and is the fastest of it.
        assert all(boxes[at + 2]["width"] > boxes[at]["width"] for at in range(0, len(boxes), 3))
        titles = chart.locator("g.mark title").all_text_contents()
        assert titles[0].startswith("all, none: ") and "95% interval" in titles[0]


def _column(page: Any, number: int) -> list[str]:
    cells: list[str] = page.evaluate(
        "n => [...document.querySelector('[data-table=overall]').tBodies[0].rows].map(r => r.cells[n].textContent)",
        number,
    )
    return cells


def test_sorting_sorts_by_pointer_and_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["result"]) as page:
        heading = page.locator("[data-table=overall] thead th").nth(1)
        heading.locator("button").click()
        assert heading.get_attribute("aria-sort") == "descending"
        assert _column(page, 0) == ["auto", "prompt_lookup", "transformers", "none"]
        page.keyboard.press("Enter")
        assert heading.get_attribute("aria-sort") == "ascending"
        assert _column(page, 0)[::-1] == ["auto", "prompt_lookup", "transformers", "none"]
        page.locator("[data-table=overall] thead th button").first.click()
        assert _column(page, 0) == ["auto", "none", "prompt_lookup", "transformers"]
        assert page.locator("[data-table=overall] [aria-sort]").count() == 1
        # What has no value comes last, either way.
        mat = page.locator("[data-table=overall] thead th button").nth(6)
        for _ in range(2):
            mat.click()
            assert _column(page, 6)[-1] == "–"


def test_the_slider_moves_through_the_rounds(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["trace"]) as page:
        slider = page.locator("#slider")
        slider.focus()
        page.keyboard.press("Home")
        assert page.locator("#number").text_content() == "0"
        assert page.locator("#back").is_disabled() and not page.locator("#tree").is_visible()
        page.keyboard.press("ArrowRight")
        assert page.locator("#number").text_content() == "1"
        assert page.locator("#tree [role=treeitem]").count() == 4
        assert "6 proposed, 4 verified" in (page.locator("#said").text_content() or "")
        page.locator("#all").check()
        assert page.locator("#tree [role=treeitem]").count() == 6
        page.locator("#on").click()
        assert slider.input_value() == "2"
        page.locator(".token").last.click()
        assert slider.input_value() == slider.get_attribute("max")


def test_the_tree_is_walked_with_the_arrow_keys(browser: Any, pages: dict[str, Path]) -> None:
    with Opened(browser, pages["trace"]) as page:
        page.locator("#slider").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        items = page.locator("#tree [role=treeitem]")
        items.first.focus()
        assert "Proposed by known" in (page.locator(".detail[aria-live]").text_content() or "")
        shown = items.count()
        page.keyboard.press("ArrowLeft")
        assert items.first.get_attribute("aria-expanded") == "false"
        assert sum(item.is_visible() for item in items.all()) < shown
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.getAttribute('aria-level')") == "2"
        page.keyboard.press("End")
        assert "Proposed by wrong" in (page.locator(".detail[aria-live]").text_content() or "")
        assert page.locator("#tree [tabindex='0']").count() == 1


def _hex(colour: str) -> str:
    parts = [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    return "#" + "".join(f"{part:02x}" for part in parts)

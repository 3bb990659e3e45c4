"""The report in a real browser: it draws, it says its values, it needs nothing, it fits a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from journeyman.spark.report.axis import Axis
from journeyman.spark.report.page import Chart, Report, Section, Series, page
from tests.support.chromium import Chromium
from tests.support.report_pages import HOSTILE, MINUTE_NS, full_report, small_reports

POINTS = 120
WIDER_THAN_THE_WINDOW = (
    "document.documentElement.scrollWidth > document.documentElement.clientWidth"
)
COLOUR = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> str:
    return written(tmp_path_factory.mktemp("report"), page(full_report(POINTS)))


def written(directory: Path, text: str) -> str:
    path = directory / "report.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


def test_the_page_opens_from_a_file_and_asks_for_nothing_else(browser, report):
    browser.open(report)
    assert browser.complaints == []
    assert browser.requests == [report]
    assert browser.evaluate("document.title") == "orders.outgoing"


def test_every_chart_is_drawn_and_has_its_table(browser, report):
    browser.open(report)
    drawn = (
        "[...document.querySelectorAll('figure canvas')].map(c => c.width > 200 && c.height > 100)"
    )
    assert browser.evaluate(drawn) == [True] * 3
    # Something of the colour of the first series is on each canvas.
    inked = (
        "[...document.querySelectorAll('figure canvas')].map(c => {"
        " const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;"
        " for (let i = 0; i < p.length; i += 4)"
        " if (p[i + 3] > 200 && p[i] < 60 && p[i + 1] > 80) n++;"
        " return n > 50; })"
    )
    assert browser.evaluate(inked) == [True] * 3
    rows = "[...document.querySelectorAll('details table')].map(t => t.tBodies[0].rows.length)"
    assert browser.evaluate(rows) == [POINTS] * 3
    assert browser.evaluate("document.querySelectorAll('.bars tr').length") == 4


def test_keys_of_bars_have_their_colours(browser, report):
    browser.open(report)
    heights = (
        "[...document.querySelectorAll('.key rect')].map(r => r.getBoundingClientRect().height > 5)"
    )
    assert browser.evaluate(heights) == [True, True]


LEGEND = "[...document.querySelectorAll('figure')].map(f => f.querySelector('.u-legend').innerText)"


def test_pointing_and_arrow_keys_tell_the_values_of_all_charts(browser, report):
    browser.open(report)
    x, y = browser.evaluate(
        "(b => [b.x + b.width / 2, b.y + b.height / 2])"
        "(document.querySelector('.u-over').getBoundingClientRect())"
    )
    browser.point_at(x, y)
    first, *others = browser.evaluate(LEGEND)
    assert "2026-11-1" in first
    assert re.search(r"one\s*\d", first)
    assert all("2026-11-1" in each for each in others)  # one cursor
    browser.evaluate("document.querySelector('figure').focus()")
    browser.press("ArrowRight")
    assert browser.evaluate(LEGEND)[0] != first
    browser.press("Escape")
    assert "2026-11-1" not in browser.evaluate(LEGEND)[0]
    assert browser.complaints == []


def test_no_line_leads_through_a_stretch_in_which_nothing_was_measured(browser, tmp_path):
    minutes = tuple(at * MINUTE_NS for at in range(60))
    values = [None if 20 <= at < 40 else 10**9 for at in range(60)]
    percentiles = Chart("Wait", "", Axis(minutes, MINUTE_NS), [Series("50 %", values, "accent")],
                        "ns", "nested")  # fmt: skip
    sections = [Section("Quiet", "", (), [percentiles])]
    browser.open(written(tmp_path, page(Report("Quiet", 0, [], "", "good", sections))))
    # The share of columns that are inked in each third of the chart, without the axes.
    inked = (
        "(c => { const g = c.getContext('2d'), o = document.querySelector('.u-over'), r = c.width /"
        " c.clientWidth, left = o.offsetLeft * r, third = o.clientWidth * r / 3;"
        " return [0, 1, 2].map(n => { const d = g.getImageData(left + third * (n + 0.1),"
        " o.offsetTop * r + 40, third * 0.8, 60).data; let k = 0; for (let i = 0; i < d.length;"
        " i += 4) if (d[i + 3] > 200 && d[i] < 60 && d[i + 1] > 80) k++; return k > 200; }); })"
        "(document.querySelector('figure canvas'))"
    )
    assert browser.evaluate(inked) == [True, False, True]


def test_without_the_script_the_tables_tell_the_values(browser, report):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(report)
        assert browser.evaluate("document.querySelectorAll('details td').length") == 3 * 3 * POINTS
        assert browser.evaluate("document.querySelectorAll('canvas').length") == 0
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_window(browser, report, width, dark):
    browser.open(report, width=width, dark=dark)
    assert not browser.evaluate(WIDER_THAN_THE_WINDOW)
    assert browser.complaints == []


def test_dark_and_light_are_told_apart_and_text_stands_out_in_both(browser, report):
    brightness = (
        "((c) => { const [r, g, b] = c.match(/[0-9.]+/g).map(Number); return (r + g + b) / 3; })"
    )
    seen = {}
    for dark in (False, True):
        browser.open(report, dark=dark)
        ink = browser.evaluate(f"{brightness}(getComputedStyle(document.body).color)")
        seen[dark] = (browser.evaluate(f"{brightness}({COLOUR})"), ink)
    assert seen[False][0] - seen[False][1] > 150
    assert seen[True][1] - seen[True][0] > 150


def test_hostile_texts_are_shown_and_do_nothing(browser, tmp_path):
    address = written(tmp_path, page(full_report(5, HOSTILE)))
    browser.open(address, width=390)
    assert browser.complaints == []
    assert browser.requests == [address]
    assert browser.evaluate("document.images.length") == 0
    assert browser.evaluate("document.scripts.length") == 5  # two that run, and three charts
    assert browser.evaluate("document.title") == HOSTILE
    assert browser.evaluate("document.querySelector('header p').textContent") == HOSTILE
    assert not browser.evaluate(WIDER_THAN_THE_WINDOW)


@pytest.mark.parametrize("name", small_reports())
def test_reports_of_little_or_nothing_are_pages_too(browser, tmp_path, name):
    report = small_reports()[name]
    browser.open(written(tmp_path, page(report)), width=390)
    assert browser.complaints == []
    assert browser.evaluate("document.querySelector('header p').textContent") == report.title
    assert "NaN" not in browser.evaluate("document.documentElement.outerHTML")
    assert not browser.evaluate(WIDER_THAN_THE_WINDOW)

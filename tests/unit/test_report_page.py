"""The page of a report without a browser: what is in it, and what must never be."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.spark.report.charts import (
    chart_svg,
    column_unit,
    length,
    log_ticks,
    moment,
    shown,
    shown_in,
    tick_moment,
    time_ticks,
    value_ticks,
)
from journeyman.spark.report.page import Chart, Report, Section, Series, page
from tests.support.report_pages import HOSTILE, full_report, small_reports

MINUTE_NS = 60 * 10**9
DAY_NS = 24 * 60 * MINUTE_NS


class Tags(HTMLParser):
    """Every tag with its attributes, and whether they are closed as they should be."""

    VOID = ("meta", "line", "circle", "path", "rect", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID or (tag == "rect" and ("class", "hit") in attrs):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_stands_alone():
    text = page(full_report())
    found = Tags(text)
    assert found.open == []
    names = [tag for tag, _ in found.tags]
    assert (names.count("script"), names.count("style"), names.count("link")) == (1, 1, 0)
    for tag, attributes in found.tags:
        assert not {"src", "style", "onclick", "onload"} & attributes.keys(), tag
        assert (attributes.get("href") or "#").startswith("#")
    assert "http://" not in text
    assert "https://" not in text


def test_pictures_have_a_title_a_description_and_a_table():
    found = Tags(page(full_report(10)))
    pictures = [attributes for tag, attributes in found.tags if tag == "svg"]
    ids = {attributes.get("id") for _, attributes in found.tags}
    assert len(pictures) == 4
    for attributes in pictures:
        assert attributes["role"] == "img"
        assert set((attributes["aria-labelledby"] or "").split()) <= ids
    assert [tag for tag, _ in found.tags].count("details") == len(pictures)


def test_only_this_style_and_this_script_may_be_used():
    text = page(full_report(3))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'")
    assert "unsafe" not in policy[1]


@given(st.text(min_size=1) | st.just(HOSTILE))
def test_no_text_of_a_log_becomes_markup(text):
    plain = [tag for tag, _ in Tags(page(full_report(2, "plain"))).tags]
    assert [tag for tag, _ in Tags(page(full_report(2, text))).tags] == plain


@pytest.mark.parametrize("name", small_reports())
def test_little_or_nothing_makes_a_page(name):
    text = page(small_reports()[name])
    assert Tags(text).open == []
    assert "nan" not in text.partition("<body")[2].lower()


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ns", "-"),
        (0, "count", "0"),
        (1204, "count", "1,204"),
        (2.5, "count", "2.5"),
        (2_400_000, "count", "2,400,000"),
        (0, "ns", "0"),
        (350_000, "ns", "350 µs"),
        (1_300_000_000, "ns", "1.3 s"),
        (60 * 10**9, "ns", "1 min"),
        (DAY_NS * 3, "ns", "3 d"),
        (512, "bytes", "512 B"),
        (1843, "bytes", "1.8 KiB"),
        (2**30, "bytes", "1 GiB"),
    ],
)
def test_values_as_people_read_them(value, unit, text):
    assert shown(value, unit) == text


def lines(values: list[list[float | None]], unit: str = "ns", **more: Any) -> Chart:
    names = zip(("50 %", "99 %", "99.9 %"), ("teal", "violet", "red"), strict=True)
    series = [Series(name, each, tone) for each, (name, tone) in zip(values, names, strict=False)]
    times = [at * MINUTE_NS for at in range(len(values[0]))]
    return Chart("Wait", "", times, MINUTE_NS, series, unit, **more)


def ticks_of(picture: str) -> dict[str, float]:
    """Where the ticks of the vertical axis are, by their text."""
    found = re.findall(r'<text class="tick" x="574" y="([0-9.]+)">([^<]+)<', picture)
    return {text: float(y) - 4 for y, text in found}


def heights_of(picture: str, tone: str) -> list[float]:
    (path,) = re.findall(rf'<path class="line [^"]*{tone}" d="M([^"]+)"', picture)
    return [float(point.split()[1]) for point in path.split("L")]


def test_zero_has_a_place_of_its_own_on_a_logarithmic_axis():
    picture = chart_svg(lines([[0, 10_000, 50 * 10**9]], logarithmic=True))
    ticks, heights = ticks_of(picture), heights_of(picture, "teal")
    assert list(ticks)[:2] == ["0", "10 µs"]
    assert heights[:2] == [ticks["0"], ticks["10 µs"]]
    assert ticks["0"] > ticks["10 µs"] + 10
    without = chart_svg(lines([[10_000, 50 * 10**9]], logarithmic=True))
    assert "0" not in ticks_of(without)


def test_lines_that_coincide_are_all_to_be_seen():
    picture = chart_svg(lines([[1, 2], [5, 5], [5, 5]]))
    drawn = re.findall(r'class="line (width\d) (\w+)"', picture)
    # What is drawn first lies below: the widest.
    assert drawn == [("width2", "red"), ("width1", "violet"), ("width0", "teal")]


@pytest.mark.parametrize(
    ("values", "unit", "texts"),
    [
        ([300 * 10**6, 1800 * 10**6], "ns", ["0", "0.5 s", "1 s", "1.5 s", "2 s"]),
        ([90 * 2**10, 2 * 2**20], "bytes", ["0", "0.5 MiB", "1 MiB", "1.5 MiB", "2 MiB"]),
        ([50_000, 400_000], "count", ["0", "100 k", "200 k", "300 k", "400 k"]),
        ([50, 4_000], "count", ["0", "1,000", "2,000", "3,000", "4,000"]),
    ],
)
def test_an_axis_has_one_unit(values, unit, texts):
    assert list(ticks_of(chart_svg(lines([values], unit)))) == texts


def test_a_column_has_one_unit_in_which_nothing_vanishes():
    assert column_unit([12_000, None, 3 * 10**9], "ns") == (10**6, "ms")
    assert shown_in(12_000, (10**6, "ms")) == "0.012"
    assert shown_in(3 * 10**9, (10**6, "ms")) == "3,000"
    assert shown_in(None, (10**6, "ms")) == "-"
    assert column_unit([0, 0], "ns")[1] == "ns"
    text = page(report_of(lines([[12_000, 3 * 10**9]])))
    assert "50 %, ms</th>" in text
    assert ">3,000</td>" in text


def report_of(*charts: Chart) -> Report:
    return Report("R", 0, [], "", "good", [Section("S", "", (), charts)])


def test_buckets_that_are_not_whole_do_not_look_like_an_outage():
    values: list[float | None] = [3, 9, 9, 9, 1]
    whole = chart_svg(lines([values], "count"))
    assert "partial" not in whole
    assert "dashed" not in whole
    picture = chart_svg(lines([values], "count", partial=frozenset({0, 4})))
    solid, dashed = (
        re.findall(rf'<path class="line width0 teal{more}" d="M([^"]+)"', picture)
        for more in ("", " dashed")
    )
    assert [len(path.split("L")) for path in solid] == [3]
    assert [len(path.split("L")) for path in dashed] == [2, 2]
    assert picture.count('class="partial"') == 2
    bars = chart_svg(lines([values], "count", kind="bars", partial=frozenset({4})))
    assert bars.count(" pale") == 1
    assert "(partial)\n50 %: 1" in bars
    assert "(partial)</td>" in page(report_of(lines([values], "count", partial=frozenset({4}))))


@pytest.mark.parametrize("partial", [{0}, {1}, {0, 1}])
def test_two_buckets_of_which_one_is_not_whole_are_joined_by_a_dashed_line(partial):
    picture = chart_svg(lines([[3, 9]], "count", partial=frozenset(partial)))
    assert re.findall(r'class="line width0 teal( dashed)?"', picture) == [" dashed"]


def test_moments_and_lengths_in_words():
    assert moment(1_794_700_000 * 10**9) == "2026-11-14 23:46:40"
    assert moment(1_794_700_000_500_000_000) == "2026-11-14 23:46:40.500"
    assert moment(2**63 - 1).startswith("2262-04-11")
    assert length(5 * MINUTE_NS) == "5 minutes"
    assert length(DAY_NS) == "day"
    assert tick_moment(0, 10**6) == "00.000"
    assert tick_moment(0, 10**9) == "00:00:00"
    assert tick_moment(0, MINUTE_NS) == "00:00"
    assert tick_moment(0, DAY_NS) == "1 Jan"
    assert tick_moment(0, 60 * DAY_NS) == "Jan 1970"


@given(st.floats(1e-3, 1e18), st.sampled_from(["count", "ns", "bytes"]))
def test_ticks_are_few_and_reach_over_the_highest_value(highest, unit):
    ticks = value_ticks(highest, unit)
    assert ticks[0] == 0
    assert ticks[-1] >= highest * 0.999
    assert 2 <= len(ticks) <= 8


@given(st.floats(1, 1e17), st.floats(1, 1e4), st.sampled_from(["count", "ns"]))
def test_logarithmic_ticks_enclose_the_values(lowest, factor, unit):
    ticks = log_ticks(lowest, lowest * factor, unit)
    assert len(ticks) >= 2
    assert ticks[0] <= lowest * 1.001
    assert ticks == sorted(set(ticks))


@given(st.integers(0, 2**61), st.integers(0, 2**61))
def test_moments_on_an_axis_are_few_and_inside_it(first, span):
    ticks, step = time_ticks(first, first + span)
    assert len(ticks) <= 7
    assert all(first <= tick <= first + span and tick % step == 0 for tick in ticks)

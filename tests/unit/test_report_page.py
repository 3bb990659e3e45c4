"""The page of a report without a browser: what is in it, and what must never be."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.spark.report.axis import MOST_POINTS, Axis, axis_between, cut_gaps
from journeyman.spark.report.figures import DialectFigures, Week
from journeyman.spark.report.page import Bars, Chart, Report, Section, Series, Table, page
from journeyman.spark.report.sections import ENOUGH, compare_weeks, section_of
from journeyman.spark.report.units import (
    column_unit,
    format_in,
    format_length,
    format_moment,
    format_value,
)
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
        if tag not in self.VOID:
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
    charts = names.count("figure")
    assert (names.count("script"), names.count("style"), names.count("link")) == (2 + charts, 2, 0)
    for tag, attributes in found.tags:
        assert not {"src", "style", "onclick", "onload"} & attributes.keys(), tag
        assert (attributes.get("href") or "#").startswith("#")


def test_every_chart_has_its_values_and_a_table():
    text = page(full_report(10))
    found = [tag for tag, _ in Tags(text).tags]
    assert found.count("figure") == found.count("details") == 3
    for drawn in drawings(text):
        assert len(drawn["times"]) == 10
        assert [len(series["values"]) for series in drawn["series"]] == [10, 10]


def drawings(text: str) -> list[dict[str, Any]]:
    """What the script of a page draws."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return [json.loads(each) for each in found]


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
    assert format_value(value, unit) == text


def lines(
    values: list[float | None], unit: str = "ns", axis: Axis | None = None, **more: Any
) -> Chart:
    times = Axis(tuple(at * MINUTE_NS for at in range(len(values))), MINUTE_NS)
    return Chart("Wait", "", axis or times, [Series("50 %", values, "accent")], unit, **more)


def test_a_column_has_one_unit_in_which_nothing_vanishes():
    assert column_unit([12_000, None, 3 * 10**9], "ns") == (10**6, "ms")
    assert format_in(12_000, (10**6, "ms")) == "0.012"
    assert format_in(3 * 10**9, (10**6, "ms")) == "3,000"
    assert format_in(None, (10**6, "ms")) == "-"
    assert column_unit([0, 0], "ns")[1] == "ns"
    text = page(report_of(lines([12_000, 3 * 10**9])))
    assert "50&nbsp;%, ms</th>" in text
    assert ">3,000</td>" in text


def report_of(*charts: Chart) -> Report:
    return Report("R", 0, [], "", "good", [Section("S", "", (), charts)])


def test_buckets_that_are_not_whole_do_not_look_like_an_outage():
    axis = Axis((0, MINUTE_NS, 2 * MINUTE_NS), MINUTE_NS, partial=frozenset({2}))
    sums = page(report_of(lines([3, 9, 1], "count", axis, by_bucket=True)))
    assert drawings(sums)[0]["partial"] == [2]
    assert "(partial)</td>" in sums
    levels = page(report_of(lines([3, 9, 1], "count", axis)))
    assert drawings(levels)[0]["partial"] == []


def test_moments_and_lengths_in_words():
    assert format_moment(1_794_700_000 * 10**9) == "2026-11-14 23:46:40"
    assert format_moment(1_794_700_000_500_000_000) == "2026-11-14 23:46:40.500"
    assert format_moment(2**63 - 1).startswith("2262-04-11")
    assert format_length(5 * MINUTE_NS) == "5 minutes"
    assert format_length(DAY_NS) == "day"


def test_a_long_gap_is_cut_and_quiet_nights_are_not():
    days = [day * DAY_NS for day in (0, 1, 2, 400, 401)]
    assert cut_gaps(days, DAY_NS, 5, days[-1] + 7) == [
        (5, 3 * DAY_NS - 1),
        (400 * DAY_NS, days[-1] + 7),
    ]
    nights = [day * DAY_NS for day in range(7)]
    assert cut_gaps(nights, MINUTE_NS, 0, nights[-1]) == [(0, nights[-1])]


def test_one_old_record_does_not_squeeze_an_hour_into_a_point():
    """The first look is too coarse to tell an hour from a week, so there is a second one."""
    hour = [56 * 365 * DAY_NS + minute * MINUTE_NS for minute in range(60)]
    moments = [0, *hour]
    looks = []

    def busy(bucket_ns: int) -> set[int]:
        looks.append(bucket_ns)
        return {ns // bucket_ns * bucket_ns for ns in moments}

    axis = axis_between(moments[0], moments[-1], busy)
    assert axis.bucket_ns <= MINUTE_NS
    assert len(looks) <= 4
    assert len(axis.times_ns) <= MOST_POINTS
    assert axis.breaks == {1}
    buckets = {ns // axis.bucket_ns * axis.bucket_ns for ns in moments}
    assert buckets <= set(axis.times_ns)
    slots = list(axis.with_gaps(axis.times_ns))
    assert (slots[0], slots[1], slots[2]) == (0, None, axis.times_ns[1])
    assert [text for _, text in axis.ticks()][:2] == ["1 Jan 1970", "18 Dec 2025"]


@given(st.lists(st.integers(0, 2**61), min_size=1, max_size=30))
def test_every_moment_is_in_a_bucket_of_its_axis(moments):
    axis = axis_between(
        min(moments),
        max(moments),
        lambda bucket_ns: {ns // bucket_ns * bucket_ns for ns in moments},
    )
    assert {ns // axis.bucket_ns * axis.bucket_ns for ns in moments} <= set(axis.times_ns)
    assert list(axis.times_ns) == sorted(set(axis.times_ns))
    assert len(axis.times_ns) <= MOST_POINTS + 30
    ticks = axis.ticks()
    assert len(ticks) <= 12 + len(axis.breaks)
    assert all(0 <= place < len(axis.times_ns) + len(axis.breaks) for place, _ in ticks)


def test_queues_that_got_worse_are_named_and_come_first():
    second = 10**9
    steady = Week(1000, 10, second, 5 * second)
    few = Week(ENOUGH - 1, ENOUGH - 1, 9 * second, 9 * second)
    worse, (section,) = compare_weeks(
        {
            "workq steady": (steady, steady),
            "workq failing": (steady, Week(1000, 100, second, 5 * second)),
            "workq slow": (steady, Week(1000, 10, 13 * second // 10, 65 * second // 10)),
            "workq better": (steady, Week(1000, 1, second // 2, second)),
            "workq rare": (Week(ENOUGH - 1, 0, second // 10, second // 10), few),
        }
    )
    assert worse == ["workq failing (failures)", "workq slow (waits, runs)"]
    names = [row[0] for row in cast(Table, section.parts[0]).rows]
    assert names[:2] == ["workq failing", "workq slow"]
    assert len(names) == 5
    assert compare_weeks({}) == ([], [])


def test_errors_are_listed_where_the_log_knows_their_class():
    figures = DialectFigures("workq", {"failed": 3, "completed": 1}, failed=3, succeeded=1)
    figures.reasons = [("failed", "failed", 3)]
    assert "Errors" not in [part.title for part in section_of(figures).parts]
    figures.reasons = [("failed", "ValueError", 2), ("timed-out", "timed-out", 1)]
    (errors,) = [part for part in section_of(figures).parts if part.title == "Errors"]
    assert [row[0] for row in cast(Bars, errors).rows] == ["ValueError", "timed-out"]


def test_what_lies_outside_of_the_axis_does_not_stretch_it():
    """A plan of 1970 in a log of today once made an axis of more buckets than fit into memory."""
    day_ns = 86_400 * 10**9
    first, last = 19_000 * day_ns, 19_001 * day_ns
    axis = axis_between(first, last, lambda _: [0, first, last, 30_000 * day_ns])
    assert first - axis.bucket_ns < axis.times_ns[0] <= first
    assert last - axis.bucket_ns < axis.times_ns[-1] <= last
    assert len(axis.times_ns) <= MOST_POINTS

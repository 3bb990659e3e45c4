"""The page of a report without a browser: what is in it, and what must never be."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.spark.report.page import page
from journeyman.spark.report.wording import (
    length,
    log_ticks,
    moment,
    shown,
    tick_moment,
    time_ticks,
    value_ticks,
)
from tests.report_pages import HOSTILE, full_report, small_reports

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
        (2_400_000, "count", "2.4 M"),
        (0, "ns", "0 ns"),
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

"""Moments as people write them."""

from __future__ import annotations

import pytest

from journeyman.cli.output import MOMENT
from journeyman.cli.reading import iso
from journeyman.clock import SystemClock
from journeyman.moments import parse_moment

SECOND_NS = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("1794769251050695748", 1794769251050695748),
        ("-5", -5),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01", SECOND_NS),
        ("1970-01-01 00:00:01Z", SECOND_NS),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59Z", -SECOND_NS),
        ("1969-12-31T23:59:59.5Z", -SECOND_NS // 2),
        ("2026-11-15T19:00:51.050695748Z", 1794769251050695748),
        ("2026-11-15T19:00:51,050695748", 1794769251050695748),
        ("2026-11-15T20:00:51.05+01:00", 1794769251050000000),
    ],
)
def test_a_moment_is_nanoseconds_or_iso_8601(text, ns):
    assert parse_moment(text) == ns


def test_now_is_now():
    before = SystemClock().now_ns()
    assert before <= MOMENT.convert("now", None, None) <= SystemClock().now_ns()


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "12:00", "1e9", "2026-11-15T25:00:00Z"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_moment(text)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (1_500_000, "1970-01-01T00:00:00.001500Z"),
        (-SECOND_NS // 2, "1969-12-31T23:59:59.500Z"),
        (1794769251050695748, "2026-11-15T19:00:51.050695748Z"),
        (-62135596800 * SECOND_NS, "0001-01-01T00:00:00Z"),
        (10**22, "10000000000000000000000ns"),
        (-(10**22), "-10000000000000000000000ns"),
    ],
)
def test_a_moment_is_shown_with_the_digits_it_needs(ns, text):
    assert iso(ns) == text


@pytest.mark.parametrize("ns", [0, 1, 1794769251050695748, -1, 253402300799999999999])
def test_what_is_shown_can_be_given_again(ns):
    assert parse_moment(iso(ns)) == ns

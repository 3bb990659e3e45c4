"""Axes of the console's charts and of the trace of a job."""

from __future__ import annotations

import pytest

from journeyman.servers.http.console import shown
from journeyman.servers.http.console.charts import Line, LineChart
from journeyman.servers.http.console.shown import few_digits, local_time, milliseconds
from journeyman.servers.http.console.trace import trace_of
from journeyman.servers.http.v1.values import LogRecord
from journeyman.units import NS_PER_S


@pytest.mark.parametrize(
    ("longest_ms", "lines"),
    [
        (900, ("800 ms", "400 ms")),
        (38_000, ("40 s", "20 s")),
        (61_000, ("1 min", "30 s")),
        (1_170_000, ("20 min", "10 min")),
        (3 * 3600_000, ("4 h", "2 h")),
    ],
)
def test_the_lines_of_a_grid_stand_for_round_times(longest_ms: int, lines: tuple[str, str]):
    chart = LineChart("Wait", [Line("", [longest_ms])], milliseconds)
    assert tuple(tick.text for tick in reversed(chart.grid)) == lines
    assert chart.top >= longest_ms * 0.99


@pytest.mark.parametrize(("most", "lines"), [(0, ("4", "2")), (3, ("4", "2")), (9, ("8", "4"))])
def test_the_lines_of_a_grid_of_counts_are_whole_numbers(most: int, lines: tuple[str, str]):
    chart = LineChart("Failures", [Line("", [most])], shown.number)
    assert tuple(tick.text for tick in reversed(chart.grid)) == lines


@pytest.mark.parametrize(
    ("value", "text"), [(0.616, "0.62"), (1.05, "1.1"), (13.42, "13.4"), (1284.2, "1\u202f284")]
)
def test_a_rate_has_two_or_three_digits(value: float, text: str):
    assert few_digits(value) == text


def test_a_time_of_a_zone_is_as_on_a_clock_there():
    assert local_time("2026-11-20T02:00:00+01:00") == "Fri 20 Nov 02:00"
    assert local_time("2026-11-20T02:00:05Z") == "Fri 20 Nov 02:00:05"


@pytest.mark.parametrize(
    ("took_s", "ticks"),
    [(154, ["+30 s", "+1 min", "+1 min 30 s", "+2 min"]), (9.1, ["+2 s", "+4 s", "+6 s", "+8 s"])],
)
def test_the_ticks_of_a_trace_are_round_times(took_s: float, ticks: list[str]):
    begin = 1_795_000_000 * NS_PER_S
    drawn = trace_of(
        [
            record("add", begin),
            record("start-attempt", begin),
            record("complete", begin + int(took_s * NS_PER_S)),
        ],
        [],
        None,
        begin,
    )
    assert drawn is not None
    assert [text for _, text in drawn.ticks] == ticks


def record(kind: str, time_ns: int) -> LogRecord:
    return LogRecord("work", "1.log", 0, 1, kind, "", "", "", time_ns)

"""Timetables against a brute-force reading of their expressions, on the nights that matter."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.errors import TimetableError
from journeyman.protocols.ztick.commands import SetTimetable
from journeyman.protocols.ztick.grammar import (
    TIMETABLE_COMMANDS,
    fields_of,
    read_timetable,
    words_of,
)
from journeyman.protocols.ztick.parser import ZtickParser
from journeyman.protocols.ztick.replies import join
from journeyman.timetables import Timetable, occurrences_of
from journeyman.timetables.timetable import FIELDS
from tests.support.brute_cron import brute, jumps
from tests.support.effort import cases

# An hour at 02:00; half an hour; midnight, forward and back; two hours; the southern hemisphere.
ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Havana",
    "Antarctica/Troll",
    "America/Santiago",
)
NIGHTS = [(zone, jump) for zone in ZONES for jump in jumps(zone, 2027)]


def _list_of(item: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(item, min_size=1, max_size=3).map(",".join)


def _field(least: int, most: int, names: str = "") -> st.SearchStrategy[str]:
    number = st.integers(least, most).map(str)
    span = st.tuples(st.integers(least, most), st.integers(least, most)).map(
        lambda pair: f"{min(pair)}-{max(pair)}"
    )
    step = st.integers(1, 20).map(str)
    stepped = st.tuples(st.one_of(st.just("*"), span, number), step).map("/".join)
    choices = [number, span, stepped]
    if names:
        choices.append(st.sampled_from(names.split()))
    return st.one_of(st.just("*"), st.just("*"), _list_of(st.one_of(*choices)))


MINUTES = _field(0, 59)
HOURS = st.one_of(_field(0, 23), st.sampled_from(["0", "1", "2", "3", "0-3", "1,2", "*/2", "23"]))
DAYS = st.one_of(_field(1, 31), st.sampled_from(["L", "LW", "L,15"]))
MONTHS = _field(1, 12, "JAN mar OCT Nov")
WEEKDAYS = st.one_of(
    _field(0, 7, "SUN mon SAT"), st.sampled_from(["5L", "0L", "SUN#2", "7#4", "1-5", "sun#5,3"])
)
EXPRESSIONS = st.tuples(MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS).map(" ".join)


@pytest.mark.slow
@given(st.sampled_from(NIGHTS), EXPRESSIONS, st.integers(0, 1440))
@settings(max_examples=cases(200))
def test_a_night_when_the_clock_jumps(night, expression, lead_minutes):
    zone, jump = night
    begin, end = jump - timedelta(days=1), jump + timedelta(days=1)
    expected = brute(expression, zone, begin, end)
    try:
        timetable = Timetable.read({"cron": expression, "tz": zone})
    except TimetableError:
        assert expected == []
        return
    moment_s, end_s = int(jump.timestamp()) - 60 * lead_minutes, int(end.timestamp())
    found = occurrences_of(timetable).between(moment_s + 1, end_s + 1, 10_000)
    assert found == [at_s for at_s in expected if at_s > moment_s]


@pytest.mark.parametrize(("zone", "jump"), NIGHTS, ids=lambda value: str(value)[:19])
@pytest.mark.parametrize(
    "expression", ["30 2 * * *", "*/15 * * * *", "0 */2 * * *", "15,45 0-3 * * *"]
)
def test_from_every_minute_of_the_night(zone, jump, expression):
    """Wherever one begins to ask, the answer is the same list from there on."""
    begin, end = jump - timedelta(hours=4), jump + timedelta(hours=5)
    moments = brute(expression, zone, begin, end)
    occurrences = occurrences_of(Timetable.read({"cron": expression, "tz": zone}))
    for minute in range(0, 9 * 60, 7):
        moment_s = int(begin.timestamp()) + minute * 60
        following = [at_s for at_s in moments if at_s > moment_s]
        found = occurrences.after(moment_s)
        assert found is not None
        assert found == following[0] if following else found > end.timestamp()


@given(EXPRESSIONS, st.integers(0, 10**9), st.integers(1, 20), st.integers(0, 4 * 86_400))
@settings(max_examples=cases(100))
def test_the_last_ones_are_those_that_come_before(expression, until_s, count, span_s):
    until_s += 1_700_000_000
    try:
        occurrences = occurrences_of(Timetable.read({"cron": expression, "tz": "Europe/Paris"}))
    except TimetableError:
        return
    after_s = until_s - span_s
    every = occurrences.between(after_s + 1, until_s + 1, 10_000)
    assert occurrences.last(after_s, until_s, count) == every[-count:]


@given(st.integers(1, 10**6), st.integers(0, 2 * 10**9), st.integers(0, 2 * 10**9))
def test_intervals_count_from_their_anchor(every_s, anchor_s, moment_s):
    anchor = datetime.fromtimestamp(anchor_s, UTC).isoformat()
    timetable = Timetable.read({"every": every_s, "anchor": anchor, "tz": "Asia/Tokyo"})
    found = occurrences_of(timetable).after(moment_s)
    assert found is not None
    assert moment_s < found <= moment_s + every_s
    assert (found - anchor_s) % every_s == 0


@given(
    st.dictionaries(
        st.sampled_from(FIELDS),
        st.one_of(
            st.text(max_size=20),
            st.integers(),
            st.none(),
            st.booleans(),
            st.floats(),
            st.lists(st.text(max_size=5), max_size=3),
            st.sampled_from(["* * * * *", "5m", "2027-01-01", "12-24", "all", "queue", "1s,2,3s"]),
        ),
    )
)
@settings(max_examples=cases(300))
def test_whatever_is_written_is_read_back_or_refused(fields):
    try:
        timetable = Timetable.read(fields)
    except TimetableError as error:
        message = f"{error.field}|{error}"
    else:
        assert Timetable.read(timetable.fields()) == timetable
        occurrences_of(timetable).after(1_800_000_000)
        return
    assert re.fullmatch(r"[^|\n]+\|[^\n]+: expected [^\n]+", message)


WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["cron", "every", "at", "run", "shell", "preview", "* * * * *", "5m", "tz=UTC"]
    ),
    st.sampled_from(
        ["exclude=12-24,12-25", "retries=3", "2027-01-01", "2028-01-01", "100", "from="]
    ),
)


@given(st.sampled_from([*(word.upper() for word in TIMETABLE_COMMANDS), "FROB"]), st.lists(WORDS))
@settings(max_examples=cases(200))
def test_lines_are_commands_or_refusals_and_never_raise(verb, words):
    tokens = [word.encode("utf-8", "surrogatepass") for word in ("r", "TIMETABLE", verb, *words)]
    events = ZtickParser().feed(join(tokens) + b"\n")
    assert len(events) == (verb != "FROB")
    for event in events:
        if not isinstance(event, SetTimetable):
            continue
        fields = event.timetable.fields()
        assert read_timetable(fields_of(words_of(fields))) == (event.timetable, event.runner)

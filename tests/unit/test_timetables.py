"""Timetables as people write them: fields, errors, days, jumps of the clock, bounds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from journeyman.errors import TimetableError
from journeyman.protocols.ztick.grammar import read_timetable
from journeyman.timetables import Occurrences, Timetable, occurrences_of, zones
from journeyman.timetables.timetable import FIELDS, TimetableBackoff

PAGE = (Path(__file__).parents[2] / "docs" / "timetables.md").read_text()


def of(**fields) -> Occurrences:
    named = {name.rstrip("_"): value for name, value in fields.items()}
    return occurrences_of(Timetable.read(named))


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def labels(occurrences: Occurrences, after: str, count: int) -> list[str]:
    return [each.local for each in occurrences.firings(at(after), count)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cron": "60 * * * *"}, "cron: field 1 (minute) is '60': expected 0-59, *,"),
        ({"cron": "0 0 0 * *"}, "cron: field 3 (day) is '0': expected 1-31, L, LW, *,"),
        ({"cron": "0 0 1 FOO *"}, "cron: field 4 (month) is 'FOO': expected 1-12, JAN-DEC, *,"),
        ({"cron": "0 0 * * MON#6"}, "cron: field 5 (weekday) is 'MON#6': expected 0-7, SUN-SAT"),
        ({"cron": "5-1 * * * *"}, "cron: field 1 (minute) is '5-1': expected"),
        ({"cron": "* * * *"}, "cron: '* * * *' is not a cron expression: expected five fields"),
        ({"cron": "@reboot"}, "cron: '@reboot' is not a cron expression: expected five fields"),
        ({"cron": "0 0 30 2 *"}, "cron: no day matches day '30', month '2' and weekday '*'"),
        ({"cron": "0 0 */31 * MON#5"}, "cron: no day matches"),
        ({"cron": "*" * 300}, "cron: 300 characters: expected at most 256"),
        ({"every": "0s"}, "every: '0s' is out of range: expected 1s to 3660d"),
        ({"every": "5 minutes"}, "every: '5 minutes' is not a duration: expected a duration such"),
        ({"at": "tomorrow"}, "at: 'tomorrow' is not a time: expected a time such as"),
        ({"at": "2027-02-29"}, "at: '2027-02-29' is not a time"),
        ({"at": "2300-01-01"}, "at: '2300-01-01' is not a time"),
        ({"at": []}, "at: 0 moments: expected 1 to 500"),
        ({"at": ["2027-01-01"] * 501}, "at: 501 moments: expected 1 to 500"),
        ({}, "timetable: it has none of them: expected one of cron, every, at"),
        ({"every": "1m", "cron": "@daily"}, "timetable: it has cron and every: expected one of"),
        ({"every": "1m", "tz": "../etc/passwd"}, "tz: there is no time zone '../etc/passwd'"),
        ({"every": "1m", "tz": "Europe"}, "tz: there is no time zone 'Europe': expected an IANA"),
        ({"every": "1m", "catch_up": "some"}, "catch_up: 'some' is not known: expected none or"),
        ({"every": "1m", "retries": "many"}, "retries: 'many' is not possible: expected a whole"),
        ({"every": "1m", "backoff": "1s,0.5"}, "backoff: '1s,0.5' is not possible: expected first"),
        ({"every": "1m", "exclude": "02-30"}, "exclude: '02-30' is not a day: expected days such"),
        ({"every": "1m", "from": "2027-02-01", "until": "2027-01-01"}, "until: it is not after"),
        ({"cron": "@daily", "anchor": "2027-01-01"}, "anchor: it means nothing for cron"),
        ({"every": "1m", "color": "red"}, "color: there is no such field: expected cron, every"),
        ({"every": "1m", "runner": "shell"}, "runner: 'shell' is not a list of words"),
        ({"every": "1m", "runner": ["shell", "\ud800"]}, "runner: a word is not valid Unicode"),
        ({"every": "1m", "exclude": ["x" * 20_000]}, "timetable: it is too long"),
    ],
)
def test_an_error_names_the_field_and_says_what_is_allowed(fields, message):
    with pytest.raises(TimetableError, match=f"^{re.escape(message)}"):
        Timetable.read(fields)


@pytest.mark.parametrize("name", ["localtime", "posixrules", "right/UTC", "posix/Europe/Berlin"])
def test_only_iana_zones_are_taken_though_older_ledgers_may_have_others(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(zones, "ZoneInfo", lambda _: ZoneInfo("UTC"))  # it has a file
    fields = {"every": "1m", "tz": name}
    try:
        assert Timetable.read(fields).tz == name
        with pytest.raises(TimetableError, match="is not an IANA zone"):
            read_timetable(fields)
    finally:
        zones.zone_of.cache_clear()


def test_the_page_lists_every_field():
    table = PAGE.partition("## Fields")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(FIELDS)


@pytest.mark.parametrize("column", [0, 1], ids=["forward", "back"])
@pytest.mark.parametrize(
    ("cron", "forward", "back"),
    [
        ("30 2 * * *", ["03:00:00+02:00"], ["02:30:00+02:00"]),
        ("0 2,3 * * *", ["03:00:00+02:00"], ["02:00:00+02:00", "03:00:00+01:00"]),
        (
            "*/30 2 * * *",
            [],
            [f"02:{half}:00+0{offset}:00" for offset in (2, 1) for half in ("00", "30")],
        ),
    ],
)
def test_the_two_nights_of_the_page(cron, forward, back, column):
    assert f"| `{cron}` |" in PAGE
    day, before = (("2027-03-28", "2027-03-27"), ("2027-10-31", "2027-10-30"))[column]
    found = labels(of(cron=cron, tz="Europe/Berlin"), f"{before}T12:00:00", 8)
    assert [name[11:] for name in found if name.startswith(day)] == (forward, back)[column]


def test_warnings_of_the_two_nights():
    berlin = {"tz": "Europe/Berlin"}
    spring, autumn = at("2027-03-27T12:00:00"), at("2027-10-30T12:00:00")
    assert of(cron="30 2 * * *", **berlin).firings(spring, 2)[0].warning == (
        "02:30 does not exist on 2027-03-28, the clock goes forward: runs at 03:00"
    )
    assert of(cron="*/30 2 * * *", **berlin).firings(spring, 1)[0].warning == (
        "02:00 does not exist on 2027-03-28, the clock goes forward: does not run"
    )
    assert of(cron="30 2 * * *", **berlin).firings(autumn, 1)[0].warning == (
        "02:30 occurs twice on 2027-10-31, the clock goes back: runs the first time"
    )
    assert of(cron="*/30 2 * * *", **berlin).firings(autumn, 1)[0].warning == (
        "02:00 occurs twice on 2027-10-31, the clock goes back: runs both times"
    )
    for quiet in (of(every="1h", **berlin), of(cron="0 12 * * *", **berlin)):
        assert not any(each.warning for each in quiet.firings(spring, 48))


def test_days_that_are_left_out():
    workdays = of(cron="0 9 * * *", calendar="business", exclude=["12-25", "2026-12-28"])
    found = [name[:10] for name in labels(workdays, "2026-12-23T12:00:00", 4)]
    assert found == ["2026-12-24", "2026-12-29", "2026-12-30", "2026-12-31"]
    assert of(cron="0 9 * * SAT", calendar="business").after(0) is None
    assert of(cron="0 0 25 12 *", exclude="12-25").after(0) is None
    many = [f"2026-{month:02d}-{day:02d}" for month in range(1, 13) for day in range(1, 29)]
    assert labels(of(cron="0 0 1-28 * *", exclude=many), "2025-12-31T12:00:00", 1)[0][:4] == "2027"


def test_from_and_until():
    hours = of(every="1h", from_="2027-01-01T10:00", until="2027-01-01T12:00")
    assert [name[11:16] for name in labels(hours, "2026-01-01", 9)] == ["10:00", "11:00"]
    assert hours.after(at("2027-01-01T11:00:00")) is None


def test_aliases_and_names():
    assert labels(of(cron="@weekly"), "2026-11-16T00:00:00", 1) == ["2026-11-22T00:00:00+00:00"]
    assert labels(of(cron="0 0 l dec *"), "2026-11-16", 1) == ["2026-12-31T00:00:00+00:00"]
    assert labels(of(cron="0 0 * * fri#2"), "2026-11-16", 1) == ["2026-12-11T00:00:00+00:00"]
    assert labels(of(cron="0 0 LW * *"), "2026-10-31", 1) == ["2026-11-30T00:00:00+00:00"]


def test_jitter_is_the_same_however_often_it_is_asked_for():
    spread = of(every="1h", jitter="10m")
    delays = {spread.delay_ns("n", hour * 3600) for hour in range(100)}
    assert len(delays) == 100
    assert all(0 <= delay < 600 * 10**9 for delay in delays)
    assert spread.delay_ns("n", 7) == Occurrences(spread.timetable).delay_ns("n", 7)
    assert spread.delay_ns("n", 7) != spread.delay_ns("m", 7)
    assert of(every="1h").delay_ns("n", 7) == 0


def test_backoff_grows_up_to_its_longest():
    backoff = Timetable.read({"every": "1h", "backoff": "5s,3,1m"}).backoff
    assert [backoff.delay_s(attempt) for attempt in range(1, 6)] == [5, 15, 45, 60, 60]
    finely = Timetable.read({"every": "1h", "backoff": "1s,1.23456789"})
    assert Timetable.read(finely.fields()) == finely
    assert TimetableBackoff(1, 100.0, 7 * 86_400).delay_s(100) == 7 * 86_400


@pytest.mark.parametrize(
    "expression", ["0 0 29 2 */7", "0 0 29 2 1#5", "59 23 31 12 */7", "0 0 29 2 *"]
)
def test_rare_days_are_found_without_looking_at_all_of_them(expression, monkeypatch):
    looks = 0
    real = CronSim.match_day

    def counted(self, day):
        nonlocal looks
        looks += 1
        return real(self, day)

    monkeypatch.setattr(CronSim, "match_day", counted)
    of(cron=expression).after(at("2026-11-16T00:00:00"))
    assert looks < 3_000

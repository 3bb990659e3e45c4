"""Timetables in the engine: ten years of nights, clocks and zones that change, and anything."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.engines.ztick.job_table import PLANNED, STATUS_AT
from journeyman.engines.ztick.messages import RunFinished, TriggerDue
from journeyman.engines.ztick.timetables import TimetableBook, TimetableLoader, read_body
from journeyman.folds import ledger as fold
from journeyman.formats.ledger import (
    CODEC,
    RunRetried,
    RunSettled,
    TimetablePaused,
    TimetablePlanned,
    TimetableRemoved,
    TimetableResumed,
    TimetableSet,
    TimetableUnplanned,
    UnparsingLedger,
)
from journeyman.formats.timed_frame import Instant
from journeyman.protocols.ztick.commands import (
    PauseTimetable,
    Remove,
    RemoveTimetable,
    ResumeTimetable,
    RunTimetable,
)
from journeyman.timetables import Timetable, occurrences_of
from journeyman.timetables import zones as zones_module
from tests.support.effort import cases
from tests.support.timetable_world import Crash, TimetableWorld

FIVE = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kolkata")
S = 1_000_000_000


@pytest.mark.slow
@pytest.mark.parametrize("zone", FIVE)
def test_ten_years_of_nights_each_exactly_once(zone):
    """Half past two exists once, twice or not at all: a nightly job runs once on every day."""
    world = TimetableWorld("2026-12-31T23:59:59+00:00")
    world.set("n", cron="30 2 * * *", tz=zone, runner=["shell", "x"])
    world.to("2036-12-31T23:59:59+00:00", succeed=True)
    days = [date.fromisoformat(name[:10]) for name in world.names]
    assert [later - earlier for earlier, later in pairwise(days)] == [timedelta(days=1)] * (
        len(days) - 1
    )
    assert 3652 <= len(days) <= 3654
    assert not world.missed
    odd = [name for name in world.names if name[11:16] != "02:30"]
    assert all(name[11:16] in ("03:00", "02:30") for name in odd)


@pytest.mark.slow
@pytest.mark.parametrize("zone", FIVE)
def test_ten_years_of_minutes_without_a_gap(zone):
    """Every minute of elapsed time in the hours around each jump of the clock."""
    occurrences = occurrences_of(Timetable.read({"cron": "* * * * *", "tz": zone}))
    tz = ZoneInfo(zone)
    day = datetime(2026, 1, 1, tzinfo=UTC)
    jumps = 0
    while day.year < 2036:
        following = day + timedelta(days=1)
        if day.astimezone(tz).utcoffset() != following.astimezone(tz).utcoffset():
            jump_s = occurrences.zone.jump_after(int(day.timestamp()), int(following.timestamp()))
            begin_s = jump_s - 3600
            minutes = occurrences.between(begin_s, begin_s + 3 * 3600, 1000)
            assert minutes == list(range(begin_s, begin_s + 3 * 3600, 60))
            jumps += 1
        day = following
    assert jumps in (0, 20)


def test_the_clock_is_set_forward_and_back_through_the_night_of_a_jump():
    world = TimetableWorld("2027-03-27T12:00:00+00:00")
    world.set("n", cron="30 2 * * *", tz="Europe/Berlin")
    for moment in (
        "2027-03-28T00:59:00+00:00",
        "2027-03-28T01:30:00+00:00",
        "2027-03-28T00:30:00+00:00",
        "2027-03-28T01:30:00+00:00",
        "2027-03-27T20:00:00+00:00",
        "2027-03-28T05:00:00+00:00",
    ):
        world.jump(moment)
        world.finish()
    assert world.names == ["2027-03-28T03:00:00+02:00"]


# -- a country changes its mind ------------------------------------------------------------------


@pytest.fixture
def law(monkeypatch):
    """The zone Test/Law follows another zone from now on; the process has to start again."""

    def change(zone: str) -> None:
        zones_module.zone_of.cache_clear()
        occurrences_of.cache_clear()
        read_body.cache_clear()
        real = ZoneInfo
        monkeypatch.setattr(
            zones_module, "ZoneInfo", lambda name: real(zone if name == "Test/Law" else name)
        )

    yield change
    monkeypatch.undo()
    zones_module.zone_of.cache_clear()
    occurrences_of.cache_clear()


@pytest.mark.parametrize(
    ("before", "after"), [("Etc/GMT-1", "Etc/GMT-2"), ("Etc/GMT-2", "Etc/GMT-1")]
)
@pytest.mark.parametrize("hour", range(0, 24, 3))
def test_new_rules_of_a_zone_at_the_next_start(law, before, after, hour):
    law(before)
    world = TimetableWorld(f"2026-11-16T{hour:02d}:10:00+00:00")
    world.set("n", cron="0 2 * * *", tz="Test/Law")
    world.now_ns += 86_400 * S
    world.tick()
    world.finish()
    law(after)
    world.crash()
    world.to("2026-11-20T12:00:00+00:00", succeed=True)
    nights = [name[:10] for name in world.names]
    assert len(nights) == len(set(nights)), world.names
    days = sorted(map(date.fromisoformat, nights))
    assert [later - earlier for earlier, later in pairwise(days)] == [timedelta(days=1)] * (
        len(days) - 1
    )
    assert all(name[11:19] == "02:00:00" for name in world.names)
    assert world.names[-1] == f"2026-11-20T02:00:00+0{2 if after == 'Etc/GMT-2' else 1}:00"


# -- loading -------------------------------------------------------------------------------------

LABELS = st.sampled_from(["", "2026-11-17T02:00:00+01:00", "1970-01-01T00:00:00+00:00", "odd"])
BODIES = st.dictionaries(st.text(max_size=3), st.text(max_size=5), min_size=1, max_size=2)
SOME_NAMES = st.sampled_from(["a", "b", 'q"', "ü", "\\"])
NOW = Instant(1)
RECORDS = st.lists(
    st.one_of(
        st.builds(TimetableSet, st.just(NOW), SOME_NAMES, BODIES),
        st.builds(TimetablePlanned, st.just(NOW), SOME_NAMES, LABELS, LABELS),
        st.builds(TimetableRemoved, st.just(NOW), SOME_NAMES),
        st.builds(TimetableUnplanned, st.just(NOW), SOME_NAMES),
        st.builds(TimetablePaused, st.just(NOW), SOME_NAMES),
        st.builds(TimetableResumed, st.just(NOW), SOME_NAMES),
        st.builds(RunRetried, st.just(NOW), SOME_NAMES, st.integers(1, 3)),
        st.builds(RunSettled, st.just(NOW), SOME_NAMES),
    )
)


@given(RECORDS)
def test_records_that_were_not_parsed_say_the_same(records):
    """Also after a compaction of the ledger, which reorders and drops records."""
    kept = fold.replay(records).values()
    parsed, unparsed, compacted = TimetableBook(), TimetableBook(), TimetableBook()
    for book, codec, some in (
        (parsed, CODEC, records),
        (unparsed, UnparsingLedger(TimetableLoader.unparsed_kinds), records),
        (compacted, CODEC, kept),
    ):
        loader = TimetableLoader()
        for record in some:
            entry = codec.decode(CODEC.encode(record), 0)
            assert entry is not None
            assert loader.absorb(entry.record)
        loader.fill(book)
    assert contents(unparsed) == contents(parsed) == contents(compacted)


def contents(book: TimetableBook) -> object:
    rows = {name: book.get(name) for shard in book.snapshot() for name in shard}
    return rows, book.take_orphans(), sorted(book.all_retries()), book.total, book.paused


# -- anything ------------------------------------------------------------------------------------

FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "catch_up": st.sampled_from(["none", "once", "all"]),
        "overlap": st.sampled_from(["allow", "skip", "queue"]),
        "retries": st.integers(0, 2),
        "jitter": st.sampled_from(["0s", "30s"]),
    },
)
WHEN = st.one_of(
    st.builds(lambda every: {"every": every}, st.sampled_from(["7m", "1h", "1d"])),
    st.builds(
        lambda cron, tz: {"cron": cron, "tz": tz},
        st.sampled_from(["*/20 * * * *", "30 2 * * *", "0 */6 * * 1-5"]),
        st.sampled_from(FIVE),
    ),
    st.just({"at": "2027-03-28T02:30,2027-03-29T02:30", "tz": "Europe/Berlin"}),
)
NAMES = st.sampled_from(["n.a", "n.b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), NAMES, WHEN, FIELDS),
        st.tuples(st.just("wait"), st.integers(1, 3 * 86_400)),
        st.tuples(st.just("jump"), st.integers(-7200, 86_400)),
        st.tuples(st.just("end"), st.booleans()),
        st.tuples(
            st.just("ask"), st.sampled_from([PauseTimetable, ResumeTimetable, RunTimetable]), NAMES
        ),
        st.tuples(st.just("ask"), st.just(RemoveTimetable), NAMES),
        st.tuples(st.just("drop"), NAMES),
        st.tuples(st.just("crash"), st.integers(0, 6)),
        st.tuples(st.just("undo"), NAMES, WHEN),
    ),
    max_size=25,
)


@given(STEPS)
@settings(max_examples=cases(150))
def test_anything_in_any_order(steps):
    world = TimetableWorld("2027-03-26T12:00:00+00:00")
    ended: Counter[str] = Counter()
    for kind, *args in steps:
        with suppress(Crash):
            step(world, ended, kind, *args)
        if world.cut is not None:
            world.crash()
        world.tick()
        check(world)
    # Nothing that ended well runs again, but for jobs that a client has set again.
    assert all(count == 1 for count in ended.values()), ended


def step(world: TimetableWorld, ended: Counter[str], kind: str, *args) -> None:
    if kind == "set":
        name, when, fields = args
        world.set(name, **when, **fields)
    elif kind == "wait":
        end = datetime.fromtimestamp(world.now_ns // S + args[0], UTC)
        world.to(end.isoformat())
    elif kind == "jump":
        world.now_ns += args[0] * S
        world.decide(TriggerDue())
    elif kind == "end":
        for run_id, run in list(world.running.items()):
            del world.running[run_id]
            world.decide(RunFinished(run_id, args[0]))
            if args[0]:
                ended[run.identifier] += 1
    elif kind == "ask":
        command, name = args
        world.decide(command(b"", name))
    elif kind == "drop" and world.engine.timetables.has(args[0]):
        world.decide(Remove(b"", f"{args[0]}@{world.view(args[0]).next}"))
    elif kind == "crash":
        world.cut = args[0]
        world.decide(TriggerDue())
        for name in ("n.a", "n.b"):
            world.decide(RunTimetable(b"", name))
    elif kind == "undo":
        before = state_of(world)
        name, when = args
        world.decide_and_undo(name, when)
        assert state_of(world) == before


def state_of(world: TimetableWorld) -> object:
    book, jobs = world.engine.timetables, world.engine._state.jobs
    rows = sorted((name, row) for shard in book.snapshot() for name, row in shard.items())
    held = {name: list(jobs) for name, jobs in book._held.items()}  # they change in place
    under_way = [held, *map(dict, (book._runs, book._retries, book._retrying))]
    return rows, under_way, jobs.counts, (book.total, book.paused)


def check(world: TimetableWorld) -> None:
    """What is planned is in the schedule; what is in the ledger is what is in memory."""
    book, jobs = world.engine.timetables, world.engine._state.jobs
    for shard in book.snapshot():
        for name in shard:
            row = book.get(name)
            assert row is not None
            if row.planned is None or row.paused:
                continue
            job = jobs.get(row.planned.job(name))
            assert job is not None, f"{name} has planned nothing"
            assert job[STATUS_AT] == PLANNED
            assert row.done is None or row.done.at_s < row.planned.at_s

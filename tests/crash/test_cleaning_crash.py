"""Power is cut at every operation of cleaning a workq log; what can be seen stays the same.

The law, for every log, every moment of cleaning and every crash: from that moment on the log shows
the same jobs as before, to the fold and, where the original would load the log at all, to it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from journeyman.errors import LogError
from journeyman.folds.workq import FoldedJob, expires_ns, replay, visible
from journeyman.formats.workq import Command, JobAdded, JobFinished, Record
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.workq.log import WorkqLog
from journeyman.testing import ManualClock
from tests.support.crash.cuts import crashes
from tests.support.effort import cases
from tests.support.simulated_disk import SimulatedDisk
from tests.support.workq_logs import (
    DIRECTORY,
    added,
    as_of,
    completed,
    deleted,
    event,
    expired,
    planted,
    segments_of,
    started,
)

BOTH_DISKS = pytest.mark.usefixtures("kind_of_disk")

MINUTE_S = 60  # the tick of these logs: as long as a delete takes to settle
LAST_TICK = 24
TICKS = st.integers(0, LAST_TICK)
EVENTS = (Command.DELETE, Command.EXPIRE, Command.START_ATTEMPT, Command.TIMEOUT_ATTEMPT)

Log = tuple[list[Record], ...]  # segments; the last one is the active one
profile = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=cases(30)
)


# -- what can be seen ------------------------------------------------------------------------


def shown(records: Iterable[Record], from_tick: int) -> list[dict[bytes, FoldedJob]]:
    """The jobs that exist at every tick from this one on."""
    states = replay(records)
    moments = [as_of(MINUTE_S * tick) for tick in range(from_tick, 3 * LAST_TICK)]
    return [
        {key: job for key, state in states.items() if (job := visible(state, moment))}
        for moment in moments
    ]


class ReplayError(Exception):
    """The original does not start on this log."""


def shown_by_original(records: Iterable[Record], tick: int) -> dict[bytes, list[object]]:
    """What the original loads at this tick: it leaves out the expired and ignores orphans."""
    jobs: dict[bytes, list[object]] = {}
    for record in records:
        job = jobs.get(record.job_id)
        if isinstance(record, JobAdded):
            if expires_ns(FoldedJob(record)) > as_of(MINUTE_S * tick):
                refuse_if(job is not None)
                jobs[record.job_id] = [record, "new", 0]
        elif record.command in (Command.DELETE, Command.EXPIRE):
            jobs.pop(record.job_id, None)
        elif job is not None and record.command == Command.START_ATTEMPT:
            refuse_if(job[1] not in ("new", "pending"))
            job[1:] = ["leased", job[2] + 1]  # type: ignore[operator]
        elif job is not None and record.command == Command.TIMEOUT_ATTEMPT:
            job[1] = "pending"
        elif job is not None and isinstance(record, JobFinished):
            refuse_if(job[1] not in ("new", "pending", "leased"))
            job[1] = record
    return jobs


def refuse_if(refused: bool) -> None:
    if refused:
        raise ReplayError


def assert_same(before: list[Record], after: list[Record], tick: int, when: object) -> None:
    assert shown(after, tick) == shown(before, tick), when
    for later in (tick, tick + 3, LAST_TICK):
        try:
            expected = shown_by_original(before, later)
        except ReplayError:
            continue
        # Where a living job was added anew, the two may stand by different adds from the start.
        [jobs, *_] = shown(before, later)
        if {key: job.added for key, job in jobs.items()} == {k: j[0] for k, j in expected.items()}:
            assert shown_by_original(after, later) == expected, when


# -- logs ------------------------------------------------------------------------------------


@st.composite
def any_records(draw: st.DrawFn) -> list[Record]:
    """Records of few ids at arbitrary times, as no server would write them."""
    records: list[Record] = []
    for _ in range(draw(st.integers(1, 14))):
        number, seconds = draw(st.integers(1, 2)), MINUTE_S * draw(TICKS)
        kind = draw(st.sampled_from(("add", "add", "complete", *EVENTS)))
        if kind == "add":
            ttl_s = MINUTE_S * draw(st.integers(1, LAST_TICK))
            created_s = draw(st.sampled_from((seconds, MINUTE_S * draw(TICKS))))
            records.append(added(number, seconds, ttl_s=ttl_s, created_s=created_s))
        elif kind == "complete":
            records.append(completed(number, seconds))
        else:
            assert isinstance(kind, Command)
            records.append(event(kind, number, seconds))
    return records


@st.composite
def good_records(draw: st.DrawFn) -> list[Record]:
    """What a server writes that makes no mistake, ids used again after their end included."""
    records: list[Record] = []
    for tick in range(draw(st.integers(1, LAST_TICK))):
        number, now_s = draw(st.integers(1, 3)), MINUTE_S * tick
        ttl_s = MINUTE_S * draw(st.integers(1, 12))
        choices: list[Record] = [
            added(number, now_s, ttl_s=ttl_s),
            *(event(command, number, now_s) for command in EVENTS),
            completed(number, now_s),
        ]
        record = draw(st.sampled_from(choices))
        try:
            jobs = shown_by_original([*records, record], tick)
        except ReplayError:
            continue
        if isinstance(record, JobAdded) or record.job_id in jobs or record.command in EVENTS[:2]:
            records.append(record)
    return records


@st.composite
def logs(draw: st.DrawFn) -> Log:
    records = draw(st.one_of(any_records(), good_records()))
    ends = sorted(draw(st.lists(st.integers(0, len(records)), max_size=4)))
    return tuple(records[a:b] for a, b in zip((0, *ends), (*ends, len(records)), strict=True))


def all_of(disk: SimulatedDisk) -> list[Record]:
    return [record for records in segments_of(disk).values() for record in records]


def clean(disk: SimulatedDisk, tick: int, thorough: bool) -> None:
    with WorkqLog.open(disk, ManualClock(), DIRECTORY) as log:
        log.clean(as_of(MINUTE_S * tick), thorough=thorough)


# -- the law ---------------------------------------------------------------------------------

USED_AGAIN: Log = ([added(1, 0), deleted(1, 60)], [added(1, 120), started(1, 180)], [])
CLOCK_SET_BACK: Log = ([added(1, 0)], [deleted(1, 600)], [added(1, 660, created_s=300)], [])
EARLY_RESULT: Log = ([completed(1, 60)], [added(1, 60, created_s=0)], [])
RESULT_AT_BIRTH: Log = ([completed(1, 60)], [added(1, 60)], [])
DELETED_ELSEWHERE: Log = ([added(1, 0), added(2, 0)], [deleted(1, 60)], [])
FROM_THE_FUTURE: Log = (
    [added(1, 0, created_s=600)],
    [completed(1, 60)],
    [added(1, 120, created_s=600)],
    [],
)
REPEATED: Log = ([added(1, 0)], [completed(1, 60)], [added(1, 120, created_s=0)], [])
ENDED_BY_EXPIRE: Log = ([added(1, 0)], [started(1, 60), expired(1, 120)], [added(1, 180)])


@BOTH_DISKS
@example(USED_AGAIN, 5, True)
@example(CLOCK_SET_BACK, 20, True)
@example(EARLY_RESULT, 5, True)
@example(RESULT_AT_BIRTH, 5, True)
@example(DELETED_ELSEWHERE, 5, False)
@example(FROM_THE_FUTURE, 5, True)
@example(REPEATED, 5, True)
@example(ENDED_BY_EXPIRE, 5, True)
@settings(profile, max_examples=cases(150))
@given(logs(), TICKS, st.booleans())
def test_cleaning_changes_nothing_that_can_be_seen(log, tick, thorough):
    disk = planted(*log)
    clean(disk, tick, thorough)
    assert_same([r for records in log for r in records], all_of(disk), tick, "cleaned")


@BOTH_DISKS
@settings(profile, max_examples=cases(60))
@given(logs(), TICKS, TICKS, st.booleans())
def test_cleaning_again_changes_nothing_that_can_be_seen(log, first, second, thorough):
    disk = planted(*log)
    for tick in sorted((first, second)):
        clean(disk, tick, thorough)
    before = [r for records in log for r in records]
    assert_same(before, all_of(disk), max(first, second), "cleaned twice")


@BOTH_DISKS
@settings(profile, max_examples=cases(60))
@given(logs(), TICKS)
def test_what_is_appended_after_cleaning_means_what_it_would_have_meant(log, tick):
    """Above all, an id that is used again does not find the remains of its former life."""
    later_s = MINUTE_S * (LAST_TICK + 1)
    later = [r for n in (1, 2, 3) for r in (started(n, later_s - 1), added(n, later_s))]
    later += [completed(n, later_s + 1) for n in (1, 2)]
    disk = planted(*log)
    clean(disk, tick, True)
    before = [r for records in log for r in records]
    after_s = LAST_TICK + 2
    assert shown([*all_of(disk), *later], after_s) == shown([*before, *later], after_s)


@BOTH_DISKS
@example(USED_AGAIN, 5, True)
@example(CLOCK_SET_BACK, 20, True)
@example(ENDED_BY_EXPIRE, 5, True)
@settings(profile)
@given(logs(), TICKS, st.booleans())
def test_no_crash_while_cleaning_changes_what_can_be_seen(log, tick, thorough):
    before = [r for records in log for r in records]
    cuts = crashes(
        lambda: planted(*log), lambda disk: disk, lambda disk: clean(disk, tick, thorough), seeds=1
    )
    for crash in cuts:
        with WorkqLog.open(crash.disk, ManualClock(), DIRECTORY):
            pass
        assert_same(before, all_of(crash.disk), tick, crash)
        clean(crash.disk, tick, thorough)
        assert_same(before, all_of(crash.disk), tick, crash)


@BOTH_DISKS
def test_a_removed_segment_stays_away_before_what_followed_it_goes():
    """Its add is gone with it; were the add back without the delete, the job would be back."""
    log: Log = ([added(1, 0)], [deleted(1, 60), added(3, 60)], [])
    before = [r for records in log for r in records]
    cuts = crashes(
        lambda: planted(*log), lambda disk: disk, lambda disk: clean(disk, 5, True), seeds=30
    )
    for crash in cuts:
        assert_same(before, all_of(crash.disk), 5, crash)


# -- while serving ---------------------------------------------------------------------------


class Server:
    """A program that appends and cleans by turns, and remembers what it was told."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.sent: list[Record] = []
        self.acknowledged = 0

    def run(self) -> None:
        log = WorkqLog.open(self.disk, ManualClock(), DIRECTORY, segment_bytes=150)
        for tick in range(10):
            self.append(log, self.at(tick))
            if tick % 2:
                self.cleaned_at = tick
                log.clean(as_of(MINUTE_S * tick), thorough=tick % 4 == 1)
        log.close()

    def append(self, log: WorkqLog, records: list[Record]) -> None:
        self.sent += records
        log.append(records)
        log.appender.sync()
        self.acknowledged = len(self.sent)

    @staticmethod
    def at(tick: int) -> list[Record]:
        now_s = MINUTE_S * tick
        records: list[Record] = [added(tick, now_s, ttl_s=MINUTE_S * (2 if tick % 3 else 9))]
        records.append(started(tick, now_s))
        if tick >= 2:
            end = deleted if tick % 2 else completed
            records.append(end(tick - 2, now_s))
        return records


@BOTH_DISKS
def test_no_crash_while_serving_and_cleaning_loses_what_was_acknowledged():
    seen_rewritten = False
    for crash in crashes(Server, lambda server: server.disk, Server.run, seeds=2):
        with WorkqLog.open(crash.disk, ManualClock(), DIRECTORY) as log:
            records = [entry.record for entry in log.entries()]
        server = crash.run
        seen_rewritten |= len(records) < server.acknowledged
        possible = [
            shown(server.sent[:count], LAST_TICK // 2)
            for count in range(server.acknowledged, len(server.sent) + 1)
        ]
        assert shown(records, LAST_TICK // 2) in possible, crash
    assert seen_rewritten


@pytest.mark.parametrize("kind", ["write", "sync", "rename", "remove", "sync_dir", "create"])
@pytest.mark.parametrize("skip", range(4))
def test_no_failing_operation_changes_what_can_be_seen(kind, skip):
    log = (
        [added(1, 0), added(2, 0, ttl_s=60), started(1, 10)],
        [deleted(1, 60), added(3, 60)],
        [added(4, 60, ttl_s=60)],
        [completed(3, 120)],
    )
    before = [r for records in log for r in records]
    disk = planted(*log)
    served = WorkqLog.open(disk, ManualClock(), DIRECTORY, sync=SyncPolicy.ALWAYS)
    disk.fail(kind, skip=skip)
    try:
        served.clean(as_of(5 * MINUTE_S), thorough=True)
    except OSError:
        assert kind in ("create", "write", "sync"), "only the .rw file may fail and no more"
    except LogError:
        disk.heal()
        with pytest.raises(LogError, match="until a restart"):
            served.clean(as_of(5 * MINUTE_S), thorough=True)
        served.close()
        served = WorkqLog.open(disk, ManualClock(), DIRECTORY)
    disk.heal()
    assert_same(before, all_of(disk), 5, "failed")
    served.clean(as_of(5 * MINUTE_S), thorough=True)
    assert_same(before, all_of(disk), 5, "cleaned")
    assert segments_of(disk) == {2: [added(3, 60)], 4: [completed(3, 120)]}
    served.close()

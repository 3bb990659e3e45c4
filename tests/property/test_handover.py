"""Whatever stands in the log of a work queue, the original loads it after a handover, as it is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from journeyman.cli.handover import hand_over
from journeyman.errors import EncodeError
from journeyman.folds import workq as fold
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC, HEADER, Command, JobAdded, JobEvent, Record
from journeyman.logs.catalog import WORKQ, Log
from journeyman.logs.workq.log import WorkqLog
from journeyman.testing import ManualClock
from tests.support.drawn_folds import workq_records
from tests.support.simulated_disk import SimulatedDisk
from tests.support.workq_original import replay_all

CMDLOG = "/data/cmdlog"
JOB, *OTHERS = (bytes([n]) * 6 + b"\x40\x00\x80" + bytes(7) for n in (1, 2, 3))
IDS = st.sampled_from([JOB, *OTHERS])
LOG = Log(WORKQ, CMDLOG, (), whole=True)
READY = (fold.JobState.NEW, fold.JobState.PENDING)


def usable(record: Record) -> Record:
    """With values that the protocol accepts: others are refused there whatever is done."""
    if not isinstance(record, JobAdded):
        return record
    return replace(
        record,
        name="x",
        ttr_ms=record.ttr_ms + 1,
        ttl_ms=record.ttl_ms + 1,
        time=(record.time or record.created) if record.command == Command.SCHEDULE else None,
    )


def is_encodable(record: Record) -> bool:
    try:
        CODEC.encode(record)
    except EncodeError:
        return False
    return True


def planted(records: list[Record], cuts: list[int]) -> SimulatedDisk:
    disk = SimulatedDisk()
    bounds = [0, *sorted(cut % (len(records) + 1) for cut in cuts), len(records)]
    for number, (begin, end) in enumerate(pairwise(bounds), start=1):
        data = HEADER + b"".join(map(CODEC.encode, records[begin:end]))
        disk.plant(f"{CMDLOG}/{number:09d}.log", data)
    return disk


def jobs_in(
    disk: SimulatedDisk, clock: ManualClock
) -> tuple[list[Record], dict[bytes, fold.FoldedJob]]:
    """All records, and the jobs without what no original has."""
    with WorkqLog.open(disk, clock, CMDLOG) as log:
        records = [entry.record for entry in log.entries()]
    states = fold.replay(records)
    jobs = {
        key: replace(state, owed_timeouts=0)
        for key, state in states.items()
        if isinstance(state, fold.FoldedJob)
    }
    return records, jobs


RECORDS = workq_records(IDS, hidden=False).map(usable).filter(is_encodable)


@given(
    st.lists(RECORDS, max_size=20),
    st.lists(st.integers(0, 20), max_size=2),
    st.integers(0, 12),
)
def test_the_original_has_the_jobs_that_are_here(records, cuts, now_ms):
    clock = ManualClock(now_ms * 1_000_000)
    disk = planted(records, cuts)
    _, before = jobs_in(disk, clock)

    result = hand_over(disk, clock, LOG, {})

    after_records, after = jobs_in(disk, clock)
    assert after == before
    assert hand_over(disk, clock, LOG, {}).changes == ()
    if any(each.refuses for each in result.findings):
        return
    theirs = replay_all(after_records, clock.now_ns())
    living = {k for k, job in before.items() if fold.visible(job, clock.now_ns())}
    assert living <= set(theirs)
    for key in living:
        ours = before[key]
        assert theirs[key].attempts == ours.attempts
        assert theirs[key].state == ours.state or {theirs[key].state, ours.state} <= set(READY)
        assert theirs[key].result == ours.result


LEASED_TWICE = [
    JobAdded(Instant(0), JOB, "x", 1, 12, 0, 1, 0, b"", None, Instant(0)),
    *[JobEvent(Instant(0), JOB, Command.START_ATTEMPT)] * 2,
]


@example(LEASED_TWICE, 0)
@given(st.lists(RECORDS, max_size=20), st.integers(0, 12))
def test_accepted_fewer_attempts_leave_the_results(records, now_ms):
    clock = ManualClock(now_ms * 1_000_000)
    disk = planted(records, [])
    _, before = jobs_in(disk, clock)

    result = hand_over(disk, clock, LOG, {}, accept=True)

    _, after = jobs_in(disk, clock)
    assert after.keys() == before.keys()
    for key, job in before.items():
        left = after[key]
        assert left.attempts <= job.attempts
        assert (left.state, left.result, left.added) == (job.state, job.result, job.added)
    assert "Max attempts reached" not in str(result.findings)

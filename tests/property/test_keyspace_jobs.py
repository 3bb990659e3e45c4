"""Jobs of the work queue as records, and back: the same job, whatever happened to it."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from journeyman.errors import InvalidData
from journeyman.folds import workq
from journeyman.folds.keyspace import (
    MEMBER,
    Defaults,
    folded_of_record,
    is_archived,
    payload_bytes,
    record_of_workq,
    workq_of_record,
    workq_status,
)
from journeyman.formats.keyspace.keys import JobKey
from journeyman.formats.keyspace.values import JobRecord, decode_value, encode_value
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, JobEvent, JobFinished

SOME = UUID(int=7)
NOW_NS = 1_800_000_000_000_000_000
PAYLOADS = st.binary(max_size=40) | st.sampled_from(
    [b"", b"{}", b'"x"', b" 1", b"1e16", b"null", "ü".encode(), b'{"a":1,"a":2}', b"NaN"]
)
IDS = st.binary(min_size=16, max_size=16)


@st.composite
def added(draw) -> JobAdded:
    created = Instant(NOW_NS + draw(st.integers(0, 10**9)))
    is_scheduled = draw(st.booleans())
    return JobAdded(
        created,
        draw(IDS),
        draw(st.sampled_from(["work", "a:b", "ü"])),
        draw(st.integers(0, 10**7)),
        draw(st.integers(0, 10**9)),
        draw(st.integers(-(2**31), 2**31 - 1)),
        draw(st.integers(0, 255)),
        draw(st.integers(0, 2**20)),
        draw(PAYLOADS),
        Instant(created.unix_ns + draw(st.integers(-5, 10**12))) if is_scheduled else None,
        created,
        Command.SCHEDULE if is_scheduled else Command.ADD,
    )


@st.composite
def jobs(draw) -> workq.FoldedJob:
    """What any history makes of a job."""
    job_added = draw(added())
    state = workq.fold([job_added])
    for word in draw(st.lists(st.sampled_from("STCF"), max_size=6)):
        at = Instant(job_added.created.unix_ns + draw(st.integers(0, 10**10)))
        if word in "ST":
            command = Command.START_ATTEMPT if word == "S" else Command.TIMEOUT_ATTEMPT
            state = workq.apply(state, JobEvent(at, job_added.job_id, command))
        else:
            command = Command.COMPLETE if word == "C" else Command.FAIL
            result = draw(st.binary(max_size=5))
            state = workq.apply(state, JobFinished(at, job_added.job_id, command, result))
    assert isinstance(state, workq.FoldedJob)
    return state


def tried_before_it_was_due() -> workq.FoldedJob:
    at = Instant(NOW_NS)
    schedule = JobAdded(at, bytes(16), "work", 0, 0, 0, 0, 0, b"", at, at, Command.SCHEDULE)
    tries = (Command.START_ATTEMPT, Command.TIMEOUT_ATTEMPT)
    state = workq.fold([schedule, *(JobEvent(at, bytes(16), each) for each in tries)])
    assert isinstance(state, workq.FoldedJob)
    return state


def stored(record: JobRecord) -> JobRecord:
    """A record once it was written and read."""
    found = decode_value(JobKey(record.job_uuid), encode_value(record))
    assert isinstance(found, JobRecord)
    return found


@given(jobs(), st.integers(NOW_NS - 10, NOW_NS + 10**12))
@example(tried_before_it_was_due(), NOW_NS - 10)
def test_a_job_comes_back_as_it_was(job: workq.FoldedJob, as_of_ns: int):
    record = stored(record_of_workq(job, as_of_ns))
    # A job that was tried is ready again, whatever time it was first due.
    time = None if job.state == workq.JobState.PENDING else job.added.time
    due_ns = None if time is None else time.unix_ns
    status = workq_status(job.state, due_ns, as_of_ns)
    has_ended = workq.expires_ns(job) <= as_of_ns
    is_finished = status in ("completed", "failed")
    assert record.status == ("failed" if has_ended and not is_finished else status)
    assert folded_of_record(record) == (job, 0)
    assert is_archived(record) == has_ended
    if is_finished or not has_ended:
        assert workq_of_record(record, Defaults()) == job
    over = stored(record_of_workq(job, as_of_ns, is_over=True))
    assert folded_of_record(over) == (None, 0)


@given(jobs(), PAYLOADS)
def test_a_payload_comes_back_as_it_was(job: workq.FoldedJob, payload: bytes):
    job.added = replace(job.added, payload=payload)
    assert payload_bytes(stored(record_of_workq(job, NOW_NS))) == payload


def test_a_record_that_says_nothing_gets_the_defaults():
    record = JobRecord(SOME, f"q:{SOME}", "q", "completed", 5, 7)
    job = workq_of_record(record, Defaults(ttr_ms=11, ttl_ms=22, priority=3, max_fails=4))
    assert (job.added.ttr_ms, job.added.ttl_ms, job.added.priority, job.added.max_fails) == (
        11,
        22,
        3,
        4,
    )
    assert (job.state, job.result, job.added.time) == (
        workq.JobState.COMPLETED,
        b"",
        Instant(7),
    )


@pytest.mark.parametrize(
    "member",
    ["1", "[]", '{"ttl_ms":"x"}', '{"priority":true}', '{"encoding":"text"}', '{"result":"!"}'],
)
def test_a_member_that_is_none_is_invalid_data(member: str):
    record = JobRecord(SOME, "q:x", "q", "completed", 5, 7, extra=((MEMBER, member),))
    with pytest.raises(InvalidData):
        workq_of_record(replace(record, payload="{}"), Defaults())

"""Records of waiting jobs in one step, against the decoder and the fold: the same spec, or none."""

from __future__ import annotations

import struct
from uuid import UUID

import hypothesis.strategies as st
from hypothesis import example, given

from journeyman.engines.workq.job import Spec, entry_of, opened
from journeyman.engines.workq.loading import read_waiting_job
from journeyman.errors import InvalidData
from journeyman.folds.keyspace import Defaults, record_of_workq, workq_and_timeout
from journeyman.folds.workq import FoldedJob
from journeyman.formats.keyspace.values import encode_value
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import JobAdded
from journeyman.storage.records import read_job

ID = UUID("0000000a-0000-4000-8000-000000000007")
NUMBER = 3
times = st.integers(0, 2 * 10**18)
payloads = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=12).map(str.encode),
    st.sampled_from((b'{"a":[1,"x"]}', b'"text"', b'"QUJD"', b"7", b' {"a" : 1}', b'"\\u00e9\n"')),
)
adds = st.builds(
    JobAdded,
    times.map(Instant),
    st.just(ID.bytes),
    st.text("aZ09_.-", min_size=1, max_size=9),
    st.integers(0, 10**9),
    st.integers(0, 10**12),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 255),
    st.integers(0, 2**40),
    payloads,
    st.none() | times.map(Instant),
    times.map(Instant),
)


def by_law(raw: bytes) -> Spec | None:
    record = read_job(ID, raw)
    if isinstance(record, str) or record.status != "waiting":
        return None
    try:
        job, timed_out_ns = workq_and_timeout(record, Defaults())
        spec, stage, attempts, fails, *_ = opened(entry_of(job, NUMBER, timed_out_ns))
    except (InvalidData, struct.error, OverflowError):
        return None
    assert (stage, attempts, fails) == (0, 0, 0)
    return spec


def in_one_step(raw: bytes) -> Spec | None:
    asked: list[str] = []  # a queue that is asked for is made: only of a job that is taken

    def number_of(name: str) -> int:
        asked.append(name)
        return NUMBER

    job = read_waiting_job(ID.bytes, str(ID).encode(), raw, number_of)
    assert len(asked) == (job is not None)
    return None if job is None else job.spec


@given(added=adds, now_ns=times)
def test_usual_waiting_jobs_are_taken_in_one_step(added: JobAdded, now_ns: int):
    record = record_of_workq(FoldedJob(added), now_ns)
    raw = encode_value(record)
    found = in_one_step(raw)
    assert found is not None or added.time is not None or not added.ttr_ms
    assert found is None or found == by_law(raw)


@given(added=adds, at=st.integers(0, 400), cut=st.integers(0, 3), more=st.binary(max_size=3))
@example(JobAdded(Instant(0), ID.bytes, "q", 1, 1, 0, 0, 0, b"QUJD", None, Instant(0)), 176, 1, b"")
def test_damaged_records_are_never_taken_for_others(
    added: JobAdded, at: int, cut: int, more: bytes
):
    raw = encode_value(record_of_workq(FoldedJob(added), added.created.unix_ns))
    damaged = raw[:at] + more + raw[at + cut :]
    found = in_one_step(damaged)
    assert found is None or found == by_law(damaged)

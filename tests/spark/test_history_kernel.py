"""The compiled walk over workq records agrees with the fold, record for record."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from journeyman.cli.verify import _WorkqAccount
from journeyman.columnar.workq import attempts as at
from journeyman.folds import Anomaly, workq
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, JobEvent, JobFinished, Record
from journeyman.spark import audit
from journeyman.spark.history.workq_attempts import RECORD, Followed, attempt_table, follow

pytestmark = pytest.mark.kernels

JOBS = [bytes([number] * 16) for number in range(3)]
LONG_AGO_NS = -(2**62)
INSTANTS = st.integers(-2, 24).map(lambda halves: Instant(halves * 500_000))
TEXTS = ("_log", "kind", "key", "name")
COLUMNS = pa.schema([(name, pa.string() if name in TEXTS else pa.int64()) for name in RECORD])


def records(ids: st.SearchStrategy[bytes]) -> st.SearchStrategy[Record]:
    added = st.builds(
        JobAdded,
        logged=INSTANTS,
        job_id=ids,
        name=st.sampled_from(["x", "y"]),
        ttr_ms=st.integers(0, 3),
        ttl_ms=st.integers(0, 12),
        priority=st.integers(0, 1),
        max_attempts=st.integers(0, 3),
        max_fails=st.integers(0, 3),
        payload=st.sampled_from([b"", b"p"]),
        time=st.none() | INSTANTS,
        created=INSTANTS,
        command=st.sampled_from([Command.ADD, Command.SCHEDULE]),
    )
    events = st.sampled_from([Command.START_ATTEMPT, Command.TIMEOUT_ATTEMPT])
    ends = st.sampled_from([Command.DELETE, Command.EXPIRE])
    results = st.sampled_from([Command.COMPLETE, Command.FAIL])
    hidden = st.just(True)
    return st.one_of(
        added,
        st.builds(JobEvent, INSTANTS, ids, events),
        st.builds(JobEvent, INSTANTS, ids, events),
        st.builds(JobEvent, INSTANTS, ids, events | ends),
        st.builds(JobFinished, INSTANTS, ids, results, st.just(b"")),
        st.builds(JobFinished, INSTANTS, ids, st.just(Command.PARK), st.just(b"{}"), hidden),
        st.builds(JobEvent, INSTANTS, ids, st.just(Command.WAKE), hidden),
    )


ONE_JOB = st.lists(records(st.just(JOBS[0])), max_size=20)
TEN, TWENTY, FIFTY = (Instant(ms * 1_000_000) for ms in (10, 20, 50))
ADDED = JobAdded(TEN, JOBS[0], "x", 3, 12, 0, 0, 0, b"", None, TEN)
ADDED_AGAIN = replace(ADDED, logged=FIFTY, created=FIFTY)
STARTED, WOKEN = (
    JobEvent(TWENTY, JOBS[0], command, hidden=True)
    for command in (Command.START_ATTEMPT, Command.WAKE)
)
PARKED = JobFinished(TEN, JOBS[0], Command.PARK, b"{}", hidden=True)


def columns(log: list[Record]) -> pa.RecordBatch:
    """What Spark would hand over: by job, in log order."""
    rows = []
    for position, record in enumerate(log):
        row = {
            "_log": "log",
            "kind": record.command.word,
            "key": record.job_id.hex(),
            "_position": position,
            "logged_ns": record.logged.unix_ns,
        }
        if isinstance(record, JobAdded):
            row |= {name: getattr(record, name) for name in ("name", "ttr_ms", "ttl_ms")}
            row |= {
                "priority": record.priority,
                "max_attempts": record.max_attempts,
                "max_fails": record.max_fails,
                "payload_size": len(record.payload),
                "time_ns": None if record.time is None else record.time.unix_ns,
                "created_ns": record.created.unix_ns,
            }
        rows.append(row)
    rows.sort(key=lambda row: (row["key"], row["_position"]))
    return pa.RecordBatch.from_pylist(rows, schema=COLUMNS)


def walked(log: list[Record]) -> Followed:
    (found,) = follow([columns(log)])
    return found


def last_life(found: Followed) -> np.ndarray:
    rows = found.rows
    return rows[:, rows[at.LIFE] == rows[at.LIFE].max(initial=0)]


def none_as_null(moment: int) -> int | None:
    return None if moment == at.NO_TIME else moment


@given(ONE_JOB)
@example([ADDED, PARKED, STARTED, STARTED])
@example([ADDED, PARKED, WOKEN, PARKED])
@example([PARKED, replace(WOKEN, logged=TEN), replace(ADDED, logged=TWENTY)])
def test_after_every_record_the_last_row_is_where_the_fold_stands(log):
    for size in range(1, len(log) + 1):
        state = workq.fold(log[:size])
        rows = last_life(walked(log[:size]))
        if not isinstance(state, workq.FoldedJob):
            open_rows = np.isin(rows[at.OUTCOME], (0, 1)) & (rows[at.LIFE] > 0)
            assert not open_rows.any()
            continue
        last = rows[:, -1]
        assert (rows[at.STARTED_NS] != at.NO_TIME).sum() == state.attempts
        assert rows[at.RETRIED].sum() == state.fails
        outcome = at.OUTCOMES[last[at.OUTCOME]]
        assert (
            outcome
            == {
                workq.JobState.NEW: "waiting",
                workq.JobState.PENDING: "waiting",
                workq.JobState.LEASED: "leased",
                workq.JobState.COMPLETED: "completed",
                workq.JobState.FAILED: "timed-out" if state.exhausted else "failed",
            }[state.state]
        )
        assert bool(last[at.EXHAUSTED]) == state.exhausted
        finished_ns = None if state.finished is None else state.finished.unix_ns
        assert none_as_null(last[at.ENDED_NS]) == finished_ns
        if state.state == workq.JobState.LEASED and state.started is not None:
            assert last[at.STARTED_NS] == state.started.unix_ns
        if state.finished is None:
            (*_, expires_ns) = attempt_table(walked(log[:size]))["expires_ns"].to_pylist()
            assert expires_ns == workq.expires_ns(state)


@given(st.lists(records(st.sampled_from(JOBS)), max_size=40))
def test_bytes_are_needed_exactly_where_verify_says_so(log):
    account = _WorkqAccount(None)
    for number, record in enumerate(log):
        account.begin_file(number, None)
        account.record(record, 1)
    needed = set(account.live_bytes(LONG_AGO_NS))
    owned: set[int] = set()
    for found in follow([columns(log)]):
        positions = found.records["_position"].to_numpy()
        owned |= set(positions[found.owner >= 0])
        adds = positions[found.owner[found.owner >= 0]]
        assert all(isinstance(log[add], JobAdded) for add in adds)
    assert owned == needed


@given(ONE_JOB)
@example([ADDED, PARKED, ADDED_AGAIN])
@example([ADDED, PARKED, replace(WOKEN, logged=FIFTY), ADDED_AGAIN])
def test_what_the_fold_finds_odd_is_marked(log):
    noted: list[Anomaly] = []
    workq.fold(log, noted.append)
    fold = Counter(str(anomaly.kind) for anomaly in noted)
    marked: Counter[str] = Counter()
    if log:
        marked.update(at.ANOMALIES[code] for code in walked(log).anomaly)
    for kind in at.ANOMALIES[1:-1]:
        if kind == "start-over-limit":  # a lease while leased, beyond the limit, is marked as that
            assert marked[kind] <= fold[kind]
        else:
            assert marked[kind] == fold[kind], kind


@given(ONE_JOB)
def test_records_that_wait_for_an_add_to_the_end_are_orphans(log):
    state = workq.fold(log)
    orphans = state.records if isinstance(state, workq.Orphans) else []
    marked = walked(log).anomaly == at.ANOMALIES.index("orphan") if log else np.zeros(0, np.bool_)
    assert [record for record, is_orphan in zip(log, marked, strict=True) if is_orphan] == orphans


@given(st.lists(records(st.sampled_from(JOBS)), min_size=1, max_size=40), st.data())
def test_where_batches_are_cut_does_not_matter(log, data):
    whole = columns(log)
    size = len(log)
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=6)))
    edges = [0, *cuts, size]
    pieces = [whole.slice(a, b - a) for a, b in pairwise(edges)]
    in_pieces, at_once = list(follow(pieces)), list(follow([whole]))
    for field in (at.LIFE, at.ATTEMPT, at.READY_NS, at.STARTED_NS, at.ENDED_NS, at.OUTCOME):
        parts, together = (
            np.concatenate([each.rows[field] for each in found]) for found in (in_pieces, at_once)
        )
        assert list(parts) == list(together)
    owned, owned_at_once = (
        np.concatenate([each.owner >= 0 for each in found]) for found in (in_pieces, at_once)
    )
    assert list(owned) == list(owned_at_once)


@given(ONE_JOB)
def test_no_row_has_an_attempt_without_its_number(log):
    if not log:
        return
    rows = walked(log).rows
    for life in set(rows[at.LIFE]) - {0}:
        numbers = rows[at.ATTEMPT][rows[at.LIFE] == life]
        started = rows[at.STARTED_NS][rows[at.LIFE] == life] != at.NO_TIME
        assert list(numbers[started]) == list(range(1, started.sum() + 1))


def test_a_parked_job_needs_its_bytes_after_its_ttl():
    logs: list[tuple[list[Record], list[int]]] = [
        ([ADDED, PARKED], [2]),
        ([ADDED, PARKED, WOKEN], []),
    ]
    for log, expected in logs:
        found = walked(log)
        ones = pa.array([1] * len(log), pa.int64())
        records = found.records.append_column("_segment", ones).append_column("_length", ones)
        with_lengths = replace(found, records=records)
        assert audit._needed(with_lengths, 10**18)["bytes"].to_pylist() == expected

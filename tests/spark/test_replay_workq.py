"""Replay of workq on Spark is the local fold, row for row, whatever the log holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st

from journeyman.folds import workq as fold
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC, HEADER, Command, JobAdded, JobEvent, JobFinished, Record
from journeyman.spark import replay
from journeyman.spark.replay import STATE_TABLES, visible
from tests.support.columnar_twins import clamped, workq_row
from tests.support.drawn_columnar import WORKQ, encodable
from tests.support.drawn_folds import workq_records
from tests.support.effort import cases
from tests.support.spark.replay_world import (
    Found,
    by_host,
    copied,
    cut,
    gathered,
    mangled,
    read_log,
)
from tests.support.workq_original import history

GOLDEN = Path("tests/golden/data/workq")
IDS = st.integers(0, 5).map(lambda number: bytes(15) + bytes([number]))
AS_OF_NS = 1_700_000_000_000_000_000


@st.composite
def lives(draw: st.DrawFn) -> list[Record]:
    """Several jobs of a server that does everything right, one after the other."""
    records = []
    for number in range(draw(st.integers(1, 4))):
        past, _ = history(draw(st.data()))
        records += [replace(record, job_id=bytes(15) + bytes([number])) for record in past]
    return records


@st.composite
def past_of_one(draw: st.DrawFn) -> list[Record]:
    """A job with a past in any order, parks among it."""
    job_id = bytes(15) + b"\1"
    moment = Instant(0)
    added = JobAdded(moment, job_id, "x", 1, 10, 0, 0, 3, b"p", None, moment)
    past = draw(st.lists(workq_records(st.just(job_id)), max_size=12))
    return [added, *(record for record in past if encodable(record))]


LOGS = st.one_of(
    WORKQ,
    past_of_one(),
    lives(),
    st.lists(workq_records(IDS), max_size=60).map(lambda rs: [r for r in rs if encodable(r)]),
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("workq")
    random = Random(5)
    for number, records in enumerate(gathered(LOGS, cases(50))):
        directory = root / f"host={number}"
        directory.mkdir()
        for sequence, part in enumerate(cut(records, random.randrange(1, 4), random), 1):
            data = HEADER + b"".join(map(CODEC.encode, part))
            (directory / f"{sequence:09d}.log").write_bytes(mangled(data, random))
    for number, records in enumerate(parked_lives()):
        directory = root / f"host=parked-{number}"
        directory.mkdir()
        data = HEADER + b"".join(map(CODEC.encode, records))
        (directory / "000000001.log").write_bytes(data)
    for case in GOLDEN.iterdir():
        if (case / "cmdlog").is_dir():
            copied(case / "cmdlog", root / f"host={case.name}")
    return root


def parked_lives() -> Iterator[list[Record]]:
    """A job that was woken twice, cut off after each record."""
    moments = [Instant(AS_OF_NS + number * 1_000_000) for number in range(10)]
    job_id = bytes(16)
    past: list[Record] = [
        JobAdded(moments[0], job_id, "x", 60_000, 100, 0, 0, 3, b"", None, moments[0]),
        JobEvent(moments[1], job_id, Command.START_ATTEMPT),
        JobFinished(moments[2], job_id, Command.PARK, b"{}", hidden=True),
        JobEvent(moments[2], job_id, Command.TIMEOUT_ATTEMPT),
        JobEvent(moments[3], job_id, Command.WAKE, hidden=True),
        JobEvent(moments[4], job_id, Command.START_ATTEMPT, hidden=True),
        JobFinished(moments[5], job_id, Command.PARK, b"{}", hidden=True),
        JobEvent(moments[6], job_id, Command.START_ATTEMPT, hidden=True),
        JobFinished(moments[7], job_id, Command.COMPLETE, b"r"),
    ]
    for size in range(3, len(past) + 1):
        yield past[:size]


def expected(root: Path) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Host, jobs and orphans, both by key."""
    for directory in root.iterdir():
        found = read_log((path, CODEC) for path in sorted(directory.glob("*.log")))
        mark_results(found)
        states = fold.replay(found.records)
        jobs, orphans = {}, {}
        for job_id, state in states.items():
            key = str(UUID(bytes=job_id))
            about = {"_log": str(directory), "key": key, "job_id": bytearray(job_id)}
            if isinstance(state, fold.Orphans):
                orphans[key] = about | orphan_row(found, state)
            else:
                jobs[key] = about | job_row(found, state)
        yield directory.name.partition("=")[2], jobs, orphans


MARK_BYTES = 8


def mark_results(found: Found) -> None:
    """Put each result's position before it, so that a state tells which record it is from."""
    for number, entry in enumerate(found.entries):
        record = entry.record
        if isinstance(record, JobFinished):
            mark = found.position(record).to_bytes(MARK_BYTES, "big")
            marked = replace(record, result=mark + record.result)
            found.entries[number] = replace(entry, record=marked)
            found.places[id(marked)] = found.places[id(record)]


def job_row(found: Found, job: fold.FoldedJob) -> dict[str, Any]:
    entry = next(entry for entry in found.entries if entry.record is job.added)
    row = workq_row(entry)
    added = {name: row[name] for name in STATE_TABLES["workq"]["jobs"].schema.names if name in row}
    by_moment = {id(record.logged): record for record in found.records}
    result = None
    if job.result:
        position = int.from_bytes(job.result[:MARK_BYTES], "big")
        finishes = [record for record in found.records if isinstance(record, JobFinished)]
        result = next(record for record in finishes if found.position(record) == position)
    place = {} if result is None else found.place(result)
    moments = {
        f"{name}_{what}": value
        for name, moment in (("started", job.started), ("finished", job.finished))
        for what, value in (
            ("ns", None if moment is None else clamped(moment.unix_ns)),
            ("position", None if moment is None else found.position(by_moment[id(moment)])),
        )
    }
    return {
        **found.place(job.added),
        **added,
        **moments,
        "kind": job.added.command.word,
        "job_id": bytearray(job.added.job_id),
        "payload": None,
        "state": job.state.name.lower(),
        "attempts": job.attempts,
        "fails": job.fails,
        "result_size": result_size(job.result),
        "result": None,
        "exhausted": job.exhausted,
        "owed_timeouts": job.owed_timeouts,
        "parked": job.parked is not None,
        "expires_ns": expires_ns(job),
        "result_position": place.get("_position"),
        "result_file": place.get("_file"),
        "result_length": place.get("_length"),
    }


def result_size(marked: bytes | None) -> int | None:
    return None if marked is None else max(0, len(marked) - MARK_BYTES)


def expires_ns(job: fold.FoldedJob) -> int:
    """Of what the columns hold."""
    added = job.added
    if job.parked is not None:
        return fold.NEVER_NS
    begins = added.created
    if job.begins is not None:
        begins = job.begins
    elif added.command == Command.SCHEDULE and added.time is not None:
        begins = added.time
    return min(fold.NEVER_NS, clamped(begins.unix_ns) + clamped(added.ttl_ms) * 1_000_000)


def orphan_row(found: Found, orphans: fold.Orphans) -> dict[str, Any]:
    records = [
        {
            "position": found.position(record),
            "length": found.place(record)["_length"],
            "kind": record.command.word,
            "logged_ns": clamped(record.logged.unix_ns),
            "result_size": result_size(getattr(record, "result", None)),
        }
        for record in orphans.records
    ]
    return {**found.place(orphans.records[0]), "records": records}


@pytest.fixture(scope="module")
def replayed(spark, logs):
    """Jobs and orphans of logs that are split anywhere."""
    held = replay.packets(spark, "workq", str(logs), splitBytes=2003).persist()
    yield {name: by_host(frame) for name, frame in replay.tables_of(held, "workq").items()}
    held.unpersist()


def test_jobs_and_orphans_are_those_of_the_fold(replayed, logs):
    seen: set[object] = set()
    for host, jobs, orphans in expected(logs):
        found = {name: replayed[name].get(host, []) for name in ("jobs", "orphans")}
        assert {row["key"]: row for row in found["jobs"]} == jobs, host
        assert {row["key"]: row for row in found["orphans"]} == orphans, host
        assert len(found["jobs"]) == len(jobs)
        seen |= {(row["state"], row["exhausted"], row["parked"]) for row in jobs.values()}
        seen |= {"orphans"} if orphans else set()
    assert len(seen) == 8  # every state, exhausted, parked or not, and orphans


def test_payloads_and_results_are_those_of_the_records(spark, logs):
    jobs = replay.states(spark, "workq", str(logs), payloads=True)["jobs"]
    rows = by_host(jobs.select("host", "key", "payload", "result"))
    for directory in logs.iterdir():
        found = read_log((path, CODEC) for path in sorted(directory.glob("*.log")))
        states = fold.replay(found.records)
        expected = {
            str(UUID(bytes=job_id)): (state.added.payload, state.result)
            for job_id, state in states.items()
            if isinstance(state, fold.FoldedJob)
        }
        found_rows = rows.get(directory.name.partition("=")[2], [])
        assert {
            row["key"]: (
                bytes(row["payload"]),
                None if row["result"] is None else bytes(row["result"]),
            )
            for row in found_rows
        } == expected


def test_visible_is_the_view_of_the_fold(spark, tmp_path):
    moments = [AS_OF_NS - 1_000_000, AS_OF_NS, AS_OF_NS + 1_000_000]
    added = [
        JobAdded(
            Instant(0),
            bytes([number]) * 16,
            "x",
            0,
            ttl_ms,
            0,
            0,
            0,
            b"",
            None if due is None else Instant(due),
            Instant(created),
            Command.ADD if due is None else Command.SCHEDULE,
        )
        for number, (created, due, ttl_ms) in enumerate(
            (created, due, ttl_ms)
            for created in moments
            for due in (None, *moments)
            for ttl_ms in (0, 1, 2)
        )
    ]
    (tmp_path / "000000001.log").write_bytes(HEADER + b"".join(map(CODEC.encode, added)))
    jobs = replay.states(spark, "workq", str(tmp_path))["jobs"]
    found = visible(jobs, AS_OF_NS).select("job_id", "queue").collect()
    seen = (fold.visible(fold.FoldedJob(add), AS_OF_NS) for add in added)
    assert {bytes(row.job_id): row.queue for row in found} == {
        job.added.job_id: fold.queue_of(job, AS_OF_NS) for job in seen if job is not None
    }

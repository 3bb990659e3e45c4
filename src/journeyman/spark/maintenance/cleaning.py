"""A workq log cleaned on Spark: the jobs that exist, each told in the fewest records.

    log --fold--> jobs --visible at a moment--> snapshots --in order of their adds--> new segments

A snapshot is what journeyman.folds.workq says. For nearly all jobs it is an add, perhaps a
start, perhaps a result, and these are copied as they stand in the log; the rest is decoded, folded
and encoded. Nothing writes the log meanwhile, so no record is on its way that a delete would
have to wait for: deleted and expired jobs leave nothing, and neither do records without an add.

    state, attempts, fails                    records
    new, 0, 0                                 the add
    leased, 1, 0                              the add, the start
    completed or failed, 0 or 1, 0            the add, the start if there was one, the result
    anything else                             what journeyman.folds.workq makes of it

The first three are copied from the log by the places that the replay has noted. So is every record
that the last one is made from, which are then decoded: zone offsets and numbers beyond 64 bits are
in no column.

The log sink writes the new segments, one row of encoded records per job (column ``_raw``).

All segments change at once, by a journal (journeyman.logs.publication): old ones go and new ones,
numbered from 1, are there, or the other way round. Whoever opens the log next finishes what a crash
interrupted.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.disk import Disk
from journeyman.errors import FormatError, LogError
from journeyman.folds.workq import FoldedJob, JobState, snapshot
from journeyman.formats.workq import CODEC
from journeyman.logs import publication
from journeyman.logs.segments import numbered_name, workq_segments
from journeyman.spark import read, write
from journeyman.spark.files import Span, read_spans
from journeyman.spark.maintenance.holding import (
    COMPARED,
    HeldLog,
    MaintenanceResult,
    check_same,
    folded,
)
from journeyman.spark.replay import states, visible, with_payloads
from journeyman.spark.sinks.log_options import POSITION
from journeyman.spark.sinks.parts import RAW
from journeyman.spark.source.options import OFFSET_MASK, SEGMENT_SHIFT, arrow_schema, struct

_Row = dict[str, Any]
_COLUMNS = (
    "_position",
    "_length",
    "state",
    "attempts",
    "fails",
    "exhausted",
    "owed_timeouts",
    "started_position",
    "finished_position",
    "result_position",
    "result_length",
)
_EVENT_BYTES = 37  # the size of a record with a time, a command and an id only
_STATES = {state.name.lower(): state for state in JobState}
_SNAPSHOT: Final = struct(f"{POSITION} bigint, {RAW} binary")


def clean_workq(
    spark: SparkSession, disk: Disk, held_log: HeldLog, as_of_ns: int
) -> MaintenanceResult:
    """Fold, stage, verify, publish. Raises LogError; then nothing was changed."""
    log = held_log.log
    if (
        read(spark, "workq", *held_log.paths, kinds="unknown", mode="DROPMALFORMED")
        .limit(1)
        .count()
    ):
        raise LogError(
            log.name, "holds commands of a newer version, and only the server keeps those it needs"
        )
    with folded(spark, held_log) as (tables, records):
        jobs = visible(tables["jobs"], as_of_ns).drop("queue")
        staged = _stage(disk, held_log, jobs)
        kept = _verify(spark, held_log, jobs, staged)
    size = sum(map(disk.size, staged))
    if size >= held_log.size:
        return MaintenanceResult(
            "workq", log.name, False, records, records, held_log.size, held_log.size
        )
    publish_workq(disk, log.name, staged)
    return MaintenanceResult("workq", log.name, True, records, kept, held_log.size, size)


def _verify(spark: SparkSession, held_log: HeldLog, jobs: DataFrame, staged: list[str]) -> int:
    """Replay what was staged; how many records it is."""
    with folded(spark, held_log, staged, payloads=True) as (after, records):
        columns = COMPARED["workq", "jobs"]
        check_same(held_log.log.name, "jobs", with_payloads(jobs), after["jobs"], columns)
    return records


def publish_workq(disk: Disk, directory: str, staged: list[str]) -> None:
    """Let the staged files be the segments of the log; the caller has its locks."""
    names = {
        posixpath.relpath(path, directory): numbered_name(number)
        for number, path in enumerate(staged, 1)
    }
    there = workq_segments(disk.list_dir(directory))
    goes = tuple(name for name in there if name not in names.values())
    before = publication.file_identities(disk, (posixpath.join(directory, name) for name in there))
    newest = posixpath.join(directory, numbered_name(len(staged)))
    publication.note_replacement(disk, before, staged[-1], newest)
    publication.publish(
        disk, publication.journal_path(directory), publication.Publication(names, goes)
    )


def _stage(disk: Disk, held_log: HeldLog, jobs: DataFrame) -> list[str]:
    """Write the snapshots of these jobs as a log in the staging directory; its segments."""
    files = {file.segment: file.path for file in held_log.log.files}
    rows = jobs.mapInArrow(partial(_snapshot_rows, files), _SNAPSHOT)
    built = posixpath.join(held_log.staging, "built")
    disk.make_dirs(held_log.staging)
    write(rows, "workq", built)
    return [posixpath.join(built, name) for name in workq_segments(disk.list_dir(built))]


def _snapshot_rows(
    files: Mapping[int, str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [batch.column(POSITION), pa.array(_snapshots(files, batch), pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema(_SNAPSHOT))


def _snapshots(files: Mapping[int, str], jobs: pa.RecordBatch) -> Iterator[bytes]:
    """The records of each job; ``files`` are those of their one log, by segment."""
    rows = jobs.select(list(_COLUMNS)).to_pylist()
    spans = [_spans(files, row) for row in rows]
    found = iter(read_spans([span for each in spans for span in each.values()]))
    for row, each in zip(rows, spans, strict=True):
        pieces = {name: next(found) for name in each}
        yield b"".join(pieces.values()) if _is_copied(row) else _encoded(row, pieces)


def _spans(files: Mapping[int, str], row: _Row) -> dict[str, Span]:
    """The records that a job is told from, in the order of a snapshot."""
    places = {"added": (row["_position"], row["_length"])}
    if row["started_position"] is not None:
        places["started"] = row["started_position"], _EVENT_BYTES
    if row["result_position"] is not None:
        places["result"] = row["result_position"], row["result_length"]
    if row["finished_position"] not in (None, row["result_position"]):
        places["finished"] = row["finished_position"], _EVENT_BYTES
    return {
        name: Span(files[position >> SEGMENT_SHIFT], position & OFFSET_MASK, length)
        for name, (position, length) in places.items()
    }


def _is_copied(row: _Row) -> bool:
    """Return whether the records of the log, as they are, are the snapshot."""
    if row["fails"] or row["exhausted"] or row["owed_timeouts"] or row["attempts"] > 1:
        return False
    if row["state"] == "leased":
        return bool(row["attempts"] == 1)
    if row["state"] == "new":
        return bool(row["attempts"] == 0)
    is_finished = row["state"] in ("completed", "failed")
    return is_finished and row["finished_position"] == row["result_position"]


def _encoded(row: _Row, pieces: Mapping[str, bytes]) -> bytes:
    records = {name: _decoded(data) for name, data in pieces.items()}
    started, result = records.get("started"), records.get("result")
    finished = records.get("finished", result)
    job = FoldedJob(
        records["added"],
        _STATES[row["state"]],
        row["attempts"],
        row["fails"],
        None if result is None else result.result,
        None if started is None else started.logged,
        None if row["finished_position"] is None or finished is None else finished.logged,
        row["exhausted"],
        row["owed_timeouts"],
    )
    if job.exhausted:
        job.result = b""
    return b"".join(CODEC.encode(record) for record in snapshot(job))


def _decoded(data: bytes) -> Any:
    try:
        entry = CODEC.decode(data, 0)
    except FormatError as error:
        raise LogError("", f"a record changed while the log was cleaned: {error.reason}") from error
    assert entry is not None
    return entry.record


def unneeded_segments(spark: SparkSession, held_log: HeldLog, as_of_ns: int) -> tuple[str, ...]:
    """Paths of segments that nothing needs any more, oldest first.

        segment    1          2                3
        records    add a      add b, delete a  delete b ...
        a, b are over: 1 may go; then 2, whose delete of a has no add in front of it; 3 is the
        newest

    A segment goes when every job in it is over (deleted, expired or past its TTL), and no add
    stands in front of it, in a segment that stays, of a job that it speaks of: the add goes before
    its delete, or the job would be back. The rule is that of journeyman.logs.workq.cleaning, for
    whole segments.
    """
    rows = read(spark, "workq", *held_log.paths, schema="_segment int, key string, kind string")
    living = visible(states(spark, "workq", held_log.paths)["jobs"], as_of_ns).select("key")
    needed = {
        row["_segment"] for row in rows.join(living, "key").select("_segment").distinct().collect()
    }
    adds = rows.filter(F.col("kind").isin("add", "schedule")).select(
        F.col("_segment").alias("add_segment"), "key"
    )
    # A newer writer's record of an unknown job may be an add.
    foreign = rows.filter(F.col("kind") == "unknown").join(adds, "key", "left_anti")
    needed |= {row["_segment"] for row in foreign.select("_segment").distinct().collect()}
    in_segments = rows.select("_segment", "key").distinct()
    pairs = (
        in_segments.join(adds.distinct(), "key")
        .filter(F.col("add_segment") < F.col("_segment"))
        .select("_segment", "add_segment")
        .distinct()
        .collect()
    )
    goes: dict[int, str] = {}
    for file in held_log.log.files[:-1]:
        adds_before = {row["add_segment"] for row in pairs if row["_segment"] == file.segment}
        if file.segment not in needed and adds_before <= goes.keys():
            goes[file.segment] = file.path
    return tuple(goes.values())

"""A workq log cleaned on Spark: the jobs that exist, each told in the fewest records.

    log --fold--> jobs --visible at a moment--> snapshots --in order of their adds--> new segments

A snapshot is what journeyman.folds.workq says. For nearly all jobs it is an add, perhaps a
start, perhaps a result, and these are copied as they stand in the log; the rest is decoded, folded
and encoded. Nobody writes the log meanwhile, so there is no record on its way that a delete would
have to wait for: deleted and expired jobs leave nothing, and neither do records without an add.

All segments change at once, by a journal (journeyman.logs.publication): old ones go and new ones,
numbered from 1, are there, or the other way round. Whoever opens the log next finishes what a crash
interrupted.
"""

from __future__ import annotations

import posixpath
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from journeyman.disk import Disk
from journeyman.errors import LogError
from journeyman.formats.workq import HEADER
from journeyman.logs.publication import Publication, journal_path, publish
from journeyman.logs.replaced_files import identities, note_replacement
from journeyman.logs.replacement import write_whole
from journeyman.logs.segments import workq_segment_name, workq_segments
from journeyman.spark import read
from journeyman.spark.maintenance.damage import refuse_damage
from journeyman.spark.maintenance.holding import Hands
from journeyman.spark.maintenance.part_files import PartWritten, write_part_files
from journeyman.spark.maintenance.reports import MaintenanceResult
from journeyman.spark.maintenance.verification import COMPARED, check_same
from journeyman.spark.maintenance.workq_snapshots import SnapshotBytes
from journeyman.spark.replay.payloads import with_payloads
from journeyman.spark.replay.workq import visible
from journeyman.spark.tables import packets, tables_of

SEGMENT_BYTES: Final = 64 * 1024 * 1024


def clean_workq(spark: SparkSession, disk: Disk, hands: Hands, as_of_ns: int) -> MaintenanceResult:
    """Fold, stage, verify, publish. Raises LogError; then nothing was changed."""
    log = hands.log
    if read(spark, "workq", *hands.paths, kinds="unknown", mode="DROPMALFORMED").limit(1).count():
        raise LogError(
            log.name, "holds commands of a newer version, and only the server keeps those it needs"
        )
    held = packets(spark, "workq", hands.paths).persist()
    try:
        records = refuse_damage(held, log.name)
        jobs = visible(tables_of(held, "workq")["jobs"], as_of_ns).drop("queue")
        parts = stage_workq(disk, hands, jobs)
        staged_files = [part.path for part in parts]
        kept = _verify(spark, hands, jobs, staged_files)
    finally:
        held.unpersist()
    size = sum(part.size for part in parts)
    if size >= hands.size:
        return MaintenanceResult("workq", log.name, False, records, records, hands.size, hands.size)
    publish_workq(disk, log.name, staged_files)
    return MaintenanceResult("workq", log.name, True, records, kept, hands.size, size)


def stage_workq(disk: Disk, hands: Hands, jobs: DataFrame) -> list[PartWritten]:
    """The snapshots of these jobs as segments in the staging directory."""
    files = {file.segment: file.path for file in hands.log.files}
    parts = write_part_files(jobs, hands.staging, SnapshotBytes(files), HEADER, SEGMENT_BYTES)
    if not parts:
        disk.make_dirs(hands.staging)
        path = posixpath.join(hands.staging, "empty")
        parts = [PartWritten(path, write_whole(disk, path, [HEADER]), 0)]
    return parts


def _verify(spark: SparkSession, hands: Hands, jobs: DataFrame, staged: list[str]) -> int:
    """Replay what was staged; how many records it is."""
    held = packets(spark, "workq", staged).persist()
    try:
        records = refuse_damage(held, hands.log.name)
        after = tables_of(held, "workq")["jobs"]
        columns = COMPARED["workq", "jobs"]
        check_same(hands.log.name, "jobs", with_payloads(jobs), with_payloads(after), columns)
    finally:
        held.unpersist()
    return records


def publish_workq(disk: Disk, directory: str, staged: list[str]) -> None:
    """Let the staged files be the segments of the log; the caller has its locks."""
    names = {
        posixpath.relpath(path, directory): workq_segment_name(number)
        for number, path in enumerate(staged, 1)
    }
    there = workq_segments(disk.list_dir(directory))
    goes = tuple(name for name in there if name not in names.values())
    before = identities(posixpath.join(directory, name) for name in there)
    newest = posixpath.join(directory, workq_segment_name(len(staged)))
    note_replacement(before, staged[-1], newest)
    publish(disk, journal_path(directory), Publication(names, goes))

"""One small log of each dialect, and how to run one on any disk: shared by several lanes."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from journeyman.clock import Clock
from journeyman.disk import Disk
from journeyman.formats import kestrel, ledger, workq, ztick
from journeyman.formats.framing import Codec
from journeyman.formats.timed_frame import Instant
from journeyman.logs.recovery import FileReport, recover_file
from journeyman.logs.segments import (
    LEDGER_SUFFIX,
    KestrelPlan,
    NumberedPlan,
    SegmentPlan,
    ZtickPlan,
    kestrel_segments,
    ledger_segments,
    names_in,
    workq_segments,
)

DIRECTORY = "/log"
CREATED = Instant(1_700_000_000_123_456_789)


def ztick_record(number: int) -> ztick.Record:
    if number % 5 == 3:
        return ztick.RuleSet(f"rule.{number}", "job.", ztick.Shell(f"echo {number}"))
    if number % 5 == 4:
        return ztick.JobRemoved(f"job.{number - 1}")
    return ztick.JobSet(f"job.{number}", 1_700_000_000_000_000_000 + number, ztick.Status.PLANNED)


def workq_record(number: int) -> workq.Record:
    job_id = bytes.fromhex("0000000a00004000800000000000") + number.to_bytes(2, "big")
    if number % 3 == 0:
        return workq.JobAdded(
            logged=CREATED,
            job_id=job_id,
            name="queue",
            ttr_ms=1000,
            ttl_ms=60_000,
            priority=-number,
            max_attempts=3,
            max_fails=0,
            payload=b"payload %d" % number,
            time=None,
            created=CREATED,
        )
    if number % 3 == 1:
        return workq.JobEvent(CREATED, job_id, workq.Command.START_ATTEMPT)
    return workq.JobFinished(CREATED, job_id, workq.Command.COMPLETE, b"result")


def kestrel_record(number: int) -> kestrel.Record:
    expire_ms = 1_800_000_000_000 if number % 2 else None
    return kestrel.ItemPut(number + 1, 1_700_000_000_000, expire_ms, 0, b"item %d" % number)


def ledger_record(number: int) -> ledger.Record:
    if number % 3 == 0:
        return ledger.TimetableSet(CREATED, f"nightly.{number}", {"cron": f"{number} 2 * * *"})
    if number % 3 == 1:
        return ledger.QueueResumed(CREATED, f"queue.{number}")
    return ledger.ActionAudited(CREATED, "ada", "http", "pause", f"queue.{number}", "done")


@dataclass(frozen=True)
class Dialect:
    """How one dialect writes and reads a log in DIRECTORY."""

    name: str
    codec: Codec[Any]
    record: Callable[[int], Any]
    file: str
    plan: Callable[[Disk, Clock, int], SegmentPlan]
    segments: Callable[[Sequence[str]], list[str]]

    @property
    def path(self) -> str:
        return posixpath.join(DIRECTORY, self.file)

    def records(self, count: int) -> list[Any]:
        return [self.record(number) for number in range(count)]

    def encode(self, records: Sequence[Any]) -> bytes:
        return self.codec.header + b"".join(map(self.codec.encode, records))

    def paths(self, disk: Disk) -> list[str]:
        names = self.segments(names_in(disk, DIRECTORY))
        return [posixpath.join(DIRECTORY, name) for name in names]

    def recover(self, disk: Disk) -> tuple[list[Any], list[FileReport]]:
        """The records of the whole log, its files repaired."""
        records: list[Any] = []
        reports = []
        for path in self.paths(disk):
            entries, report = recover_file(disk, self.codec, path)
            records += [entry.record for entry in entries]
            reports.append(report)
        return records, reports


ZTICK = Dialect(
    "ztick",
    ztick.CODEC,
    ztick_record,
    "jobs",
    lambda disk, clock, size: ZtickPlan(f"{DIRECTORY}/jobs"),
    lambda names: [name for name in ("jobs.to_compress", "jobs") if name in names],
)
WORKQ = Dialect(
    "workq",
    workq.CODEC,
    workq_record,
    "000000001.log",
    lambda disk, clock, size: NumberedPlan(disk, DIRECTORY, workq.CODEC.header, size),
    workq_segments,
)
KESTREL = Dialect(
    "kestrel",
    kestrel.WRITER,
    kestrel_record,
    "jobs.1700000000000",
    lambda disk, clock, size: KestrelPlan(
        disk, clock, DIRECTORY, "jobs", kestrel.WRITER.header, size
    ),
    lambda names: kestrel_segments("jobs", names),
)
LEDGER = Dialect(
    "ledger",
    ledger.CODEC,
    ledger_record,
    "000000001.ledger",
    lambda disk, clock, size: NumberedPlan(
        disk, DIRECTORY, ledger.CODEC.header, size, LEDGER_SUFFIX
    ),
    ledger_segments,
)
DIALECTS = [ZTICK, WORKQ, KESTREL]

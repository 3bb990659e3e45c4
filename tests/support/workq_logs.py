"""Workq records and whole logs, made by hand: shared by several lanes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from journeyman.formats.framing import scan
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC, Command, JobAdded, JobEvent, JobFinished, Record
from journeyman.logs.segments import numbered_name, workq_segments
from tests.support.simulated_disk import SimulatedDisk

DIRECTORY = "/queue/cmdlog"
SECOND_NS = 1_000_000_000
BORN_NS = 1_700_000_000 * SECOND_NS


def at(seconds: float) -> Instant:
    """A moment, counted from when the logs of these tests begin."""
    return Instant(as_of(seconds))


def as_of(seconds: float) -> int:
    return BORN_NS + round(seconds * SECOND_NS)


def job_id(number: int) -> bytes:
    return bytes.fromhex("0000000a000040008000") + number.to_bytes(6, "big")


def added(
    number: int,
    seconds: float = 0,
    *,
    ttl_s: float = 1000,
    due_s: float | None = None,
    created_s: float | None = None,
) -> Record:
    return JobAdded(
        logged=at(seconds),
        job_id=job_id(number),
        name="queue",
        ttr_ms=60_000,
        ttl_ms=round(ttl_s * 1000),
        priority=0,
        max_attempts=3,
        max_fails=0,
        payload=b"payload of %d" % number,
        time=None if due_s is None else at(due_s),
        created=at(seconds if created_s is None else created_s),
        command=Command.ADD if due_s is None else Command.SCHEDULE,
    )


def event(command: Command, number: int, seconds: float = 0) -> Record:
    return JobEvent(at(seconds), job_id(number), command)


def deleted(number: int, seconds: float = 0) -> Record:
    return event(Command.DELETE, number, seconds)


def expired(number: int, seconds: float = 0) -> Record:
    return event(Command.EXPIRE, number, seconds)


def started(number: int, seconds: float = 0) -> Record:
    return event(Command.START_ATTEMPT, number, seconds)


def completed(number: int, seconds: float = 0) -> Record:
    return JobFinished(at(seconds), job_id(number), Command.COMPLETE, b"result")


def path_of(sequence: int) -> str:
    return f"{DIRECTORY}/{numbered_name(sequence)}"


def encoded(records: Iterable[Record]) -> bytes:
    return CODEC.header + b"".join(map(CODEC.encode, records))


def planted(*segments: Sequence[Record]) -> SimulatedDisk:
    """A log of these segments; the last one is the active one."""
    disk = SimulatedDisk()
    for sequence, records in enumerate(segments, 1):
        disk.plant(path_of(sequence), encoded(records))
    return disk


def segments_of(disk: SimulatedDisk) -> dict[int, list[Record]]:
    """What is in each segment, by its number."""
    found = {}
    for name in workq_segments(disk.list_dir(DIRECTORY)):
        entries, ending = scan(CODEC, disk.read_bytes(f"{DIRECTORY}/{name}"))
        assert ending.clean, name
        found[int(name[:9])] = [entry.record for entry in entries]
    return found

"""The workq command log: every state change of every job of the work queue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

HEADER = bytes.fromhex("7771777100000001")
MAX_PAYLOAD_BYTES = 1_048_576  # of a job, and of a result
MAX_NAME_BYTES = 255
UTC_OFFSET_MIN = -1  # how the original writes "UTC"


class Command(IntEnum):
    ADD = 1
    SCHEDULE = 2
    COMPLETE = 3
    FAIL = 4
    DELETE = 5
    EXPIRE = 6
    START_ATTEMPT = 7
    TIMEOUT_ATTEMPT = 8

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment as the log keeps it: nanoseconds since 1970 and a zone offset in minutes.

    The offset never changes the moment; it is kept so that a record is written back as it was.
    """

    unix_ns: int
    offset_min: int = UTC_OFFSET_MIN


@dataclass(frozen=True, slots=True)
class JobAdded:
    """add, or (``command`` SCHEDULE) schedule: a job exists from now on."""

    logged: Instant
    job_id: bytes  # 16 raw bytes
    name: str  # utf-8, undecodable bytes kept by surrogateescape
    ttr_ms: int
    ttl_ms: int
    priority: int
    max_attempts: int
    max_fails: int
    payload: bytes
    time: Instant | None  # when due; None for "add"
    created: Instant
    command: Command = Command.ADD
    # Zone offset written with a time of "none"; the original writes -1, its document says 0.
    none_offset_min: int = UTC_OFFSET_MIN


@dataclass(frozen=True, slots=True)
class JobFinished:
    """complete or fail, with the worker's result."""

    logged: Instant
    job_id: bytes
    command: Command  # COMPLETE or FAIL
    result: bytes


@dataclass(frozen=True, slots=True)
class JobEvent:
    """delete, expire, start-attempt or timeout-attempt: nothing but the id."""

    logged: Instant
    job_id: bytes
    command: Command


Record: TypeAlias = JobAdded | JobFinished | JobEvent

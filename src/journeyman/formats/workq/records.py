"""What the workq command log records: a job is added, is finished, or something happens to it."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

from journeyman.values import value

UTC_OFFSET_MIN = -1  # how the original writes "UTC"


@value
class Instant:
    """A moment as the log keeps it: nanoseconds since 1970 and a zone offset in minutes.

    The offset never changes the moment; it is kept so that a record is written back as it was.
    """

    unix_ns: int
    offset_min: int = UTC_OFFSET_MIN


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


class NewerCommand(int):
    """The type of a command that is not known here."""

    @property
    def word(self) -> str:
        return "unknown"


@value
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


@value
class JobFinished:
    """complete or fail, with the worker's result."""

    logged: Instant
    job_id: bytes
    command: Command  # COMPLETE or FAIL
    result: bytes
    hidden: bool = False  # from the original: a FAIL that is retried


@value
class JobEvent:
    """delete, expire, start-attempt or timeout-attempt: nothing but the id."""

    logged: Instant
    job_id: bytes
    command: Command
    hidden: bool = False  # from the original: a TIMEOUT_ATTEMPT after a hidden fail


@value
class UnknownCommand:
    """A command of a newer version: kept byte for byte, meaning nothing here."""

    logged: Instant
    job_id: bytes
    command: NewerCommand
    body: bytes  # what follows the id


Record: TypeAlias = JobAdded | JobFinished | JobEvent | UnknownCommand

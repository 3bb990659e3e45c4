"""What the workq command log records: a job is added, is finished, or something happens to it.

A moment in the workq log: 15 bytes, big endian.

    byte   0        1..8                      9..12         13..14
           version  seconds since 0001-01-01  nanoseconds   zone offset in minutes
           01       i64                       u32 < 10^9    i16

The zone offset never changes the moment, it only says how the original would print it. The
original writes -1 for UTC. Any offset is read, and kept, so that a time is written back as it
was.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from functools import lru_cache
from typing import TypeAlias

from journeyman.errors import EncodeError
from journeyman.units import NS_PER_S
from journeyman.values import value

TIME_BYTES = 15
TIME_VERSION = 1
UNIX_EPOCH_S = 62_135_596_800  # 1970-01-01 in seconds since 0001-01-01
UTC_OFFSET_MIN = -1  # how the original writes "UTC"

# (seconds, nanoseconds, offset): everything after the version byte.
FIELDS = struct.Struct(">qIh")
_WHOLE = struct.Struct(">BqIh")


@value
class Instant:
    """A moment as the log keeps it: nanoseconds since 1970 and a zone offset in minutes.

    The offset never changes the moment; it is kept so that a record is written back as it was.
    """

    unix_ns: int
    offset_min: int = UTC_OFFSET_MIN


def to_unix_ns(seconds: int, nanos: int) -> int:
    """Nanoseconds since 1970 of a moment given by its fields."""
    return (seconds - UNIX_EPOCH_S) * NS_PER_S + nanos


@lru_cache(maxsize=64)  # records of one batch have the same time, or nearly
def to_bytes(unix_ns: int, offset_min: int) -> bytes:
    """The 15 bytes of a moment. Raises EncodeError when it does not fit them."""
    seconds, nanos = divmod(unix_ns, NS_PER_S)
    try:
        return _WHOLE.pack(TIME_VERSION, seconds + UNIX_EPOCH_S, nanos, offset_min)
    except struct.error as error:
        raise EncodeError(f"time {unix_ns} ns, offset {offset_min} min: out of range") from error


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

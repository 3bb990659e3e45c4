"""A moment in the workq log: 15 bytes, big endian.

    byte   0        1..8                      9..12         13..14
           version  seconds since 0001-01-01  nanoseconds   zone offset in minutes
           01       i64                       u32 < 10^9    i16

The zone offset never changes the moment, it only says how the original would print it. The
original writes -1 for UTC. Any offset is read, and kept, so that a time is written back as it was.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from journeyman.errors import EncodeError
from journeyman.values import value

TIME_BYTES = 15
TIME_VERSION = 1
NANOS_PER_SECOND = 1_000_000_000
UNIX_EPOCH_S = 62_135_596_800  # 1970-01-01 in seconds since 0001-01-01
UTC_OFFSET_MIN = -1  # how the original writes "UTC"

# (seconds, nanoseconds, offset): everything behind the version byte.
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
    return (seconds - UNIX_EPOCH_S) * NANOS_PER_SECOND + nanos


@lru_cache(maxsize=64)  # records of one batch have the same time, or nearly
def to_bytes(unix_ns: int, offset_min: int) -> bytes:
    """The 15 bytes of a moment. Raises EncodeError when it does not fit them."""
    seconds, nanos = divmod(unix_ns, NANOS_PER_SECOND)
    try:
        return _WHOLE.pack(TIME_VERSION, seconds + UNIX_EPOCH_S, nanos, offset_min)
    except struct.error as error:
        raise EncodeError(f"time {unix_ns} ns, offset {offset_min} min: out of range") from error

"""How far the store has followed the work queue's log: the one key that makes it an index.

    v1:storage:position    {"clock_ns":..,"offset":4096,"segment":3,"tail":"<hex>"}

It is written in the commit of the rows that follow from it. So a store is the fold of the log up
to ``offset`` of ``segment``, as that is at the time ``clock_ns``: waiting jobs that are due by
then, ended jobs whose TTL was over. ``tail`` are the last bytes of the log before the position. A
log that has others there is not the one that was followed: it was cut, or rewritten.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from journeyman.errors import InvalidData
from journeyman.storage.contract import StoreReader

POSITION_KEY: Final = b"v1:storage:position"


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Segment 0 is before the first one."""

    segment: int = 0
    offset: int = 0
    clock_ns: int = 0
    tail: bytes = b""

    def __str__(self) -> str:
        return f"{self.segment:09d}.log:{self.offset}"

    def moved(self, segment: int, offset: int, tail: bytes) -> LogPosition:
        return replace(self, segment=segment, offset=offset, tail=tail)

    def encode(self) -> bytes:
        fields = {"clock_ns": self.clock_ns, "offset": self.offset, "segment": self.segment}
        return json.dumps({**fields, "tail": self.tail.hex()}, separators=(",", ":")).encode()


def read_position(reader: StoreReader) -> LogPosition | None:
    """Read the position of the log. None: the store follows no log, or is being rebuilt.
    InvalidData: it cannot be read."""
    value = reader.get(POSITION_KEY)
    if value is None:
        return None
    try:
        found = json.loads(value)
        segment, offset, clock_ns = (found[name] for name in ("segment", "offset", "clock_ns"))
        if not type(segment) is type(offset) is type(clock_ns) is int:
            raise ValueError("not a number")
        return LogPosition(segment, offset, clock_ns, bytes.fromhex(found["tail"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidData(f"the log position cannot be read: {error}", 0) from None


def position_in(reader: StoreReader) -> LogPosition | None:
    """Read the position for those who only show it."""
    with suppress(InvalidData):
        return read_position(reader)
    return None

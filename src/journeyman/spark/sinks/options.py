"""What a write was asked to do: the options of the log sinks, their defaults and limits.

    path          ztick: the logfile. workq, kestrel, keyspace: the directory
    orderBy       columns, comma separated, that the rows are in ascending order of; `_position` if
                  the rows have it; a keyspace is always in the order of `raw_key`
    segmentBytes  workq, kestrel, keyspace: a file is left once it has reached this size
    queue         kestrel: the queue of rows that name none
    readers       kestrel: readers, comma separated, that begin at the first item written, where
                  they have no checkpoint; `default` is the one without a name
    seals         ztick, kestrel: whether what is written is sealed, `true` or `false`

Names are read without regard to case, as in Spark; one that nobody knows is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from journeyman.errors import UsageError
from journeyman.logs.segments import check_queue_name, check_reader_name
from journeyman.spark.files import absolute

POSITION: Final = "_position"
_DEFAULT_READER_WORD: Final = "default"
_RAW_KEY: Final = "raw_key"
_MIN_SEGMENT_BYTES: Final = 1024
_SEGMENT_BYTES: Final = {
    "workq": 64 * 1024 * 1024,
    "kestrel": 16 * 1024 * 1024,
    "keyspace": 256 * 1024 * 1024,
}
_KNOWN: Final = {
    "ztick": ("path", "orderBy", "seals"),
    "workq": ("path", "orderBy", "segmentBytes"),
    "kestrel": ("path", "orderBy", "segmentBytes", "queue", "readers", "seals"),
    "keyspace": ("path", "segmentBytes"),
}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked and with defaults. Small, and pickled with every task."""

    dialect: str
    path: str
    order_by: tuple[str, ...]
    segment_bytes: int
    queue: str | None = None
    readers: tuple[str, ...] = ()
    seals: bool = True

    @classmethod
    def parse(cls, dialect: str, given: Mapping[str, str], columns: Sequence[str]) -> SinkOptions:
        """``columns`` are those of the rows. Raises UsageError."""
        if dialect == "ledger":
            raise UsageError("a ledger can be read, not written: the server writes it")
        values = {name.lower(): value for name, value in given.items()}
        known = {name.lower() for name in _KNOWN[dialect]}
        for name in given:
            if name.lower() not in known:
                raise UsageError(_unknown(dialect, name))
        if not values.get("path"):
            raise UsageError(f"write.format({dialect!r}) needs a path: save(PATH)")
        queue = values.get("queue")
        if queue is not None:
            check_queue_name(queue)
        return cls(
            dialect,
            absolute(values["path"]).rstrip("/"),
            _order(dialect, values.get("orderby"), columns),
            _segment_bytes(dialect, values.get("segmentbytes")),
            queue,
            _readers(values.get("readers")),
            _seals(values.get("seals", "true")),
        )

    @property
    def is_remote(self) -> bool:
        return "://" in self.path


def _order(dialect: str, given: str | None, columns: Sequence[str]) -> tuple[str, ...]:
    if dialect == "keyspace":
        return (_RAW_KEY,)
    if given is not None:
        names = tuple(name.strip() for name in given.split(",") if name.strip())
        for name in names:
            if name not in columns:
                raise UsageError(f"orderBy: no column {name!r}; there are {', '.join(columns)}")
        if names:
            return names
    if POSITION in columns:
        return (POSITION,)
    raise UsageError(
        f"a {dialect} log is in order: say by which columns with orderBy, and sort by them"
        " (journeyman.spark.sinks.write does both)"
    )


def _segment_bytes(dialect: str, given: str | None) -> int:
    if given is None:
        return _SEGMENT_BYTES.get(dialect, 0)
    if not given.isascii() or not given.isdecimal() or int(given) < _MIN_SEGMENT_BYTES:
        raise UsageError(f"segmentBytes is a number from {_MIN_SEGMENT_BYTES} on, not {given!r}")
    return int(given)


def _readers(given: str | None) -> tuple[str, ...]:
    words = [word.strip() for word in (given or "").split(",") if word.strip()]
    readers = tuple("" if word == _DEFAULT_READER_WORD else word for word in words)
    for reader in readers:
        check_reader_name(reader)
    if "" in readers and len(readers) > 1:
        raise UsageError("readers: a queue with named readers has no default reader")
    return readers


def _seals(given: str) -> bool:
    if given.lower() not in ("true", "false"):
        raise UsageError(f"seals is true or false, not {given!r}")
    return given.lower() == "true"


def _unknown(dialect: str, name: str) -> str:
    known = _KNOWN[dialect]
    near = difflib.get_close_matches(name.lower(), [each.lower() for each in known], 1)
    meant = next((each for each in known if near and each.lower() == near[0]), None)
    hint = f"did you mean {meant}?" if meant else f"there are {', '.join(known)}"
    return f"writing {dialect} has no option {name!r}: {hint}"

"""The options of a write of a log. Names are read without regard to case, as in Spark; one that
nobody knows is an error:

    path          ztick: the logfile. workq, kestrel: the directory
    orderBy       columns, comma separated, that the rows are in ascending order of; `_position` if
                  the rows have it
    segmentBytes  workq, kestrel: a file is left once it has reached this size
    queue         kestrel: the queue of rows that name none
    readers       kestrel: readers, comma separated, that begin at the first item written, where
                  they have no checkpoint; `default` is the one without a name
    seals         ztick, kestrel: whether what is written is sealed, `true` or `false`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from journeyman.errors import UsageError
from journeyman.logs.segments import check_queue_name, check_reader_name
from journeyman.spark.files import absolute, refuse_uri
from journeyman.spark.source import options

POSITION: Final = "_position"
MODES = ("append", "overwrite")
_DEFAULT_READER_WORD: Final = "default"
_MIN_SEGMENT_BYTES: Final = 1024
_DEFAULT_SEGMENT_BYTES: Final = {
    "workq": 64 * 1024 * 1024,
    "kestrel": 16 * 1024 * 1024,
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
    def parse(cls, dialect: str, texts: Mapping[str, str], columns: Sequence[str]) -> SinkOptions:
        """``columns`` are those of the rows. Raises UsageError."""
        if dialect == "ledger":
            raise UsageError("a ledger can be read, not written: the server writes it")
        values = options.parse_options(f"writing {dialect}", texts, _OPTIONS[dialect])
        if not values.get("path"):
            raise UsageError(f"write.format({dialect!r}) needs a path: save(PATH)")
        values["path"] = absolute(values["path"]).rstrip("/")
        refuse_uri(values["path"])
        values["order_by"] = _order(dialect, values.get("order_by", ()), columns)
        values.setdefault("segment_bytes", _DEFAULT_SEGMENT_BYTES.get(dialect, 0))
        return cls(dialect, **values)


def _order(dialect: str, names: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in columns:
            raise UsageError(f"orderBy: no column {name!r}; there are {', '.join(columns)}")
    if names:
        return tuple(names)
    if POSITION in columns:
        return (POSITION,)
    raise UsageError(
        f"a {dialect} log is ordered: name the columns with orderBy, and sort by them"
        " (journeyman.spark.write does both)"
    )


def _split_words(_: str, text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _queue(_: str, text: str) -> str:
    check_queue_name(text)
    return text


def _readers(name: str, text: str) -> tuple[str, ...]:
    words = _split_words(name, text)
    readers = tuple("" if word == _DEFAULT_READER_WORD else word for word in words)
    for reader in readers:
        check_reader_name(reader)
    if "" in readers and len(readers) > 1:
        raise UsageError("readers: a queue with named readers has no default reader")
    return readers


_PATH = ("path", "path", options.any_text)
_ORDER_BY = ("orderBy", "order_by", _split_words)
_SEGMENT_BYTES = ("segmentBytes", "segment_bytes", options.number_from(_MIN_SEGMENT_BYTES))
_QUEUE = ("queue", "queue", _queue)
_READERS = ("readers", "readers", _readers)
_SEALS = ("seals", "seals", options.flag_option)


_OPTIONS: Final[Mapping[str, options.OptionTable]] = {
    "ztick": (_PATH, _ORDER_BY, _SEALS),
    "workq": (_PATH, _ORDER_BY, _SEGMENT_BYTES),
    "kestrel": (_PATH, _ORDER_BY, _SEGMENT_BYTES, _QUEUE, _READERS, _SEALS),
}

"""The options of the sources: their names, types, defaults and limits.

Names are those of Spark's own file sources where these have them, and as there they are read
without regard to case. A name that nobody knows is an error that names the nearest known one: an
option that was misspelt and silently left out would read other data than was asked for.

    SourceOptions.parse("ztick", {"path": "/logs", "mode": "FAILFAST"})
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from journeyman.errors import UsageError
from journeyman.moments import parse_moment
from journeyman.spark.source.schemas import (
    CORRUPT_RECORD,
    DIALECT_COLUMNS,
    KESTREL,
    KEYSPACE,
    KINDS,
    REDUCERS,
    ZTICK,
)

PERMISSIVE, DROPMALFORMED, FAILFAST = MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")

_TABLE_OPTION = "option."
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True, slots=True)
class AsOfPosition:
    """Records of one log that begin before ``offset`` of ``file``."""

    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What one read was asked to do. Small, and pickled with every partition's reader."""

    dialect: str
    paths: tuple[str, ...]
    mode: str = PERMISSIVE
    corrupt_record: str = CORRUPT_RECORD
    path_glob_filter: str | None = None
    recursive: bool = False
    modified_after_ns: int | None = None
    modified_before_ns: int | None = None
    ignore_missing_files: bool = False
    max_files_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    as_of_ns: int | None = None
    as_of_position: AsOfPosition | None = None
    kinds: frozenset[str] | None = None
    start_ns: int | None = None  # at or after
    end_ns: int | None = None  # before
    payloads: bool = False
    queue: str | None = None
    split_bytes: int | None = None
    min_partitions: int | None = None
    starting_offsets: str = "earliest"
    on_lost_history: str = "fail"
    hold_files: bool = True
    reduce: str | None = None
    salvage: bool = False
    damage_only: bool = False

    @classmethod
    def parse(cls, dialect: str, given: Mapping[str, str]) -> SourceOptions:
        """Raises UsageError for what is unknown, malformed or contradictory."""
        given = own_options(given)
        values: dict[str, Any] = {"paths": _paths(given)}
        for name, text in given.items():
            low = name.lower()
            if low in ("path", "paths"):
                continue
            if low not in _PARSERS:
                raise UsageError(_unknown(dialect, name))
            field, parse = _PARSERS[low]
            values[field] = parse(name, text)
        as_of = values.pop("as_of", None)
        field = "as_of_position" if isinstance(as_of, AsOfPosition) else "as_of_ns"
        options = cls(dialect, **values, **{field: as_of})
        options._check()
        return options

    @property
    def corrupt_column(self) -> str | None:
        """The name of the column for damaged bytes; None when there is none."""
        return self.corrupt_record if self.mode == PERMISSIVE else None

    def _check(self) -> None:
        dialect = self.dialect
        unknown = sorted((self.kinds or frozenset()) - set(KINDS[dialect]))
        if unknown:
            raise UsageError(
                f"kinds: {dialect} has no {', '.join(unknown)}; it has {', '.join(KINDS[dialect])}"
            )
        has_moment = not self.start_ns == self.end_ns == self.as_of_ns is None
        if has_moment and dialect in (ZTICK, KEYSPACE):
            raise UsageError(
                f"records of {dialect} say no time: "
                "startTime, endTime and a time in asOf cannot be met"
            )
        if self.queue is not None and dialect != KESTREL:
            raise UsageError(f"option queue is for kestrel, not for {dialect}")
        if self.reduce is not None and self.reduce != REDUCERS.get(dialect):
            known = REDUCERS.get(dialect, "none")
            raise UsageError(f"{dialect} has no reducer {self.reduce}; it has {known}")
        columns = [name for name, _ in DIALECT_COLUMNS[dialect]]
        if self.corrupt_record in columns:
            raise UsageError(f"columnNameOfCorruptRecord: {self.corrupt_record} is taken")


def own_options(given: Mapping[str, str]) -> dict[str, str]:
    """What of these is for a source, if Spark hands over all that it knows of a table.

    For CREATE TABLE that is its properties (``owner``, ``provider``, and those of TBLPROPERTIES),
    its place, and each option twice: as it is, and once more with ``option.`` before it.
    """
    if "provider" not in given:
        return dict(given)
    options = {
        name.removeprefix(_TABLE_OPTION): text
        for name, text in given.items()
        if name.startswith(_TABLE_OPTION)
    }
    place = given.get("path", given.get("location"))
    if place is not None and "paths" not in options:
        options["path"] = place
    return options


def _unknown(dialect: str, name: str) -> str:
    known = [*_SPELLINGS.values(), "path", "paths"]
    near = difflib.get_close_matches(name.lower(), [each.lower() for each in known], 1, 0.5)
    spelt = {each.lower(): each for each in known}
    meant = f"; did you mean {spelt[near[0]]}?" if near else f"; there are {', '.join(known)}"
    return f"{dialect} has no option {name}{meant}"


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    """``path`` as one string, and ``paths`` as Spark hands on several: a JSON list."""
    by_low = {name.lower(): text for name, text in given.items()}
    paths: list[str] = []
    if "paths" in by_low:
        try:
            listed = json.loads(by_low["paths"])
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            raise UsageError(f"paths is a JSON list of strings, not {by_low['paths']!r}")
        paths += listed
    if "path" in by_low:
        paths.append(by_low["path"])
    if not paths or not all(paths):
        raise UsageError(
            "no path to read: give load() a file, a directory or a glob; a table whose columns "
            "were listed by CREATE TABLE keeps no options: list none, or add WITH (path '...')"
        )
    return tuple(paths)


# -- one parser a type ---------------------------------------------------------------------------

_Parser = Callable[[str, str], object]  # name and text of an option -> its value


def _text(name: str, text: str) -> str:
    if not text:
        raise UsageError(f"{name} is empty")
    return text


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


def _count(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise UsageError(f"{name} is a whole number from 1 on, not {text!r}")
    return int(text)


def _size(name: str, text: str) -> int:
    """Bytes, as Spark writes them: 1048576, 64m, 64mb, 1g."""
    low = text.strip().lower()
    digits = low.rstrip("bkmgti")
    unit = low[len(digits) :].removesuffix("b").removesuffix("i")
    if not digits.isdecimal() or unit not in _UNITS or int(digits) < 1:
        raise UsageError(f"{name} is a size like 1048576, 64m or 1g, not {text!r}")
    return int(digits) * _UNITS[unit]


def _moment(name: str, text: str) -> int:
    try:
        return parse_moment(text)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{name} is a moment in ISO 8601 or nanoseconds since 1970, not {text!r}"
        ) from None


def _as_of(name: str, text: str) -> int | AsOfPosition:
    file, colon, offset = text.rpartition(":")
    try:
        return parse_moment(text)
    except (ValueError, OverflowError):
        if colon and file and offset.isdecimal():
            return AsOfPosition(file, int(offset))
        raise UsageError(
            f"{name} is a moment (ISO 8601, nanoseconds) or FILE:OFFSET, not {text!r}"
        ) from None


def _one_of(*choices: str) -> _Parser:
    """One of these words, in the case in which they are written here."""

    def parse(name: str, text: str) -> str:
        found = [choice for choice in choices if choice.lower() == text.lower()]
        if not found:
            raise UsageError(f"{name} is one of {', '.join(choices)}, not {text!r}")
        return found[0]

    return parse


def _words(name: str, text: str) -> frozenset[str]:
    words = frozenset(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise UsageError(f"{name} names no kind")
    return words


_OPTIONS: Final[tuple[tuple[str, str, _Parser], ...]] = (
    ("mode", "mode", _one_of(*MODES)),
    ("columnNameOfCorruptRecord", "corrupt_record", _text),
    ("pathGlobFilter", "path_glob_filter", _text),
    ("recursiveFileLookup", "recursive", _flag),
    ("modifiedAfter", "modified_after_ns", _moment),
    ("modifiedBefore", "modified_before_ns", _moment),
    ("ignoreMissingFiles", "ignore_missing_files", _flag),
    ("maxFilesPerTrigger", "max_files_per_trigger", _count),
    ("maxBytesPerTrigger", "max_bytes_per_trigger", _size),
    ("asOf", "as_of", _as_of),
    ("kinds", "kinds", _words),
    ("startTime", "start_ns", _moment),
    ("endTime", "end_ns", _moment),
    ("payloads", "payloads", _flag),
    ("queue", "queue", _text),
    ("splitBytes", "split_bytes", _size),
    ("minPartitions", "min_partitions", _count),
    ("reduce", "reduce", _text),
    ("salvage", "salvage", _flag),
    ("damageOnly", "damage_only", _flag),
    # For streams; a batch read leaves them alone, as it does the two limits of a trigger.
    ("startingOffsets", "starting_offsets", _one_of("earliest", "latest")),
    ("onLostHistory", "on_lost_history", _one_of("fail", "continue")),
    ("holdFiles", "hold_files", _flag),
)
_PARSERS: Final = {name.lower(): (field, parse) for name, field, parse in _OPTIONS}
_SPELLINGS: Final = {name.lower(): name for name, _, _ in _OPTIONS}

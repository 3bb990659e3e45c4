"""The ledger: what the three logs have no place for, in a log of its own.

    segment   HEADER (8)  record  record ...
    record    TIME (15)  SIZE (uvarint)  PAYLOAD (SIZE)  CRC (4)     see timed_frame.py
    payload   {"v":1,"kind":"queue-paused","queue":"mail"}           one compact JSON object, ASCII

To add a kind, add a class here and a row to docs/formats/ledger.md. The members of the payload are
``v``, ``kind`` and then the fields of the class after ``logged``, in this order; their types are
``str``, ``int``, ``Body`` (any JSON object) or ``Pairs``. The decorator says what the record does
to the state:

    family, key            the last record of the key is its state
    family, key, removes   the key has no state any more
    family, no key         each record stands by itself: a history

A record of another version, of an unknown kind, or with other members is a ``NewerRecord``. It is
kept as it is and passed through. A payload that is not an object with a whole number ``v`` and a
text ``kind`` is damage, although its CRC fits.

The whole contract: docs/formats/ledger.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias, TypeVar, dataclass_transform

from journeyman.errors import EncodeError, InvalidData
from journeyman.formats import timed_frame
from journeyman.formats.framing import Buffer, Codec, Entry
from journeyman.units import NS_PER_S
from journeyman.values import value

VERSION = 1

Body: TypeAlias = dict[str, Any]  # a JSON object; not to be changed
Pairs: TypeAlias = tuple[tuple[int, int], ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table in docs/formats/ledger.md."""

    name: str
    make: Callable[..., Any]
    family: str
    key: str | None  # the field with the key; None: each record stands by itself
    removes: bool
    members: tuple[tuple[str, str], ...]  # name and type of each field after ``logged``


KINDS: dict[str, Kind] = {}
_KIND_OF: dict[type, Kind] = {}


def kind_of(record: Any) -> Kind:
    return _KIND_OF[type(record)]


def is_state(record: Any) -> bool:
    """Return whether it is the state of a key, or ends it; else it stands by itself."""
    kind = _KIND_OF.get(type(record))
    return kind is not None and kind.key is not None


@value
class KnownRecord:
    """A record of one of the kinds below."""

    logged: timed_frame.Instant


@dataclass_transform(frozen_default=True)
def _kind(
    name: str, *, family: str, key: str | None = None, removes: bool = False
) -> Callable[[type[T]], type[T]]:
    def register(cls: type[T]) -> type[T]:
        made = value(cls)
        members = tuple((each.name, str(each.type)) for each in fields(made)[1:])  # type: ignore[arg-type]
        KINDS[name] = _KIND_OF[made] = Kind(name, made, family, key, removes, members)
        return made

    return register


@_kind("timetable-set", family="timetable", key="timetable")
class TimetableSet(KnownRecord):
    timetable: str
    body: Body


@_kind("timetable-removed", family="timetable", key="timetable", removes=True)
class TimetableRemoved(KnownRecord):
    timetable: str


@_kind("timetable-paused", family="timetable-pause", key="timetable")
class TimetablePaused(KnownRecord):
    timetable: str


@_kind("timetable-resumed", family="timetable-pause", key="timetable", removes=True)
class TimetableResumed(KnownRecord):
    timetable: str


@_kind("timetable-planned", family="timetable-plan", key="timetable")
class TimetablePlanned(KnownRecord):
    """Where a timetable stands: its last occurrence that was decided, and the one in the schedule.

    Both are local times with their offset, ``2026-11-17T02:00:00+01:00``; empty: there is none.
    """

    timetable: str
    done: str
    planned: str


@_kind("timetable-unplanned", family="timetable-plan", key="timetable", removes=True)
class TimetableUnplanned(KnownRecord):
    timetable: str


@_kind("run-retried", family="run-retry", key="job")
class RunRetried(KnownRecord):
    """A run of this job of the schedule has failed and is planned again, for the n-th time."""

    job: str
    attempt: int


@_kind("run-settled", family="run-retry", key="job", removes=True)
class RunSettled(KnownRecord):
    job: str


@_kind("rule-options-set", family="rule-options", key="rule")
class RuleOptionsSet(KnownRecord):
    """Options of the runs by a rule of the schedule: see timetables/run_options.py."""

    rule: str
    body: Body


@_kind("rule-options-removed", family="rule-options", key="rule", removes=True)
class RuleOptionsRemoved(KnownRecord):
    rule: str


@_kind("notice-set", family="notice", key="job")
class NoticeSet(KnownRecord):
    """A job of the schedule reports how another one ended, or that it is late."""

    job: str  # the one that reports
    body: Body


@_kind("notice-settled", family="notice", key="job", removes=True)
class NoticeSettled(KnownRecord):
    job: str


@_kind("queue-paused", family="queue-pause", key="queue")
class QueuePaused(KnownRecord):
    """A queue of the work queue gives out no jobs."""

    queue: str


@_kind("queue-resumed", family="queue-pause", key="queue", removes=True)
class QueueResumed(KnownRecord):
    queue: str


@_kind("queue-limits-set", family="queue-limits", key="queue")
class QueueLimitsSet(KnownRecord):
    """Rate and concurrency of a queue of the work queue."""

    queue: str
    body: Body


@_kind("queue-limits-removed", family="queue-limits", key="queue", removes=True)
class QueueLimitsRemoved(KnownRecord):
    queue: str


@_kind("job-options-set", family="job-options", key="job")
class JobOptionsSet(KnownRecord):
    """Options of a work queue job beyond its add: delay, concurrency key, parents."""

    job: str  # the id, as the protocol writes it
    body: Body


@_kind("job-options-removed", family="job-options", key="job", removes=True)
class JobOptionsRemoved(KnownRecord):
    job: str


@_kind("attempts-begun", family="attempt")
class AttemptsBegun(KnownRecord):
    """This worker has leased these jobs of the work queue: ids and numbers of their attempts."""

    worker: str
    jobs: Body


@_kind("parent-ended", family="parent", key="job")
class ParentEnded(KnownRecord):
    """The job has completed for all that wait for it and whose records stand before this one.
    Written by earlier versions."""

    job: str


@_kind("parent-outcome", family="parent", key="job")
class ParentOutcome(KnownRecord):
    """The outcome of a parent that was added at ``created_ns``; 0: it never was in the log."""

    job: str
    created_ns: int
    failed: int  # 0 or 1


@_kind("parent-forgotten", family="parent", key="job", removes=True)
class ParentForgotten(KnownRecord):
    job: str


@_kind("times-marked", family="times")
class TimesMarked(KnownRecord):
    """When records of the schedule's log were written; logs/ledger.py reads it.

    ``marks`` are (end, time): all bytes of the file before ``end`` were in it at ``time``, in ns
    since 1970. Each number is the difference to that of the pair before; the first pair is whole.
    The file is the one whose first ``head_bytes`` bytes have the CRC-32C ``head_crc``.
    """

    head_bytes: int
    head_crc: int
    marks: Pairs


@_kind("ended-marked", family="ended", key="job")
class EndedMarked(KnownRecord):
    """The job of the schedule, and all whose last records stand before its own, had ended then."""

    job: str


@_kind("action-audited", family="audit")
class ActionAudited(KnownRecord):
    """A person or program changed something by HTTP, console or command line."""

    who: str
    via: str
    what: str
    target: str
    outcome: str


@_kind("step-done", family="step", key="step")
class StepDone(KnownRecord):
    """A task of the work queue has recorded a step: the job that was added at ``created_ns``."""

    step: str  # ID/NAME#NUMBER
    created_ns: int
    value: str
    base64: int  # 1: the value is written so; 0: it is text


@_kind("step-forgotten", family="step", key="step", removes=True)
class StepForgotten(KnownRecord):
    step: str


@_kind("event-set", family="event", key="event")
class EventSet(KnownRecord):
    """An event of the work queue has happened. It has this value for good."""

    event: str
    value: str
    base64: int  # as of StepDone


@_kind("event-forgotten", family="event", key="event", removes=True)
class EventForgotten(KnownRecord):
    event: str


@value
class NewerRecord:
    """A record that is not known here: kept byte for byte, without a meaning."""

    logged: timed_frame.Instant
    version: int
    kind: str
    payload: bytes


Record: TypeAlias = KnownRecord | NewerRecord


HEADER = b"jmlg\x00\x00\x00\x01"
_MAX_INTEGER = 2**63 - 1

_dumps = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


class _Ledger(timed_frame.FramedCodec):
    """The codec (framing.Codec) of a segment. Stateless."""

    name = "ledger"
    header = HEADER

    def decode(self, data: Buffer, offset: int) -> Entry[Record] | None:
        if offset >= len(data):
            return None
        frame, at = timed_frame.read_frame(data, offset)
        logged = timed_frame.read_time(frame, 0, offset)
        record = _read_payload(logged, frame[at:], offset)
        return Entry(offset, len(frame) + timed_frame.CRC_BYTES, record)

    def encode(self, record: Record) -> bytes:
        payload = encode_payload(record)
        if len(payload) > timed_frame.MAX_RECORD_BYTES:
            raise EncodeError(
                f"record of {len(payload)} bytes, limit {timed_frame.MAX_RECORD_BYTES}"
            )
        return timed_frame.write_frame(timed_frame.write_time(record.logged), payload)

    def is_torn(self, data: Buffer, offset: int) -> bool:
        if not timed_frame.is_torn_frame(data, offset):
            return False
        # A damaged SIZE may reach past the end, over good records: that is not a torn write.
        span = timed_frame.payload_span(data, offset)
        return span is None or timed_frame.find_frame(data, span[0]) is None


CODEC: Codec[Record] = _Ledger()


class UnparsedRecord(NamedTuple):
    """A proven record of a kind whose members are texts or objects: each as it stands in JSON."""

    kind: str
    members: tuple[bytes, ...]


class UnparsingLedger(_Ledger):
    """Leaves records of these kinds unparsed, if they are written as ``encode`` writes them.

    To parse a hundred thousand of them, most of which are not needed soon, takes seconds.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._patterns = tuple((name, _pattern_of(KINDS[name]).fullmatch) for name in kinds)

    def decode(self, data: Buffer, offset: int) -> Entry[Any] | None:
        if offset >= len(data):
            return None
        frame, at = timed_frame.read_frame(data, offset)
        if frame[_NANOS] >= _SECOND:  # read_time refuses it
            return super().decode(data, offset)
        for name, fullmatch in self._patterns:
            if (match := fullmatch(frame, at)) is not None:
                record = UnparsedRecord(name, match.groups())
                return Entry(offset, len(frame) + timed_frame.CRC_BYTES, record)
        return super().decode(data, offset)


_BEGIN = b'{"v":%d,"kind":"' % VERSION
_NANOS = slice(9, 13)  # the bytes of a time that count nanoseconds
_SECOND = NS_PER_S.to_bytes(4, "big")
# These expressions match only JSON in plain ASCII without escapes and without nested objects. The
# JSON parser reads everything else.
_TEXT = rb'"[ !#-\[\]-~]*+"'
_VALUE = rb"(?:%b|0|-?[1-9][0-9]{0,18}|\[(?:%b(?:,%b)*+)?\])" % (_TEXT, _TEXT, _TEXT)
_MEMBER = rb"%b:%b" % (_TEXT, _VALUE)
_TYPES = {
    "str": rb'"([ !#-\[\]-~]*+)"',
    "Body": rb"(\{(?:%b(?:,%b)*+)?\})" % (_MEMBER, _MEMBER),
}


def _pattern_of(kind: Kind) -> re.Pattern[bytes]:
    members = [b'"%b":%b' % (name.encode(), _TYPES[type_]) for name, type_ in kind.members]
    return re.compile(re.escape(_BEGIN + kind.name.encode()) + b'",' + b",".join(members) + rb"\}")


def encode_payload(record: Record) -> bytes:
    """The payload of a record. Raises EncodeError for what would not come back the same."""
    if isinstance(record, NewerRecord):
        return record.payload
    kind = kind_of(record)
    members: dict[str, Any] = {"v": VERSION, "kind": kind.name}
    for name, _ in kind.members:
        members[name] = getattr(record, name)
    try:
        payload = _dumps(members).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise EncodeError(f"{kind.name}: cannot be written as JSON: {error}") from error
    if _read_payload(record.logged, payload, 0) != record:
        raise EncodeError(f"{kind.name}: a member has the wrong type")
    return payload


def _read_payload(logged: timed_frame.Instant, payload: bytes, offset: int) -> Record:
    try:
        members = _loads(payload.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidData(f"the payload is not JSON: {error}", offset) from error
    if not isinstance(members, dict):
        raise InvalidData("the payload is not a JSON object", offset)
    version, name = members.pop("v", None), members.pop("kind", None)
    if type(version) is not int or not 0 <= version <= _MAX_INTEGER or not isinstance(name, str):
        raise InvalidData("the payload has no version or no kind", offset)
    kind = KINDS.get(name) if version == VERSION else None
    found = None if kind is None else _values(kind, members)
    if kind is None or found is None:
        return NewerRecord(logged, version, name, payload)
    record: Record = kind.make(logged, *found)
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant[:20]} is not a number of JSON")


def _read_float(text: str) -> float:
    if math.isinf(number := float(text)):
        _refuse(text)
    return number


# json.loads would make one per record.
_loads = json.JSONDecoder(parse_constant=_refuse, parse_float=_read_float).decode


def _values(kind: Kind, members: dict[str, Any]) -> list[Any] | None:
    """The fields of a record of this kind; None if the members are not those that it has."""
    if len(members) != len(kind.members):
        return None
    found = []
    for name, type_name in kind.members:
        if name not in members:
            return None
        value = _READERS[type_name](members[name])
        if value is None:
            return None
        found.append(value)
    return found


def _read_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _read_number(value: Any) -> int | None:
    return value if type(value) is int and -_MAX_INTEGER <= value <= _MAX_INTEGER else None


def _read_body(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _read_pairs(value: Any) -> tuple[tuple[int, ...], ...] | None:
    if not isinstance(value, list):
        return None
    pairs = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            return None
        if any(_read_number(number) is None for number in pair):
            return None
        pairs.append(tuple(pair))
    return tuple(pairs)


_READERS: dict[str, Callable[[Any], Any]] = {
    "str": _read_text,
    "int": _read_number,
    "Body": _read_body,
    "Pairs": _read_pairs,
}

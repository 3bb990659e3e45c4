"""The ledger: what the three logs have no place for, in a log of its own.

    segment   HEADER (8)  record  record ...
    record    TIME (15)  SIZE (uvarint)  PAYLOAD (SIZE)  CRC (4)      workq's frame: workq/frame.py
    payload   {"v":1,"kind":"queue-paused","queue":"mail"}            one compact JSON object, ASCII

The members are ``v``, ``kind`` and then the fields of the record's class (records.py). A payload
that is not an object with a whole number ``v`` and a text ``kind`` is damage, although its CRC
fits. Any other payload is a record: of a known kind, or a NewerRecord.

The whole contract: docs/formats/ledger.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from journeyman.errors import EncodeError, InvalidData
from journeyman.formats.framing import Buffer, Codec, Entry
from journeyman.formats.ledger.records import KINDS, VERSION, Kind, NewerRecord, Record, kind_of
from journeyman.formats.workq import frame as workq_frame
from journeyman.formats.workq.frame import MAX_RECORD_BYTES, FramedCodec, read_time, write_time
from journeyman.formats.workq.records import Instant
from journeyman.units import NS_PER_S

HEADER = b"jmlg\x00\x00\x00\x01"
_MAX_INTEGER = 2**63 - 1

_dumps = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


class _Ledger(FramedCodec):
    """The codec (framing.Codec) of a segment. Stateless."""

    name = "ledger"
    header = HEADER

    def decode(self, data: Buffer, offset: int) -> Entry[Record] | None:
        if offset >= len(data):
            return None
        frame, at = workq_frame.read_frame(data, offset)
        logged = read_time(frame, 0, offset)
        record = _read_payload(logged, frame[at:], offset)
        return Entry(offset, len(frame) + workq_frame.CRC_BYTES, record)

    def encode(self, record: Record) -> bytes:
        payload = encode_payload(record)
        if len(payload) > MAX_RECORD_BYTES:
            raise EncodeError(f"record of {len(payload)} bytes, limit {MAX_RECORD_BYTES}")
        return workq_frame.seal(write_time(record.logged), payload)

    def is_torn(self, data: Buffer, offset: int) -> bool:
        if not workq_frame.is_torn(data, offset):
            return False
        # A damaged SIZE may reach past the end, over good records: that is not a torn write.
        span = workq_frame.payload_span(data, offset)
        return span is None or workq_frame.resync(data, span[0]) is None


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
        frame, at = workq_frame.read_frame(data, offset)
        if frame[_NANOS] >= _SECOND:  # read_time refuses it
            return super().decode(data, offset)
        for name, fullmatch in self._patterns:
            if (match := fullmatch(frame, at)) is not None:
                record = UnparsedRecord(name, match.groups())
                return Entry(offset, len(frame) + workq_frame.CRC_BYTES, record)
        return super().decode(data, offset)


_BEGIN = b'{"v":%d,"kind":"' % VERSION
_NANOS = slice(9, 13)  # of a time
_SECOND = NS_PER_S.to_bytes(4, "big")
# What these match is JSON: plain ASCII without escapes, and no objects in objects. All else is
# parsed at once.
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


def _read_payload(logged: Instant, payload: bytes, offset: int) -> Record:
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

"""The keys of the Overhop keyspace, an ordered map of queues, jobs and the indexes over them.

    v1:q:<queue>                                   a queue                    -> JSON
    v1:j:<uuid>                                    a job                      -> JSON
    v2:j_qt:<ms 8 bytes>:<queue>:<uuid>            jobs by time, then queue   -> 01
    v1:j_qt:<ms decimal>:<queue>:<uuid>            the same in its old form   -> 01
    v1:status:<uuid>                               status of a job            -> text
    v1:status_fifo:<status>:<ms 8 bytes><16 bytes> jobs of a status by age    -> 01
    v1:q_status:<queue>:<status>                   how many there are         -> u64be

<uuid> is 36 lower-case characters, <16 bytes> the same uuid raw, <ms 8 bytes> a signed number of
milliseconds as big-endian u64 with its top bit flipped, so that byte order is numeric order.

Invariants
- Prefixes never change and never overlap; a new form of a key gets a new version, and only that
  key does. Readers know every version, writers use the newest (docs/adr/logs.md, 4).
- Keys are parsed from their fixed-width ends, so a ``:`` in a queue name is not ambiguous. A
  status holds no ``:``; it is what ends a counter key.
- ``decode_key(encode_key(k)) == k``; what decode_key would not return, encode_key refuses.

Listings by queue and status have keys of their own. They are derived from the others: programs
that do not know them may drop them (docs/adr/logs.md, 9).

    v1:q_status_fifo:<length><queue>:<status>:<place>   a job of a queue and status          -> 01
    v1:storage_timer:<ms 8 bytes><16 bytes>             when time alone changes a row        -> 01
    v1:storage_archive:<ms 8 bytes><16 bytes>           when the TTL of an archived job ended -> 01

    <length>  u16 big endian, of the queue name in bytes: no name is the beginning of another
    <place>   ms 8 bytes | ns 4 bytes | uuid 16 bytes            oldest first; ns is what the
                                                                 millisecond leaves, so jobs of one
                                                                 millisecond stay in their order

The values are in values.py. Storing and scanning is not done here: the ranges are bounds for
whatever holds the map.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from journeyman.errors import EncodeError, InvalidData, UnknownEntryType
from journeyman.units import NS_PER_MS

QUEUES: Final = b"v1:q:"
JOBS: Final = b"v1:j:"
QUEUE_TIMES: Final = b"v2:j_qt:"
QUEUE_TIMES_V1: Final = b"v1:j_qt:"
STATUSES: Final = b"v1:status:"
STATUS_FIFO: Final = b"v1:status_fifo:"
COUNTERS: Final = b"v1:q_status:"

MAX_QUEUE_NAME_BYTES: Final = 1024
MAX_STATUS_BYTES: Final = 64
MAX_KEY_BYTES: Final = 2048  # no key comes near it; a longer one is refused unread

_NAMES_KEPT: Final = 1024  # few are used again and again
_COLON = b":"
_UUID_CHARS = 36
_UUID_BYTES = 16
_MS_BYTES = 8
_INT64 = range(-(2**63), 2**63)
_TOP_BIT = 1 << 63
_U64 = Struct(">Q")
_DECIMAL = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_UUID_TEXT = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STATUS_TEXT = re.compile(rb"[\x21-\x39\x3b-\x7e]+")  # printable ASCII without space and colon


@dataclass(frozen=True, slots=True)
class QueueKey:
    """Where a queue is kept."""

    queue: str


@dataclass(frozen=True, slots=True)
class JobKey:
    """Where a job is kept."""

    job_uuid: UUID


@dataclass(frozen=True, slots=True)
class QueueTimeKey:
    """A job in the order of its execution time. Version 1 does not sort; it is only read."""

    execution_start_ms: int
    queue: str
    job_uuid: UUID
    version: int = 2

    def newest(self) -> QueueTimeKey:
        """The key to write instead of this one."""
        return replace(self, version=2)


@dataclass(frozen=True, slots=True)
class StatusKey:
    """Where the status of a job is kept a second time, cheap to change."""

    job_uuid: UUID


@dataclass(frozen=True, slots=True)
class StatusFifoKey:
    """A job among those of its status, oldest first."""

    status: str
    created_at_ms: int
    job_uuid: UUID


@dataclass(frozen=True, slots=True)
class CounterKey:
    """How many jobs of a queue have a status."""

    queue: str
    status: str


Key: TypeAlias = QueueKey | JobKey | QueueTimeKey | StatusKey | StatusFifoKey | CounterKey


# -- keys -> bytes -------------------------------------------------------------------------------


def encode_key(key: Key) -> bytes:
    """The bytes of a key. Raises EncodeError."""
    match key:
        case QueueKey(queue):
            return QUEUES + queue_bytes(queue)
        case JobKey(job_uuid):
            return JOBS + _uuid_text(job_uuid)
        case QueueTimeKey(ms, queue, job_uuid, version):
            tail = _COLON + queue_bytes(queue) + _COLON + _uuid_text(job_uuid)
            if version == 2:
                return QUEUE_TIMES + ordered_bytes(ms) + tail
            if version == 1 and ms in _INT64:
                return QUEUE_TIMES_V1 + b"%d" % ms + tail
            raise EncodeError(f"no queue-time key of version {version} for {ms} ms")
        case StatusKey(job_uuid):
            return STATUSES + _uuid_text(job_uuid)
        case StatusFifoKey(status, ms, job_uuid):
            head = STATUS_FIFO + status_bytes(status) + _COLON
            return head + ordered_bytes(ms) + job_uuid.bytes
        case CounterKey(queue, status):
            return COUNTERS + queue_bytes(queue) + _COLON + status_bytes(status)


def ordered_bytes(number: int) -> bytes:
    """Eight bytes that sort as the signed 64-bit ``number`` does."""
    if number not in _INT64:
        raise EncodeError(f"{number} is outside the signed 64-bit range")
    return _U64.pack(number + _TOP_BIT)


def ordered_number(data: bytes) -> int:
    """The number in the eight bytes of ``ordered_bytes``."""
    return int(_U64.unpack(data)[0]) - _TOP_BIT


def _uuid_text(job_uuid: UUID) -> bytes:
    return str(job_uuid).encode()


@lru_cache(_NAMES_KEPT)
def queue_bytes(queue: str) -> bytes:
    """A queue name as it stands in keys. Raises EncodeError."""
    try:
        raw = queue.encode()
    except UnicodeEncodeError:
        raise EncodeError("a queue name cannot be written as UTF-8") from None
    if not 1 <= len(raw) <= MAX_QUEUE_NAME_BYTES:
        raise EncodeError(f"a queue name of {len(raw)} bytes, not 1 to {MAX_QUEUE_NAME_BYTES}")
    return raw


@lru_cache(_NAMES_KEPT)
def status_bytes(status: str) -> bytes:
    """A status as it stands in keys. Raises EncodeError."""
    raw = status.encode("utf-8", "replace")
    if len(raw) > MAX_STATUS_BYTES or not _STATUS_TEXT.fullmatch(raw):
        raise EncodeError("a status is 1 to 64 printable ASCII characters without space or colon")
    return raw


# -- bytes -> keys -------------------------------------------------------------------------------


def decode_key(data: bytes, offset: int = 0) -> Key:
    """The key in ``data``. Raises InvalidData, or UnknownEntryType for a foreign prefix.

    ``offset`` is only named in errors: where the key stands in something larger.
    """
    if len(data) > MAX_KEY_BYTES:
        raise InvalidData(f"a key of {len(data)} bytes, over {MAX_KEY_BYTES}", offset)
    end = data.find(_COLON, data.find(_COLON) + 1) + 1  # after the second colon, or 0
    prefix, rest = data[:end], data[end:]
    if prefix == QUEUES:
        return QueueKey(_queue(rest, offset))
    if prefix == JOBS:
        return JobKey(_uuid(rest, offset))
    if prefix == QUEUE_TIMES:
        ms_bytes, rest = rest[:_MS_BYTES], rest[_MS_BYTES:]
        if not rest.startswith(_COLON):
            raise InvalidData("a queue-time key without its time", offset)
        queue, job_uuid = _queue_and_uuid(rest[1:], offset)
        return QueueTimeKey(ordered_number(ms_bytes), queue, job_uuid)
    if prefix == QUEUE_TIMES_V1:
        decimal, _, rest = rest.partition(_COLON)
        queue, job_uuid = _queue_and_uuid(rest, offset)
        return QueueTimeKey(_decimal(decimal, offset), queue, job_uuid, version=1)
    if prefix == STATUSES:
        return StatusKey(_uuid(rest, offset))
    if prefix == STATUS_FIFO:
        return _decode_fifo(rest, offset)
    if prefix == COUNTERS:
        queue_bytes, _, status = rest.rpartition(_COLON)
        return CounterKey(_queue(queue_bytes, offset), _status(status, offset))
    raise UnknownEntryType("a key of no known prefix", offset)


def _decode_fifo(rest: bytes, offset: int) -> StatusFifoKey:
    at = len(rest) - _MS_BYTES - _UUID_BYTES - 1
    if at < 0 or rest[at : at + 1] != _COLON:
        raise InvalidData("a status FIFO key of the wrong length", offset)
    ms = ordered_number(rest[at + 1 : at + 1 + _MS_BYTES])
    job_uuid = UUID(bytes=rest[-_UUID_BYTES:])
    return StatusFifoKey(_status(rest[:at], offset), ms, job_uuid)


def _queue_and_uuid(rest: bytes, offset: int) -> tuple[str, UUID]:
    """``<queue>:<uuid>``, taken from the right: only the queue name may hold a colon."""
    at = len(rest) - _UUID_CHARS - 1
    if at < 0 or rest[at : at + 1] != _COLON:
        raise InvalidData("a queue-time key without queue and uuid", offset)
    return _queue(rest[:at], offset), _uuid(rest[at + 1 :], offset)


def _queue(raw: bytes, offset: int) -> str:
    if not 1 <= len(raw) <= MAX_QUEUE_NAME_BYTES:
        reason = f"a queue name of {len(raw)} bytes, not 1 to {MAX_QUEUE_NAME_BYTES}"
        raise InvalidData(reason, offset)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidData("a queue name that is not UTF-8", offset) from None


def _status(raw: bytes, offset: int) -> str:
    if len(raw) > MAX_STATUS_BYTES or not _STATUS_TEXT.fullmatch(raw):
        raise InvalidData("an invalid status", offset)
    return raw.decode("ascii")


def _uuid(raw: bytes, offset: int) -> UUID:
    if not _UUID_TEXT.fullmatch(raw):
        raise InvalidData("a uuid that is not 36 lower-case characters", offset)
    return UUID(raw.decode("ascii"))


def _decimal(raw: bytes, offset: int) -> int:
    if not _DECIMAL.fullmatch(raw) or int(raw) not in _INT64:
        raise InvalidData("a time that is not a signed 64-bit decimal", offset)
    return int(raw)


# -- ranges --------------------------------------------------------------------------------------


class KeyRange(NamedTuple):
    """Bounds of a scan: ``start <= key < end``."""

    start: bytes
    end: bytes


def prefix_range(prefix: bytes) -> KeyRange:
    """All keys that begin with ``prefix``, e.g. with one of the constants above."""
    if not prefix.endswith(_COLON):
        raise ValueError("a prefix ends with a colon")
    return KeyRange(prefix, prefix[:-1] + b";")  # ; comes right after :


def due_before(before_ms: int) -> KeyRange:
    """Version 2 queue-time keys of executions before ``before_ms``, earliest first.

    Keys of version 1 do not sort: read ``prefix_range(QUEUE_TIMES_V1)`` and look at each.
    """
    return KeyRange(QUEUE_TIMES, QUEUE_TIMES + ordered_bytes(before_ms))


def fifo_of_status(status: str) -> KeyRange:
    """The jobs of a status, oldest first."""
    return prefix_range(STATUS_FIFO + status_bytes(status) + _COLON)


def counters_of_queue(queue: str) -> KeyRange:
    """The counters of a queue; decode each key, for ``a:b`` stands among those of ``a``."""
    return prefix_range(COUNTERS + queue_bytes(queue) + _COLON)


LISTINGS: Final = b"v1:q_status_fifo:"
TIMERS: Final = b"v1:storage_timer:"
ARCHIVE: Final = b"v1:storage_archive:"
PLACE_BYTES: Final = 28

_TIME = Struct(">QI")
_LENGTH = Struct(">H")


@lru_cache(4096)
def listing_prefix(queue: str, status: str) -> bytes:
    """The common prefix of the keys of a queue and status; a place follows."""
    raw = queue_bytes(queue)
    return LISTINGS + _LENGTH.pack(len(raw)) + raw + _COLON + status_bytes(status) + _COLON


def listing_range(beginning: bytes) -> KeyRange:
    """All keys of a listing."""
    return KeyRange(beginning, beginning[:-1] + b";")  # ; comes right after :


def place_of(created_at_ns: int, job_uuid: UUID) -> bytes:
    """Where a job stands among those of its queue and status."""
    ms, ns = divmod(created_at_ns, NS_PER_MS)
    return _TIME.pack(ms + _TOP_BIT, ns) + job_uuid.bytes


def uuid_of_place(place: bytes) -> UUID:
    return UUID(bytes=place[-_UUID_BYTES:])


def listing_of(key: bytes) -> tuple[str, str, int, UUID]:
    """Queue, status, creation time in ns and uuid of a listing key. Raises InvalidData."""
    place = key[-PLACE_BYTES:]
    name = key[len(LISTINGS) : -PLACE_BYTES]
    length = int.from_bytes(name[: _LENGTH.size], "big")
    queue, status = name[_LENGTH.size : _LENGTH.size + length], name[_LENGTH.size + length :]
    if not key.startswith(LISTINGS) or len(status) < 3 or status[:1] + status[-1:] != b"::":
        raise InvalidData("an invalid listing key", 0)
    try:
        words = queue.decode(), status[1:-1].decode("ascii")
    except UnicodeDecodeError:
        raise InvalidData("a listing key whose names are not text", 0) from None
    created_ns = ordered_number(place[:8]) * NS_PER_MS + int.from_bytes(place[8:12], "big")
    return *words, created_ns, uuid_of_place(place)

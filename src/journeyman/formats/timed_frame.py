"""The frame of the records of workq and the ledger: what is proven before the payload is looked at.

    TIME (15)   SIZE (uvarint, 1..10)   PAYLOAD (SIZE)   CRC (4, big endian)
    |<------------- CRC-32C covers these ------------->|

    TIME     byte   0        1..8                      9..12         13..14
                    version  seconds since 0001-01-01  nanoseconds   zone offset in minutes
                    01       i64                       u32 < 10^9    i16

    uvarint  300 = 0b10_0101100   ->   10101100 00000010   =  ac 02
                                       ^        ^
                                       more     last

A frame is *proven* when its CRC fits. Decoding proves a frame before its payload is looked at, so
no reader ever acts on a damaged byte. The checks come in the order of the bytes; that makes the
verdict on a whole buffer and on a stream the same:

    TIME's version is 1 | SIZE is a varint | SIZE within its limit | frame complete | CRC fits

Times. The zone offset never changes the moment, it only says how the original would print it. The
original writes -1 for UTC. Any offset is read and kept, so a time is written back as it was.

Varints. Seven bits per byte, lowest group first. A number of 64 bits takes at most ten bytes, and
the tenth may hold only its lowest bit. Signed numbers are folded onto unsigned ones first (zigzag:
0, -1, 1, -2 ... -> 0, 1, 2, 3 ...). Reading accepts numbers padded with empty groups (``80 00`` is
0), as the original does; writing always uses the fewest bytes. What a number that cannot be read
means is the caller's to say, so ``read_varint`` reports it in place of the next position.

Damage. A job's payload is the client's own bytes and may hold whole log records, CRC and all. A
byte-by-byte search of a damaged record would find those too, so ``skip_frame`` first asks whether
the damaged frame still ends where something real begins; only if not is ``find_frame`` needed.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

import google_crc32c

from journeyman import errors
from journeyman.formats.framing import Buffer
from journeyman.units import NS_PER_S
from journeyman.values import value

TIME_BYTES = 15
TIME_VERSION = 1
UNIX_EPOCH_S = 62_135_596_800  # 1970-01-01 in seconds since 0001-01-01

# (seconds, nanoseconds, offset): everything after the version byte.
FIELDS = struct.Struct(">qIh")
_VERSIONED_FIELDS = struct.Struct(">BqIh")

UTC_OFFSET_MIN = -1  # how the original writes "UTC"


@value
class Instant:
    """A moment as the log keeps it: nanoseconds since 1970 and a zone offset in minutes.

    The offset never changes the moment; it is kept so that a record is written back as it was.
    """

    unix_ns: int
    offset_min: int = UTC_OFFSET_MIN


# Both are below every real position.
CUT_SHORT = -1  # no last byte before the stop
OVER_64_BITS = -2  # more than ten bytes, or more than 64 bits in them


def read_varint(data: Buffer, at: int, stop: int) -> tuple[int, int]:
    """The number at ``at`` and the position after it, or CUT_SHORT or OVER_64_BITS as position."""
    value = 0
    shift = 0
    while at < stop:
        byte = data[at]
        at += 1
        if shift == 63 and byte > 1:
            return 0, OVER_64_BITS
        if byte < 0x80:
            return value | byte << shift, at
        value |= (byte & 0x7F) << shift
        shift += 7
    return 0, CUT_SHORT


@lru_cache(maxsize=4096)  # the numbers of a log are mostly the same few
def write_varint(value: int) -> bytes:
    """The shortest form of a number that is not negative."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fold_sign(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def unfold_sign(value: int) -> int:
    return value >> 1 if not value & 1 else -(value >> 1) - 1


# Most bytes of PAYLOAD, that is of SIZE: a job's payload (1 MiB), and beside it 4 KiB for the
# type, id, name, numbers and times, which take 372 bytes when every varint is at its longest and
# the name has the 255 bytes that the protocol allows.
MAX_RECORD_BYTES = 1_048_576 + 4096
CRC_BYTES = 4
MIN_FRAME_BYTES = TIME_BYTES + 1 + CRC_BYTES

_CRC = struct.Struct(">I")
_crc32c = google_crc32c.value

# Where a record may begin: a time of version 1 whose nanoseconds are below 0x3c000000. All seconds
# are possible. (A record with more nanoseconds than that is unreadable even when proven.)
_RECORD_START = re.compile(rb"\x01(?=.{8}[\x00-\x3b])", re.DOTALL)
_NANOS_OFFSET = 9


def write_frame(time: bytes, payload: bytes) -> bytes:
    """The whole record: framed, with its CRC."""
    covered = time + write_varint(len(payload)) + payload
    return covered + _CRC.pack(_crc32c(covered))


def to_unix_ns(seconds: int, nanos: int) -> int:
    """Nanoseconds since 1970 of a moment given by its fields."""
    return (seconds - UNIX_EPOCH_S) * NS_PER_S + nanos


def moment_bytes(unix_ns: int, offset_min: int) -> bytes:
    """The 15 bytes of a moment. Raises EncodeError when it does not fit them."""
    seconds, nanos = divmod(unix_ns, NS_PER_S)
    try:
        return _VERSIONED_FIELDS.pack(TIME_VERSION, seconds + UNIX_EPOCH_S, nanos, offset_min)
    except struct.error as error:
        raise errors.EncodeError(
            f"time {unix_ns} ns, offset {offset_min} min: out of range"
        ) from error


cached_moment_bytes = lru_cache(maxsize=64)(
    moment_bytes
)  # most records of one batch have the same time


def read_time(frame: bytes, at: int, offset: int) -> Instant:
    """The moment at ``at`` of the frame that stands at ``offset``."""
    if at + TIME_BYTES > len(frame):
        raise errors.StringOverflow("a time runs past the end of the record", offset)
    if frame[at] != TIME_VERSION:
        raise errors.InvalidData(f"unknown time version {frame[at]}", offset)
    seconds, nanos, offset_min = FIELDS.unpack_from(frame, at + 1)
    if nanos >= NS_PER_S:
        raise errors.InvalidData(f"a time with {nanos} nanoseconds", offset)
    return Instant(to_unix_ns(seconds, nanos), offset_min)


def write_time(time: Instant) -> bytes:
    return cached_moment_bytes(time.unix_ns, time.offset_min)


def read_frame(data: Buffer, offset: int) -> tuple[bytes, int]:
    """The proven frame at ``offset`` without its CRC, and where in it the payload begins.

    The data must hold at least one byte there. Raises FormatError.
    """
    length = len(data)
    if data[offset] != TIME_VERSION:
        raise errors.InvalidData(f"unknown time version {data[offset]}", offset)
    payload_at = offset + TIME_BYTES + 1
    if payload_at > length:
        raise errors.IncompleteEntry("cut short in TIME or SIZE", offset, MIN_FRAME_BYTES)
    size = data[payload_at - 1]
    if size >= 0x80:
        size, payload_at = _read_size(data, offset)
    if size > MAX_RECORD_BYTES:
        raise errors.EntryTooLarge(f"record of {size} bytes, limit {MAX_RECORD_BYTES}", offset)
    crc_at = payload_at + size
    if crc_at + CRC_BYTES > length:
        needed = crc_at + CRC_BYTES - offset
        raise errors.IncompleteEntry(
            f"record of {needed} bytes, {length - offset} left", offset, needed
        )
    covered = bytes(data[offset:crc_at])
    if _crc32c(covered) != _CRC.unpack_from(data, crc_at)[0]:
        raise errors.ChecksumMismatch("crc mismatch", offset)
    return covered, payload_at - offset


def _read_size(data: Buffer, offset: int) -> tuple[int, int]:
    size_at = offset + TIME_BYTES
    size, payload_at = read_varint(data, size_at, len(data))
    if payload_at == CUT_SHORT:
        raise errors.IncompleteEntry(
            "cut short in SIZE", offset, MIN_FRAME_BYTES + len(data) - size_at
        )
    if payload_at == OVER_64_BITS:
        raise errors.InvalidData("SIZE is not a 64-bit varint", offset)
    return size, payload_at


def is_torn_frame(data: Buffer, offset: int) -> bool:
    """Return whether the rest is a proper prefix of a frame, or all zeros.

    Whether its payload goes with its SIZE is not asked here.
    """
    if offset >= len(data):
        return False
    if data[offset] != TIME_VERSION:
        return not bytes(data[offset:]).lstrip(b"\0")
    # Missing bytes of the nanoseconds count as zero, their lowest value.
    nanos = bytes(data[offset + _NANOS_OFFSET : offset + _NANOS_OFFSET + 4]).ljust(4, b"\0")
    if _CRC.unpack(nanos)[0] >= NS_PER_S:
        return False
    size, payload_at = read_varint(data, offset + TIME_BYTES, len(data))
    if payload_at == CUT_SHORT:
        return True
    if payload_at == OVER_64_BITS or not 0 < size <= MAX_RECORD_BYTES:
        return False
    return len(data) < payload_at + size + CRC_BYTES


def skip_frame(data: Buffer, offset: int) -> int | None:
    """The end of the frame at ``offset``, where that end can be trusted. See framing.Codec.

    It can when the frame's CRC fits, or when it does not but a proven frame, or the end of the
    data, follows exactly there. The exception is a damaged SIZE that now reaches over whole
    records and happens to end where one of them ends: then that one is proven, and nothing is
    skipped. A record that lies in the payload never ends there; at least the CRC is in between.
    """
    end = _frame_end(data, offset)
    if end is None:
        return None
    if _is_proven(data, offset, end):
        return end
    if end < len(data) and not _begins_proven(data, end):
        return None
    for inside in _RECORD_START.finditer(data, offset + 1, end):
        start = inside.start()
        if _frame_end(data, start) == end and _is_proven(data, start, end):
            return None
    return end


def find_frame(data: Buffer, offset: int) -> int | None:
    """The first proven frame at or after ``offset``. Its own CRC is the proof.

    Each place is tried at the cost of one CRC over at most MAX_RECORD_BYTES, so the search is
    linear in the length of the data.
    """
    while (match := _RECORD_START.search(data, offset)) is not None:
        if _begins_proven(data, match.start()):
            return match.start()
        offset = match.start() + 1
    return None


def payload_span(data: Buffer, offset: int) -> tuple[int, int] | None:
    """Where the payload begins and, by its SIZE, ends, be it inside the data or not.

    None if the data do not reach so far, or hold no TIME and SIZE there.
    """
    if offset >= len(data) or data[offset] != TIME_VERSION:
        return None
    size, payload_at = read_varint(data, offset + TIME_BYTES, len(data))
    if payload_at < 0 or size > MAX_RECORD_BYTES:
        return None
    return payload_at, payload_at + size


def _frame_end(data: Buffer, offset: int) -> int | None:
    """Where the frame at ``offset`` ends, if it lies inside the data."""
    span = payload_span(data, offset)
    if span is None or span[1] + CRC_BYTES > len(data):
        return None
    return span[1] + CRC_BYTES


def _is_proven(data: Buffer, offset: int, end: int) -> bool:
    crc: int = _CRC.unpack_from(data, end - CRC_BYTES)[0]
    return bool(_crc32c(bytes(data[offset : end - CRC_BYTES])) == crc)


def _begins_proven(data: Buffer, offset: int) -> bool:
    end = _frame_end(data, offset)
    return end is not None and _is_proven(data, offset, end)


class FramedCodec:
    """Base of all codecs of framed records (framing.Codec): everything but the payload."""

    header: bytes
    has_checksum = True
    seals = None

    def check_header(self, data: Buffer) -> int:
        found = bytes(data[: len(self.header)])
        if found == self.header:
            return len(self.header)
        if self.header.startswith(found):
            raise errors.IncompleteEntry("invalid segment header: cut short", 0, len(self.header))
        raise errors.BadHeader("invalid segment header", 0)

    def skip(self, data: Buffer, offset: int) -> int | None:
        return skip_frame(data, offset)

    def resync(
        self,
        data: Buffer,
        offset: int,
        *,
        lone: bool = False,  # noqa: ARG002 - the checksum is proof
    ) -> int | None:
        return find_frame(data, offset)

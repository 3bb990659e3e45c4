"""From entry to entry as fast as can be, over those that the codec is sure to take.

    boundary --walk--> boundary --walk--> ... --> the first one at or behind the target

``hop`` follows lengths and looks at nothing else, so in a damaged file it may run on where a
reader would stop. ``walk`` crosses an entry only if all of it is good, and stops in front of any
other: at damage, at a seal, and also at what it leaves to the decoder (ztick's rules, and
identifiers that are not plain ASCII). So where a walk leads, reading leads too; where it stops, the
decoder has to be asked. This is how one huge file is read from the middle without a guess.

``seek`` guesses: from which of the first bytes on do lengths lead from entry to entry for a good
while? That is for formats whose entries hardly anything else looks like, and for callers that prove
it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from journeyman.columnar.arrays import as_bytes
from journeyman.columnar.chunks import checked_offset, make_fields
from journeyman.columnar.kernels.jit import kernel
from journeyman.columnar.kernels.read_bytes import Bytes, big_u16, big_u32, little_i32, u8
from journeyman.columnar.kernels.seal_marks import is_kestrel_seal
from journeyman.columnar.kernels.write_bytes import Ints
from journeyman.columnar.workq import scan
from journeyman.columnar.ztick.decode import plain_end
from journeyman.formats.framing import Buffer
from journeyman.formats.kestrel import MAX_DATA_BYTES
from journeyman.formats.kestrel.codec import FIRST_UNKNOWN_PUT_WORDS
from journeyman.formats.kestrel.seals import SEAL_BYTE
from journeyman.formats.ztick.layout import HEAD, LENGTH, RULE_REMOVAL

# Data, a boundary in it, a target -> a boundary; the one it began at when nothing could be crossed.
Walk = Callable[[Buffer, int, int], int]
# Data, how many of its first bytes to try, how many bytes of entries to see, whether it goes to the
# end of the file, so that there need not be so many -> what seems to be a boundary, or -1.
Seek = Callable[[Buffer, int, int, bool], int]

_PUT, _READ_HEAD, _READ_DONE, _FIRST_DATA_COMMAND = 8, 0, 9, 8
_HEAD_BYTES, _LENGTH_BYTES = HEAD.size, LENGTH.size
_WORKQ_RECORDS = 8192  # at a time; what is noted about them is thrown away


def walk_ztick(data: Buffer, offset: int, target: int) -> int:
    return _walk_ztick(as_bytes(data), checked_offset(data, offset), target)


def walk_kestrel(data: Buffer, offset: int, target: int) -> int:
    return _walk_kestrel(as_bytes(data), checked_offset(data, offset), target)


def walk_workq(data: Buffer, offset: int, target: int) -> int:
    """Every CRC is checked on the way."""
    log = as_bytes(data)
    offset = checked_offset(data, offset)
    room = make_fields(scan.FIELDS, _WORKQ_RECORDS, log.size - offset, scan.SMALLEST_RECORD_BYTES)
    full = True
    while full and offset < target:
        _, offset, full = scan.scan(log, offset, target, room)
    return offset


def seek_ztick(data: Buffer, tried: int, likely: int, is_whole: bool) -> int:
    return _seek_ztick(as_bytes(data), tried, likely, is_whole)


def seek_workq(data: Buffer, tried: int, likely: int, is_whole: bool) -> int:
    room = make_fields(scan.FIELDS, 1, len(data), scan.SMALLEST_RECORD_BYTES)
    return _seek_workq(as_bytes(data), tried, likely, is_whole, room)


WALKS: Final[dict[str, Walk]] = {
    "ztick": walk_ztick,
    "workq": walk_workq,
    "kestrel": walk_kestrel,
}

SEEKS: Final[dict[str, Seek]] = {"ztick": seek_ztick, "workq": seek_workq}


@kernel
def _walk_ztick(data: Bytes, position: int, target: int) -> int:
    while position < target:
        end = plain_end(data, position)
        if end == 0:
            break
        position = end
    return position


@kernel
def _is_likely(data: Bytes, at: int, reached: int, likely: int, is_whole: bool) -> bool:
    return reached - at >= likely or (is_whole and reached > at and reached == data.size)


@kernel
def _seek_ztick(data: Bytes, tried: int, likely: int, is_whole: bool) -> int:
    for at in range(min(tried, data.size)):
        reached = at
        while reached < at + likely and data.size - reached >= _HEAD_BYTES:
            end = reached + _LENGTH_BYTES + big_u32(data, reached)
            id_end = reached + _HEAD_BYTES + big_u16(data, reached + _LENGTH_BYTES + 1)
            if u8(data, reached + _LENGTH_BYTES) > RULE_REMOVAL or not id_end <= end <= data.size:
                break
            reached = end
        if _is_likely(data, at, reached, likely, is_whole):
            return at
    return -1


@kernel
def _seek_workq(data: Bytes, tried: int, likely: int, is_whole: bool, room: Ints) -> int:
    for at in range(min(tried, data.size)):
        # Sizes alone are not much to go by: the first record has to be a good one.
        _, reached, _ = scan.scan(data, at, at + 1, room)
        if reached > at:
            reached = scan.hop(data, reached, at + likely)
        if _is_likely(data, at, reached, likely, is_whole):
            return at
    return -1


@kernel
def _walk_kestrel(data: Bytes, position: int, target: int) -> int:
    while position < min(target, data.size):
        byte = u8(data, position)
        command, words = byte >> 4, byte & 0x0F
        end = position + 1 + 4 * words
        if byte == 0 or end > data.size or (command == _READ_HEAD and words != 2):
            break
        if byte == SEAL_BYTE and is_kestrel_seal(data, position):
            break
        if command >= _FIRST_DATA_COMMAND:
            if words == 0:
                break
            size = little_i32(data, position + 1)
            if size < 0 or size > MAX_DATA_BYTES or size > data.size - end:
                break
            if command == _PUT and words != 6 and words != 8 and words < FIRST_UNKNOWN_PUT_WORDS:
                break
            if command == _READ_DONE and (words != 1 or size % 8 != 0):
                break
            end += size
        position = end
    return position

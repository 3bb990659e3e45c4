"""From entry to entry as fast as can be, over those that the codec is sure to take.

    boundary --walk--> boundary --walk--> ... --> the first one at or behind the target

``hop`` follows lengths and looks at nothing else, so in a damaged file it may run on where a
reader would stop. ``walk`` crosses an entry only if all of it is good, and stops in front of any
other: at damage, at a seal, and also at what it leaves to the decoder (ztick's rules, and
identifiers that are not plain ASCII). So where a walk leads, reading leads too; where it stops, the
decoder has to be asked. This is how one huge file is read from the middle without a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from journeyman.columnar.arrays import as_bytes
from journeyman.columnar.chunks import checked_offset, make_fields
from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import Bytes, little_i32, u8
from journeyman.columnar.seals import is_kestrel_seal
from journeyman.columnar.workq import scan
from journeyman.columnar.ztick.decode import plain_end
from journeyman.formats.framing import Buffer
from journeyman.formats.kestrel import FIRST_UNKNOWN_PUT_WORDS, MAX_DATA_BYTES, SEAL_BYTE

# Data, a boundary in it, a target -> a boundary; the one it began at when nothing could be crossed.
Walk = Callable[[Buffer, int, int], int]

_PUT, _READ_HEAD, _READ_DONE, _FIRST_DATA_COMMAND = 8, 0, 9, 8
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
        _, offset, full = scan.scan(log, offset, target, room, False)
    return offset


# A ledger has none: what is inside of its frames is JSON, which the codec alone can check.
WALKS: Final[dict[str, Walk]] = {
    "ztick": walk_ztick,
    "workq": walk_workq,
    "kestrel": walk_kestrel,
}


@kernel
def _walk_ztick(data: Bytes, position: int, target: int) -> int:
    while position < target:
        end = plain_end(data, position)
        if end == 0:
            break
        position = end
    return position


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

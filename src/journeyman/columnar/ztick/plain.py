"""Entries of a ztick log that the codec is sure to take, without asking it: most of any log.

They are jobs and removals whose lengths agree, whose status is known, and whose identifier is plain
ASCII. Rules, which have many shapes, other identifiers, and all that is damaged are not among them.
Neither are seals: what follows one is read in another way.
"""

from __future__ import annotations

import numpy as np

from journeyman.columnar.kernels.jit import kernel
from journeyman.columnar.kernels.read_bytes import Bytes, any_i64, big_u16, big_u32, u8
from journeyman.columnar.kernels.seal_marks import ZTICK_SEAL_BYTES, is_ztick_seal
from journeyman.formats.ztick.layout import HEAD, JOB, JOB_TAIL, LENGTH, RULE, RULE_REMOVAL

_LENGTH_BYTES = LENGTH.size
_HEAD_BYTES = HEAD.size
_JOB_TAIL_BYTES = JOB_TAIL.size
_HIGHEST_STATUS = 3
_WORD_BYTES = 8
_HIGH_BITS = np.int64(-0x7F7F7F7F7F7F7F80)  # of eight bytes


@kernel
def plain_end(data: Bytes, position: int) -> int:
    """Where the entry at ``position`` ends; 0 if it is not such a one."""
    if data.size - position < _HEAD_BYTES:
        return 0
    end = position + _LENGTH_BYTES + big_u32(data, position)
    kind = u8(data, position + _LENGTH_BYTES)
    identifier = position + _HEAD_BYTES
    id_end = identifier + big_u16(data, identifier - 2)
    if kind == JOB:
        if end != id_end + _JOB_TAIL_BYTES or end > data.size:
            return 0
        if u8(data, end - 1) > _HIGHEST_STATUS:
            return 0
    elif kind == RULE or kind > RULE_REMOVAL or end != id_end or end > data.size:
        return 0
    if end - position == ZTICK_SEAL_BYTES and is_ztick_seal(data, position):
        return 0
    return end if _is_ascii(data, identifier, id_end) else 0


@kernel
def _is_ascii(data: Bytes, at: int, end: int) -> bool:
    """Eight bytes at a time; the last eight may have been seen before."""
    if end - at < _WORD_BYTES:
        while at < end:
            if u8(data, at) >= 0x80:
                return False
            at += 1
        return True
    seen = any_i64(data, end - _WORD_BYTES)
    while at < end - _WORD_BYTES:
        seen |= any_i64(data, at)
        at += _WORD_BYTES
    return bool(seen & _HIGH_BITS == 0)

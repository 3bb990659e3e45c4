"""The plainest Python that does what a columnar decoder does: the peer to be measured against.

One tuple of fields a record, straight out of struct, with the same checks (bounds, UTF-8, CRC) and
nothing else: no record classes, few calls. The codecs in formats are slower; they are meant to be
read, and to say what is wrong.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import google_crc32c

from journeyman.formats import ztick

__all__ = ["kestrel_loop", "workq_loop", "ztick_loop"]

Rows = list[tuple[Any, ...]]

_ZTICK_HEAD = Struct(">IBH")
_ZTICK_JOB_TAIL = Struct(">qB")
_WORKQ_TIME = Struct(">BqIh")
_CRC = Struct(">I")
_KESTREL_PUT = Struct("<Biiqq")
_KESTREL_EXPIRY = Struct("<q")
_UNIX_EPOCH_S = 62_135_596_800


def ztick_loop(data: bytes) -> Rows:
    rows: Rows = []
    position, size = 0, len(data)
    head, tail = _ZTICK_HEAD.unpack_from, _ZTICK_JOB_TAIL.unpack_from
    while position < size:
        length, kind, id_length = head(data, position)
        end = position + 4 + length
        id_end = position + 7 + id_length
        if end > size:
            raise ValueError("torn")
        identifier = data[position + 7 : id_end].decode()
        if kind == 0:
            execution_ns, status = tail(data, id_end)
            if id_end + 9 != end or status > 3:
                raise ValueError("corrupt")
            rows.append((0, identifier, position, end - position, execution_ns, status))
        elif kind == 1:
            entry = ztick.CODEC.decode(data, position)
            rows.append((1, identifier, position, end - position, entry))
        elif kind > 3 or id_end != end:
            raise ValueError("corrupt")
        else:
            rows.append((kind, identifier, position, end - position))
        position = end
    return rows


def workq_loop(data: bytes) -> Rows:
    rows: Rows = []
    position, size = 8, len(data)
    time, crc, crc32c = _WORKQ_TIME.unpack_from, _CRC.unpack_from, google_crc32c.value
    while position < size:
        version, seconds, nanos, _ = time(data, position)
        length, at = _varint(data, position + 15)
        end = at + length
        if version != 1 or end + 4 > size:
            raise ValueError("torn")
        if crc32c(data[position:end]) != crc(data, end)[0]:
            raise ValueError("corrupt")
        logged_ns = (seconds - _UNIX_EPOCH_S) * 1_000_000_000 + nanos
        kind = data[at]
        job_id = data[at + 1 : at + 17]
        at += 17
        row: tuple[Any, ...] = (kind, job_id, position, end + 4 - position, logged_ns)
        if kind <= 2:
            name_length, at = _varint(data, at)
            name = data[at : at + name_length].decode()
            at += name_length
            ttr_ms, at = _varint(data, at)
            ttl_ms, at = _varint(data, at)
            folded, at = _varint(data, at)
            max_attempts, at = _varint(data, at)
            max_fails, at = _varint(data, at)
            payload_length, at = _varint(data, at)
            payload = data[at : at + payload_length]
            at += payload_length
            due_version, due_s, due_nanos, _ = time(data, at)
            created_version, created_s, created_nanos, _ = time(data, at + 15)
            at += 30
            if due_version != 1 or created_version != 1:
                raise ValueError("corrupt")
            due_ns = (due_s - _UNIX_EPOCH_S) * 1_000_000_000 + due_nanos
            created_ns = (created_s - _UNIX_EPOCH_S) * 1_000_000_000 + created_nanos
            priority = folded >> 1 ^ -(folded & 1)
            row += (name, ttr_ms, ttl_ms, priority, max_attempts, max_fails, payload)
            row += (due_ns if due_s or due_nanos else None, created_ns)
        elif kind <= 4:
            result_length, at = _varint(data, at)
            row += (data[at : at + result_length],)
            at += result_length
        if at != end:
            raise ValueError("corrupt")
        rows.append(row)
        position = end + 4
    return rows


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def kestrel_loop(data: bytes) -> Rows:
    rows: Rows = []
    position, size = 4, len(data)
    put, expiry = _KESTREL_PUT.unpack_from, _KESTREL_EXPIRY.unpack_from
    while position < size:
        byte, length, errors, item_id, added_ms = put(data, position)
        if byte == 0x86:
            at, expires_ms = position + 25, None
        elif byte == 0x88:
            at, expires_ms = position + 33, expiry(data, position + 25)[0]
        else:
            raise ValueError("this loop knows only puts")
        end = at + length
        if length < 0 or end > size:
            raise ValueError("torn")
        item = data[at:end]
        row = (8, item_id, position, end - position, added_ms, expires_ms, errors, length, item)
        rows.append(row)
        position = end
    return rows

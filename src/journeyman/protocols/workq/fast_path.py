"""The commands as nearly all clients write them, parsed in one step, for speed only.

    add ID NAME TTR TTL SIZE\r\n payload \r\n      lease NAME WAIT\r\n
    complete ID SIZE\r\n result \r\n

One such command, whole, without flags, with single spaces and an id in lower case with dashes.
Anything else, or out of range, is None and goes through the parser, which would give the same
for these.
"""

from __future__ import annotations

import re

from journeyman.protocols.workq.commands import (
    MAX_NAME_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_TTL_MS,
    MAX_TTR_MS,
    MAX_WAIT_MS,
    Add,
    Complete,
    Lease,
)

_ID = rb"([0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
_NAME = rb"([A-Za-z0-9_.-]{1,%d})" % MAX_NAME_BYTES
_NUMBER = rb"([1-9][0-9]{0,9})"
_SIZE = rb"([0-9]{1,7})\r\n"
_ADD = re.compile(b"add %b %b %b %b %b" % (_ID, _NAME, _NUMBER, _NUMBER, _SIZE))
_COMPLETE = re.compile(b"complete %b %b" % (_ID, _SIZE))
_LEASE = re.compile(rb"lease %b ([0-9]{1,8})\r\n" % _NAME)


def read_usual(data: bytes) -> Add | Complete | Lease | None:
    """The command, if ``data`` is exactly one of these."""
    if data.startswith(b"lease "):
        match = _LEASE.fullmatch(data)
        if match is None or (wait_ms := int(match[2])) > MAX_WAIT_MS:
            return None
        return Lease((match[1].decode(),), wait_ms)
    if data.startswith(b"complete "):
        match = _COMPLETE.match(data)
        payload = None if match is None else _payload(data, match.end(), int(match[2]))
        if match is None or payload is None:
            return None
        return Complete(_id(match[1]), payload)
    match = _ADD.match(data)
    if match is None:
        return None
    id_text, name, ttr, ttl, size = match.groups()
    ttr_ms, ttl_ms = int(ttr), int(ttl)
    payload = _payload(data, match.end(), int(size))
    if payload is None or ttr_ms > MAX_TTR_MS or ttl_ms > MAX_TTL_MS:
        return None
    return Add(_id(id_text), name.decode(), ttr_ms, ttl_ms, payload)


def _payload(data: bytes, begin: int, size: int) -> bytes | None:
    """What stands between the line and the end of the data, if that is as it should be."""
    if size > MAX_PAYLOAD_BYTES or len(data) != begin + size + 2 or not data.endswith(b"\r\n"):
        return None
    return data[begin:-2]


def _id(text: bytes) -> bytes:
    return bytes.fromhex(text.decode().replace("-", ""))

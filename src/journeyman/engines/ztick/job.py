"""The state of one job, packed into bytes.

    u64be execution_ns + 2**63 | u64be order | u8 status | identifier, utf-8
    8                            8             1

Packed like this, jobs compare as they are to run: by time, then by order. One small object is all
that a job needs besides its name in a dict, and the garbage collector, which would have to go
through a million tuples every now and then, does not look at bytes at all.

A job never changes: another status is another object. So ``is`` tells whether what one holds is
still the present state of a job, and a list of jobs is a picture of their states.

``order``, by status:

    planned     counts SETs: of two jobs with the same time, the one that was SET first runs first
    triggered   the id of its run
    else        without meaning
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TypeAlias

from journeyman.formats.ztick import Status

Job: TypeAlias = bytes

# Statuses as they stand in a job: job[STATUS_AT] == PLANNED.
PLANNED, TRIGGERED, EXECUTED, FAILED = (int(status) for status in Status)
REMOVED = len(Status)  # of a row of the log that takes its job away; no job has it
STATUS_AT = 16

_HEAD = Struct(">QQB")
_EPOCH = 2**63  # times before 1970 are negative; shifted by this they sort as bytes
_head = _HEAD.pack


def pack(execution_ns: int, order: int, status: int, identifier: str) -> Job:
    return _head(execution_ns + _EPOCH, order, status) + identifier.encode()


def pack_rows(
    execution_ns: Iterable[int], orders: range, statuses: Iterable[int], identifiers: Sequence[str]
) -> list[Job]:
    """Many at once. ValueError if there is not the same number of each."""
    return [
        _head(time_ns + _EPOCH, order, status) + identifier.encode()
        for time_ns, order, status, identifier in zip(
            execution_ns, orders, statuses, identifiers, strict=True
        )
    ]


def execution_ns_of(job: Job) -> int:
    return int.from_bytes(job[:8]) - _EPOCH


def order_of(job: Job) -> int:
    return int.from_bytes(job[8:STATUS_AT])


def identifier_of(job: Job) -> str:
    return job[STATUS_AT + 1 :].decode()

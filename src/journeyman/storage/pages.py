"""Listings: jobs in their order, a page at a time, by cursor or by number.

    cursor   the place of the last job of a page, as hex; the next page begins behind it. Jobs that
             come and go meanwhile neither repeat nor hide others
    number   from 1; found by the ranks, so the last page costs what the first one does

What cannot be read is in ``unreadable``, not in ``jobs``; a page may then hold fewer than asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from journeyman.errors import UsageError
from journeyman.formats.keyspace import STATUS_FIFO, fifo_of_status, status_bytes
from journeyman.formats.keyspace_listing import PLACE_BYTES, listing, uuid_of_place
from journeyman.formats.keyspace_values import JobRecord
from journeyman.storage.contract import Reader
from journeyman.storage.ranks import bounds, nth
from journeyman.storage.records import job_key, read_job

__all__ = ["MAX_PAGE_SIZE", "Page", "Unreadable", "page_of_queue", "page_of_status", "read_jobs"]

MAX_PAGE_SIZE: Final = 10_000
_FIFO_PLACE_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that was stepped over."""

    key: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Page:
    """Some jobs of a listing. ``next_cursor`` is None on the last page."""

    jobs: tuple[JobRecord, ...]
    unreadable: tuple[Unreadable, ...]
    next_cursor: str | None


def page_of_queue(
    reader: Reader, queue: str, status: str, size: int, *, after: str | None, number: int | None
) -> Page:
    """Jobs of a queue and status, oldest first."""
    if number is not None and after is not None:
        raise UsageError("a page is asked for by its number or by a cursor, not by both")
    found = bounds(reader, queue, status)
    if found is None:
        return Page((), (), None)
    place, skip = found.first, 0
    if number is not None:
        foothold = nth(reader, queue, status, (max(number, 1) - 1) * size)
        if foothold is None:
            return Page((), (), None)
        place, skip = max(foothold.place, found.first), foothold.skip
    elif after is not None:
        place = max(place, _place(after, PLACE_BYTES) + b"\0")
    beginning = listing(queue, status)
    end = beginning + found.last + b"\0"
    return _page(reader, beginning + place, end, skip, size, len(beginning))


def page_of_status(reader: Reader, status: str, size: int, *, after: str | None) -> Page:
    """Jobs of a status in all queues, oldest first."""
    start, end = fifo_of_status(status)
    cut = len(STATUS_FIFO + status_bytes(status)) + 1
    if after is not None:
        start += _place(after, _FIFO_PLACE_BYTES) + b"\0"
    return _page(reader, start, end, 0, size, cut)


def _page(reader: Reader, start: bytes, end: bytes, skip: int, size: int, cut: int) -> Page:
    if not 1 <= size <= MAX_PAGE_SIZE:
        raise UsageError(f"a page of {size} jobs, not 1 to {MAX_PAGE_SIZE}")
    keys = [key for key, _ in reader.scan(start, end, limit=skip + size + 1)][skip:]
    if not keys:
        return Page((), (), None)
    has_more, keys = len(keys) > size, keys[:size]
    jobs, unreadable = read_jobs(reader, [uuid_of_place(key) for key in keys])
    return Page(jobs, unreadable, keys[-1][cut:].hex() if has_more else None)


def read_jobs(
    reader: Reader, uuids: list[UUID]
) -> tuple[tuple[JobRecord, ...], tuple[Unreadable, ...]]:
    """The records of some jobs, in their order, and those that cannot be read."""
    jobs, unreadable = [], []
    for uuid, raw in zip(uuids, reader.get_many([job_key(u) for u in uuids]), strict=True):
        found = "an index names it, but there is no record" if raw is None else read_job(uuid, raw)
        if isinstance(found, str):
            unreadable.append(Unreadable(job_key(uuid), found))
        else:
            jobs.append(found)
    return tuple(jobs), tuple(unreadable)


def _place(cursor: str, size: int) -> bytes:
    try:
        place = bytes.fromhex(cursor)
    except ValueError:
        place = b""
    if len(place) != size:
        raise UsageError(f"{cursor[:80]!r} is no cursor of this listing")
    return place

"""Listings: jobs in their order, a page at a time, by cursor or by number.

    cursor   the place of the last job of a page, as hex; the next page begins after it. Jobs that
             come and go meanwhile neither repeat nor hide others
    number   from 1; the keys of the pages before it are walked, so a cursor is cheaper

What cannot be read is in ``unreadable``, not in ``jobs``; a page may then hold fewer than asked.

The index of a status over all queues knows the millisecond of a job. Jobs of one millisecond are
sorted by their records, unless they are more than _SORTED: then they stand in the order of their
ids. A cursor says by its length which order it continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final
from uuid import UUID

from journeyman.errors import UsageError
from journeyman.formats.keyspace import keys
from journeyman.formats.keyspace.values import JobRecord
from journeyman.storage.contract import StoreReader
from journeyman.storage.position import LogPosition, position_in
from journeyman.storage.records import job_key, read_job, uuid_of_job_key

MAX_PAGE_SIZE: Final = 10_000
_FIFO_PLACE_BYTES: Final = 24
_MS_BYTES: Final = 8
_SORTED: Final = 1000


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
    position: LogPosition | None = None  # the listing shows the jobs at this position of the log


def page_of_queue(
    reader: StoreReader,
    queue: str,
    status: str,
    size: int,
    *,
    after: str | None,
    number: int | None,
) -> Page:
    """Jobs of a queue and status, oldest first."""
    if number is not None and after is not None:
        raise UsageError("a page is asked for by its number or by a cursor, not by both")
    _check_size(size)
    prefix = keys.listing_prefix(queue, status)
    start, end = keys.listing_range(prefix)
    if after is not None:
        start = prefix + _place(after, keys.PLACE_BYTES) + b"\0"
    skip = 0 if number is None else (max(number, 1) - 1) * size
    found = islice(reader.scan(start, end, limit=skip + size + 1), skip, None)
    key_list = [key for key, _ in found]
    has_more, key_list = len(key_list) > size, key_list[:size]
    jobs, unreadable = read_jobs(reader, [keys.uuid_of_place(key) for key in key_list])
    cursor = key_list[-1][len(prefix) :].hex() if has_more else None
    return Page(jobs, unreadable, cursor, position_in(reader))


def page_of_status(reader: StoreReader, status: str, size: int, *, after: str | None) -> Page:
    """Jobs of a status in all queues, oldest first."""
    _check_size(size)
    prefix = keys.STATUS_FIFO + keys.status_bytes(status) + b":"
    done = b"" if after is None else _place(after, keys.PLACE_BYTES, _FIFO_PLACE_BYTES)
    ms = done[:_MS_BYTES]
    key_list: list[bytes] = []  # without the prefix
    _, end = keys.fifo_of_status(status)
    begin = prefix + done + b"\0" if done else prefix
    if len(done) == keys.PLACE_BYTES:
        begin = prefix + _next_ms(ms)
        key_list = _fifo(reader, prefix + ms, begin, None, prefix)
    key_list += _fifo(reader, begin, end, size + 1, prefix)
    if not key_list:
        return Page((), (), None, position_in(reader))
    last_ms = key_list[-1][:_MS_BYTES]
    by_id = {ms} if len(done) == _FIFO_PLACE_BYTES else set()
    rest = prefix + key_list[-1] + b"\0", prefix + _next_ms(last_ms)
    more = [] if last_ms in by_id else _fifo(reader, *rest, _SORTED + 1, prefix)
    if len(more) > _SORTED and last_ms != ms:
        by_id.add(last_ms)
    else:
        key_list += more
    return _sorted_page(reader, key_list, done, by_id, size)


def _fifo(
    reader: StoreReader, start: bytes, end: bytes, limit: int | None, prefix: bytes
) -> list[bytes]:
    return [key[len(prefix) :] for key, _ in reader.scan(start, end, limit=limit)]


def _next_ms(ms: bytes) -> bytes:
    return (int.from_bytes(ms) + 1).to_bytes(_MS_BYTES + 1)[1:]


def _sorted_page(
    reader: StoreReader, key_list: list[bytes], done: bytes, by_id: set[bytes], size: int
) -> Page:
    """The page after ``done`` of jobs in the order of their creation, or ``by_id``."""
    jobs, unreadable = read_jobs(reader, [keys.uuid_of_place(key) for key in key_list])
    places = {job.job_uuid: keys.place_of(job.created_at_ns, job.job_uuid) for job in jobs}
    found: list[bytes] = []
    for key in key_list:
        ms, uuid = key[:_MS_BYTES], keys.uuid_of_place(key)
        exact = places.get(uuid, b"")
        is_exact = ms not in by_id and exact.startswith(ms)
        found.append(exact if is_exact else key if ms in by_id else ms + bytes(4) + uuid.bytes)
    found = sorted(place for place in found if place > done)
    has_more, found = len(found) > size, found[:size]
    shown = {keys.uuid_of_place(place) for place in found}
    in_order = {keys.uuid_of_place(place): number for number, place in enumerate(found)}
    return Page(
        tuple(sorted((j for j in jobs if j.job_uuid in shown), key=lambda j: in_order[j.job_uuid])),
        tuple(each for each in unreadable if uuid_of_job_key(each.key) in shown),
        found[-1].hex() if has_more else None,
        position_in(reader),
    )


def read_jobs(
    reader: StoreReader, uuids: list[UUID]
) -> tuple[tuple[JobRecord, ...], tuple[Unreadable, ...]]:
    """The records of some jobs, in their order, and those that cannot be read."""
    jobs, unreadable = [], []
    for uuid, raw in zip(uuids, reader.get_many([job_key(u) for u in uuids]), strict=True):
        found = read_job(uuid, raw)
        if isinstance(found, str):
            unreadable.append(Unreadable(job_key(uuid), found))
        else:
            jobs.append(found)
    return tuple(jobs), tuple(unreadable)


def _check_size(size: int) -> None:
    if not 1 <= size <= MAX_PAGE_SIZE:
        raise UsageError(f"a page of {size} jobs, not 1 to {MAX_PAGE_SIZE}")


def _place(cursor: str, *sizes: int) -> bytes:
    try:
        place = bytes.fromhex(cursor)
    except ValueError:
        place = b""
    if len(place) not in sizes:
        raise UsageError(f"{cursor[:80]!r} is not a cursor of this listing")
    return place

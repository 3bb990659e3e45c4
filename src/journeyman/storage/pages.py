"""Listings: jobs in their order, a page at a time, by cursor or by number.

    cursor   the place of the last job of a page, as hex; the next page begins after it. Jobs that
             come and go meanwhile neither repeat nor hide others
    number   from 1; found by the ranks, so the last page costs what the first one does

What cannot be read is in ``unreadable``, not in ``jobs``; a page may then hold fewer than asked.

The index of a status over all queues knows the millisecond of a job. Jobs of one millisecond are
sorted by their records, unless they are more than _SORTED: then they stand in the order of their
ids. A cursor says by its length which order it continues.

Ranks: which job is the 700,000th of a queue and status, and keeping that answer cheap.

    nth           rank -> a mark before that job, and how many jobs to step over from there
    rank_before   place -> how many jobs come before it
    changed       jobs that come and go -> what becomes of the ranks
    expected      all places of a listing -> all ranks, for checking and rebuilding
    bounds        the first and the last place of a listing

What marks and levels are is drawn in journeyman.formats.keyspace.keys. Finding a rank reads
about as many entries as there are marks of the highest level, and some hundreds on the way down.

Bounds are kept because an engine may take long to learn that there is nothing at a place: where a
hundred thousand jobs were removed, rocksdb steps over what is left of each. So scans stay inside.

``changed`` sees the store as it was before the changes. At each level, in this order:

    1  every place that comes or goes is counted in the block (a mark up to the next one) it is in
    2  marks that go give their block to the mark before them
    3  marks that come take their part of the block they stand in
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, islice
from struct import Struct, error
from typing import Final, NamedTuple
from uuid import UUID

from journeyman.errors import UsageError
from journeyman.formats.keyspace.keys import (
    LEVELS,
    PLACE_BYTES,
    STATUS_FIFO,
    bounds_key,
    fifo_of_status,
    is_mark,
    listing_prefix,
    listing_range,
    place_of,
    rank_prefix,
    status_bytes,
    uuid_of_place,
)
from journeyman.formats.keyspace.values import JobRecord
from journeyman.storage.contract import Probe, StoreReader
from journeyman.storage.records import job_key, read_job, uuid_of_job_key

_COUNT = Struct(">Q")
_FIRST: Final = b""  # the place of the block before the first mark


class Bounds(NamedTuple):
    """The first and the last place of a listing."""

    first: bytes
    last: bytes


@dataclass(frozen=True, slots=True)
class Foothold:
    """A place in a listing, and how many jobs to step over from it."""

    place: bytes
    skip: int


def _count(value: bytes) -> int:
    """A stored count; one that is none counts as nothing until the store is rebuilt."""
    try:
        return int(_COUNT.unpack(value)[0])
    except error:
        return 0


def nth(reader: StoreReader, queue: str, status: str, rank: int) -> Foothold | None:
    """Where to begin for the job with ``rank`` others before it; None if there are not so many."""
    base, left = _FIRST, rank
    for level in reversed(LEVELS):
        beginning = rank_prefix(queue, status, level)
        for key, value in reader.scan(beginning + base, listing_range(beginning).end):
            count = _count(value)
            if left < count:
                base = key[len(beginning) :]
                break
            left -= count
        else:
            return None
    return Foothold(base, left)


def rank_before(reader: StoreReader, queue: str, status: str, place: bytes) -> int:
    """How many jobs stand before a place."""
    base, before = _FIRST, 0
    for level in reversed(LEVELS):
        beginning, block = rank_prefix(queue, status, level), 0
        for key, value in reader.scan(beginning + base, beginning + place + b"\0"):
            before += block
            base, block = key[len(beginning) :], _count(value)
    return before + _listed(reader, queue, status, base, place)


def _listed(reader: StoreReader, queue: str, status: str, start: bytes, end: bytes) -> int:
    """How many jobs stand from one place up to another, counted."""
    found = bounds(reader, queue, status)
    if found is None:
        return 0
    beginning = listing_prefix(queue, status)
    start, end = max(start, found.first), min(end, found.last + b"\0")
    return sum(1 for _ in reader.scan(beginning + start, beginning + end)) if start < end else 0


def bounds(reader: StoreReader, queue: str, status: str) -> Bounds | None:
    """The first and last place of a listing; None if it is empty."""
    value = reader.get(bounds_key(queue, status))
    if value is None or len(value) != 2 * PLACE_BYTES:
        return None
    return Bounds(value[:PLACE_BYTES], value[PLACE_BYTES:])


def _changed_bounds(
    reader: StoreReader, queue: str, status: str, changes: Mapping[bytes, int]
) -> Bounds | None:
    """The bounds after places were added and removed. Those that go are stepped over one by one."""
    ends = [place for place, change in changes.items() if change > 0]
    old = bounds(reader, queue, status)
    if old is not None:
        beginning = listing_prefix(queue, status)
        for reverse in (False, True):
            end = old[reverse]
            if changes.get(end, 0) < 0:
                span = beginning + old.first, beginning + old.last + b"\0"
                keys = (key for key, _ in reader.scan(*span, reverse=reverse))
                places = (key[len(beginning) :] for key in keys)
                ends += islice((p for p in places if changes.get(p, 0) >= 0), 1)
            else:
                ends.append(end)
    return Bounds(min(ends), max(ends)) if ends else None


def expected(places: Iterable[bytes]) -> Iterator[tuple[int, bytes, int]]:
    """The ranks that a listing with these places, in order, must have: level, place, count."""
    blocks = dict.fromkeys(LEVELS, (_FIRST, 0))
    for place in places:
        for level in LEVELS:
            mark, count = blocks[level]
            if is_mark(place, level):
                if count:
                    yield level, mark, count
                mark, count = place, 0
            blocks[level] = mark, count + 1
    for level, (mark, count) in blocks.items():
        if count:
            yield level, mark, count


def reads_of_change(
    queue: str, status: str, places: Iterable[bytes]
) -> tuple[bytes, Iterator[Probe]]:
    """What ``changed`` reads first: a key, and the blocks of these places at each level."""
    ranks = [rank_prefix(queue, status, level) for level in LEVELS]
    probes = ((rank + place, rank, listing_range(rank).end) for place in places for rank in ranks)
    return bounds_key(queue, status), probes


def changed(
    reader: StoreReader, queue: str, status: str, changes: Mapping[bytes, int]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values of the ranks that change when places come (1) and go (-1)."""
    places = sorted(place for place, change in changes.items() if change)
    if not places:
        return
    new_bounds = _changed_bounds(reader, queue, status, changes)
    value = None if new_bounds is None else new_bounds.first + new_bounds.last
    yield bounds_key(queue, status), value
    coming = _Coming(places, [changes[place] for place in places])
    marks = places
    for level in LEVELS:
        work = _Level(reader, queue, status, level, coming)
        work.count()
        marks = [place for place in marks if is_mark(place, level)]
        for mark in reversed(marks):
            if changes[mark] < 0:
                work.drop(mark)
        for mark in marks:
            if changes[mark] > 0:
                work.split(mark)
        yield from work.outcome()


class _Coming:
    """Places that come and go, in order, and sums over any part of them."""

    def __init__(self, places: list[bytes], changes: list[int]) -> None:
        self.places = places
        self._sums = [0, *accumulate(changes)]

    def between(self, start: bytes, end: bytes) -> int:
        return (
            self._sums[bisect_left(self.places, end)] - self._sums[bisect_left(self.places, start)]
        )


class _Level:
    """The blocks of one level, as far as they change."""

    def __init__(
        self, reader: StoreReader, queue: str, status: str, level: int, coming: _Coming
    ) -> None:
        self._reader = reader
        self._of = (queue, status)
        self._level = level
        self._coming = coming
        self._beginning = rank_prefix(queue, status, level)
        self._end = listing_range(self._beginning).end
        self._blocks: dict[bytes, int] = {}
        self._starts: list[bytes] = []  # of the blocks that places come to or go from, in order
        self._before: dict[bytes, bytes] = {}  # a mark -> the one before it, where that is known
        self._dropped: dict[bytes, bytes] = {}  # a mark -> the one that got its block
        self._last_split = _FIRST

    def count(self) -> None:
        """Step 1. Neighbours are mostly in one block: it is looked up once, and they are summed."""
        at, places = 0, self._coming.places
        while at < len(places):
            block, behind = self._load(places[at])
            self._starts.append(block)
            self._before[behind] = block
            self._blocks[block] += self._coming.between(places[at], behind)
            at = bisect_left(places, behind, at)

    def _load(self, place: bytes) -> tuple[bytes, bytes]:
        cut = len(self._beginning)
        before, after = self._reader.around(self._beginning + place, self._beginning, self._end)
        block = _FIRST if before is None else before[0][cut:]
        self._blocks.setdefault(block, 0 if before is None else _count(before[1]))
        return block, b"\xff" * (len(place) + 1) if after is None else after[0][cut:]

    def drop(self, mark: bytes) -> None:
        """Step 2, the last mark first."""
        before = self._before.get(mark)
        if before is None:
            before = self._look_before(mark)
        self._dropped[mark] = before
        self._blocks[before] += self._blocks.pop(mark, 0)

    def _look_before(self, mark: bytes) -> bytes:
        """The mark before another, from the store; its block is loaded."""
        before = self._reader.scan(self._beginning, self._beginning + mark, reverse=True, limit=1)
        key, value = next(before, (self._beginning + _FIRST, b""))
        place = key[len(self._beginning) :]
        self._blocks.setdefault(place, _count(value))
        return place

    def split(self, mark: bytes) -> None:
        """Step 3, the first mark first."""
        before = self._starts[bisect_right(self._starts, mark) - 1]
        while before in self._dropped:
            before = self._dropped[before]
        before = max(before, self._last_split)
        kept = self._stored_between(before, mark) + self._coming.between(before, mark)
        self._blocks[mark] = self._blocks[before] - kept
        self._blocks[before] = kept
        self._last_split = mark

    def _stored_between(self, start: bytes, end: bytes) -> int:
        if self._level == 1:
            return _listed(self._reader, *self._of, start, end)
        return rank_before(self._reader, *self._of, end) - rank_before(
            self._reader, *self._of, start
        )

    def outcome(self) -> Iterator[tuple[bytes, bytes | None]]:
        for mark in self._dropped.keys() - self._blocks.keys():
            yield self._beginning + mark, None
        for mark, count in self._blocks.items():
            yield self._beginning + mark, _COUNT.pack(count) if count > 0 else None


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
    beginning = listing_prefix(queue, status)
    end = beginning + found.last + b"\0"
    return _page(reader, beginning + place, end, skip, size, len(beginning))


def page_of_status(reader: StoreReader, status: str, size: int, *, after: str | None) -> Page:
    """Jobs of a status in all queues, oldest first."""
    _check_size(size)
    prefix = STATUS_FIFO + status_bytes(status) + b":"
    done = b"" if after is None else _place(after, PLACE_BYTES, _FIFO_PLACE_BYTES)
    ms = done[:_MS_BYTES]
    keys: list[bytes] = []  # without the prefix
    _, end = fifo_of_status(status)
    begin = prefix + done + b"\0" if done else prefix
    if len(done) == PLACE_BYTES:
        begin = prefix + _next_ms(ms)
        keys = _fifo(reader, prefix + ms, begin, None, prefix)
    keys += _fifo(reader, begin, end, size + 1, prefix)
    if not keys:
        return Page((), (), None)
    last_ms = keys[-1][:_MS_BYTES]
    by_id = {ms} if len(done) == _FIFO_PLACE_BYTES else set()
    rest = prefix + keys[-1] + b"\0", prefix + _next_ms(last_ms)
    more = [] if last_ms in by_id else _fifo(reader, *rest, _SORTED + 1, prefix)
    if len(more) > _SORTED and last_ms != ms:
        by_id.add(last_ms)
    else:
        keys += more
    return _sorted_page(reader, keys, done, by_id, size)


def _fifo(
    reader: StoreReader, start: bytes, end: bytes, limit: int | None, prefix: bytes
) -> list[bytes]:
    return [key[len(prefix) :] for key, _ in reader.scan(start, end, limit=limit)]


def _next_ms(ms: bytes) -> bytes:
    return (int.from_bytes(ms) + 1).to_bytes(_MS_BYTES + 1)[1:]


def _sorted_page(
    reader: StoreReader, keys: list[bytes], done: bytes, by_id: set[bytes], size: int
) -> Page:
    """The page after ``done`` of jobs in the order of their creation, or ``by_id``."""
    jobs, unreadable = read_jobs(reader, [uuid_of_place(key) for key in keys])
    places = {job.job_uuid: place_of(job.created_at_ns, job.job_uuid) for job in jobs}
    found: list[bytes] = []
    for key in keys:
        ms, uuid = key[:_MS_BYTES], uuid_of_place(key)
        exact = places.get(uuid, b"")
        is_exact = ms not in by_id and exact.startswith(ms)
        found.append(exact if is_exact else key if ms in by_id else ms + bytes(4) + uuid.bytes)
    found = sorted(place for place in found if place > done)
    has_more, found = len(found) > size, found[:size]
    shown = {uuid_of_place(place) for place in found}
    in_order = {uuid_of_place(place): number for number, place in enumerate(found)}
    return Page(
        tuple(sorted((j for j in jobs if j.job_uuid in shown), key=lambda j: in_order[j.job_uuid])),
        tuple(each for each in unreadable if uuid_of_job_key(each.key) in shown),
        found[-1].hex() if has_more else None,
    )


def _page(reader: StoreReader, start: bytes, end: bytes, skip: int, size: int, cut: int) -> Page:
    _check_size(size)
    keys = [key for key, _ in reader.scan(start, end, limit=skip + size + 1)][skip:]
    if not keys:
        return Page((), (), None)
    has_more, keys = len(keys) > size, keys[:size]
    jobs, unreadable = read_jobs(reader, [uuid_of_place(key) for key in keys])
    return Page(jobs, unreadable, keys[-1][cut:].hex() if has_more else None)


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

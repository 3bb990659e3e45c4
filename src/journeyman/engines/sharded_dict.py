"""Where all jobs lie: many small dicts instead of one large one.

    identifier --top bits of its hash--> drawer: identifier -> job

One dict of a million jobs would stop everything for a tenth of a second whenever it has to grow,
and for several milliseconds whenever it has to be copied. A drawer holds a 512th of that.

A listing shows all jobs as of the moment it was made, though it is read in slices and jobs change
meanwhile: whoever changes a drawer that a listing has not reached yet, first leaves it a copy.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from journeyman.engines.ztick.job import REMOVED, STATUS_AT, Job, execution_ns_of, identifier_of
from journeyman.formats.ztick import Status

JobRow: TypeAlias = tuple[str, Status, int]  # identifier, status, execution_ns

_STATUSES = tuple(Status)

DRAWERS = 512
# Top bits, because a dict finds its places by the low ones.
_SHIFT = sys.hash_info.width - DRAWERS.bit_length() + 1
_MASK = DRAWERS - 1

SLICE_JOBS = 500  # a listing looks at least at this many jobs at a time, if there are as many


class Drawers:
    """All jobs by their identifiers."""

    __slots__ = ("_drawers", "_listings")

    def __init__(self) -> None:
        self._drawers: list[dict[str, Job]] = [{} for _ in range(DRAWERS)]
        self._listings: list[weakref.ref[JobListing]] = []

    def get(self, identifier: str) -> Job | None:
        return self._drawers[hash(identifier) >> _SHIFT & _MASK].get(identifier)

    def holds(self, job: Job) -> bool:
        """Whether this is the present state of its job."""
        return self.get(identifier_of(job)) is job

    def opened(self, identifier: str) -> dict[str, Job]:
        """The drawer of this identifier, to be changed at once, before anything else happens."""
        number = hash(identifier) >> _SHIFT & _MASK
        if self._listings:
            self._leave_copies(number)
        return self._drawers[number]

    def lay(self, identifiers: Iterable[str], jobs: Iterable[Job]) -> list[Job]:
        """Put in the rows of a log, in order; those that are no job's state, or no longer."""
        drawers = self._drawers
        void = []
        for identifier, job in zip(identifiers, jobs, strict=True):
            drawer = drawers[hash(identifier) >> _SHIFT & _MASK]
            before = drawer.setdefault(identifier, job)
            if before is not job:
                void.append(before)
                drawer[identifier] = job
            if job[STATUS_AT] == REMOVED:
                void.append(job)
                del drawer[identifier]
        return void

    def listing(self, prefix: str | None) -> JobListing:
        """All jobs whose identifier begins with ``prefix``; None: no jobs."""
        listing = JobListing(self._drawers, prefix)
        self._listings.append(weakref.ref(listing, self._listings.remove))
        return listing

    def _leave_copies(self, number: int) -> None:
        copy: dict[str, Job] | None = None  # one for all of them
        for reference in tuple(self._listings):  # one may be dropped while we go through
            listing = reference()
            if listing is not None and listing.wants(number):
                if copy is None:
                    copy = self._drawers[number].copy()
                listing.keep(number, copy)


class JobListing:
    """The jobs as of one moment: an iterator of slices, each quick to make and maybe empty.

    Nothing has to be closed: once it is dropped, nothing more is kept for it.
    """

    __slots__ = ("__weakref__", "_drawers", "_kept", "_next", "_prefix")

    def __init__(self, drawers: list[dict[str, Job]], prefix: str | None) -> None:
        self._drawers = drawers
        self._kept: dict[int, dict[str, Job]] = {}  # by number: drawers before they were changed
        self._next = 0 if prefix is not None else DRAWERS  # drawers below have been read
        self._prefix = prefix or ""

    def __iter__(self) -> Iterator[list[JobRow]]:
        return self

    def __next__(self) -> list[JobRow]:
        prefix = self._prefix
        rows: list[JobRow] = []
        seen = 0
        while self._next < DRAWERS and seen < SLICE_JOBS:
            drawer = self._kept.pop(self._next, self._drawers[self._next])
            self._next += 1
            seen += len(drawer)
            rows += [
                (identifier, _STATUSES[job[STATUS_AT]], execution_ns_of(job))
                for identifier, job in drawer.items()
                if identifier.startswith(prefix)
            ]
        if not seen:
            raise StopIteration
        return rows

    def wants(self, number: int) -> bool:
        """Whether it has yet to show this drawer, and has no copy of it."""
        return number >= self._next and number not in self._kept

    def keep(self, number: int, copy: dict[str, Job]) -> None:
        """This drawer is about to change; the copy is shared and does not."""
        self._kept[number] = copy

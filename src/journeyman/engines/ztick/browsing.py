"""Jobs in the order of their times, a page at a time: for people who look, not for clients.

    PageJobs --not kept yet--> StillSorting, after a few shards more were sorted: ask again
             --kept----------> JobPage, at the cost of what was looked at

The order is kept only after the first request for it, so a server that is never looked at pays
nothing. It is made shard by shard; jobs that change meanwhile are sorted with their shard.

    status     0 planned    1 triggered   2 executed   3 failed
    jobs       t1 t4 t9     t2            t0 t3        t5         each a sorted set of jobs

Once a prefix was asked for, names are kept in order as well, so that a prefix that few jobs have is
found without a look at the others.

A page ends with its limit, or when ``looked`` jobs were looked at without finding enough; then its
cursor leads on, and the rest is for another decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import chain, islice

from journeyman.engines.sharded_dict import SHARDS, ShardedDict
from journeyman.engines.sorted_set import SortedSet, StillSorting
from journeyman.engines.ztick.job_table import STATUS_AT, Job, execution_ns_of, identifier_of
from journeyman.formats.ztick import Status

SORTED_AT_ONCE = 4_000  # jobs; a few milliseconds
LOOKED_AT_ONCE = 20_000
MERGED_AT_ONCE = 512
FEW = 5_000  # so many jobs of a prefix are sorted for one page rather than looked for among all
_IDENTIFIER_AT = STATUS_AT + 1
_STATUSES = tuple(Status)


@dataclass(frozen=True, slots=True)
class PageJobs:
    """``after`` is the cursor of the page before; ``text`` is somewhere in the identifier."""

    prefix: str = ""
    statuses: tuple[Status, ...] = _STATUSES
    limit: int = 50
    after: bytes | None = None
    descending: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class PageRules:
    """Rules by id, above ``after``; those that begin with ``prefix``."""

    prefix: str = ""
    after: str = ""
    limit: int = 50


@dataclass(frozen=True, slots=True)
class PageTimetables:
    """Timetables in the same way."""

    prefix: str = ""
    after: str = ""
    limit: int = 50


@dataclass(frozen=True, slots=True)
class JobPage:
    """``after`` is None on the last page. ``is_whole``: the limit was reached, or the end."""

    jobs: tuple[tuple[str, Status, int], ...]  # identifier, status, execution_ns
    after: bytes | None
    is_whole: bool


def narrowed(prefix: str, scope: str) -> str | None:
    """The common prefix of names that begin with both; None if no name can."""
    longer, shorter = sorted((prefix, scope), key=len, reverse=True)
    return longer if longer.startswith(shorter) else None


class JobOrder:
    """One sorted set a status, of the jobs in the first ``_sorted`` shards; and the names of those
    in the first ``_named`` ones."""

    __slots__ = ("_by_name", "_by_status", "_named", "_names", "_sorted")

    def __init__(self, by_name: ShardedDict[str, Job]) -> None:
        self._by_name = by_name
        self._by_status: list[SortedSet[Job]] = [SortedSet() for _ in Status]
        self._names: SortedSet[str] = SortedSet()
        self._sorted = 0
        self._named = 0

    def change(self, identifier: str, before: Job | None, after: Job | None) -> None:
        shard = self._by_name.number_of(identifier)
        if shard < self._sorted:
            if before is not None:
                self._by_status[before[STATUS_AT]].remove(before)
            if after is not None:
                self._by_status[after[STATUS_AT]].add(after)
        if shard >= self._named:
            return
        if before is None and after is not None:
            self._names.add(identifier)
        elif after is None and before is not None:
            self._names.remove(identifier)

    def page(self, wanted: PageJobs, scope: str) -> JobPage | StillSorting:
        """``scope``: what every identifier must begin with."""
        if self._sorted < SHARDS:
            self._sort_some()
        if self._sorted < SHARDS:
            return StillSorting()
        prefix = narrowed(wanted.prefix, scope)
        if prefix is None:
            return JobPage((), None, True)
        if prefix and self._named < SHARDS:
            self._name_some()
            if self._named < SHARDS:
                return StillSorting()
        few = self._few(prefix) if prefix else None
        if few is not None:
            return _page_of(few, wanted)
        return self._matching_page(wanted, prefix.encode(errors="surrogatepass"))

    def _few(self, prefix: str) -> list[Job] | None:
        """The jobs of a prefix that few have; None: many have it."""
        names: list[str] = []
        first = [prefix] if self._by_name.get(prefix) is not None else []
        for chunk in self._names.chunks_after(prefix):
            some = [name for name in chunk if name.startswith(prefix)]
            names += some
            if len(some) < len(chunk):
                break
            if len(names) > FEW:
                return None
        found = (self._by_name.get(name) for name in first + names)
        return [job for job in found if job is not None]

    def _sort_some(self) -> None:
        enough = SORTED_AT_ONCE
        while self._sorted < SHARDS and enough > 0:
            jobs = self._by_name.numbered(self._sorted)
            for job in jobs.values():
                self._by_status[job[STATUS_AT]].add(job)
            enough -= len(jobs)
            self._sorted += 1

    def _name_some(self) -> None:
        enough = SORTED_AT_ONCE
        while self._named < SHARDS and enough > 0:
            names = self._by_name.numbered(self._named)
            for name in names:
                self._names.add(name)
            enough -= len(names)
            self._named += 1

    def _matching_page(self, wanted: PageJobs, prefix: bytes) -> JobPage:
        text = wanted.text.encode(errors="surrogatepass")
        found: list[Job] = []
        looked = 0
        last: Job | None = None
        for chunk in self._chunks(wanted):
            hits = [job for job in chunk if job.startswith(prefix, _IDENTIFIER_AT)]
            if text:
                hits = [job for job in hits if job.find(text, _IDENTIFIER_AT) >= 0]
            found += hits
            if len(found) >= wanted.limit:
                return _page(found[: wanted.limit], found[wanted.limit - 1], True)
            looked += len(chunk)
            last = chunk[-1] if chunk else last
            if looked >= LOOKED_AT_ONCE:
                return _page(found, last, False)
        return _page(found, None, True)

    def _chunks(self, wanted: PageJobs) -> Iterator[list[Job]]:
        sets = [self._by_status[status] for status in wanted.statuses]
        parts = [
            each.chunks_after(wanted.after, descending=wanted.descending) for each in sets if each
        ]
        if len(parts) == 1:
            yield from parts[0]
            return
        merged = merge(*map(chain.from_iterable, parts), reverse=wanted.descending)
        while chunk := list(islice(merged, MERGED_AT_ONCE)):
            yield chunk


def _page_of(jobs: list[Job], wanted: PageJobs) -> JobPage:
    """Return the page that is asked for, of the jobs with its prefix."""
    text, after, descending = (
        wanted.text.encode(errors="surrogatepass"),
        wanted.after,
        wanted.descending,
    )
    found = [
        job
        for job in jobs
        if job[STATUS_AT] in wanted.statuses
        and (after is None or (job < after if descending else job > after))
        and job.find(text, _IDENTIFIER_AT) >= 0
    ]
    found.sort(reverse=descending)
    shown = found[: wanted.limit]
    return _page(shown, shown[-1] if len(found) > len(shown) else None, True)


def _page(jobs: list[Job], after: Job | None, is_whole: bool) -> JobPage:
    rows = tuple(
        (identifier_of(job), _STATUSES[job[STATUS_AT]], execution_ns_of(job)) for job in jobs
    )
    return JobPage(rows, after, is_whole)

"""Cleaning a workq log: which segments are worth rewriting, and rewriting them.

    000000001.log       read-only  ─┐
    000000002.log       read-only  ─┴─ may be rewritten, oldest first, one at a time
    000000003.log       active: read, never touched
    000000001.log.rw    the new segment 1, not yet finished

The rules below decide which records can be dropped. A segment is rewritten only when it is due: at
the mean of the times from which its records can be dropped. So about half of it is dropped at once,
and no segment is rewritten repeatedly for a few records. An empty segment is removed at once.

    a record                           may go
    whose add is in the same segment   when its job is over: at its TTL, or soon after its delete
    whose add is in an older segment   then, but not before that segment is due: the add goes first
    whose add was dropped              from when it was logged; one of a newer writer stays

    step                                      a crash before the next step leaves
    1 write and sync NNN.log.rw               the old segment; the .rw is removed at the next start
    2 rename it to NNN.log, sync directory    the new segment
      or: remove NNN.log, sync directory      no segment; gaps in the numbers are fine
    3 the next segment

Each step is durable before the next is decided, so the rules below always apply to the actual log.
As the whole log is read, segments without an index get one.

All records of a job id in the whole log decide which can be dropped:

    place       1          2      3       4          5          6      7
    record      add a1     start  delete  add a2     complete   ...
    trace       adds (1, 4)               fresh 4    expires, ended of what began at 4

A record can be dropped if, from ``as_of_ns`` on, no reader sees a difference, in any state that a
crash can leave meanwhile. This follows from two facts:

 - A *fresh* add, one created after every record of its id before it was logged, is a new start: no
   record before it has a say, be it there or not. (The fold takes such records for stale.) Any
   other add may take over orphans, or be the same add once more; then all of it stays together.
 - An id whose adds have all expired shows nothing, whichever of its records are left.

So a record can be dropped when both hold:

    1. no add of its id stands before it         (an add goes before what follows it)
    2. it stands before the last fresh add,
       or the id is over: it has no add; or one, fresh and ended by a delete or expire;
       or all adds from the last fresh one on have expired

The first makes the order safe: while an add is in the log, so are all later records of its id,
above all its delete. Records left behind by a dropped add are orphans, which the fold sets aside
and the original ignores; and the original never sees a second add of a job whose delete was
dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from journeyman.disk import Disk
from journeyman.errors import FormatError, LogError
from journeyman.folds.workq import NEVER_NS, FoldedJob, expires_ns
from journeyman.formats.framing import Buffer, Entry, iter_entries
from journeyman.formats.workq import CODEC, Command, JobAdded, Record, UnknownCommand
from journeyman.logs.indexes import (
    IndexDraft,
    is_worth_an_index,
    load_index,
    remove_index,
    try_to_save,
)
from journeyman.logs.publication import put_in_place, remove_durably, write_whole
from journeyman.logs.segments import Position
from journeyman.units import NS_PER_MS, NS_PER_S

# How long ago a job must have ended for its add to go. An add of the same id that is on its way at
# that moment, created but not yet logged, must not find the delete without the add it belongs to.
SETTLING_NS = 60 * NS_PER_S

_OFFSET_BITS = 40  # no segment is as large as 1 TiB
_NO_PLACE = -1
_ENDS = (Command.DELETE, Command.EXPIRE)


def record_place(segment: int, offset: int) -> int:
    """Where a record stands in the log, as one number: places compare as records follow."""
    return segment << _OFFSET_BITS | offset


def segment_of(place: int) -> int:
    return place >> _OFFSET_BITS


@dataclass(slots=True)
class Trace:
    """One job id. ``adds`` are the places of those that stand; cleaning takes out the first."""

    adds: list[int] = field(default_factory=list)
    fresh: int = _NO_PLACE  # place of the last fresh add
    present_adds: int = 0  # adds from there on
    expires_ns: int = 0  # when the last of these has expired
    ended_ns: int | None = None  # when the first delete or expire from there on was logged
    latest_ns: int | None = None  # the latest time in any of its records
    longest_ttl_ns: int = 0  # the longest TTL of its adds, which begins again at a wake
    is_parked: bool = False

    def note(self, record: Record, place: int) -> None:
        """Take in the next record of this id."""
        latest_ns = record.logged.unix_ns
        if isinstance(record, JobAdded):
            created_ns = record.created.unix_ns
            self._note_add(record, place, created_ns)
            latest_ns = max(latest_ns, created_ns)
        elif record.command in _ENDS:
            self.ended_ns = latest_ns if self.ended_ns is None else self.ended_ns
        elif isinstance(record, UnknownCommand):
            pass
        elif record.command == Command.PARK:
            self.is_parked = True
        elif self.is_parked and record.command != Command.TIMEOUT_ATTEMPT:
            self.is_parked = False
            begins_again_ns = min(latest_ns + self.longest_ttl_ns, NEVER_NS)
            self.expires_ns = max(self.expires_ns, begins_again_ns)
        if self.latest_ns is None or latest_ns > self.latest_ns:
            self.latest_ns = latest_ns

    def _note_add(self, record: JobAdded, place: int, created_ns: int) -> None:
        self.adds.append(place)
        expiry_ns = expires_ns(FoldedJob(record))
        self.longest_ttl_ns = max(self.longest_ttl_ns, record.ttl_ms * NS_PER_MS)
        if self.latest_ns is None or self.latest_ns < created_ns:
            self.fresh = place
            self.present_adds = 1
            self.expires_ns = expiry_ns
            self.ended_ns = None
        else:
            self.present_adds += 1
            self.expires_ns = max(self.expires_ns, expiry_ns)

    def over_ns(self) -> int:
        """Return the time from which the id shows nothing to anyone."""
        if self.present_adds == 1 and self.fresh != _NO_PLACE and self.ended_ns is not None:
            return min(self.expires_ns, self.ended_ns + SETTLING_NS)
        return NEVER_NS if self.is_parked else self.expires_ns

    def is_free(self, place: int, as_of_ns: int, *, adds_dropped: int = 0) -> bool:
        """Return whether the record at ``place`` may go, with so many of the first adds."""
        if adds_dropped < len(self.adds) and self.adds[adds_dropped] < place:
            return False
        return place < self.fresh or not self.adds or self.over_ns() <= as_of_ns


def gather_records(
    traces: dict[bytes, Trace],
    segment: int,
    entries: Iterable[Entry[Record]],
    draft: IndexDraft | None = None,
) -> None:
    """Take in the records of one segment; segments come in order."""
    for entry in entries:
        record = entry.record
        if draft is not None:
            draft.note(entry.offset, record.logged.unix_ns, record.job_id)
        trace = traces.get(record.job_id)
        if trace is None:
            trace = traces[record.job_id] = Trace()
        trace.note(record, record_place(segment, entry.offset))


REWRITE_SUFFIX = ".rw"


@dataclass(frozen=True, slots=True)
class CleanReport:
    """The result of one cleaning. ``visited`` is 0 when no segment was due, so none was read."""

    visited: int = 0
    rewritten: int = 0
    removed: int = 0
    records_dropped: int = 0
    bytes_freed: int = 0
    changed: tuple[str, ...] = ()  # the segments that were rewritten or removed


@dataclass(slots=True)
class _Plan:
    """The records of one segment that a cleaning keeps and drops."""

    size: int
    records: int = 0
    dropped: int = 0
    adds_dropped: Counter[bytes] = field(default_factory=Counter)
    kept: list[tuple[int, int]] = field(default_factory=list)  # (begin, end), joined up
    moments_ns: int = 0  # the sum of those of all records
    kept_moments_ns: int = 0

    def keep(self, entry: Entry[Record], moment_ns: int) -> None:
        self.kept_moments_ns += moment_ns
        if self.kept and self.kept[-1][1] == entry.offset:
            self.kept[-1] = self.kept[-1][0], entry.end
        else:
            self.kept.append((entry.offset, entry.end))

    def drop(self, record: Record) -> None:
        self.dropped += 1
        if isinstance(record, JobAdded):
            self.adds_dropped[record.job_id] += 1

    @property
    def due_ns(self) -> int:
        return self.moments_ns // self.records if self.records else 0

    @property
    def due_again_ns(self) -> int:
        """Compute the mean again, over what is kept."""
        return self.kept_moments_ns // (self.records - self.dropped)


def read_segment(disk: Disk, path: str, size: int | None = None) -> Iterator[Entry[Record]]:
    """The records of a segment that was recovered; of its first ``size`` bytes if given."""
    data: Buffer = disk.view(path)
    data = data if size is None else data[:size]
    return iter_entries(CODEC, data, CODEC.check_header(data))


class Cleaner:
    """Cleans the read-only segments of one log, and remembers when each is due next.

    The caller holds the log's locks. The log is read only when a segment is due, or has become
    read-only since the last time; a log at rest costs nothing.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._due_ns: dict[str, int] = {}
        self._indexed: set[str] = set()  # these have an index
        self._doubt: LogError | None = None

    def is_due(self, read_only: Sequence[str], as_of_ns: int) -> bool:
        return any(self._due_ns.get(path, as_of_ns) <= as_of_ns for path in read_only)

    def clean(
        self,
        read_only: Sequence[str],
        end: Position,
        as_of_ns: int,
        *,
        thorough: bool = False,
        first: int | None = None,
    ) -> CleanReport:
        """Clean these segments, in log order; ``end`` is where the active one ends, durably.

        ``first``: only so many of them; holders need the others. ``thorough``: whatever may go
        goes, due or not. Raises LogError when a segment is damaged, or when the disk does not
        confirm a change; then this is the last cleaning, for the next would build on it. What was
        done before stands.
        """
        if self._doubt is not None:
            raise self._doubt
        traces = self._survey(read_only, end)
        report = CleanReport()
        due_ns: list[int] = []
        for segment, path in enumerate(read_only[:first]):
            plan = self._plan(path, segment, traces, due_ns, as_of_ns)
            freed = 0
            rewritten = removed = False
            if plan.dropped == plan.records:
                self._change(path, remove_durably, self._disk, path)
                freed, removed = plan.size, True
            elif plan.dropped and (thorough or plan.due_ns <= as_of_ns):
                freed, rewritten = plan.size - self._rewrite(path, plan), True
            if removed or rewritten:
                remove_index(self._disk, path)
                self._indexed.discard(path)
                for job_id, count in plan.adds_dropped.items():
                    del traces[job_id].adds[:count]
            due_ns.append(plan.due_again_ns if rewritten else plan.due_ns)
            report = CleanReport(
                report.visited + 1,
                report.rewritten + rewritten,
                report.removed + removed,
                report.records_dropped + (plan.dropped if removed or rewritten else 0),
                report.bytes_freed + freed,
                (*report.changed, *((path,) if removed or rewritten else ())),
            )
        self._due_ns = dict(zip(read_only[:first], due_ns, strict=True))
        return report

    def _survey(self, read_only: Sequence[str], end: Position) -> dict[bytes, Trace]:
        traces: dict[bytes, Trace] = {}
        for segment, path in enumerate((*read_only, end.path)):
            size = end.offset if path == end.path else None
            draft = IndexDraft() if path != end.path and self._needs_index(path) else None
            try:
                gather_records(traces, segment, read_segment(self._disk, path, size), draft)
            except FormatError as error:
                raise LogError(path, f"damaged, so nothing was cleaned: {error}") from error
            if draft is not None:
                try_to_save(self._disk, path, draft)
                self._indexed.add(path)
        return traces

    def _needs_index(self, path: str) -> bool:
        size = self._disk.size(path)
        if path not in self._indexed and is_worth_an_index(size):
            known = load_index(self._disk, path, size)
            if known is None or known.size < size:
                return True
            self._indexed.add(path)
        return False

    def _plan(
        self,
        path: str,
        segment: int,
        traces: dict[bytes, Trace],
        due_ns: Sequence[int],
        as_of_ns: int,
    ) -> _Plan:
        plan = _Plan(self._disk.size(path))
        for entry in read_segment(self._disk, path):
            record = entry.record
            trace = traces[record.job_id]
            place = record_place(segment, entry.offset)
            moment_ns = _moment_ns(trace, record, place, due_ns)
            plan.records += 1
            plan.moments_ns += moment_ns
            is_free = trace.is_free(place, as_of_ns, adds_dropped=plan.adds_dropped[record.job_id])
            # A record of a newer writer about a job that is not known here may be an add.
            if is_free and (trace.adds or not isinstance(record, UnknownCommand)):
                plan.drop(record)
            else:
                plan.keep(entry, moment_ns)
        return plan

    def _rewrite(self, path: str, plan: _Plan) -> int:
        data = self._disk.view(path)
        kept = (data[begin:end] for begin, end in plan.kept)
        temporary = path + REWRITE_SUFFIX
        size = write_whole(self._disk, temporary, chain((CODEC.header,), kept))
        self._change(path, put_in_place, self._disk, temporary, path)
        return size

    def _change(self, path: str, change: Callable[..., None], *arguments: object) -> None:
        try:
            change(*arguments)
        except OSError as error:
            reason = "a sync failed; cleaning stops until a restart"
            self._doubt = LogError(path, reason)
            raise self._doubt from error


def _moment_ns(trace: Trace, record: Record, place: int, due_ns: Sequence[int]) -> int:
    """Return the time from which a record may go, as far as is known now."""
    is_past = not trace.adds or place < trace.fresh
    moment_ns = record.logged.unix_ns if is_past else trace.over_ns()
    if trace.adds and segment_of(trace.adds[0]) < segment_of(place):
        moment_ns = max(moment_ns, due_ns[segment_of(trace.adds[0])])
    return moment_ns

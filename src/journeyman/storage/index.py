"""The store as an index of the work queue's log: what records, and time, make of its rows.

    row --folded_of_record--> what the fold has of the job
        --folds.workq.apply, each record--> what it has then
        --record_of_workq, at a moment--> the row, and all entries that follow from it

    the job exists                a row, with the status that it has at the moment
    its TTL has ended             the row stays, as completed or failed: it is in the archive
    the log says so (expire)      likewise; to the fold there is no such job any more
    deleted                       no row
    records without their add     no row; they are kept under KEPT until the add comes
    a name that no key can hold   likewise, its shortest history

The law: a store at a position is the fold of the log up to there, as of the position's clock. Rows
of the archive are outside of it, because the log drops such jobs sooner or later.

The clock stands still between two calls of ``pass_time``, which takes the rows that change at the
next moments from the timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from journeyman.errors import EncodeError
from journeyman.folds.keyspace import folded_of_record, is_archived, record_of_workq
from journeyman.folds.workq import FoldedJob, State, apply, expires_ns, snapshot
from journeyman.formats.framing import iter_entries
from journeyman.formats.keyspace.keys import ARCHIVE, TIMERS, ordered_bytes, prefix_range
from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.workq import CODEC, Command, Record
from journeyman.storage.contract import StoreReader
from journeyman.storage.transaction import Draft
from journeyman.units import NS_PER_MS

KEPT: Final = b"v1:storage_kept:"
_MS_BYTES: Final = 8


@dataclass(slots=True)
class JobLife:
    """The fold's state of a job, and what its row needs besides."""

    state: State = None
    timed_out_ns: int = 0  # the last timeout-attempt; a delay before a retry begins there
    expired: FoldedJob | None = None  # the job that an expire has ended
    is_deleted: bool = False

    def apply(self, record: Record) -> None:
        before = self.state
        self.state = apply(before, record)
        if record.command == Command.TIMEOUT_ATTEMPT:
            self.timed_out_ns = record.logged.unix_ns
        if isinstance(self.state, FoldedJob):
            self.expired, self.is_deleted = None, False
        elif isinstance(before, FoldedJob):
            has_expired = record.command == Command.EXPIRE
            self.expired, self.is_deleted = (before, False) if has_expired else (None, True)

    def row(self, as_of_ns: int) -> JobRecord | None:
        """Return the row of a job. None: there is no such job, and the log says no more
        than that."""
        if isinstance(self.state, FoldedJob):
            return record_of_workq(self.state, as_of_ns, self.timed_out_ns)
        if self.expired is not None:
            return record_of_workq(self.expired, as_of_ns, self.timed_out_ns, is_over=True)
        return None


class IndexChanges:
    """The changes of a turn to an index. ``unstorable`` counts jobs that can have no row."""

    def __init__(self, reader: StoreReader, job_ids: Iterable[bytes]) -> None:
        self._reader = reader
        ids = list(dict.fromkeys(job_ids))
        self.draft = Draft(reader, (UUID(bytes=job_id) for job_id in ids))
        kept = reader.get_many([KEPT + job_id for job_id in ids])
        self._kept = dict(zip(ids, kept, strict=True))
        self.unstorable = 0

    def apply(self, records: Sequence[Record], as_of_ns: int) -> None:
        """Apply what the log says, in its order."""
        lives: dict[bytes, JobLife] = {}
        for record in records:
            job_id = record.job_id
            if job_id not in lives:
                lives[job_id] = self._life(job_id)
            lives[job_id].apply(record)
        for job_id, life in lives.items():
            self.put(job_id, life, as_of_ns)

    def put(self, job_id: bytes, life: JobLife, as_of_ns: int) -> None:
        row = life.row(as_of_ns)
        has_row = row is not None and self._upsert(row)
        if life.is_deleted or (row is not None and not has_row):
            self.draft.remove(UUID(bytes=job_id))
        is_kept = life.state is not None and not has_row
        history = snapshot(life.state, life.timed_out_ns) if is_kept else ()
        kept = b"".join(map(CODEC.encode, history)) or None
        if kept != self._kept.get(job_id):
            self.draft.put({KEPT + job_id: kept})

    def pass_time(self, job_ids: Iterable[bytes], as_of_ns: int) -> None:
        """The rows of these jobs, as they are at another moment."""
        for job_id in job_ids:
            self.put(job_id, self._life(job_id), as_of_ns)

    def _upsert(self, row: JobRecord) -> bool:
        try:
            self.draft.upsert(row)
        except EncodeError:
            self.unstorable += 1
            return False
        return True

    def _life(self, job_id: bytes) -> JobLife:
        kept = self._kept.get(job_id)
        if kept is not None:
            life = JobLife()
            for entry in iter_entries(CODEC, kept):
                life.apply(entry.record)
            return life
        row = self.draft.row(UUID(bytes=job_id))
        if row is None or isinstance(row, str):
            return JobLife()
        return JobLife(*folded_of_record(row))


def is_kept_without_log(row: JobRecord, now_ns: int) -> bool:
    """True if a row stays whose job the log does not have: it is, or belongs, in the archive."""
    if is_archived(row):
        return True
    job, _ = folded_of_record(row)
    return job is not None and expires_ns(job) <= now_ns


def changing_by(reader: StoreReader, now_ns: int, limit: int) -> tuple[int, list[bytes]]:
    """The next moments up to now at which rows change by time alone, and their jobs.

    At least ``limit`` jobs, if there are so many, and all of the last moment; 0 and no jobs if
    nothing changes.
    """
    moment_ms, found = 0, list[bytes]()
    for moment, job_id in _timed(reader, TIMERS, now_ns // NS_PER_MS):
        if len(found) >= limit and moment > moment_ms:
            break
        moment_ms = moment
        found.append(job_id)
    return moment_ms * NS_PER_MS, found


def archived_before(reader: StoreReader, moment_ns: int, limit: int) -> list[bytes]:
    """Jobs of the archive whose TTL ended before a moment, the first ones."""
    found = []
    for _, job_id in _timed(reader, ARCHIVE, moment_ns // NS_PER_MS):
        found.append(job_id)
        if len(found) == limit:
            break
    return found


def _timed(reader: StoreReader, prefix: bytes, until_ms: int) -> Iterator[tuple[int, bytes]]:
    start, _ = prefix_range(prefix)
    cut = len(prefix)
    for key, _ in reader.scan(start, prefix + ordered_bytes(until_ms + 1)):
        moment_ms = int.from_bytes(key[cut : cut + _MS_BYTES]) - (1 << 63)
        yield moment_ms, key[cut + _MS_BYTES :]

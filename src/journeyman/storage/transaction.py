"""All that one turn changes: operations on jobs -> keys and values, counters included.

    draft = Draft(turn, uuids)        the records that are there, read inside the turn
    draft.upsert(record)              each operation sees what those before it did
    draft.remove(uuid)
    draft.put({key: value})           keys that no index follows from
    turn.commit(draft.changes())      counters are read and changed once, at the end

Every entry of a job follows from its record (records.py). So what goes and what comes is the
difference of two sets of entries: those of the record that is there, and those of the new one.

A record that cannot be read says nothing about its index keys. When it is overwritten or removed,
they are looked for in the indexes themselves (a scan of all of them: damage is rare), and the
counter of the place where it was found goes down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from struct import Struct
from typing import TypeAlias
from uuid import UUID

from journeyman.errors import FormatError
from journeyman.formats.keyspace import keys
from journeyman.formats.keyspace.values import JobRecord
from journeyman.storage import records
from journeyman.storage.contract import Changes, StoreReader

_COUNT = Struct(">Q")


@dataclass(frozen=True, slots=True)
class Upsert:
    """Store a record, whether there is one of its uuid or not."""

    record: JobRecord

    @property
    def job_uuid(self) -> UUID:
        return self.record.job_uuid


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Give a stored job another status. Its place in the order stays."""

    job_uuid: UUID
    status: str


@dataclass(frozen=True, slots=True)
class RemoveJob:
    """Remove a job with everything about it."""

    job_uuid: UUID


Operation: TypeAlias = Upsert | SetStatus | RemoveJob


class OperationOutcome(Enum):
    """The outcome of an operation."""

    DONE = "done"
    ABSENT = "absent"  # there is no such job
    UNREADABLE = "unreadable"  # there is, but its record cannot be read


def check_operation(operation: Operation) -> None:
    """EncodeError for what cannot be stored, before anything is done."""
    if isinstance(operation, Upsert):
        records.entries_of(operation.record)
    elif isinstance(operation, SetStatus):
        keys.status_bytes(operation.status)


class Draft:
    """See the module. ``uuids``: jobs that are going to be changed; others are read one by one."""

    def __init__(self, reader: StoreReader, uuids: Iterable[UUID] = ()) -> None:
        self._reader = reader
        asked = list(dict.fromkeys(uuids))
        values = reader.get_many([records.job_key(uuid) for uuid in asked])
        found = zip(asked, values, strict=True)
        # By uuid: the record, None if there is none, or why it cannot be read.
        self._rows = {u: None if raw is None else records.read_job(u, raw) for u, raw in found}
        self._changes: dict[bytes, bytes | None] = {}
        self._counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._has_old_times: bool | None = None

    def row(self, job_uuid: UUID) -> JobRecord | str | None:
        """The record, as it is now in the draft; None if there is none, or why it is unreadable."""
        if job_uuid not in self._rows:
            raw = self._reader.get(records.job_key(job_uuid))
            self._rows[job_uuid] = None if raw is None else records.read_job(job_uuid, raw)
        return self._rows[job_uuid]

    def run(self, operation: Operation) -> OperationOutcome:
        if isinstance(operation, Upsert):
            self.upsert(operation.record)
            return OperationOutcome.DONE
        row = self.row(operation.job_uuid)
        if row is None:
            return OperationOutcome.ABSENT
        if isinstance(operation, RemoveJob):
            self.remove(operation.job_uuid)
        elif isinstance(row, str):
            return OperationOutcome.UNREADABLE
        elif row.status != operation.status:
            self.upsert(replace(row, status=operation.status))
        return OperationOutcome.DONE

    def upsert(self, record: JobRecord) -> None:
        """EncodeError: it cannot be stored, and nothing was changed."""
        entries = records.entries_of(record)
        there = self._entries_there(record.job_uuid)
        self._changes.update({key: None for key in there if key not in entries})
        self._changes.update({k: v for k, v in entries.items() if there.get(k) != v})
        self._counts[record.queue, record.status] += 1
        self._rows[record.job_uuid] = record

    def remove(self, job_uuid: UUID) -> None:
        self._changes.update(dict.fromkeys(self._entries_there(job_uuid)))
        self._rows[job_uuid] = None

    def put(self, changes: Changes) -> None:
        """Change keys that no index follows from."""
        self._changes.update(changes)

    def changes(self) -> dict[bytes, bytes | None]:
        """All changes of the turn. To be asked for once."""
        counts = [(name, by) for name, by in self._counts.items() if by]
        key_list = [keys.encode_key(keys.CounterKey(*name)) for name, _ in counts]
        values = self._reader.get_many(key_list)
        for (name, by), key, value in zip(counts, key_list, values, strict=True):
            if value is not None and len(value) != _COUNT.size:
                total = by + self._recounted(*name)
            else:
                total = by + (int(_COUNT.unpack(value)[0]) if value else 0)
            self._changes[key] = _COUNT.pack(total) if total > 0 else None
        return self._changes

    # -- the record that is there --

    def _entries_there(self, job_uuid: UUID) -> dict[bytes, bytes]:
        """The row that the store has of a job; it is counted out."""
        row = self.row(job_uuid)
        if row is None:
            return {}
        if isinstance(row, str):
            return self._search(job_uuid)
        self._counts[row.queue, row.status] -= 1
        entries = records.entries_of(row)
        if self._old_times():
            entries[records.old_queue_time_key(job_uuid, records.job_facts(row))] = b""
        return entries

    def _old_times(self) -> bool:
        """Return whether there are queue-time keys of version 1, which must go with their jobs."""
        if self._has_old_times is None:
            old = self._reader.scan(*keys.prefix_range(keys.QUEUE_TIMES_V1), limit=1)
            self._has_old_times = next(old, None) is not None
        return self._has_old_times

    # -- a job whose record cannot be read --

    def _search(self, job_uuid: UUID) -> dict[bytes, bytes]:
        queues, statuses, is_listed = [], [], False
        found = {records.job_key(job_uuid): b"", records.status_key(job_uuid): b""}
        for key in self._indexed(job_uuid):
            found[key] = b""
            if key.startswith(keys.LISTINGS):
                is_listed = True
                queue, status, _, _ = keys.listing_of(key)
                self._counts[queue, status] -= 1
            elif not key.startswith((keys.TIMERS, keys.ARCHIVE)):
                match keys.decode_key(key):
                    case keys.QueueTimeKey(_, queue, _, _):
                        queues.append(queue)
                    case keys.StatusFifoKey(status, _, _):
                        statuses.append(status)
        if queues and statuses and not is_listed:  # by a program without listings
            self._counts[queues[0], statuses[0]] -= 1
        return found

    def _indexed(self, job_uuid: UUID) -> Iterator[bytes]:
        """All index keys that name a job, found by looking at every one."""
        ends = (job_uuid.bytes, str(job_uuid).encode())
        for prefix in (
            keys.LISTINGS,
            keys.STATUS_FIFO,
            keys.QUEUE_TIMES,
            keys.QUEUE_TIMES_V1,
            keys.TIMERS,
            keys.ARCHIVE,
        ):
            for key, _ in self._reader.scan(*keys.prefix_range(prefix)):
                if key.endswith(ends) and _is_key(key):
                    yield key

    def _recounted(self, queue: str, status: str) -> int:
        """A counter that is not a number is made from the listing."""
        return sum(
            1 for _ in self._reader.scan(*keys.listing_range(keys.listing_prefix(queue, status)))
        )


def _is_key(key: bytes) -> bool:
    try:
        if key.startswith(keys.LISTINGS):
            keys.listing_of(key)
        elif not key.startswith((keys.TIMERS, keys.ARCHIVE)):
            keys.decode_key(key)
    except FormatError:
        return False
    return True

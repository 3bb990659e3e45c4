"""All that one turn changes: operations on jobs -> keys and values, counters included.

    draft = Draft(turn, operations)   the records that are there, read inside the turn
    draft.upsert(...)                 each operation sees what those before it did
    draft.set_status(...)
    draft.remove(...)
    turn.commit(draft.changes())      counters are read and changed once, at the end

A record that cannot be read says nothing about its index keys. When it is overwritten or removed,
they are looked for in the indexes themselves (a scan of all of them: damage is rare), and the
counter of the place where it was found goes down.

What can be asked of jobs and queues: operations, made ready by the caller, and run in a turn.

    Upsert(record)  --ready_to_run-->      Prepared: checked and encoded, before its turn
    PutQueue(record)  --ready_to_run-->    PutEntries, likewise
    SetStatus, Remove   --run-->           an Outcome, by the draft of the turn
    PutEntries          --run-->           keys that no index follows from
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final, TypeAlias
from uuid import UUID

from journeyman.errors import FormatError
from journeyman.formats.keyspace.keys import (
    JOBS,
    LISTINGS,
    QUEUE_TIMES,
    QUEUE_TIMES_V1,
    STATUS_FIFO,
    STATUSES,
    CounterKey,
    QueueKey,
    QueueTimeKey,
    StatusFifoKey,
    decode_key,
    encode_key,
    listing_of,
    listing_prefix,
    listing_range,
    place_of,
    prefix_range,
    status_bytes,
)
from journeyman.formats.keyspace.values import JobRecord, QueueRecord, encode_value
from journeyman.storage.contract import Changes, StoreReader
from journeyman.storage.records import (
    MARKER_BYTES,
    JobFacts,
    PreparedJob,
    listed_keys,
    look,
    old_queue_time_key,
    prepared,
    queue_time_key,
)


@dataclass(frozen=True, slots=True)
class Upsert:
    """Store a record, whether there is one of its uuid or not."""

    record: JobRecord


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Give a stored job another status. Its place in the order stays."""

    job_uuid: UUID
    status: str


@dataclass(frozen=True, slots=True)
class RemoveJob:
    """Remove a job with everything about it."""

    job_uuid: UUID


@dataclass(frozen=True, slots=True)
class PutQueue:
    """Store the record of a queue, whether there is one of its name or not."""

    queue: QueueRecord


@dataclass(frozen=True, slots=True)
class PutEntries:
    """Change keys that no index follows from."""

    changes: Changes


Operation: TypeAlias = Upsert | SetStatus | RemoveJob | PutQueue | PutEntries
Ready: TypeAlias = PreparedJob | SetStatus | RemoveJob | PutEntries


def ready_to_run(operation: Operation) -> Ready:
    """What can be found wrong with an operation is found before it waits."""
    if isinstance(operation, Upsert):
        return prepared(operation.record)
    if isinstance(operation, SetStatus):
        status_bytes(operation.status)
    if isinstance(operation, PutQueue):
        queue = operation.queue
        return PutEntries({encode_key(QueueKey(queue.name)): encode_value(queue)})
    return operation


def _uuid_text(operation: PreparedJob | SetStatus | RemoveJob) -> str:
    return operation.uuid_text if isinstance(operation, PreparedJob) else str(operation.job_uuid)


def run(draft: Draft, operation: Ready) -> OperationOutcome:
    if isinstance(operation, PreparedJob):
        return draft.upsert(operation)
    if isinstance(operation, SetStatus):
        return draft.set_status(operation.job_uuid, operation.status)
    if isinstance(operation, PutEntries):
        return draft.put(operation.changes)
    return draft.remove(operation.job_uuid)


_COUNT = Struct(">Q")
_NOT_LOOKED: Final = None


class OperationOutcome(Enum):
    """What became of an operation."""

    DONE = "done"
    ABSENT = "absent"  # there is no such job
    UNREADABLE = "unreadable"  # there is, but its record cannot be read


class Draft:
    def __init__(self, reader: StoreReader, operations: Iterable[Ready]) -> None:
        self._reader = reader
        jobs = (each for each in operations if not isinstance(each, PutEntries))
        texts = list(dict.fromkeys(map(_uuid_text, jobs)))
        values = reader.get_many([JOBS + text.encode() for text in texts])
        self._raw: dict[str, bytes | None] = dict(zip(texts, values, strict=True))  # by uuid
        self._changes: dict[bytes, bytes | None] = {}
        self.counts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._has_old_times: bool | None = _NOT_LOOKED

    # -- operations --

    def upsert(self, new: PreparedJob) -> OperationOutcome:
        text, facts = new.uuid_text, new.facts
        if self._raw[text] is None or self._take_out(new.job_uuid, text, facts) != facts:
            self._changes.update(new.entries)
            self.counts[facts.queue, facts.status] += 1
        self._set_raw(text, new.raw)
        return OperationOutcome.DONE

    def set_status(self, job_uuid: UUID, status: str) -> OperationOutcome:
        text = str(job_uuid)
        raw = self._raw[text]
        if raw is None:
            return OperationOutcome.ABSENT
        facts, changed = look(job_uuid, text, raw, status)
        if facts is None:
            return OperationOutcome.UNREADABLE
        if facts.status != status:
            place = place_of(facts.created_at_ns, job_uuid)
            self._unlist(facts.queue, facts.status, place)
            self._list(facts.queue, status, place, text)
            self._set_raw(text, changed)
        return OperationOutcome.DONE

    def remove(self, job_uuid: UUID) -> OperationOutcome:
        text = str(job_uuid)
        if self._raw[text] is None:
            return OperationOutcome.ABSENT
        self._take_out(job_uuid, text, None)
        self._changes[STATUSES + text.encode()] = None
        self._set_raw(text, None)
        return OperationOutcome.DONE

    def put(self, changes: Changes) -> OperationOutcome:
        """Keys that no index follows from."""
        self._changes.update(changes)
        return OperationOutcome.DONE

    # -- one job --

    def _set_raw(self, text: str, raw: bytes | None) -> None:
        self._raw[text] = self._changes[JOBS + text.encode()] = raw

    def _take_out(self, job_uuid: UUID, text: str, stays: JobFacts | None) -> JobFacts | None:
        """Remove what the indexes know of the stored record, unless it stays as it is."""
        raw = self._raw[text]
        assert raw is not None
        facts, _ = look(job_uuid, text, raw)
        if facts is None:
            self._search_and_take(job_uuid)
        elif facts != stays:
            self._unlist(facts.queue, facts.status, place_of(facts.created_at_ns, job_uuid))
            self._changes[queue_time_key(facts, text.encode())] = None
            if self._old_times():
                self._changes[old_queue_time_key(job_uuid, facts)] = None
        return facts

    def _unlist(self, queue: str, status: str, place: bytes) -> None:
        fifo, listed = listed_keys(queue, status, place)
        self._changes[fifo] = self._changes[listed] = None
        self.counts[queue, status] -= 1

    def _list(self, queue: str, status: str, place: bytes, uuid_text: str) -> None:
        fifo, listed = listed_keys(queue, status, place)
        self._changes[fifo] = self._changes[listed] = MARKER_BYTES
        self._changes[STATUSES + uuid_text.encode()] = status.encode("ascii")
        self.counts[queue, status] += 1

    def _old_times(self) -> bool:
        """Whether there are queue-time keys of version 1, which must go with their jobs."""
        if self._has_old_times is _NOT_LOOKED:
            old = self._reader.scan(*prefix_range(QUEUE_TIMES_V1), limit=1)
            self._has_old_times = next(old, None) is not None
        return self._has_old_times

    # -- a job whose record cannot be read --

    def _search_and_take(self, job_uuid: UUID) -> None:
        queues, statuses, is_listed = [], [], False
        for key in self._indexed(job_uuid):
            self._changes[key] = None
            if key.startswith(LISTINGS):
                is_listed = True
                queue, status, _, _ = listing_of(key)
                self.counts[queue, status] -= 1
                continue
            match decode_key(key):
                case QueueTimeKey(_, queue, _, _):
                    queues.append(queue)
                case StatusFifoKey(status, _, _):
                    statuses.append(status)
        if queues and statuses and not is_listed:  # by a program without listings
            self.counts[queues[0], statuses[0]] -= 1

    def _indexed(self, job_uuid: UUID) -> Iterator[bytes]:
        """All index keys that name a job, found by looking at every one."""
        ends = (job_uuid.bytes, str(job_uuid).encode())
        for prefix in (LISTINGS, STATUS_FIFO, QUEUE_TIMES, QUEUE_TIMES_V1):
            for key, _ in self._reader.scan(*prefix_range(prefix)):
                if key.endswith(ends) and _is_key(key):
                    yield key

    # -- the end --

    def changes(self) -> dict[bytes, bytes | None]:
        """All changes of the turn. To be asked for once."""
        counts = [(name, by) for name, by in self.counts.items() if by]
        keys = [encode_key(CounterKey(*name)) for name, _ in counts]
        values = self._reader.get_many(keys)
        for (name, by), key, value in zip(counts, keys, values, strict=True):
            if value is not None and len(value) != _COUNT.size:
                total = by + self._recounted(*name)
            else:
                total = by + (int(_COUNT.unpack(value)[0]) if value else 0)
            self._changes[key] = _COUNT.pack(total) if total > 0 else None
        return self._changes

    def _recounted(self, queue: str, status: str) -> int:
        """A counter that is not a number is made from the listing."""
        return sum(1 for _ in self._reader.scan(*listing_range(listing_prefix(queue, status))))


def _is_key(key: bytes) -> bool:
    try:
        if key.startswith(LISTINGS):
            listing_of(key)
        else:
            decode_key(key)
    except FormatError:
        return False
    return True

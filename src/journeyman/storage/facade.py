"""The storage facade: queues and jobs, whatever engine keeps them.

    with Storage.open("rocksdb", "~/.journeyman/data") as storage:
        storage.upsert_job_record(record)                       one durable commit
        storage.set_job_status(uuid, "completed")
        storage.apply([Upsert(record), RemoveJob(uuid)])        many at once, all or none
        storage.list_jobs("mail", "waiting", page=700)

Invariants
- A job, its index keys and its counter change in one commit. What was returned from is durable.
- Index keys are derived from the record that is stored (see records). Callers give records, not
  keys.
- One record that cannot be read spoils nothing else: listings name it and go on, and it can be
  removed or overwritten.

Time and randomness do not enter here. Blocking: a server calls it from a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from types import TracebackType
from typing import Final
from uuid import UUID

from journeyman.config import StorageEngine, StorageSettings
from journeyman.errors import FormatError, StorageError, UnreadableRecord
from journeyman.formats.keyspace import keys
from journeyman.formats.keyspace.values import (
    JobRecord,
    QueueRecord,
    encode_value,
)
from journeyman.storage import transaction
from journeyman.storage.contract import Backend, EngineOptions, Entry, expanded
from journeyman.storage.opening import open_backend
from journeyman.storage.pages import Page, Unreadable, page_of_queue, page_of_status
from journeyman.storage.position import LogPosition, position_in
from journeyman.storage.records import job_key, read_job, read_queue_record, uuid_of_job_key

# The number says which derived keys a store keeps complete. 1: listings besides what Overhop
# keeps, and ranks; 2: listings, timers and the archive.
SCHEMA: Final = 2
SCHEMA_KEY: Final = b"v1:storage:schema"

_COUNT = Struct(">Q")
_UUID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class StoredQueues:
    """All queues by name, and those that cannot be read."""

    queues: tuple[QueueRecord, ...]
    unreadable: tuple[Unreadable, ...]


@dataclass(frozen=True, slots=True)
class QueueCount:
    queue: str
    status: str
    count: int


class Storage:
    """An open store of queues and jobs. May be used by several threads at once."""

    def __init__(self, backend: Backend, path: str) -> None:
        """Take over an open backend; its schema is checked. Most callers want ``open``."""
        self._backend = backend
        self._path = path
        self._check_schema()

    @classmethod
    def open(cls, engine: str, path: str, options: EngineOptions | None = None) -> Storage:
        """UsageError for what cannot be asked for, StorageError if the store cannot be opened."""
        is_directory = engine not in ("postgres", "memory")
        place = expanded(path) if is_directory else path
        shown = place if is_directory else engine
        backend = open_backend(engine, place, options or EngineOptions())
        try:
            return cls(backend, shown)
        except BaseException:
            backend.close()
            raise

    @classmethod
    def from_settings(cls, settings: StorageSettings) -> Storage:
        """The store that the configuration names."""
        options = EngineOptions(settings.cache_capacity_bytes, settings.mode)
        engine = settings.engine or StorageEngine.ROCKSDB
        return cls.open(engine, settings.path, options)

    def __enter__(self) -> Storage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def engine(self) -> str:
        return self._backend.name

    @property
    def path(self) -> str:
        """Where it is; of a database only which engine."""
        return self._path

    @property
    def backend(self) -> Backend:
        """The backend, for checks, imports and exports, which are about keys."""
        return self._backend

    def _check_schema(self) -> None:
        found = self._backend.get(SCHEMA_KEY)
        if found is None:
            with self._backend.turn() as turn:
                if turn.get(SCHEMA_KEY) is not None:
                    return  # another process was faster
                if next(turn.scan(*keys.prefix_range(keys.JOBS), limit=1), None) is not None:
                    raise StorageError(
                        self._path,
                        "its jobs were written by another program and are not listed yet; "
                        "run: journeyman storage rebuild",
                    )
                turn.commit({SCHEMA_KEY: _COUNT.pack(SCHEMA)})
        elif found != _COUNT.pack(SCHEMA):
            number = int.from_bytes(found, "big")
            how = "use a newer journeyman" if number > SCHEMA else "run: journeyman storage rebuild"
            reason = f"it has schema {number}, and this program knows {SCHEMA}; {how}"
            raise StorageError(self._path, reason)

    # -- queues ----------------------------------------------------------------------------------

    def load_queues(self) -> StoredQueues:
        """Every queue, by name."""
        queues, unreadable = [], []
        with self._backend.view() as view:
            for key, value in view.scan(*keys.prefix_range(keys.QUEUES)):
                found = read_queue_record(key, value)
                if isinstance(found, str):
                    unreadable.append(Unreadable(key, found))
                else:
                    queues.append(found)
        return StoredQueues(tuple(sorted(queues, key=lambda q: q.name)), tuple(unreadable))

    def replace_queues(self, queues: Iterable[QueueRecord]) -> None:
        """These are all queues, in one step. Jobs and counters stay as they are."""
        new = {keys.encode_key(keys.QueueKey(queue.name)): encode_value(queue) for queue in queues}
        with self._backend.turn() as turn:
            there = [key for key, _ in turn.scan(*keys.prefix_range(keys.QUEUES))]
            turn.commit({**dict.fromkeys(there), **new})

    # -- changing jobs ---------------------------------------------------------------------------

    def apply(
        self, operations: Iterable[transaction.Operation]
    ) -> list[transaction.OperationOutcome]:
        """Do all of these, in their order, in one durable commit; or none, if it raises.

        An operation on a job that is not there is ABSENT and changes nothing; so is a SetStatus on
        a record that cannot be read, which is UNREADABLE. Raises EncodeError for a record or
        status that cannot be stored, before anything is done.
        """
        asked = list(operations)
        for operation in asked:
            transaction.check_operation(operation)
        if not asked:
            return []
        with self._backend.turn() as turn:
            draft = transaction.Draft(turn, (operation.job_uuid for operation in asked))
            outcomes = [draft.run(operation) for operation in asked]
            turn.commit(draft.changes())
        return outcomes

    def upsert_job_record(self, record: JobRecord) -> None:
        self.apply([transaction.Upsert(record)])

    def set_job_status(self, job_uuid: UUID, status: str) -> bool:
        """False if there is no such job; UnreadableRecord if its record cannot be read."""
        outcome = self.apply([transaction.SetStatus(job_uuid, status)])[0]
        if outcome is transaction.OperationOutcome.UNREADABLE:
            raise self._unreadable(job_uuid, "it cannot be read; remove it or write it again")
        return outcome is transaction.OperationOutcome.DONE

    def remove_job_record(self, job_uuid: UUID) -> bool:
        """False if there is no such job. A record that cannot be read is removed as well."""
        return self.apply([transaction.RemoveJob(job_uuid)])[0] is transaction.OperationOutcome.DONE

    # -- reading jobs ----------------------------------------------------------------------------

    def get_job(self, job_uuid: UUID) -> JobRecord | None:
        """Raises UnreadableRecord."""
        raw = self._backend.get(job_key(job_uuid))
        if raw is None:
            return None
        record = read_job(job_uuid, raw)
        if isinstance(record, str):
            raise self._unreadable(job_uuid, record)
        return record

    def all_jobs(self) -> Iterator[JobRecord | Unreadable]:
        """Every record, in the order of the uuids, read while it is asked for."""
        with self._backend.view() as view:
            for key, raw in view.scan(*keys.prefix_range(keys.JOBS)):
                uuid = uuid_of_job_key(key)
                found = "its key is not a UUID" if uuid is None else read_job(uuid, raw)
                yield Unreadable(key, found) if isinstance(found, str) else found

    def list_jobs(
        self,
        queue: str,
        status: str,
        *,
        size: int = 50,
        page: int | None = None,
        after: str | None = None,
    ) -> Page:
        """Jobs of a queue and status, oldest first: a page by number (from 1) or after a cursor.

        A page after a cursor costs what it returns; one by number also the way there.
        """
        with self._backend.view() as view:
            return page_of_queue(view, queue, status, size, after=after, number=page)

    def list_jobs_by_status(self, status: str, *, size: int = 50, after: str | None = None) -> Page:
        """Jobs of a status in all queues, oldest first."""
        with self._backend.view() as view:
            return page_of_status(view, status, size, after=after)

    def jobs_due_before(
        self, before_ms: int, *, limit: int | None = None, after: keys.QueueTimeKey | None = None
    ) -> list[keys.QueueTimeKey]:
        """Jobs whose execution starts before a time, earliest first, whatever their status; from
        the first, or after a key."""
        start, end = keys.due_before(before_ms)
        if after is not None:
            start = keys.encode_key(after.newest()) + b"\0"
        with self._backend.view() as view:
            due = _time_keys(view.scan(start, end, limit=limit))
            old = [
                newest
                for key in _time_keys(view.scan(*keys.prefix_range(keys.QUEUE_TIMES_V1)))
                if start <= keys.encode_key(newest := key.newest()) < end
            ]
        if old:  # written by a program that knows version 1 only; in no order
            due = sorted({*due, *old}, key=keys.encode_key)
        return due if limit is None else due[:limit]

    # -- counters --------------------------------------------------------------------------------

    def queue_status_counts(self, queue: str | None = None) -> list[QueueCount]:
        """How many jobs each queue has in each status; zeros are left out."""
        bounds = (
            keys.prefix_range(keys.COUNTERS) if queue is None else keys.counters_of_queue(queue)
        )
        with self._backend.view() as view:
            counts = [*counts_in(view.scan(*bounds))]
        if queue is not None:
            counts = [each for each in counts if each.queue == queue]
        return sorted(counts, key=lambda each: (each.queue, each.status))

    def count(self, queue: str, status: str) -> int:
        """How many jobs of a queue have a status."""
        key = keys.encode_key(keys.CounterKey(queue, status))
        value = self._backend.get(key)
        return 0 if value is None else sum(each.count for each in counts_in([(key, value)]))

    # -- the store -------------------------------------------------------------------------------

    def position(self) -> LogPosition | None:
        """How far the log was followed; None: the store follows none, or is being rebuilt."""
        with self._backend.view() as view:
            return position_in(view)

    def flush(self) -> None:
        self._backend.flush()

    def close(self) -> None:
        """Close it, once a write under way is done. A second time does nothing."""
        self._backend.close()

    def _unreadable(self, job_uuid: UUID, reason: str) -> UnreadableRecord:
        return UnreadableRecord(self._path, job_key(job_uuid), reason)


def shown_place(settings: StorageSettings) -> str:
    """Where the store is; of a database only which engine, for its address may hold a password."""
    engine = settings.engine or StorageEngine.ROCKSDB
    is_directory = engine not in (StorageEngine.POSTGRES, StorageEngine.MEMORY)
    return expanded(settings.path) if is_directory else engine


def _time_keys(entries: Iterator[Entry]) -> list[keys.QueueTimeKey]:
    key_list = []
    for raw, _ in entries:
        try:
            key = keys.decode_key(raw)
        except FormatError:
            continue  # `storage check` names it
        if isinstance(key, keys.QueueTimeKey):
            key_list.append(key)
    return key_list


def counts_in(entries: Iterable[Entry]) -> Iterator[QueueCount]:
    """Yield what these entries count, but for those that cannot be read."""
    for raw, value in entries:
        try:
            key = keys.decode_key(raw)
        except FormatError:
            continue  # `storage check` names it
        if isinstance(key, keys.CounterKey) and len(value) == _COUNT.size:
            yield QueueCount(key.queue, key.status, int(_COUNT.unpack(value)[0]))

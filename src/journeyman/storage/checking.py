"""Checking a store: do all indexes and counters follow from the job records, and nothing else?

    1  every record       -> its index keys are there, its status key says the same
    2  every index key    -> its job is there, and its record says so
    3  every counter      -> equals the jobs counted in 1
    4  every queue record -> can be read

Reads one moment of the store in passes, each in the order of the keys; memory does not grow with
the number of jobs. Records that cannot be read are problems themselves, and so is what points to
them. Keys of no known prefix are none of our business.

``rebuild`` makes every index and counter from the job records alone:

    schema removed -> derived keys removed -> index keys of every record put -> counters
                                                                              -> schema put back

In many small commits, for a store may be larger than memory. A store without its schema is refused
until it is rebuilt, so a rebuild that was interrupted is begun again, and no program works with
half of it. No other program may write meanwhile: stop the server first. Queue-time keys of version
1 become version 2. Records that cannot be read stay, in no index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from struct import Struct
from typing import Final, TypeVar
from uuid import UUID

from journeyman.errors import FormatError, StorageLocked, UsageError
from journeyman.formats.keyspace import keys
from journeyman.storage import records
from journeyman.storage.contract import Backend, StoreReader
from journeyman.storage.facade import SCHEMA, SCHEMA_KEY

_COUNT = Struct(">Q")
_BATCH: Final = 2000
_UUID_TEXT = 36
_INDEXES: Final = (
    keys.STATUSES,
    keys.STATUS_FIFO,
    keys.QUEUE_TIMES,
    keys.QUEUE_TIMES_V1,
    keys.LISTINGS,
    keys.TIMERS,
    keys.ARCHIVE,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreProblem:
    """A key and what is wrong with it."""

    key: bytes
    what: str

    def __str__(self) -> str:
        return f"{key_text(self.key)}: {self.what}"


def key_text(key: bytes) -> str:
    """A key as text on one line; bytes that are none as \\x escapes."""
    text = key.decode("ascii", "backslashreplace")
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def find_problems(reader: StoreReader) -> Iterator[StoreProblem]:
    """Every problem of the store, as it is found."""
    counts: Counter[tuple[str, str]] = Counter()
    yield from _records(reader, counts)
    yield from _index_keys(reader)
    yield from _counters(reader, counts)
    yield from _queues(reader)


def in_batches(items: Iterable[T], size: int = _BATCH) -> Iterator[list[T]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


# -- 1: records ----------------------------------------------------------------------------------


def _records(reader: StoreReader, counts: Counter[tuple[str, str]]) -> Iterator[StoreProblem]:
    for batch in in_batches(reader.scan(*keys.prefix_range(keys.JOBS))):
        wanted: list[tuple[bytes, bytes]] = []
        for key, raw in batch:
            uuid = records.uuid_of_job_key(key)
            record = "its key is not a UUID" if uuid is None else records.read_job(uuid, raw)
            if isinstance(record, str):
                yield StoreProblem(key, f"the record cannot be read: {record}")
                continue
            counts[record.queue, record.status] += 1
            wanted += records.entries_of(record).items()
        found = reader.get_many([key for key, _ in wanted])
        for (key, value), there in zip(wanted, found, strict=True):
            if there is None:
                yield StoreProblem(key, "it is missing, though there is such a job")
            elif there != value:
                yield StoreProblem(
                    key, f"it says {key_text(there[:80])}, the record {key_text(value)}"
                )


# -- 2: index keys -------------------------------------------------------------------------------


def _index_keys(reader: StoreReader) -> Iterator[StoreProblem]:
    for prefix in _INDEXES:
        for batch in in_batches(key for key, _ in reader.scan(*keys.prefix_range(prefix))):
            uuids = [_uuid_in(prefix, key) for key in batch]
            asked = [records.job_key(uuid or UUID(int=0)) for uuid in uuids]
            for key, uuid, raw in zip(batch, uuids, reader.get_many(asked), strict=True):
                if uuid is None:
                    yield StoreProblem(key, "it names no job")
                elif raw is None:
                    yield StoreProblem(key, "there is no such job")
                elif (problem := _points_wrong(key, uuid, raw)) is not None:
                    yield StoreProblem(key, problem)


def _uuid_in(prefix: bytes, key: bytes) -> UUID | None:
    try:
        if prefix in (keys.STATUS_FIFO, keys.LISTINGS, keys.TIMERS, keys.ARCHIVE):
            return UUID(bytes=key[-16:])
        return UUID(key[-_UUID_TEXT:].decode("ascii"))
    except ValueError:
        return None


def _points_wrong(key: bytes, uuid: UUID, raw: bytes) -> str | None:
    record = records.read_job(uuid, raw)
    if isinstance(record, str):
        return "the record of its job cannot be read"
    is_right = key in records.entries_of(record) or key == records.old_queue_time_key(
        uuid, records.job_facts(record)
    )
    return None if is_right else "the record of its job says otherwise"


# -- 3: counters ---------------------------------------------------------------------------------


def _counters(reader: StoreReader, counts: Counter[tuple[str, str]]) -> Iterator[StoreProblem]:
    seen = set()
    for key, value in reader.scan(*keys.prefix_range(keys.COUNTERS)):
        try:
            decoded = keys.decode_key(key)
        except FormatError as error:
            yield StoreProblem(key, error.reason)
            continue
        assert isinstance(decoded, keys.CounterKey)
        name = (decoded.queue, decoded.status)
        seen.add(name)
        if value != _COUNT.pack(counts[name]) or not counts[name]:
            yield StoreProblem(key, f"it says {_number(value)}, there are {counts[name]} jobs")
    for name in counts.keys() - seen:
        key = keys.encode_key(keys.CounterKey(*name))
        yield StoreProblem(key, f"it is missing, there are {counts[name]} jobs")


def _number(value: bytes) -> str:
    return str(_COUNT.unpack(value)[0]) if len(value) == _COUNT.size else "no number"


# -- 4: queues -----------------------------------------------------------------------------------


def _queues(reader: StoreReader) -> Iterator[StoreProblem]:
    for key, value in reader.scan(*keys.prefix_range(keys.QUEUES)):
        found = records.read_queue_record(key, value)
        if isinstance(found, str):
            yield StoreProblem(key, f"the record cannot be read: {found}")


_COMMIT_KEYS: Final = 50_000
_RANKS: Final = b"v1:q_status_rank:"  # a prefix of schema 1
_DERIVED: Final = (keys.COUNTERS, *_INDEXES, _RANKS)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    jobs: int
    unreadable: int


def _unseen(jobs: int) -> None:
    """Report nothing."""


def rebuild(backend: Backend, progress: Callable[[int], None] = _unseen) -> Rebuilt:
    """Make everything derived again. ``progress`` gets the number of records done."""
    backend.write({SCHEMA_KEY: None})
    for prefix in _DERIVED:
        _remove_all(backend, prefix)
    rebuilt = _index_all(backend, progress)
    backend.write({SCHEMA_KEY: _COUNT.pack(SCHEMA)})
    backend.flush()
    return rebuilt


def _remove_all(backend: Backend, prefix: bytes) -> None:
    with backend.view() as view:
        for batch in in_batches(
            (k for k, _ in view.scan(*keys.prefix_range(prefix))), _COMMIT_KEYS
        ):
            backend.write(dict.fromkeys(batch))


def _index_all(backend: Backend, progress: Callable[[int], None]) -> Rebuilt:
    counts: Counter[tuple[str, str]] = Counter()
    jobs = unreadable = 0
    with backend.view() as view:
        for batch in in_batches(view.scan(*keys.prefix_range(keys.JOBS)), _COMMIT_KEYS // 4):
            changes: dict[bytes, bytes | None] = {}
            for key, raw in batch:
                uuid = records.uuid_of_job_key(key)
                record = "" if uuid is None else records.read_job(uuid, raw)
                if isinstance(record, str):
                    unreadable += 1
                    continue
                jobs += 1
                counts[record.queue, record.status] += 1
                changes.update(records.entries_of(record))
            backend.write(changes)
            progress(jobs + unreadable)
    numbers = (
        (keys.encode_key(keys.CounterKey(*name)), _COUNT.pack(n)) for name, n in counts.items()
    )
    for some in in_batches(numbers, _COMMIT_KEYS):
        backend.write(dict(some))
    return Rebuilt(jobs, unreadable)


def be_alone(backend: Backend) -> None:
    """No server has its jobs in this store, or it is refused."""
    try:
        backend.be_alone()
    except StorageLocked as error:
        raise UsageError(f"{error}; stop the server first") from error

"""Rebuilding a store: every index, counter and rank made anew from the job records alone.

    schema removed -> derived keys removed -> index keys of every record put -> counters -> ranks
                                                                              -> schema put back

In many small commits, for a store may be larger than memory. Whoever opens a store without its
schema is sent here, so a rebuild that was interrupted is begun again, and nobody works with half of
it. Nobody else may write meanwhile: stop the server first.

Queue-time keys of version 1 become version 2. Records that cannot be read stay, in no index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from journeyman.formats.keyspace import (
    COUNTERS,
    JOBS,
    QUEUE_TIMES,
    QUEUE_TIMES_V1,
    STATUS_FIFO,
    STATUSES,
    CounterKey,
    encode_key,
    prefix_range,
)
from journeyman.formats.keyspace.listing import LISTINGS, RANKS
from journeyman.storage.checking import in_batches, named_listings, rank_entries
from journeyman.storage.contract import Backend
from journeyman.storage.facade import SCHEMA, SCHEMA_KEY
from journeyman.storage.records import (
    MARKER_BYTES,
    facts_of,
    index_keys,
    read_job,
    status_key,
    uuid_of_job_key,
)

_COUNT = Struct(">Q")
_COMMIT_KEYS: Final = 50_000
_DERIVED: Final = (COUNTERS, QUEUE_TIMES, QUEUE_TIMES_V1, STATUS_FIFO, STATUSES, LISTINGS, RANKS)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    jobs: int
    unreadable: int


def _unseen(jobs: int) -> None:
    """Nobody watches."""


def rebuild(backend: Backend, progress: Callable[[int], None] = _unseen) -> Rebuilt:
    """Make everything derived anew. ``progress`` is told how many records were done."""
    backend.write({SCHEMA_KEY: None})
    for prefix in _DERIVED:
        _remove_all(backend, prefix)
    rebuilt = _index_all(backend, progress)
    with backend.view() as view:
        for name, places in named_listings(view):
            assert name is not None, "a listing key that was just made"
            for batch in in_batches(rank_entries(*name, places), _COMMIT_KEYS):
                backend.write(dict(batch))
    backend.write({SCHEMA_KEY: _COUNT.pack(SCHEMA)})
    backend.flush()
    return rebuilt


def _remove_all(backend: Backend, prefix: bytes) -> None:
    with backend.view() as view:
        for batch in in_batches((k for k, _ in view.scan(*prefix_range(prefix))), _COMMIT_KEYS):
            backend.write(dict.fromkeys(batch))


def _index_all(backend: Backend, progress: Callable[[int], None]) -> Rebuilt:
    counts: Counter[tuple[str, str]] = Counter()
    jobs = unreadable = 0
    with backend.view() as view:
        for batch in in_batches(view.scan(*prefix_range(JOBS)), _COMMIT_KEYS // 4):
            changes: dict[bytes, bytes | None] = {}
            for key, raw in batch:
                uuid = uuid_of_job_key(key)
                record = "" if uuid is None else read_job(uuid, raw)
                if isinstance(record, str):
                    unreadable += 1
                    continue
                jobs += 1
                counts[record.queue, record.status] += 1
                changes[status_key(record.job_uuid)] = record.status.encode("ascii")
                changes.update(
                    dict.fromkeys(index_keys(record.job_uuid, facts_of(record)), MARKER_BYTES)
                )
            backend.write(changes)
            progress(jobs + unreadable)
    numbers = ((encode_key(CounterKey(*name)), _COUNT.pack(n)) for name, n in counts.items())
    for some in in_batches(numbers, _COMMIT_KEYS):
        backend.write(dict(some))
    return Rebuilt(jobs, unreadable)

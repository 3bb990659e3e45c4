"""What can be asked of jobs and queues: operations, made ready by the caller, and run in a turn.

Upsert(record)  --ready_to_run-->      Prepared: checked and encoded, before anybody waits
PutQueue(record)  --ready_to_run-->    PreparedQueue, likewise
SetStatus, Remove   --run-->           an Outcome, by the draft of the turn
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from journeyman.formats.keyspace import QueueKey, encode_key, status_bytes
from journeyman.formats.keyspace.values import JobRecord, QueueRecord, encode_value
from journeyman.storage.drafts import Draft, OperationOutcome
from journeyman.storage.records import Prepared, prepared


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
class PreparedQueue:
    """A PutQueue as key and value."""

    key: bytes
    value: bytes


Operation: TypeAlias = Upsert | SetStatus | RemoveJob | PutQueue
Ready: TypeAlias = Prepared | SetStatus | RemoveJob | PreparedQueue


def ready_to_run(operation: Operation) -> Ready:
    """What can be found wrong with an operation is found before it waits."""
    if isinstance(operation, Upsert):
        return prepared(operation.record)
    if isinstance(operation, SetStatus):
        status_bytes(operation.status)
    if isinstance(operation, PutQueue):
        queue = operation.queue
        return PreparedQueue(encode_key(QueueKey(queue.name)), encode_value(queue))
    return operation


def run(draft: Draft, operation: Ready) -> OperationOutcome:
    if isinstance(operation, Prepared):
        return draft.upsert(operation)
    if isinstance(operation, SetStatus):
        return draft.set_status(operation.job_uuid, operation.status)
    if isinstance(operation, PreparedQueue):
        return draft.put(operation.key, operation.value)
    return draft.remove(operation.job_uuid)

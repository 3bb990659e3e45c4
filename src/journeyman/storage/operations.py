"""What can be asked of a job: operations, made ready by whoever asks, and run in a turn.

Upsert(record)  --ready_to_run-->  Prepared: checked and encoded, before anybody waits
SetStatus, Remove   --run-->       an Outcome, by the draft of the turn
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from journeyman.formats.keyspace import status_bytes
from journeyman.formats.keyspace_values import JobRecord
from journeyman.storage.drafts import Draft, Outcome
from journeyman.storage.records import Prepared, prepared

__all__ = ["Operation", "Ready", "Remove", "SetStatus", "Upsert", "ready_to_run", "run"]


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
class Remove:
    """Remove a job with everything about it."""

    job_uuid: UUID


Operation: TypeAlias = Upsert | SetStatus | Remove
Ready: TypeAlias = Prepared | SetStatus | Remove


def ready_to_run(operation: Operation) -> Ready:
    """What can be found wrong with an operation is found before it waits."""
    if isinstance(operation, Upsert):
        return prepared(operation.record)
    if isinstance(operation, SetStatus):
        status_bytes(operation.status)
    return operation


def run(draft: Draft, operation: Ready) -> Outcome:
    if isinstance(operation, Prepared):
        return draft.upsert(operation)
    if isinstance(operation, SetStatus):
        return draft.set_status(operation.job_uuid, operation.status)
    return draft.remove(operation.job_uuid)

"""A job record, and every key that follows from it: what the indexes hold is derived here only.

    record -> Facts (queue, status, created, start) -> the keys of the indexes over the job

Whatever is written or removed is worked out from the facts of the record that is stored, never from
what a caller remembers, so no index key is left over.

A record is readable if its JSON is, if it holds the uuid of its own key, if queue and status can
stand in keys, and if its member ``workq``, where it has one, is that of a job.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from journeyman.errors import EncodeError, FormatError
from journeyman.folds.keyspace import folded_of_record, is_archived, next_change_ns
from journeyman.formats.keyspace import keys
from journeyman.formats.keyspace.values import (
    JobRecord,
    QueueRecord,
    decode_value,
    encode_value,
)
from journeyman.units import NS_PER_MS

MARKER_BYTES: Final = b"\x01"
_FAR_MS: Final = 1 << 63


class JobFacts(NamedTuple):
    """The fields of a job that the indexes need."""

    queue: str
    status: str
    created_at_ns: int
    execution_start_ns: int


def job_facts(record: JobRecord) -> JobFacts:
    return JobFacts(record.queue, record.status, record.created_at_ns, record.execution_start_ns)


def read_job(job_uuid: UUID, raw: bytes | None) -> JobRecord | str:
    """The record of a job that an index names, or why it cannot be read."""
    if raw is None:
        return "an index names it, but it has no record"
    try:
        record = decode_value(keys.JobKey(job_uuid), raw)
        assert isinstance(record, JobRecord)
        if record.job_uuid != job_uuid:
            return f"it is the record of {record.job_uuid}"
        keys.status_bytes(record.status)
        keys.queue_bytes(record.queue)
        next_change_ns(record)
        folded_of_record(record)
    except FormatError as error:
        return error.reason
    except EncodeError as error:
        return str(error)
    return record


def entries_of(record: JobRecord) -> dict[bytes, bytes]:
    """Every entry of a job but its share of a counter. EncodeError: it cannot be stored."""
    facts, text = job_facts(record), str(record.job_uuid).encode()
    place = keys.place_of(facts.created_at_ns, record.job_uuid)
    fifo, listed = listed_keys(facts.queue, facts.status, place)
    entries = {
        keys.JOBS + text: encode_value(record),
        keys.STATUSES + text: keys.status_bytes(facts.status),
        fifo: MARKER_BYTES,
        listed: MARKER_BYTES,
        queue_time_key(facts, text): MARKER_BYTES,
    }
    changes_ns = next_change_ns(record)
    if changes_ns is not None:
        prefix = keys.ARCHIVE if is_archived(record) else keys.TIMERS
        entries[timer_key(prefix, changes_ns, record.job_uuid.bytes)] = MARKER_BYTES
    return entries


# -- keys ----------------------------------------------------------------------------------------


def job_key(job_uuid: UUID) -> bytes:
    return keys.JOBS + str(job_uuid).encode()


def uuid_of_job_key(key: bytes) -> UUID | None:
    """None if the key is not one that a job is kept under."""
    try:
        uuid = UUID(key[len(keys.JOBS) :].decode("ascii"))
    except ValueError:
        return None
    return uuid if job_key(uuid) == key else None


def status_key(job_uuid: UUID) -> bytes:
    return keys.STATUSES + str(job_uuid).encode()


def listed_keys(queue: str, status: str, place: bytes) -> tuple[bytes, bytes]:
    """Status FIFO and listing key of the job at a place."""
    fifo = b"%b%b:%b%b" % (keys.STATUS_FIFO, keys.status_bytes(status), place[:8], place[12:])
    return fifo, keys.listing_prefix(queue, status) + place


def timer_key(prefix: bytes, moment_ns: int, job_id: bytes) -> bytes:
    """The key under which the next change of a row by time stands; rounded up, so never early."""
    moment_ms = min(max(-(-moment_ns // NS_PER_MS), -_FAR_MS), _FAR_MS - 1)
    return prefix + keys.ordered_bytes(moment_ms) + job_id


def queue_time_key(facts: JobFacts, uuid_text: bytes) -> bytes:
    start = keys.ordered_bytes(facts.execution_start_ns // NS_PER_MS)
    return b"%b%b:%b:%b" % (keys.QUEUE_TIMES, start, keys.queue_bytes(facts.queue), uuid_text)


def old_queue_time_key(job_uuid: UUID, facts: JobFacts) -> bytes:
    """The queue-time key of version 1, which is only ever removed."""
    start_ms = facts.execution_start_ns // NS_PER_MS
    uuid = str(job_uuid).encode()
    return b"%b%d:%b:%b" % (keys.QUEUE_TIMES_V1, start_ms, keys.queue_bytes(facts.queue), uuid)


def read_queue_record(key: bytes, value: bytes) -> QueueRecord | str:
    """The record of a queue, or why it cannot be read."""
    try:
        record = decode_value(keys.QueueKey("any"), value)
    except FormatError as error:
        return error.reason
    assert isinstance(record, QueueRecord)
    return record if keys.QUEUES + record.name.encode() == key else "it is that of another queue"

"""A job record, and every key that follows from it: what the indexes hold is derived here only.

    record -> Facts (queue, status, created, start) -> the keys of the indexes over the job

Whatever is written or removed is worked out from the facts of the record that is stored, never from
what a caller remembers, so no index key is left over.

A record is readable if its JSON is, if it holds the uuid of its own key, and if queue and status
can stand in keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from journeyman.errors import EncodeError, FormatError
from journeyman.formats.keyspace.keys import (
    JOBS,
    QUEUE_TIMES,
    QUEUE_TIMES_V1,
    QUEUES,
    STATUS_FIFO,
    STATUSES,
    JobKey,
    QueueKey,
    listing_prefix,
    ordered_bytes,
    place_of,
    queue_bytes,
    status_bytes,
)
from journeyman.formats.keyspace.values import (
    JobRecord,
    QueueRecord,
    decode_value,
    encode_value,
    glance,
)
from journeyman.units import NS_PER_MS

MARKER_BYTES: Final = b"\x01"


class JobFacts(NamedTuple):
    """What the indexes need to know of a job."""

    queue: str
    status: str
    created_at_ns: int
    execution_start_ns: int


class PreparedJob(NamedTuple):
    """A record that can be stored: checked and encoded before its turn to be written, and so are
    the entries of the indexes, because other threads wait for a turn to end."""

    job_uuid: UUID
    uuid_text: str
    raw: bytes
    facts: JobFacts
    place: bytes
    entries: dict[bytes, bytes]


def prepared(record: JobRecord) -> PreparedJob:
    """Raises EncodeError for a record that cannot be stored."""
    facts, uuid, text = facts_of(record), record.job_uuid, str(record.job_uuid)
    raw, ascii_text = encode_value(record), text.encode()
    place = place_of(facts.created_at_ns, uuid)
    fifo, listed = listed_keys(facts.queue, facts.status, place)
    entries = {
        fifo: MARKER_BYTES,
        listed: MARKER_BYTES,
        STATUSES + ascii_text: status_bytes(facts.status),
        queue_time_key(facts, ascii_text): MARKER_BYTES,
    }
    return PreparedJob(uuid, text, raw, facts, place, entries)


def facts_of(record: JobRecord) -> JobFacts:
    return JobFacts(record.queue, record.status, record.created_at_ns, record.execution_start_ns)


def read_job(job_uuid: UUID, raw: bytes | None) -> JobRecord | str:
    """The record of a job that an index names, or why it cannot be read."""
    if raw is None:
        return "an index names it, but it has no record"
    try:
        record = decode_value(JobKey(job_uuid), raw)
        assert isinstance(record, JobRecord)
        if record.job_uuid != job_uuid:
            return f"it is the record of {record.job_uuid}"
        status_bytes(record.status)
        queue_bytes(record.queue)
    except FormatError as error:
        return error.reason
    except EncodeError as error:
        return str(error)
    return record


def look(
    job_uuid: UUID, uuid_text: str, raw: bytes, status: str | None = None
) -> tuple[JobFacts | None, bytes]:
    """The facts of a stored record, None if it cannot be read; and its bytes with a status."""
    seen = glance(raw, status)
    if seen is not None and seen.uuid_text == uuid_text:
        try:
            status_bytes(seen.status)
            queue_bytes(seen.queue)
        except EncodeError:
            return None, raw
        return JobFacts(*seen[1:5]), seen.changed
    record = read_job(job_uuid, raw)
    if isinstance(record, str):
        return None, raw
    changed = record if status is None else replace(record, status=status)
    return facts_of(record), raw if changed is record else encode_value(changed)


# -- keys ----------------------------------------------------------------------------------------


def job_key(job_uuid: UUID) -> bytes:
    return JOBS + str(job_uuid).encode()


def key_of_id(job_id: bytes) -> bytes:
    """The same by the bytes of the uuid, without making one."""
    text = job_id.hex()
    parts = text[:8], text[8:12], text[12:16], text[16:20], text[20:]
    return JOBS + "-".join(parts).encode()


def uuid_of_job_key(key: bytes) -> UUID | None:
    """None if the key is not one that a job is kept under."""
    try:
        uuid = UUID(key[len(JOBS) :].decode("ascii"))
    except ValueError:
        return None
    return uuid if job_key(uuid) == key else None


def status_key(job_uuid: UUID) -> bytes:
    return STATUSES + str(job_uuid).encode()


def index_keys(job_uuid: UUID, facts: JobFacts) -> tuple[bytes, bytes, bytes]:
    """Status FIFO, listing and queue-time key of a job."""
    place = place_of(facts.created_at_ns, job_uuid)
    queue_time = queue_time_key(facts, str(job_uuid).encode())
    return *listed_keys(facts.queue, facts.status, place), queue_time


def listed_keys(queue: str, status: str, place: bytes) -> tuple[bytes, bytes]:
    """Status FIFO and listing key of the job at a place."""
    fifo = b"%b%b:%b%b" % (STATUS_FIFO, status_bytes(status), place[:8], place[12:])
    return fifo, listing_prefix(queue, status) + place


def queue_time_key(facts: JobFacts, uuid_text: bytes) -> bytes:
    start = ordered_bytes(facts.execution_start_ns // NS_PER_MS)
    return b"%b%b:%b:%b" % (QUEUE_TIMES, start, queue_bytes(facts.queue), uuid_text)


def old_queue_time_key(job_uuid: UUID, facts: JobFacts) -> bytes:
    """The queue-time key of version 1, which is only ever removed."""
    start_ms = facts.execution_start_ns // NS_PER_MS
    uuid = str(job_uuid).encode()
    return b"%b%d:%b:%b" % (QUEUE_TIMES_V1, start_ms, queue_bytes(facts.queue), uuid)


def read_queue(key: bytes, value: bytes) -> QueueRecord | str:
    """The record of a queue, or why it cannot be read."""
    try:
        record = decode_value(QueueKey("any"), value)
    except FormatError as error:
        return error.reason
    assert isinstance(record, QueueRecord)
    return record if QUEUES + record.name.encode() == key else "it is that of another queue"

"""workq records and jobs as lines.

    000000001.log:8 2026-11-15T19:00:51.050695748Z add 0000000a-... plain ttr=1000 ... "ping"
    {"segment":"000000001.log","offset":8,"length":88,"logged_ns":...,"cmd":"add","id":...}

In JSON everything a record holds is there: bytes as hex, times as nanoseconds since 1970. Text
shortens long payloads.
"""

from __future__ import annotations

from typing import Any

from journeyman.cli.lines import iso, snippet
from journeyman.formats.framing import Entry
from journeyman.formats.workq import Instant, JobAdded, JobFinished, Record, UnknownCommand


def fields(segment: str, entry: Entry[Record]) -> dict[str, Any]:
    """The JSON object of one record, keys in the order they are documented."""
    record = entry.record
    row: dict[str, Any] = {
        "segment": segment,
        "offset": entry.offset,
        "length": entry.length,
        "logged_ns": record.logged.unix_ns,
    }
    if isinstance(record, JobAdded):
        return row | added_fields(record)
    if isinstance(record, UnknownCommand):
        known = {"cmd": "unknown", "code": record.command, "id": uuid_text(record.job_id)}
        return row | known | {"body_hex": record.body.hex()}
    row["cmd"] = record.command.word
    row["id"] = uuid_text(record.job_id)
    if isinstance(record, JobFinished):
        row["result_hex"] = record.result.hex()
    if record.hidden:
        row["hidden"] = True
    return row


def added_fields(record: JobAdded) -> dict[str, Any]:
    """What an add or schedule says about its job."""
    return {
        "cmd": record.command.word,
        "id": uuid_text(record.job_id),
        "name": record.name,
        "ttr": record.ttr_ms,
        "ttl": record.ttl_ms,
        "priority": record.priority,
        "max_attempts": record.max_attempts,
        "max_fails": record.max_fails,
        "payload_hex": record.payload.hex(),
        "time_ns": _ns(record.time),
        "created_ns": record.created.unix_ns,
    }


def text(segment: str, entry: Entry[Record]) -> str:
    """One line for a person."""
    record = entry.record
    place = f"{segment}:{entry.offset} {iso(record.logged.unix_ns)}"
    if isinstance(record, UnknownCommand):
        job_id = uuid_text(record.job_id)
        return f"{place} unknown command {record.command} {job_id} {snippet(record.body)}"
    head = f"{place} {record.command.word} {uuid_text(record.job_id)}"
    if isinstance(record, JobAdded):
        return f"{head} {added_words(record)}"
    if isinstance(record, JobFinished):
        head = f"{head} {snippet(record.result)}"
    return f"{head} hidden" if record.hidden else head


def added_words(record: JobAdded) -> str:
    """What an add or schedule says about its job, for a person."""
    due = f" time={iso(record.time.unix_ns)}" if record.time is not None else ""
    return (
        f"{record.name} ttr={record.ttr_ms} ttl={record.ttl_ms} priority={record.priority} "
        f"max-attempts={record.max_attempts} max-fails={record.max_fails}{due} "
        f"created={iso(record.created.unix_ns)} {snippet(record.payload)}"
    )


def uuid_text(raw: bytes) -> str:
    """16 bytes as people write a UUID; the class of that name takes five times as long."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _ns(instant: Instant | None) -> int | None:
    return None if instant is None else instant.unix_ns

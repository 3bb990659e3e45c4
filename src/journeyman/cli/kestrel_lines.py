"""kestrel records as lines.

    jobs.9:4 PUT 100 @ 2011-11-16T00:05:03.734Z "100"
    jobs.read.client:4 READ_HEAD 99
    {"file":"jobs.9","offset":4,"length":28,"command":"PUT","item_id":100,...,"data_b64":"MTAw"}

In JSON everything a record holds is there, data as base64. Text shortens long data.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from journeyman.cli.lines import iso, snippet
from journeyman.formats.framing import Entry
from journeyman.formats.kestrel import ItemPut, ReadDone, ReadHead, Record
from journeyman.units import NS_PER_MS


def fields(file: str, entry: Entry[Record]) -> dict[str, Any]:
    """The JSON object of one record, keys in the order they are documented."""
    row: dict[str, Any] = {"file": file, "offset": entry.offset, "length": entry.length}
    return row | record_fields(entry.record)


def record_fields(record: Record) -> dict[str, Any]:
    """What the record says, wherever it stands."""
    if isinstance(record, ItemPut):
        return {
            "command": "PUT",
            "item_id": record.item_id,
            "add_time_ms": record.add_time_ms,
            "expire_time_ms": record.expire_time_ms,
            "error_count": record.error_count,
            "data_size": len(record.data),
            "data_b64": b64encode(record.data).decode("ascii"),
        }
    if isinstance(record, ReadHead):
        return {"command": "READ_HEAD", "id": record.item_id}
    if isinstance(record, ReadDone):
        return {"command": "READ_DONE", "ids": list(record.item_ids)}
    code = record.command_byte >> 4
    return {"command": "UNKNOWN", "code": code, "data_size": len(record.data)}


def text(file: str, entry: Entry[Record]) -> str:
    """One line for a person."""
    return f"{file}:{entry.offset} {record_text(entry.record)}"


def record_text(record: Record) -> str:
    """What the record says, for a person."""
    if isinstance(record, ItemPut):
        expires = ""
        if record.expire_time_ms is not None:
            expires = f" expires={iso(record.expire_time_ms * NS_PER_MS)}"
        errors = f" errors={record.error_count}" if record.error_count else ""
        added = iso(record.add_time_ms * NS_PER_MS)
        return f"PUT {record.item_id} @ {added}{expires}{errors} {snippet(record.data)}"
    if isinstance(record, ReadHead):
        return f"READ_HEAD {record.item_id}"
    if isinstance(record, ReadDone):
        return " ".join(["READ_DONE", *map(str, record.item_ids)])
    return f"UNKNOWN command {record.command_byte >> 4}, {len(record.data)} bytes of data"

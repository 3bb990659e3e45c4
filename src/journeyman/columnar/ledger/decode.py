"""The ledger in bulk: bytes -> Arrow.

There is no kernel: a payload is JSON, which the codec reads, and a ledger is small beside the logs
it goes with. So the codec (journeyman.formats.ledger) reads every record, and the two agree by
construction. Boundaries are found by workq's kernel, whose frame it is.

Narrower than in the records: times are clamped to 64 bits, without their zone offset, and in keys
half a surrogate pair, which is how a byte that is not UTF-8 is kept, becomes U+FFFD.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pyarrow as pa

from journeyman.columnar import chunks
from journeyman.columnar.workq.decode import hop as hop
from journeyman.columnar.workq.scan import INT64_MAX, INT64_MIN
from journeyman.errors import FormatError
from journeyman.formats import ledger
from journeyman.formats.framing import Buffer, Ending, Entry

KIND_CODES = {name: code for code, name in enumerate(ledger.KINDS)}
UNKNOWN_KIND = len(KIND_CODES)  # stands for all records of newer writers

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("kind", pa.int8()),
    ("offset", pa.int64()),
    ("length", pa.int32()),  # CRC included
    ("logged_ns", pa.int64()),
    ("version", pa.int64()),
    ("family", pa.string()),  # null for records of newer writers
    ("subject", pa.string()),  # the thing that the record is about; null if there is none
    ("removes", pa.bool_()),  # true if its subject has no state any more
    ("payload", pa.string()),  # JSON
]
SCHEMA = pa.schema(_COLUMNS)

_SURROGATE = re.compile("[\ud800-\udfff]")


def decode(
    data: Buffer,
    offset: int | None = None,
    *,
    max_records: int = chunks.MAX_RECORDS,
    payloads: bool = True,  # noqa: ARG001 - they are what a record says
) -> chunks.Chunk:
    """The rows from ``offset`` on (None: from the start of the segment, its header checked)."""
    start = chunks.first_offset(ledger.CODEC, data, offset)
    if isinstance(start, Ending):
        return chunks.refused_chunk(SCHEMA, start)
    if max_records < 1:
        raise ValueError(f"max_records is {max_records}, but a chunk holds at least one record")
    rows: list[dict[str, Any]] = []
    position, full = start, False
    while position < len(data):
        full = len(rows) == max_records or position >= start + chunks.MAX_CHUNK_BYTES
        entry = None if full else _entry_at(data, position)
        if entry is None:
            break
        rows.append(row_of(entry))
        position = entry.end
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    return chunks.Chunk(
        batch, position, None if full else chunks.ending_at(ledger.CODEC, data, position)
    )


iter_batches = partial(chunks.iter_chunks, decode)


def _entry_at(data: Buffer, position: int) -> Entry[ledger.Record] | None:
    """Return the entry at a position. None: the codec will say why not."""
    try:
        return ledger.CODEC.decode(data, position)
    except FormatError:
        return None


def row_of(entry: Entry[ledger.Record]) -> dict[str, Any]:
    record = entry.record
    row: dict[str, Any] = {
        "kind": UNKNOWN_KIND,
        "offset": entry.offset,
        "length": entry.length,
        "logged_ns": max(INT64_MIN, min(INT64_MAX, record.logged.unix_ns)),
        "payload": ledger.encode_payload(record).decode(),
    }
    if isinstance(record, ledger.NewerRecord):
        return row | {"version": record.version}
    kind = ledger.kind_of(record)
    row |= {"kind": KIND_CODES[kind.name], "version": ledger.VERSION, "family": kind.family}
    if kind.key is not None:
        subject = _SURROGATE.sub("\ufffd", getattr(record, kind.key))
        row |= {"subject": subject, "removes": kind.removes}
    return row

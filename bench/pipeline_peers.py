"""What a replay on Spark is measured against: the same log to the same Parquet, in one process.

    codec    journeyman.formats and journeyman.folds, a record object an entry
    loop     the leanest plain Python that gives the same: struct, a dict, nothing else
    duckdb   the columnar decoder, then DuckDB with two threads (ztick only: a last-wins fold is a
             GROUP BY, the others are not)

Each takes a log and a path to write, and answers with the number of rows that it wrote.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from bench.python_loops import _varint
from journeyman.columnar.ztick import decode as ztick_columns
from journeyman.folds import kestrel, workq
from journeyman.formats import kestrel as kestrel_format
from journeyman.formats import workq as workq_format
from journeyman.formats.framing import Codec, iter_entries

__all__ = ["CODEC", "DUCKDB", "LOOP", "Peer"]

Peer = Callable[[Path, Path], int]

_HEAD, _JOB_TAIL = Struct(">IBH"), Struct(">qB")
_WORKQ_TIME, _CRC = Struct(">BqIh"), Struct(">I")
_KESTREL_PUT, _KESTREL_EXPIRY = Struct("<Biiqq"), Struct("<q")
_EPOCH_S = 62_135_596_800
_NEW, _COMPLETED, _FAILED, _PENDING, _LEASED = range(5)


def _mapped(path: Path) -> Any:
    """The file's bytes; any, because it is neither of the buffers that codecs are typed for."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _segments(log: Path, pattern: str) -> Iterator[Any]:
    return (_mapped(path) for path in sorted(log.glob(pattern)))


def _written(names: str, rows: Iterable[tuple[Any, ...]], target: Path) -> int:
    columns = list(zip(*rows, strict=True)) or [() for _ in names.split()]
    table = pa.table(dict(zip(names.split(), map(pa.array, columns), strict=True)))
    pq.write_table(table, target, compression="zstd")
    return table.num_rows


# -- ztick ---------------------------------------------------------------------------------------

_ZTICK = "identifier execution_ns status"


def ztick_loop(log: Path, target: Path) -> int:
    data = _mapped(log)
    jobs: dict[bytes, tuple[int, int]] = {}
    rules: dict[bytes, int] = {}
    head, tail, position, size = _HEAD.unpack_from, _JOB_TAIL.unpack_from, 0, len(data)
    while position < size:
        length, kind, id_length = head(data, position)
        id_end = position + 7 + id_length
        identifier = data[position + 7 : id_end]
        if kind == 0:
            jobs[identifier] = tail(data, id_end)
        elif kind == 2:
            jobs.pop(identifier, None)
        elif kind == 1:
            rules[identifier] = position
        else:
            rules.pop(identifier, None)
        position += 4 + length
    rows = ((key.decode(), when, status) for key, (when, status) in jobs.items())
    return _written(_ZTICK, rows, target)


def ztick_duckdb(log: Path, target: Path) -> int:
    import duckdb

    data = _mapped(log)
    batches = (chunk.batch for chunk in ztick_columns.iter_batches(data))
    entries = pa.RecordBatchReader.from_batches(ztick_columns.SCHEMA, batches)
    connection = duckdb.connect()
    connection.execute("SET threads = 2")
    connection.register("entries", entries)
    connection.execute(
        f"""COPY (
            SELECT identifier, execution_ns, status, last_offset FROM (
                SELECT identifier, max("offset") AS last_offset,
                    arg_max(kind, "offset") AS kind,
                    arg_max(coalesce(execution_ns, 0), "offset") AS execution_ns,
                    arg_max(coalesce(status, 0), "offset") AS status
                FROM entries WHERE kind % 2 = 0 GROUP BY identifier)
            WHERE kind = 0) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"""
    )
    connection.close()
    return pq.ParquetFile(target).metadata.num_rows


# -- workq ---------------------------------------------------------------------------------------

_WORKQ = "job_id state attempts name priority created_ns result_size"


def workq_codec(log: Path, target: Path) -> int:
    records = (
        entry.record
        for data in _segments(log, "*.log")
        for entry in iter_entries(workq_format.CODEC, data, len(workq_format.HEADER))
    )
    states = workq.replay(records)
    jobs = (state for state in states.values() if isinstance(state, workq.FoldedJob))
    return _written(_WORKQ, map(_workq_row, jobs), target)


def _workq_row(job: workq.FoldedJob) -> tuple[Any, ...]:
    added = job.added
    size = None if job.result is None else len(job.result)
    names = added.name, added.priority, added.created.unix_ns
    return added.job_id, int(job.state), job.attempts, *names, size


def workq_loop(log: Path, target: Path) -> int:
    """Knows the lives of good logs only: no orphans, no repeated adds, no retries."""
    jobs: dict[bytes, list[Any]] = {}
    for data in _segments(log, "*.log"):
        _workq_segment(data, jobs)
    rows = ((key, job[0], job[1], job[3].decode(), *job[4:6], job[2]) for key, job in jobs.items())
    return _written(_WORKQ, rows, target)


def _workq_segment(data: Any, jobs: dict[bytes, list[Any]]) -> None:
    crc, time, crc32c = _CRC.unpack_from, _WORKQ_TIME.unpack_from, google_crc32c.value
    position, size = len(workq_format.HEADER), len(data)
    while position < size:
        length, at = _varint(data, position + 15)
        end = at + length
        if crc32c(data[position:end]) != crc(data, end)[0]:
            raise ValueError("corrupt")
        kind, job_id = data[at], data[at + 1 : at + 17]
        if kind <= 2:
            jobs[job_id] = _workq_added(data, at + 17, time)
        elif kind in (3, 4):
            job = jobs[job_id]
            job[0], job[2] = _COMPLETED if kind == 3 else _FAILED, _varint(data, at + 17)[0]
        elif kind == 7:
            job = jobs[job_id]
            job[0] = _LEASED
            job[1] += 1
        elif kind == 8:
            jobs[job_id][0] = _PENDING
        else:
            jobs.pop(job_id, None)
        position = end + 4


def _workq_added(data: Any, at: int, time: Callable[..., Any]) -> list[Any]:
    name_length, at = _varint(data, at)
    name, at = data[at : at + name_length], at + name_length
    _, at = _varint(data, at)  # TTR
    _, at = _varint(data, at)  # TTL
    folded, at = _varint(data, at)
    _, at = _varint(data, at)
    _, at = _varint(data, at)
    payload_length, at = _varint(data, at)
    _, seconds, nanos, _ = time(data, at + payload_length + 15)
    created_ns = (seconds - _EPOCH_S) * 1_000_000_000 + nanos
    return [_NEW, 0, None, name, folded >> 1 ^ -(folded & 1), created_ns]


# -- kestrel -------------------------------------------------------------------------------------

_KESTREL = "item_id add_time_ms expire_time_ms error_count data_size"


def kestrel_codec(log: Path, target: Path) -> int:
    codec: Codec[kestrel_format.Record] = kestrel_format.WRITER
    records = (
        entry.record
        for data in _segments(log, "jobs.[0-9]*")
        for entry in iter_entries(codec, data, len(kestrel_format.WRITER_MAGIC))
    )
    states = kestrel.replay(records)
    puts = (put for state in states.values() for put in kestrel.snapshot(state))
    rows = ((p.item_id, p.add_time_ms, p.expire_time_ms, p.error_count, len(p.data)) for p in puts)
    return _written(_KESTREL, rows, target)


def kestrel_loop(log: Path, target: Path) -> int:
    """Knows puts with ids of their own only."""
    items: dict[int, tuple[int, int | None, int, int]] = {}
    put, expiry = _KESTREL_PUT.unpack_from, _KESTREL_EXPIRY.unpack_from
    for data in _segments(log, "jobs.[0-9]*"):
        position, size = len(kestrel_format.WRITER_MAGIC), len(data)
        while position < size:
            byte, length, errors, item_id, added_ms = put(data, position)
            if byte == 0x86:
                items[item_id] = added_ms, None, errors, length
                position += 25 + length
            else:
                items[item_id] = added_ms, expiry(data, position + 25)[0], errors, length
                position += 33 + length
    return _written(_KESTREL, ((key, *item) for key, item in items.items()), target)


CODEC: dict[str, Peer] = {"workq": workq_codec, "kestrel": kestrel_codec}
LOOP: dict[str, Peer] = {"ztick": ztick_loop, "workq": workq_loop, "kestrel": kestrel_loop}
DUCKDB: dict[str, Peer] = {"ztick": ztick_duckdb}

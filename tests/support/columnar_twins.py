"""What columnar must answer, said by formats: the law of the twins, for any bytes whatever.

``assert_twins`` reads the bytes both ways and compares every row and the ending. Used by the
property, golden and unit lanes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from journeyman.columnar.chunks import Chunk
from journeyman.columnar.kestrel import decode
from journeyman.columnar.ledger import decode as ledger
from journeyman.columnar.workq import decode as workq
from journeyman.columnar.workq.scan import UNKNOWN_KIND
from journeyman.columnar.ztick import decode as ztick
from journeyman.errors import FormatError
from journeyman.folds import ledger as ledger_fold
from journeyman.formats import kestrel as kestrel_format
from journeyman.formats import ledger as ledger_format
from journeyman.formats import workq as workq_format
from journeyman.formats import ztick as ztick_format
from journeyman.formats.framing import Buffer, Codec, Ending, Entry, scan
from journeyman.formats.seals import is_marked

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

Row = dict[str, Any]


class Twins(NamedTuple):
    codec: Codec[Any]
    schema: pa.Schema
    iter_batches: Callable[..., Iterator[Chunk]]
    hop: Callable[[Buffer, int, int], int]
    row: Callable[[Entry[Any]], Row]


def assert_twins(twins: Twins, data: Buffer, *, max_records: int = 65_536) -> None:
    entries, ending = scan(twins.codec, data)
    if (seals := twins.codec.seals) is not None:  # they make no rows
        entries = [entry for entry in entries if not is_marked(seals, data, entry.offset)]
    chunks = list(twins.iter_batches(data, max_records=max_records))
    for chunk in chunks:
        chunk.batch.validate(full=True)
        assert chunk.batch.schema == twins.schema
        assert chunk.batch.num_rows <= max_records
    rows = [row for chunk in chunks for row in chunk.batch.to_pylist()]
    assert rows == [twins.row(entry) for entry in entries]
    assert [chunk.ending for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    last = chunks[-1]
    assert last.ending is not None
    assert said(last.ending) == said(ending)
    assert last.next_offset == ending.offset


def said(ending: Ending) -> tuple[object, ...]:
    """Everything that an ending says, comparable."""
    return ending.stop, ending.offset, describe(ending.error)


def describe(error: FormatError | None) -> tuple[object, ...] | None:
    return None if error is None else (type(error), error.reason, error.offset)


def clamped(value: int) -> int:
    return max(INT64_MIN, min(INT64_MAX, value))


def ztick_row(entry: Entry[ztick_format.Record]) -> Row:
    record = entry.record
    row: Row = dict.fromkeys(ztick.SCHEMA.names)
    row |= {"identifier": record.identifier, "offset": entry.offset, "length": entry.length}
    match record:
        case ztick_format.JobSet():
            row |= {"execution_ns": record.execution_ns, "status": int(record.status)}
            return row | {"kind": 0}
        case ztick_format.RuleSet():
            runner, args = runner_fields(record.runner)
            row |= {"pattern": record.pattern, "runner": runner, "runner_args": args}
            return row | {"kind": 1}
        case ztick_format.JobRemoved():
            return row | {"kind": 2}
        case ztick_format.RuleRemoved():
            return row | {"kind": 3}


def runner_fields(runner: ztick_format.Runner) -> tuple[int, list[str]]:
    match runner:
        case ztick_format.Shell(command):
            return 0, [command]
        case ztick_format.Amqp(dsn, exchange, routing_key):
            return 1, [dsn, exchange, routing_key]
        case ztick_format.Direct(executable, args):
            return 2, [executable, *args]
        case ztick_format.Awf(workflow, inputs):
            return 3, [workflow, *inputs]
        case ztick_format.Http(method, url):
            return 4, [method, url]
        case ztick_format.Redis(url, command, key):
            return 5, [url, command, key]
        case ztick_format.WorkQueueRunner(name, flags):
            return 6, [name, *flags]
        case ztick_format.FanOutRunner(queue):
            return 7, [queue]
        case ztick_format.Mail():
            raise AssertionError("mail is in no log")


def workq_row(entry: Entry[workq_format.Record]) -> Row:
    record = entry.record
    row: Row = dict.fromkeys(workq.SCHEMA.names)
    is_known = not isinstance(record, workq_format.UnknownCommand)
    row |= {
        "kind": int(record.command) if is_known else UNKNOWN_KIND,
        "job_id": record.job_id,
        "offset": entry.offset,
        "length": entry.length,
        "logged_ns": clamped(record.logged.unix_ns),
    }
    if isinstance(record, workq_format.JobFinished):
        is_fail = record.command == workq_format.Command.FAIL
        row |= {"hidden": record.hidden if is_fail or record.hidden else None}
        return row | {"result_size": len(record.result), "result": record.result}
    if isinstance(record, workq_format.UnknownCommand):
        return row
    if isinstance(record, workq_format.JobEvent):
        is_timeout = record.command == workq_format.Command.TIMEOUT_ATTEMPT
        return row | {"hidden": record.hidden if is_timeout or record.hidden else None}
    raw_name = record.name.encode("utf-8", "surrogateescape")
    return row | {
        "name": raw_name.decode("utf-8", "replace"),
        "ttr_ms": clamped(record.ttr_ms),
        "ttl_ms": clamped(record.ttl_ms),
        "priority": record.priority,
        "max_attempts": clamped(record.max_attempts),
        "max_fails": clamped(record.max_fails),
        "payload_size": len(record.payload),
        "payload": record.payload,
        "time_ns": None if record.time is None else clamped(record.time.unix_ns),
        "created_ns": clamped(record.created.unix_ns),
    }


def kestrel_row(entry: Entry[kestrel_format.Record]) -> Row:
    record = entry.record
    row: Row = dict.fromkeys(decode.SCHEMA.names)
    row |= {"offset": entry.offset, "length": entry.length, "data_size": 0}
    match record:
        case kestrel_format.ItemPut():
            return row | {
                "kind": 8,
                "item_id": record.item_id,
                "add_time_ms": record.add_time_ms,
                "expire_time_ms": record.expire_time_ms,
                "error_count": record.error_count,
                "data_size": len(record.data),
                "data": record.data,
            }
        case kestrel_format.ReadHead():
            return row | {"kind": 0, "item_id": record.item_id}
        case kestrel_format.ReadDone():
            ids = list(record.item_ids)
            return row | {"kind": 9, "data_size": 8 * len(ids), "done_ids": ids}
        case kestrel_format.UnknownCommand():
            kind = record.command_byte >> 4
            kind = decode.UNKNOWN_PUT if kind == decode.PUT else kind
            return row | {"kind": kind, "data_size": len(record.data), "data": record.data}


def ledger_row(entry: Entry[ledger_format.Record]) -> Row:
    record = entry.record
    payload = ledger_format.encode_payload(record).decode()
    members = json.loads(payload)
    row: Row = dict.fromkeys(ledger.SCHEMA.names)
    row |= {"offset": entry.offset, "length": entry.length, "version": members["v"]}
    row |= {"logged_ns": clamped(record.logged.unix_ns), "payload": payload}
    if isinstance(record, ledger_format.NewerRecord):
        return row | {"kind": len(ledger_format.KINDS)}
    family, key = ledger_fold.key_of(record)
    kind = ledger_format.KINDS[members["kind"]]
    row |= {"kind": list(ledger_format.KINDS).index(members["kind"]), "family": family}
    if kind.key is None:
        return row
    replaced = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in key)
    return row | {"subject": replaced, "removes": ledger_fold.fold([record]) is None}


def _workq_batches(data: Buffer, **options: Any) -> Iterator[Chunk]:
    return workq.iter_batches(data, payloads=True, **options)


def _journal_batches(data: Buffer, **options: Any) -> Iterator[Chunk]:
    return decode.iter_batches(data, payloads=True, codec=kestrel_format.WRITER, **options)


def _checkpoint_batches(data: Buffer, **options: Any) -> Iterator[Chunk]:
    return decode.iter_batches(data, payloads=True, codec=kestrel_format.READER, **options)


ZTICK = Twins(ztick_format.CODEC, ztick.SCHEMA, ztick.iter_batches, ztick.hop, ztick_row)
WORKQ = Twins(workq_format.CODEC, workq.SCHEMA, _workq_batches, workq.hop, workq_row)
LEDGER = Twins(ledger_format.CODEC, ledger.SCHEMA, ledger.iter_batches, ledger.hop, ledger_row)
JOURNAL = Twins(kestrel_format.WRITER, decode.SCHEMA, _journal_batches, decode.hop, kestrel_row)
CHECKPOINT = Twins(
    kestrel_format.READER, decode.SCHEMA, _checkpoint_batches, decode.hop, kestrel_row
)

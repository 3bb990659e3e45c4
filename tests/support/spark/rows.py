"""What a record looks like as a row of the sources, said by formats: shared by two lanes."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from journeyman.formats import kestrel, ledger, workq, ztick
from journeyman.formats.framing import Entry
from journeyman.spark.source.pieces import SplitContext
from tests.support.columnar_twins import clamped, kestrel_row, ledger_row, runner_fields, workq_row

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZTICK = ztick.JobSet | ztick.RuleSet | ztick.JobRemoved | ztick.RuleRemoved
RUNNERS = ("shell", "amqp", "direct", "awf", "http", "redis")

Row = dict[str, Any]


def moment(microseconds: int) -> datetime | None:
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None


def expected_row(context: SplitContext, entry: Entry[Any], *, payloads: bool) -> Row:
    """The row of one entry, without partition columns; both columns about damage null."""
    row: Row = {
        "_log": context.log,
        "_file": context.file,
        "_segment": context.segment,
        "_offset": entry.offset,
        "_length": entry.length,
        "_position": context.segment * 2**44 + entry.offset,
        "_corrupt_record": None,
        "_damage": None,
    }
    if isinstance(
        entry.record,
        workq.JobAdded | workq.JobEvent | workq.JobFinished | workq.UnknownCommand,
    ):
        row |= _workq(entry)
    elif isinstance(
        entry.record,
        kestrel.ItemPut | kestrel.ReadHead | kestrel.ReadDone | kestrel.UnknownCommand,
    ):
        row |= _kestrel(entry) | {"queue": context.queue, "reader": context.reader}
    elif isinstance(
        entry.record, ztick.JobSet | ztick.RuleSet | ztick.JobRemoved | ztick.RuleRemoved
    ):
        row |= _ztick(entry.record)
    else:
        return row | _ledger(entry)
    if not payloads:
        row |= {name: None for name in ("payload", "result", "data") if name in row}
    return row


def _ztick(record: ztick.Record) -> Row:
    kinds = {
        ztick.JobSet: "set",
        ztick.RuleSet: "rule_set",
        ztick.JobRemoved: "remove",
        ztick.RuleRemoved: "remove_rule",
    }
    names = ("time", "execution_ns", "status", "pattern", "runner", "runner_args")
    row: Row = dict.fromkeys(names)
    row |= {"kind": kinds[type(record)], "key": record.identifier, "identifier": record.identifier}
    if isinstance(record, ztick.JobSet):
        row |= {"execution_ns": record.execution_ns, "status": record.status.name.lower()}
    if isinstance(record, ztick.RuleSet):
        number, arguments = runner_fields(record.runner)
        row |= {"pattern": record.pattern, "runner": RUNNERS[number], "runner_args": arguments}
    return row


def _workq(entry: Entry[workq.Record]) -> Row:
    row = _bare(workq_row(entry))
    return row | {
        "kind": entry.record.command.word,
        "key": str(uuid.UUID(bytes=entry.record.job_id)),
        "time": moment(clamped(entry.record.logged.unix_ns) // 1000),
    }


def _kestrel(entry: Entry[kestrel.Record]) -> Row:
    record = entry.record
    kinds = {kestrel.ItemPut: "PUT", kestrel.ReadHead: "READ_HEAD", kestrel.ReadDone: "READ_DONE"}
    row = _bare(kestrel_row(entry)) | {
        "kind": kinds.get(type(record), "UNKNOWN"),
        "key": None,
        "time": None,
    }
    if isinstance(record, kestrel.ItemPut):
        row |= {"key": str(record.item_id), "time": moment(record.add_time_ms * 1000)}
    return row


def _ledger(entry: Entry[ledger.Record]) -> Row:
    row = _bare(ledger_row(entry))
    kinds = [*ledger.KINDS, "unknown"]
    time = moment(clamped(entry.record.logged.unix_ns) // 1000)
    return row | {"kind": kinds[row["kind"]], "key": row.pop("subject"), "time": time}


def _bare(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("offset", "length")}

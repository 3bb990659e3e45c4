"""The encoders at their edges: what cannot be written is refused, with its row and column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from journeyman.columnar.kestrel import encode as kestrel_encode
from journeyman.columnar.workq import encode as workq_encode
from journeyman.columnar.ztick import encode as ztick_encode
from journeyman.errors import EncodeError
from journeyman.formats.kestrel import WRITER, ItemPut, ReadHead
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC as WORKQ
from journeyman.formats.workq import Command, JobAdded, JobEvent
from journeyman.formats.ztick import CODEC as ZTICK
from journeyman.formats.ztick import JobRemoved, JobSet, RuleSet, Shell, Status

ID = bytes(range(16))
JOB: dict[str, Any] = {"kind": "set", "identifier": "job", "execution_ns": 1, "status": "planned"}
RULE: dict[str, Any] = {
    "kind": "rule_set",
    "identifier": "rule",
    "pattern": "p",
    "runner": "shell",
    "runner_args": ["true"],
}
ADD: dict[str, Any] = {
    "kind": "add",
    "job_id": ID,
    "logged_ns": 1,
    "name": "queue",
    "ttr_ms": 1,
    "ttl_ms": 2,
    "priority": 3,
    "max_attempts": 4,
    "max_fails": 5,
    "payload": b"ping",
    "created_ns": 6,
}
PUT: dict[str, Any] = {
    "kind": "PUT",
    "item_id": 1,
    "add_time_ms": 2,
    "error_count": 0,
    "data": b"item",
}
TYPES = {
    "execution_ns": pa.int64(),
    "runner_args": pa.list_(pa.string()),
    "done_ids": pa.list_(pa.int64()),
    "payload": pa.binary(),
    "result": pa.binary(),
    "data": pa.binary(),
    "raw_key": pa.binary(),
    "value": pa.binary(),
}


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.RecordBatch.from_pydict(
        {name: pa.array([row.get(name) for row in rows], TYPES.get(name)) for name in names}
    )


ENCODERS: dict[str, tuple[Callable[..., memoryview], dict[str, Any]]] = {
    "ztick": (ztick_encode.encode, JOB),
    "rule": (ztick_encode.encode, RULE),
    "workq": (workq_encode.encode, ADD),
    "kestrel": (kestrel_encode.encode, PUT),
}
REFUSALS = [
    ("ztick", {"kind": "sett"}, "kind: 'sett' is none of set, rule_set, remove, remove_rule"),
    ("ztick", {"kind": None}, "kind: null"),
    ("ztick", {"identifier": None}, "identifier: null"),
    ("ztick", {"identifier": "x" * 65_536}, "identifier: over 65535 bytes"),
    ("ztick", {"execution_ns": None}, "execution_ns: null in a job"),
    ("ztick", {"status": None}, "status: null in a job"),
    ("ztick", {"status": "gone"}, "status: 'gone' is none of"),
    ("rule", {"pattern": None}, "pattern: null in a rule"),
    ("rule", {"pattern": "x" * 65_536}, "pattern: pattern has 65536 bytes"),
    ("rule", {"runner": None}, "runner: null in a rule"),
    ("rule", {"runner_args": None}, "runner_args: null in a rule"),
    ("rule", {"runner_args": ["a", None]}, "runner_args: null in a rule"),
    ("rule", {"runner_args": ["a", "b"]}, "runner_args: 2 strings; runner shell has 1"),
    ("rule", {"runner": "direct", "runner_args": []}, "runner direct has 1 or more"),
    ("rule", {"runner_args": ["x" * 65_536]}, "runner_args: command has 65536 bytes"),
    ("workq", {"kind": "lease"}, "kind: 'lease' is none of add, schedule"),
    ("workq", {"job_id": b"short"}, "job_id: not 16 bytes"),
    ("workq", {"job_id": None}, "job_id: not 16 bytes"),
    ("workq", {"logged_ns": None}, "logged_ns: null"),
    ("workq", {"name": None}, "name: null in a job"),
    ("workq", {"name": "x" * 2_000_000}, "name: a record over 1052672 bytes"),
    ("workq", {"ttr_ms": None}, "ttr_ms: null in a job"),
    ("workq", {"ttl_ms": -1}, "ttl_ms: below zero"),
    ("workq", {"priority": 2**31}, "priority: no 32-bit number"),
    ("workq", {"created_ns": None}, "created_ns: null in a job"),
    ("workq", {"payload": None, "payload_size": 4}, "payload: null, but payload_size is not 0"),
    ("workq", {"payload": bytes(1_048_577)}, "payload: over 1048576 bytes"),
    ("workq", {"kind": "fail", "result_size": 1}, "result: null, but result_size is not 0"),
    ("kestrel", {"kind": "UNKNOWN"}, "kind: an unknown command cannot be written"),
    ("kestrel", {"item_id": None}, "item_id: null"),
    ("kestrel", {"add_time_ms": None}, "add_time_ms: null in an item"),
    ("kestrel", {"error_count": None}, "error_count: null in an item"),
    ("kestrel", {"error_count": 2**31}, "error_count: no 32-bit number"),
    ("kestrel", {"data": None, "data_size": 4}, "data: null, but data_size is not 0"),
    ("kestrel", {"data": bytes(16 * 1024 * 1024 + 1)}, "data: over 16777216 bytes"),
    ("kestrel", {"kind": "READ_DONE"}, "done_ids: null"),
]


@pytest.mark.parametrize(("encoder", "change", "words"), REFUSALS)
def test_what_cannot_be_written_is_refused_with_its_row_and_column(encoder, change, words):
    encode, good = ENCODERS[encoder]
    bad = good | change
    with pytest.raises(EncodeError) as caught:
        encode(batch(good, bad), first_row=100)
    assert str(caught.value).startswith("row 101, column ")
    assert words in str(caught.value)


def test_text_that_is_not_utf8_is_refused_though_arrow_carried_it():
    raw = pa.array([b"good", b"\xff", None], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    columns: dict[str, Any] = {"kind": ["remove"] * 3, "identifier": broken}
    with pytest.raises(EncodeError, match="row 1, column identifier: not UTF-8"):
        ztick_encode.encode(pa.RecordBatch.from_pydict(columns))


def test_a_column_of_another_type_is_cast_where_that_loses_nothing():
    columns: dict[str, Any] = {"kind": ["set"], "identifier": ["a"]}
    columns["execution_ns"] = pa.array([5], pa.int16())
    rows = pa.RecordBatch.from_pydict(columns | {"status": ["failed"]})
    assert bytes(ztick_encode.encode(rows)) == ZTICK.encode(JobSet("a", 5, Status.FAILED))
    columns["execution_ns"] = pa.array([5.5])
    with pytest.raises(EncodeError, match="column execution_ns: double is not int64"):
        ztick_encode.encode(pa.RecordBatch.from_pydict(columns | {"status": ["failed"]}))


def test_columns_that_a_kind_does_not_have_are_not_looked_at():
    odd = JOB | {"kind": "remove", "pattern": "?", "runner": "http", "runner_args": []}
    assert bytes(ztick_encode.encode(batch(odd))) == ZTICK.encode(JobRemoved("job"))
    event = ADD | {"kind": "delete", "payload_size": 9, "payload": None, "ttr_ms": -1}
    deleted = WORKQ.encode(JobEvent(Instant(1), ID, Command.DELETE))
    assert bytes(workq_encode.encode(batch(event))) == deleted
    head = PUT | {"kind": "READ_HEAD", "data": None, "data_size": 7, "expire_time_ms": 1}
    assert bytes(kestrel_encode.encode(batch(head))) == WRITER.encode(ReadHead(1))


def test_jobs_and_rules_stand_in_the_order_of_the_rows():
    rows = [RULE, JOB, RULE | {"identifier": "second"}, JOB | {"kind": "remove_rule"}]
    rule = RuleSet("rule", "p", Shell("true"))
    encoded = bytes(ztick_encode.encode(batch(*rows)))
    assert encoded.startswith(ZTICK.encode(rule) + ZTICK.encode(JobSet("job", 1, Status.PLANNED)))


def test_a_payload_of_null_is_empty_when_nothing_says_otherwise():
    without = {name: value for name, value in ADD.items() if name != "payload"}
    job = JobAdded(Instant(1), ID, "queue", 1, 2, 3, 4, 5, b"", None, Instant(6))
    assert bytes(workq_encode.encode(batch(without))) == WORKQ.encode(job)
    assert bytes(workq_encode.encode(batch(without | {"payload_size": 0}))) == WORKQ.encode(job)
    item = {name: value for name, value in PUT.items() if name != "data"}
    assert bytes(kestrel_encode.encode(batch(item))) == WRITER.encode(ItemPut(1, 2, None, 0, b""))


def test_no_rows_are_no_bytes():
    for encode, good in ENCODERS.values():
        assert bytes(encode(batch(good)[:0])) == b""

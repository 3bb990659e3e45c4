"""Keys and logs as hypothesis draws them, and twins of keys compared."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from journeyman.columnar.keyspace import decode
from journeyman.errors import FormatError
from journeyman.formats.keyspace.keys import (
    CounterKey,
    JobKey,
    QueueKey,
    QueueTimeKey,
    StatusFifoKey,
    StatusKey,
    decode_key,
)
from tests.support.columnar_twins import Twins


def draw_log(data: st.DataObject, twins: Twins, records: st.SearchStrategy[Any]) -> bytes:
    drawn = data.draw(st.lists(records, max_size=8), label="records")
    return twins.codec.header + b"".join(map(twins.codec.encode, drawn))


QUEUE_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
STATUS_NAMES = st.text("abcxyz!~_;9", min_size=1, max_size=9)
INT64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20)
KEYS = (
    st.builds(QueueKey, QUEUE_NAMES)
    | st.builds(JobKey, st.uuids())
    | st.builds(QueueTimeKey, INT64, QUEUE_NAMES, st.uuids(), st.sampled_from([1, 2]))
    | st.builds(StatusKey, st.uuids())
    | st.builds(StatusFifoKey, STATUS_NAMES, INT64, st.uuids())
    | st.builds(CounterKey, QUEUE_NAMES, STATUS_NAMES)
)


def key_row(raw: bytes, value: bytes) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(decode.SCHEMA.names)
    try:
        key = decode_key(raw)
    except FormatError:
        return row
    row["version"] = 1
    match key:
        case QueueKey(queue):
            return row | {"kind": decode.QUEUE, "queue": queue}
        case JobKey(job_uuid):
            return row | {"kind": decode.JOB, "job_uuid": str(job_uuid)}
        case QueueTimeKey(ms, queue, job_uuid, version):
            row |= {"kind": decode.QUEUE_TIME, "version": version, "time_ms": ms}
            return row | {"queue": queue, "job_uuid": str(job_uuid)}
        case StatusKey(job_uuid):
            return row | {"kind": decode.STATUS, "job_uuid": str(job_uuid)}
        case StatusFifoKey(status, ms, job_uuid):
            row |= {"kind": decode.STATUS_FIFO, "time_ms": ms}
            return row | {"status": status, "job_uuid": str(job_uuid)}
        case CounterKey(queue, status):
            count = min(int.from_bytes(value), 2**63 - 1) if len(value) == 8 else None
            row |= {"kind": decode.COUNTER, "count": count}
            return row | {"queue": queue, "status": status}


def assert_same_keys(raw: list[bytes], values: list[bytes]) -> None:
    batch = decode.decode(pa.array(raw, pa.binary()), pa.array(values, pa.binary()))
    batch.validate(full=True)
    assert batch.to_pylist() == [key_row(*pair) for pair in zip(raw, values, strict=True)]

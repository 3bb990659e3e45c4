"""The law of the way back: what was decoded is encoded to the same bytes, as the codec has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.columnar.kestrel import decode as kestrel
from journeyman.columnar.kestrel import encode as kestrel_encode
from journeyman.columnar.workq import decode as workq
from journeyman.columnar.workq import encode as workq_encode
from journeyman.columnar.ztick import decode as ztick
from journeyman.columnar.ztick import encode as ztick_encode
from journeyman.formats.framing import Codec
from journeyman.formats.kestrel import WRITER, UnknownCommand
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC as WORKQ
from journeyman.formats.workq import JobAdded
from journeyman.formats.workq import Record as WorkqRecord
from journeyman.formats.ztick import CODEC as ZTICK
from tests.support.drawn_kestrel import RECORDS as KESTREL_RECORDS
from tests.support.drawn_workq import KNOWN as WORKQ_RECORDS
from tests.support.drawn_ztick import records as ZTICK_RECORDS  # noqa: N812

pytestmark = pytest.mark.kernels

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
plain = settings(deadline=None)  # the first call of a kernel compiles it


class Way(NamedTuple):
    codec: Codec[Any]
    decode: Callable[..., Any]
    encode: Callable[..., memoryview]
    words: dict[str, dict[str, int]]  # columns that the Spark source has as words


def in_utc(record: WorkqRecord) -> WorkqRecord:
    """What is left of a record in its columns: no zone offset, no number beyond 64 bits."""
    record = replace(record, logged=clamped(record.logged))
    if not isinstance(record, JobAdded):
        return record
    return replace(
        record,
        name=record.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        ttr_ms=min(record.ttr_ms, INT64_MAX),
        ttl_ms=min(record.ttl_ms, INT64_MAX),
        max_attempts=min(record.max_attempts, INT64_MAX),
        max_fails=min(record.max_fails, INT64_MAX),
        time=None if record.time is None else clamped(record.time),
        created=clamped(record.created),
        none_offset_min=-1,
    )


def clamped(time: Instant) -> Instant:
    return Instant(max(INT64_MIN, min(INT64_MAX, time.unix_ns)))


ZTICK_WAY = Way(
    ZTICK,
    ztick.decode,
    ztick_encode.encode,
    {
        "kind": ztick_encode.KINDS,
        "status": ztick_encode.STATUSES,
        "runner": ztick_encode.RUNNERS,
    },
)
WORKQ_WAY = Way(WORKQ, workq.decode, workq_encode.encode, {"kind": workq_encode.KINDS})
KESTREL_WAY = Way(WRITER, kestrel.decode, kestrel_encode.encode, {"kind": kestrel_encode.KINDS})
KNOWN = KESTREL_RECORDS.filter(lambda record: not isinstance(record, UnknownCommand))
WAYS = [
    pytest.param(ZTICK_WAY, st.lists(ZTICK_RECORDS, max_size=8), id="ztick"),
    pytest.param(WORKQ_WAY, st.lists(WORKQ_RECORDS.map(in_utc), max_size=8), id="workq"),
    pytest.param(KESTREL_WAY, st.lists(KNOWN, max_size=8), id="kestrel"),
]
each_way = pytest.mark.parametrize(("way", "logs"), WAYS)


def decoded(way: Way, records: list[Any]) -> tuple[pa.RecordBatch, bytes]:
    entries = b"".join(map(way.codec.encode, records))
    chunk = way.decode(way.codec.header + entries, payloads=True)
    assert chunk.batch.num_rows == len(records)
    return chunk.batch, entries


def worded(way: Way, batch: pa.RecordBatch) -> pa.RecordBatch:
    """As the Spark source has it: words, and columns in another order."""
    columns = {name: batch.column(name) for name in reversed(batch.schema.names)}
    for name, words in way.words.items():
        names = {code: word for word, code in words.items()}
        codes = columns[name].to_pylist()
        columns[name] = pa.array([None if c is None else names[c] for c in codes], pa.string())
    return pa.RecordBatch.from_pydict(columns)


@each_way
@given(data=st.data())
@plain
def test_what_was_decoded_is_encoded_to_the_same_bytes(way, logs, data):
    batch, entries = decoded(way, data.draw(logs))
    assert bytes(way.encode(batch)) == entries
    assert bytes(way.encode(worded(way, batch))) == entries


@each_way
@given(data=st.data())
@plain
def test_slices_of_a_batch_are_encoded_to_slices_of_the_bytes(way, logs, data):
    records = data.draw(logs)
    batch, _ = decoded(way, records)
    start = data.draw(st.integers(0, len(records)))
    end = data.draw(st.integers(start, len(records)))
    part = b"".join(map(way.codec.encode, records[start:end]))
    assert bytes(way.encode(batch[start:end])) == part


@given(st.lists(WORKQ_RECORDS, max_size=8))
@plain
def test_workq_records_lose_their_zone_and_nothing_else_that_has_a_column(records):
    batch, _ = decoded(WORKQ_WAY, records)
    assert bytes(workq_encode.encode(batch)) == b"".join(WORKQ.encode(in_utc(r)) for r in records)

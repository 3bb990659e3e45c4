"""The way back on the golden files: what was decoded of them is encoded to the bytes they hold."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from journeyman.columnar.kestrel import decode, encode
from journeyman.columnar.workq import decode as workq
from journeyman.columnar.workq import encode as workq_encode
from journeyman.columnar.ztick import decode as ztick
from journeyman.columnar.ztick import encode as ztick_encode
from journeyman.errors import EncodeError
from journeyman.formats import kestrel as kestrel_format
from journeyman.formats.framing import scan
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC as WORKQ
from journeyman.formats.workq import JobAdded, Record
from tests.support.golden_logs import KESTREL_FILES, WORKQ_SEGMENTS, ZTICK_LOGS, relative

# A record of a newer writer is shown, but its bytes are not among the columns.
KNOWN_SEGMENTS = [path for path in WORKQ_SEGMENTS if "x-unknown-type" not in path.parts]


def in_utc(record: Record) -> Record:
    record = replace(record, logged=Instant(record.logged.unix_ns))
    if not isinstance(record, JobAdded):
        return record
    time = None if record.time is None else Instant(record.time.unix_ns)
    created = Instant(record.created.unix_ns)
    return replace(record, time=time, created=created, none_offset_min=-1)


@pytest.mark.parametrize("path", ZTICK_LOGS, ids=relative)
def test_ztick_logs_come_back_as_they_were(path):
    data = path.read_bytes()
    for chunk in ztick.iter_batches(data):
        if chunk.batch.num_rows:
            start = chunk.batch.column("offset")[0].as_py()
            assert bytes(ztick_encode.encode(chunk.batch)) == data[start : chunk.next_offset]


@pytest.mark.parametrize("path", KNOWN_SEGMENTS, ids=relative)
def test_workq_segments_come_back_as_they_were_but_for_zones(path):
    data = path.read_bytes()
    entries, _ = scan(WORKQ, data)
    expected = b"".join(WORKQ.encode(in_utc(entry.record)) for entry in entries)
    chunks = list(workq.iter_batches(data, payloads=True))
    assert b"".join(workq_encode.encode(chunk.batch) for chunk in chunks) == expected


def test_command_of_a_newer_writer_is_not_written_from_columns():
    (path,) = (path for path in WORKQ_SEGMENTS if "x-unknown-type" in path.parts)
    chunk = workq.decode(path.read_bytes(), payloads=True)
    with pytest.raises(EncodeError, match="an unknown command cannot be written"):
        workq_encode.encode(chunk.batch)


def test_most_golden_segments_come_back_to_the_byte():
    """Those that were written under UTC, as the original is on a server."""
    same = 0
    for path in KNOWN_SEGMENTS:
        chunk = workq.decode(path.read_bytes(), payloads=True)
        encoded = WORKQ.header + bytes(workq_encode.encode(chunk.batch))
        same += encoded == path.read_bytes()[: len(encoded)]
    assert same > len(KNOWN_SEGMENTS) // 2


@pytest.mark.parametrize("path", KESTREL_FILES, ids=relative)
def test_kestrel_files_come_back_as_they_were(path):
    data = path.read_bytes()
    for codec in (kestrel_format.WRITER, kestrel_format.READER):
        chunk = decode.decode(data, payloads=True, codec=codec)
        known = [entry for entry in scan(codec, data)[0] if _is_known(entry.record)]
        kinds = chunk.batch.column("kind").to_pylist()
        rows = [row for row, kind in enumerate(kinds) if kind in (0, 8, 9)]
        expected = b"".join(data[entry.offset : entry.end] for entry in known)
        assert bytes(encode.encode(chunk.batch.take(pa.array(rows, pa.int32())))) == expected


def _is_known(record: kestrel_format.Record) -> bool:
    return not isinstance(record, kestrel_format.UnknownCommand)

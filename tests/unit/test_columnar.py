"""Columnar: chunks and their limits, hostile bytes, and how the kernels are compiled."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest

from journeyman.columnar import chunks, kernels
from journeyman.columnar.arrays import as_bytes
from journeyman.columnar.chunks import ending_at, make_fields
from journeyman.columnar.kernels import byte_access
from journeyman.columnar.kernels.key_table import crc32c
from journeyman.columnar.kestrel import decode
from journeyman.columnar.workq import decode as workq
from journeyman.columnar.workq import scan as workq_scan
from journeyman.columnar.ztick import decode as ztick
from journeyman.formats import timed_frame
from journeyman.formats.framing import Stop, scan
from journeyman.formats.kestrel import ItemPut, ReadDone, ReadHead, UnknownCommand
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, JobEvent, JobFinished
from journeyman.formats.ztick import Direct, Http, JobRemoved, JobSet, RuleRemoved, RuleSet, Status
from tests.support.columnar_twins import CHECKPOINT, JOURNAL, WORKQ, ZTICK, Twins, assert_twins

ROOT = Path(__file__).parent.parent.parent
NOW = Instant(1_790_000_000_123_456_789)
JOB_ID = bytes(range(16))

ZTICK_RECORDS = [
    JobSet("backup.db1.daily", 1_790_000_000_000_000_000, Status.PLANNED),
    RuleSet("nightly", "backup.", Direct("/bin/backup", ("--all", ""))),
    JobRemoved("backup.db1.daily"),
    RuleSet("später", "später.", Http("PUT", "http://example.com/é")),
    JobSet("später.1", -1, Status.FAILED),
    RuleRemoved("nightly"),
]
WORKQ_RECORDS = [
    JobAdded(NOW, JOB_ID, "mail.send", 1000, 60_000, -7, 3, 1, b"payload", None, NOW),
    JobAdded(NOW, JOB_ID, "né\udcff", 1, 2, 3, 4, 5, b"", NOW, NOW, Command.SCHEDULE),
    JobFinished(NOW, JOB_ID, Command.COMPLETE, b"fine"),
    JobFinished(NOW, JOB_ID, Command.FAIL, b""),
    *(JobEvent(NOW, JOB_ID, command) for command in list(Command)[4:8]),
]
KESTREL_RECORDS = [
    ItemPut(1, 1_790_000_000_000, None, 0, b"item"),
    ItemPut(2, 1_790_000_000_000, 1_790_000_060_000, 3, b""),
    ReadHead(1),
    ReadDone((3, 4)),
    ReadDone(()),
    UnknownCommand(0xF2, b"\x03\0\0\0abcd", b"xyz"),
    UnknownCommand(0x10, b"", b""),
]


def write(twins: Twins, records) -> bytes:
    return twins.codec.header + b"".join(map(twins.codec.encode, records))


LOGS = {
    "ztick": (ZTICK, write(ZTICK, ZTICK_RECORDS)),
    "workq": (WORKQ, write(WORKQ, WORKQ_RECORDS)),
    "journal": (JOURNAL, write(JOURNAL, KESTREL_RECORDS)),
    "checkpoint": (CHECKPOINT, write(CHECKPOINT, KESTREL_RECORDS)),
}
each_log = pytest.mark.parametrize("name", LOGS)


# -- rows and endings ----------------------------------------------------------------------------


@each_log
def test_every_prefix_is_read_as_the_codec_reads_it(name):
    twins, log = LOGS[name]
    for size in range(len(log) + 1):
        assert_twins(twins, log[:size])


@each_log
def test_zeros_behind_a_log_end_it_as_the_codec_says(name):
    twins, log = LOGS[name]
    for zeros in (1, 4, 64):
        assert_twins(twins, log + bytes(zeros))


# Types, commands, counts and statuses one too high; lengths, varints and signs at their edges.
TELLING_BYTES = (0, 1, 2, 3, 4, 5, 8, 9, 0x10, 0x7F, 0x80, 0xFF)


@pytest.mark.parametrize("name", ["ztick", "journal"])
def test_every_byte_of_every_entry_is_judged_as_the_codec_judges_it(name):
    twins, log = LOGS[name]
    for entry in scan(twins.codec, log)[0]:
        alone = twins.codec.header + log[entry.offset : entry.end]
        for at in range(len(twins.codec.header), len(alone)):
            for byte in TELLING_BYTES:
                assert_twins(twins, alone[:at] + bytes((byte,)) + alone[at + 1 :])


def test_every_byte_of_every_record_is_judged_as_the_codec_judges_it_under_a_fitting_crc():
    for record in WORKQ_RECORDS:
        sealed = WORKQ.codec.encode(record)
        body = sealed[:15] + sealed[16:-4]  # without SIZE, which seal puts in
        for at in range(len(body)):
            for byte in TELLING_BYTES:
                other = body[:at] + bytes((byte,)) + body[at + 1 :]
                assert_twins(
                    WORKQ, WORKQ.codec.header + timed_frame.write_frame(other[:15], other[15:])
                )


def test_payloads_are_null_unless_asked_for():
    blobs = {workq: ["payload", "result"], decode: ["data"]}
    for module, log in ((workq, LOGS["workq"][1]), (decode, LOGS["journal"][1])):
        without, asked = module.decode(log).batch, module.decode(log, payloads=True).batch
        for column in asked.schema.names:
            same = without.column(column).equals(asked.column(column))
            assert same is (column not in blobs[module])
        for column in blobs[module]:
            assert without.column(column).null_count == without.num_rows


def test_largest_blobs_are_read_whole():
    payload = os.urandom(1_048_576)
    added = JobAdded(NOW, JOB_ID, "n", 1, 2, 3, 4, 5, payload, None, NOW)
    assert_twins(WORKQ, write(WORKQ, [added, WORKQ_RECORDS[-1]]))
    item = ItemPut(1, 2, None, 0, os.urandom(16 * 1024 * 1024))
    assert_twins(JOURNAL, write(JOURNAL, [item, KESTREL_RECORDS[0]]))


def test_declared_sizes_over_the_limit_are_refused_though_the_bytes_are_there():
    over = 16 * 1024 * 1024 + 1
    assert_twins(ZTICK, over.to_bytes(4) + b"\x02" + bytes(over))
    assert_twins(JOURNAL, JOURNAL.codec.header + b"\xf1" + over.to_bytes(4, "little") + bytes(over))
    payload = bytes(timed_frame.MAX_RECORD_BYTES + 1)
    assert_twins(WORKQ, WORKQ.codec.header + timed_frame.write_frame(b"\x01" + bytes(14), payload))
    result = 1_048_576 + 1
    finished = b"\x03" + JOB_ID + timed_frame.write_varint(result) + bytes(result)
    assert_twins(WORKQ, WORKQ.codec.header + timed_frame.write_frame(b"\x01" + bytes(14), finished))


# -- chunks --------------------------------------------------------------------------------------


def test_chunk_is_full_at_max_records_and_says_where_to_go_on():
    log = LOGS["ztick"][1]
    first = ztick.decode(log, max_records=2)
    assert (first.batch.num_rows, first.ending) == (2, None)
    rest = ztick.decode(log, first.next_offset)
    assert rest.batch.column("offset")[0].as_py() == first.next_offset
    assert rest.ending is not None
    assert rest.ending.stop is Stop.EOF


def test_last_chunk_carries_the_ending_even_when_it_is_full():
    chunk = ztick.decode(LOGS["ztick"][1], max_records=len(ZTICK_RECORDS))
    assert chunk.ending is not None
    assert chunk.ending.stop is Stop.EOF


@pytest.mark.parametrize("module", [ztick, workq, decode])
def test_chunk_ends_behind_the_entry_that_crosses_its_limit_of_bytes(module, monkeypatch):
    twins, log = LOGS["journal" if module is decode else module.__name__.split(".")[2]]
    monkeypatch.setattr(module.chunks, "MAX_CHUNK_BYTES", 1)
    assert [chunk.batch.num_rows for chunk in twins.iter_batches(log)].count(1) >= 6
    assert_twins(twins, log)


@pytest.mark.parametrize("module", [ztick, workq, decode])
def test_offsets_outside_of_the_data_are_a_mistake_of_the_caller(module):
    for offset in (-1, 11):
        with pytest.raises(ValueError, match="outside"):
            module.decode(bytes(10), offset)
        with pytest.raises(ValueError, match="outside"):
            module.hop(bytes(10), offset, 20)
    with pytest.raises(ValueError, match="at least one"):
        module.decode(bytes(10), 0, max_records=0)


def test_reading_at_the_very_end_is_the_end():
    for module, log in ((ztick, b""), (workq, LOGS["workq"][1]), (decode, LOGS["journal"][1])):
        chunk = module.decode(log, len(log))
        assert chunk.batch.num_rows == 0
        assert chunk.ending is not None
        assert (chunk.ending.stop, chunk.ending.offset) == (Stop.EOF, len(log))


def test_room_is_made_for_no_more_entries_than_the_bytes_can_hold():
    assert make_fields(3, 10**15, 100, 10).shape == (3, 11)
    assert make_fields(3, 5, 100, 10).shape == (3, 5)
    assert ztick.decode(b"\x01\x00\x00\x00", max_records=10**15).batch.num_rows == 0


def test_kernel_that_stops_where_the_codec_goes_on_is_found_out():
    with pytest.raises(AssertionError, match="disagree at offset 0"):
        ending_at(ZTICK.codec, LOGS["ztick"][1], 0)


def test_schemas_hold_only_types_that_spark_has():
    plain = {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.binary()}
    lists = {pa.list_(pa.string()), pa.list_(pa.int64())}
    for module in (ztick, workq, decode):
        assert set(module.SCHEMA.types) <= plain | lists


# -- hopping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [ztick, workq, decode])
def test_hop_stops_where_the_lengths_lead_no_further(module):
    twins, log = LOGS["journal" if module is decode else module.__name__.split(".")[2]]
    start = len(twins.codec.header)
    assert module.hop(log, start, len(log)) == len(log)
    torn = twins.codec.encode(scan(twins.codec, log)[0][0].record)[:-1]
    assert module.hop(log + torn, start, len(log + torn)) == len(log)
    assert module.hop(log, start, len(log) + 100) == len(log)
    over = 16 * 1024 * 1024 + 1
    assert ztick.hop(over.to_bytes(4) + bytes(over), 0, 1) == 0
    assert module.hop(log, start, 0) == start


# -- kernels -------------------------------------------------------------------------------------


def test_each_kernel_is_compiled_once_whatever_holds_the_bytes(tmp_path):
    for name, (twins, log) in LOGS.items():
        path = tmp_path / name
        path.write_bytes(log)
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for data in (log, bytearray(log), memoryview(log), memoryview(bytearray(log))):
            assert_twins(twins, data, max_records=3)
        assert_twins(twins, memoryview(mapped))
        twins.hop(bytearray(log), 0, 10)
    kernels: list[Any] = [ztick._scan, ztick._hop, workq_scan.scan_records, workq_scan.hop]
    kernels += [decode._scan, decode._hop, byte_access.copy_spans]
    for kernel in kernels:
        assert len(kernel.signatures) == 1


def test_kernel_works_where_nothing_may_be_cached(monkeypatch):
    compile_kernel = numba.njit

    def njit_without_a_directory(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return compile_kernel(**options)

    monkeypatch.setattr(numba, "njit", njit_without_a_directory)

    def double(value: int) -> int:
        return 2 * value

    doubled = kernels.kernel(double)
    assert isinstance(doubled, numba.core.dispatcher.Dispatcher)
    assert doubled(21) == 42


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (3, 2), (5, 0), (0, 9), (0, -1), (1, 4)])
def test_span_outside_of_its_arrays_is_never_copied(start, length):
    data, values, offsets = as_bytes(b"abcd"), np.zeros(8, np.uint8), np.zeros(2, np.int32)
    with pytest.raises(IndexError):
        byte_access.copy_spans(data, np.array([start]), np.array([length]), offsets, values)
    with pytest.raises(IndexError):
        byte_access.copy_spans(data, np.array([0]), np.array([3]), offsets, values[:2])
    assert not values.any()


def damaged_logs(seed: int, count: int):
    """Logs with damage of every kind: flipped, cut, repeated, filled with extreme bytes."""
    chance = random.Random(seed)
    for _ in range(count):
        twins, log = LOGS[chance.choice(list(LOGS))]
        data = bytearray(log)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data) + 1)
            width = chance.choice([1, 1, 1, 2, 4, 8, 30])
            fill = chance.choice([b"\x00", b"\xff", b"\x80", b"\x7f", b"\x01", None])
            junk = chance.randbytes(width) if fill is None else fill * width
            data[at : at + chance.choice([0, width])] = junk
        yield twins, bytes(data[: chance.choice([len(data), chance.randrange(len(data) + 1)])])


def read_damaged_logs(seed: int, count: int) -> None:
    for twins, data in damaged_logs(seed, count):
        assert_twins(twins, data, max_records=5)
        for target in (0, len(data) // 2, len(data) + 8):
            assert twins.hop(data, 0, target) <= max(target, len(data))


def test_damaged_logs_are_read_as_the_codecs_read_them():
    read_damaged_logs(seed=1, count=1500)


def check_bounds() -> None:
    """Run in a process whose kernels check every index."""
    with pytest.raises(IndexError):
        crc32c(as_bytes(b"abc"), 0, 8)
    read_damaged_logs(seed=2, count=1500)


@pytest.mark.slow
@pytest.mark.slow
def test_no_kernel_reaches_outside_of_its_arrays(tmp_path):
    # Checks of bounds are there however little the compiler optimizes: not at all is the quickest.
    ask = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "0", "NUMBA_CACHE_DIR": str(tmp_path)}
    environment = os.environ | ask
    code = "from tests.unit import test_columnar; test_columnar.check_bounds()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)


def test_chunk_limits_leave_room_in_32_bit_offsets():
    largest_entry = 16 * 1024 * 1024 + 64
    assert 3 * (chunks.MAX_CHUNK_BYTES + largest_entry) < 2**31

"""The workq codec at its edges: limits, refusals, and damage that is meant to mislead."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from journeyman.errors import (
    BadHeader,
    ChecksumMismatch,
    EncodeError,
    EntryTooLarge,
    FormatError,
    IncompleteEntry,
    InvalidData,
    StringOverflow,
)
from journeyman.formats import timed_frame
from journeyman.formats.framing import Stop, scan
from journeyman.formats.timed_frame import MAX_RECORD_BYTES, Instant
from journeyman.formats.workq import (
    CODEC,
    HEADER,
    MAX_PAYLOAD_BYTES,
    Command,
    JobAdded,
    JobEvent,
    JobFinished,
    Record,
)

NONE_NS = -62_135_596_800 * 10**9
LOGGED = Instant(1_794_769_251_050_695_748)
TIME = bytes.fromhex("010000000ee28bf86303058e44ffff")  # LOGGED
NONE_TIME = bytes.fromhex("01000000000000000000000000ffff")
ID = bytes.fromhex("0000000a000040008000000000000001")
ADDED = JobAdded(
    logged=LOGGED,
    job_id=ID,
    name="plain",
    ttr_ms=1000,
    ttl_ms=2_592_000_000,
    priority=10,
    max_attempts=3,
    max_fails=1,
    payload=b"ping",
    time=None,
    created=Instant(1_794_769_251_050_550_675),
)
DELETED = JobEvent(LOGGED, ID, Command.DELETE)
COMPLETED = JobFinished(LOGGED, ID, Command.COMPLETE, b"pong")
EVENT_BYTES = 15 + 1 + 17 + 4


def framed(payload: bytes, *, time: bytes = TIME, size: bytes | None = None) -> bytes:
    """A record around any payload, its checksum right."""
    covered = time + (timed_frame.write_varint(len(payload)) if size is None else size) + payload
    checksum: int = google_crc32c.value(covered)
    return covered + checksum.to_bytes(4, "big")


def fault(data: bytes, offset: int = 0) -> FormatError:
    with pytest.raises(FormatError) as caught:
        CODEC.decode(data, offset)
    assert caught.value.offset == offset
    return caught.value


def decoded(data: bytes) -> Record:
    entry = CODEC.decode(data, 0)
    assert entry is not None
    assert (entry.offset, entry.length) == (0, len(data))
    return entry.record


def test_the_worked_example_of_the_documentation_is_what_is_written():
    assert CODEC.encode(ADDED).hex(" ", -4) == bytes.fromhex(
        "01 0000000ee28bf863 03058e44 ffff 44 01 0000000a000040008000000000000001"
        "05 706c61696e e807 8090fbd309 14 03 01 04 70696e67"
        "01 0000000000000000 00000000 ffff 01 0000000ee28bf863 03035793 ffff 6527cc36"
    ).hex(" ", -4)


def test_a_hidden_record_is_an_add_that_expired_in_the_year_1():
    fail = JobFinished(Instant(5), ID, Command.FAIL, b"why", hidden=True)
    timeout = JobEvent(Instant(5), ID, Command.TIMEOUT_ATTEMPT, hidden=True)
    for record, name, payload in (
        (fail, "journeyman:fail", b"why"),
        (timeout, "journeyman:timeout", b""),
    ):
        stands_for = JobAdded(
            Instant(5), ID, name, 0, 0, 0, 0, 0, payload, None, Instant(NONE_NS), Command.ADD
        )
        assert CODEC.encode(record) == CODEC.encode(stands_for)
        assert decoded(CODEC.encode(record)) == record
        # Anything else about it makes it an add like any other.
        for change in ({"ttl_ms": 1}, {"name": name + "x"}, {"created": Instant(5)}):
            real = replace(stands_for, **change)
            assert decoded(CODEC.encode(real)) == real
    real = replace(stands_for, payload=b"x")  # a timeout-attempt has no result
    assert decoded(CODEC.encode(real)) == real


@pytest.mark.parametrize(
    "record",
    [
        JobFinished(Instant(5), bytes(16), Command.COMPLETE, b"", hidden=True),
        JobEvent(Instant(5), bytes(16), Command.DELETE, hidden=True),
        JobFinished(Instant(5), bytes(16), Command.FAIL, bytes(MAX_PAYLOAD_BYTES + 1), hidden=True),
    ],
    ids=["complete", "delete", "too long"],
)
def test_what_cannot_be_hidden_is_refused(record: Record):
    with pytest.raises(EncodeError):
        CODEC.encode(record)


def test_no_byte_left_is_the_end():
    assert CODEC.decode(b"", 0) is None
    assert CODEC.decode(HEADER, len(HEADER)) is None


def test_header_is_whole_cut_short_or_foreign():
    assert CODEC.check_header(HEADER + b"x") == len(HEADER)
    with pytest.raises(IncompleteEntry) as caught:
        CODEC.check_header(HEADER[:5])
    assert caught.value.needed == len(HEADER)
    for foreign in (b"wqwx", HEADER[:-1] + b"\x02", b"\0" * 8):
        with pytest.raises(BadHeader):
            CODEC.check_header(foreign)


@pytest.mark.parametrize(
    ("seconds", "nanos", "unix_ns"),
    [
        (62_135_596_800, 0, 0),
        (62_135_596_799, 999_999_999, -1),
        (0, 1, NONE_NS + 1),
        (2**63 - 1, 999_999_999, (2**63 - 62_135_596_800) * 10**9 - 1),
        (-(2**63), 0, (-(2**63) - 62_135_596_800) * 10**9),
    ],
)
def test_times_of_any_year_are_exact(seconds: int, nanos: int, unix_ns: int):
    assert timed_frame.to_unix_ns(seconds, nanos) == unix_ns
    expected = b"\x01" + timed_frame.FIELDS.pack(seconds, nanos, 60)
    assert timed_frame.cached_moment_bytes(unix_ns, 60) == expected
    record = JobEvent(Instant(unix_ns, 60), ID, Command.DELETE)
    assert decoded(CODEC.encode(record)) == record


def test_second_zero_is_a_time_like_any_other_except_as_job_time():
    record = replace(ADDED, logged=Instant(NONE_NS), created=Instant(NONE_NS, 0))
    assert decoded(CODEC.encode(record)) == record


def test_the_offset_of_a_time_that_is_none_survives():
    record = replace(ADDED, none_offset_min=0)
    written = CODEC.encode(record)
    assert NONE_TIME[:-2] + b"\0\0" in written
    assert decoded(written) == record


@pytest.mark.parametrize(
    "change",
    [
        {"job_id": ID[:-1]},
        {"job_id": ID + b"x"},
        {"ttr_ms": -1},
        {"ttl_ms": 2**64},
        {"max_attempts": -1},
        {"max_fails": 2**64},
        {"priority": 2**31},
        {"priority": -(2**31) - 1},
        {"payload": bytes(MAX_PAYLOAD_BYTES + 1)},
        {"name": "n" * MAX_RECORD_BYTES},
        {"name": "\ud800"},
        {"name": "\udcc3\udca9"},
        {"time": Instant(NONE_NS)},
        {"time": Instant(0), "none_offset_min": 0},
        {"time": Instant(0, 2**15)},
        {"created": Instant(2**63 * 10**9)},
        {"logged": Instant(-(2**64) * 10**9)},
        {"command": Command.COMPLETE},
    ],
    ids="-".join,
)
def test_a_job_that_would_not_come_back_the_same_is_refused(change: dict[str, Any]):
    with pytest.raises(EncodeError):
        CODEC.encode(replace(ADDED, **change))


@pytest.mark.parametrize(
    "record",
    [
        replace(COMPLETED, command=Command.DELETE),
        replace(COMPLETED, command=Command.ADD),
        replace(COMPLETED, result=bytes(MAX_PAYLOAD_BYTES + 1)),
        replace(DELETED, command=Command.FAIL),
        replace(DELETED, command=Command.SCHEDULE),
        replace(DELETED, job_id=b""),
    ],
    ids=lambda record: f"{type(record).__name__}-{record.command.name}",
)
def test_a_command_that_does_not_belong_to_its_class_is_refused(record: Record):
    with pytest.raises(EncodeError):
        CODEC.encode(record)


@pytest.mark.parametrize(
    "record",
    [
        replace(ADDED, payload=bytes(MAX_PAYLOAD_BYTES), name="n" * 255, ttl_ms=2**64 - 1),
        replace(ADDED, name="n" * 2000),
        replace(ADDED, name="\udcff\u00e9"),
        replace(ADDED, name="", payload=b"", command=Command.SCHEDULE, time=Instant(5)),
        replace(COMPLETED, result=bytes(MAX_PAYLOAD_BYTES)),
    ],
    ids=["largest", "long-name", "no-utf8", "empty", "largest-result"],
)
def test_what_is_within_the_limits_is_read_back(record: Record):
    written = CODEC.encode(record)
    assert decoded(written) == record


def test_padded_numbers_are_read():
    size = b"\x91\x80\x80\x80\x80\x80\x80\x80\x80\x00"
    assert decoded(framed(b"\x05" + ID, size=size)) == DELETED
    assert decoded(framed(b"\x03" + ID + b"\x84\x00pong")) == COMPLETED


@pytest.mark.parametrize(
    ("size", "error"),
    [
        (b"\xff" * 9 + b"\x02", InvalidData),  # 65 bits
        (b"\xff" * 10, InvalidData),  # eleven bytes or more
        (b"\xff" * 9 + b"\x01", EntryTooLarge),  # 2^64 - 1
        (timed_frame.write_varint(MAX_RECORD_BYTES + 1), EntryTooLarge),
        (timed_frame.write_varint(MAX_RECORD_BYTES), IncompleteEntry),
        (b"\x80", IncompleteEntry),
    ],
)
def test_a_size_is_judged_before_anything_is_read(size: bytes, error: type[FormatError]):
    data = TIME + size
    found = fault(data)
    assert type(found) is error
    assert CODEC.is_torn(data, 0) == (error is IncompleteEntry)
    assert CODEC.skip(data, 0) is None


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"", InvalidData),
        (b"\x05", StringOverflow),
        (b"\x05" + ID[:-1], StringOverflow),
        (b"\x05" + ID + b"!", InvalidData),
        (b"\x03" + ID, StringOverflow),
        (b"\x03" + ID + b"\x05pong", StringOverflow),
        (b"\x03" + ID + b"\x03pong", InvalidData),
        (b"\x03" + ID + b"\xff" * 9 + b"\x7f", InvalidData),
        (b"\x03" + ID + timed_frame.write_varint(MAX_PAYLOAD_BYTES + 1), StringOverflow),
        (
            b"\x03"
            + ID
            + timed_frame.write_varint(MAX_PAYLOAD_BYTES + 1)
            + bytes(MAX_PAYLOAD_BYTES + 1),
            EntryTooLarge,
        ),
        (b"\x01" + ID + b"\x01n", StringOverflow),
        (b"\x01" + ID + b"\x01n\1\1\1\1\1\x00" + NONE_TIME + TIME[:-1], StringOverflow),
        (b"\x01" + ID + b"\x01n\1\1\1\1\1\x00" + NONE_TIME + b"\2" + TIME[1:], InvalidData),
        (
            b"\x01"
            + ID
            + b"\x01n\1\1"
            + timed_frame.write_varint(2**32)
            + b"\1\1\x00"
            + NONE_TIME
            + TIME,
            InvalidData,
        ),
        (
            b"\x01" + ID + b"\x01n\1\1\1\1\1\x00" + NONE_TIME + TIME[:9] + b"\x3b\x9a\xca\x00\0\0",
            InvalidData,
        ),
    ],
)
def test_a_payload_that_makes_no_sense_is_corrupt_but_can_be_stepped_over(
    payload: bytes, error: type[FormatError]
):
    data = framed(payload)
    assert type(fault(data)) is error
    following = CODEC.encode(DELETED)
    assert CODEC.skip(data + following, 0) == len(data)
    assert CODEC.resync(data + following, 0) == 0
    assert not CODEC.is_torn(data, 0)


def test_the_checksum_is_looked_at_before_the_payload():
    data = bytearray(framed(b"\x09nonsense"))
    data[-1] ^= 1
    assert type(fault(bytes(data))) is ChecksumMismatch


def test_a_time_with_impossible_nanoseconds_is_corrupt():
    time = TIME[:9] + (10**9).to_bytes(4, "big") + TIME[13:]
    data = framed(b"\x05" + ID, time=time)
    assert type(fault(data)) is InvalidData
    assert CODEC.skip(data, 0) == len(data)
    assert not CODEC.is_torn(data[:20], 0)


def test_a_time_of_another_version_is_corrupt():
    data = framed(b"\x05" + ID, time=b"\x02" + TIME[1:])
    assert type(fault(data)) is InvalidData
    assert not CODEC.is_torn(data[:20], 0)


def test_zeros_to_the_end_are_a_torn_tail_and_not_a_record():
    record = CODEC.encode(DELETED)
    assert CODEC.is_torn(record + bytes(100), len(record))
    assert not CODEC.is_torn(record + bytes(100) + b"\1", len(record))
    assert type(fault(record + bytes(100), len(record))) is InvalidData


def test_a_record_with_size_zero_is_no_torn_tail():
    assert not CODEC.is_torn(TIME + b"\0", 0)


def test_records_inside_a_damaged_payload_are_not_brought_to_life():
    forged = CODEC.encode(replace(DELETED, job_id=bytes(16)))
    for carrier in (replace(ADDED, payload=forged * 3), replace(COMPLETED, result=forged * 3)):
        data = bytearray(CODEC.encode(carrier))
        data[20] ^= 0xFF  # in the id
        assert CODEC.resync(data, 1) == data.index(forged)
        assert CODEC.skip(data, 0) == len(data)
        assert CODEC.skip(data + CODEC.encode(DELETED), 0) == len(data)


def test_whole_records_under_a_damaged_size_are_not_stepped_over():
    event = CODEC.encode(DELETED)
    data = bytearray(event * 4)
    # The first record now claims to end exactly where the third does.
    data[15] += 2 * EVENT_BYTES
    assert type(fault(bytes(data))) is ChecksumMismatch
    assert CODEC.skip(data, 0) is None
    assert CODEC.resync(data, 1) == EVENT_BYTES


@pytest.mark.parametrize("record", [ADDED, COMPLETED, DELETED], ids=lambda r: r.command.word)
@pytest.mark.parametrize("bit", range(8))
def test_a_damaged_size_does_not_pass_for_a_torn_tail(record: Record, bit: int):
    data = bytearray(CODEC.encode(record) + CODEC.encode(ADDED) * 2)
    data[15] ^= 1 << bit
    assert not CODEC.is_torn(data, 0)
    assert CODEC.skip(data, 0) is None
    assert CODEC.resync(data, 1) == len(CODEC.encode(record))


@pytest.mark.parametrize(
    "payload",
    [
        b"\x05" + ID,  # ends before its SIZE says
        b"\x03" + ID + b"\x01r",
        b"\x03" + ID + b"\x50result",  # ends behind it
        b"\x01" + ID + b"\x50name",
        b"\x03" + ID + b"\xff" * 11,
        b"\x01" + ID + b"\x01n\1\1\1\1\1\x00" + NONE_TIME,
    ],
)
def test_a_payload_that_does_not_go_with_its_size_is_no_torn_tail(payload: bytes):
    assert not CODEC.is_torn(TIME + timed_frame.write_varint(80) + payload, 0)


@pytest.mark.parametrize(("command_type", "size"), [(1, 17), (3, 16), (3, 17), (5, 16), (5, 18)])
def test_a_size_too_small_for_its_command_is_no_torn_tail(command_type: int, size: int):
    assert not CODEC.is_torn(TIME + bytes([size, command_type]), 0)


def test_a_cut_record_asks_for_as_much_as_the_shortest_one_of_its_kind_has():
    for cut, needed in ((1, 20), (15, 20), (16, EVENT_BYTES), (EVENT_BYTES - 1, EVENT_BYTES)):
        found = fault(CODEC.encode(DELETED)[:cut])
        assert isinstance(found, IncompleteEntry)
        assert found.needed == needed
    found = fault(TIME + b"\x80\x80")
    assert isinstance(found, IncompleteEntry)
    assert found.needed == len(framed(b"", size=b"\x80\x80\x00"))


def test_a_payload_that_is_whole_but_for_its_numbers_is_no_torn_tail():
    assert not CODEC.is_torn(framed(b"\x03" + ID + b"\x80")[:-1], 0)


def test_a_damaged_size_that_ends_nowhere_is_not_believed():
    data = bytearray(CODEC.encode(DELETED) * 4)
    data[15] += 5
    assert CODEC.skip(data, 0) is None
    assert CODEC.resync(data, 0) == EVENT_BYTES


def test_resync_takes_records_of_every_year():
    junk = b"\x01" * 50 + b"\xff" * 50
    for seconds in (-(2**63), -1, 0, 2**62):
        record = JobEvent(Instant(timed_frame.to_unix_ns(seconds, 7)), ID, Command.EXPIRE)
        data = junk + CODEC.encode(record)
        assert CODEC.resync(data, 0) == len(junk)
        assert CODEC.resync(memoryview(bytearray(data)), 3) == len(junk)


def test_resync_finds_nothing_where_nothing_is():
    assert CODEC.resync(b"", 0) is None
    assert CODEC.resync(CODEC.encode(DELETED), 1) is None
    assert CODEC.resync(b"\x01" * 1000, 0) is None


def test_the_example_in_the_documentation_is_right():
    page = Path(__file__).parents[2] / "docs" / "formats" / "workq.md"
    example = page.read_text().split("\n## Example\n")[1].split("\n## ")[0]
    lines = re.findall(r"^ {4}((?:[0-9a-f]{2,} ?)+)  ", example, re.MULTILINE)
    data = bytes.fromhex(" ".join(lines))
    entries, ending = scan(CODEC, data)
    assert [entry.record for entry in entries] == [ADDED, COMPLETED]
    assert ending.stop is Stop.EOF
    assert HEADER + b"".join(CODEC.encode(entry.record) for entry in entries) == data

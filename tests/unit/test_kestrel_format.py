"""The kestrel codecs at their edges: hostile sizes, limits, and how resync makes up its mind."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from journeyman.errors import (
    BadHeader,
    EncodeError,
    EntryTooLarge,
    FormatError,
    IncompleteEntry,
    InvalidData,
)
from journeyman.formats.framing import Codec, Stop, scan
from journeyman.formats.kestrel import (
    MAX_DATA_BYTES,
    READER,
    READER_MAGIC,
    WRITER,
    WRITER_MAGIC,
    ItemPut,
    ReadDone,
    ReadHead,
    Record,
    UnknownCommand,
)

PUT = ItemPut(item_id=100, add_time_ms=255, expire_time_ms=None, error_count=1, data=b"hello")
EXPIRING = replace(PUT, item_id=101, expire_time_ms=300)


def entry(command_byte: int, *words: int, data: bytes = b"") -> bytes:
    return bytes([command_byte]) + struct.pack(f"<{len(words)}i", *words) + data


def fault(data: bytes) -> FormatError:
    with pytest.raises(FormatError) as caught:
        WRITER.decode(data, 0)
    assert caught.value.offset == 0
    return caught.value


def test_the_worked_example_of_the_documentation_is_what_is_written():
    assert WRITER.header + WRITER.encode(PUT) == bytes.fromhex(
        "27642603 86 05000000 01000000 6400000000000000 ff00000000000000 68656c6c6f"
    )
    assert READER.header + READER.encode(ReadHead(511)) == bytes.fromhex(
        "263c2603 02 ff01000000000000"
    )
    assert READER.encode(ReadDone((10, 20))) == bytes.fromhex(
        "91 10000000 0a00000000000000 1400000000000000"
    )


def test_header_is_whole_cut_short_or_of_the_other_kind():
    assert WRITER.check_header(WRITER_MAGIC) == 4
    assert READER.check_header(READER_MAGIC + b"\0") == 4
    for codec, other in ((WRITER, READER_MAGIC), (READER, WRITER_MAGIC)):
        with pytest.raises(IncompleteEntry):
            codec.check_header(codec.header[:3])
        with pytest.raises(BadHeader):
            codec.check_header(other)


@pytest.mark.parametrize(
    ("data", "error", "reason"),
    [
        (entry(0x01, 7), InvalidData, "corrupted READ_HEAD"),
        (entry(0x03, 7, 0, 0), InvalidData, "corrupted READ_HEAD"),
        (entry(0x80), InvalidData, "no size word"),
        (entry(0x90), InvalidData, "no size word"),
        (entry(0xF0), InvalidData, "no size word"),
        (entry(0x86, -1, 0, 1, 0, 1, 0), InvalidData, "negative size"),
        (entry(0x91, -8), InvalidData, "negative size"),
        (entry(0xF1, -5), InvalidData, "negative size"),
        (entry(0x81, MAX_DATA_BYTES + 1), EntryTooLarge, "item too large"),
        (entry(0x91, MAX_DATA_BYTES + 8), EntryTooLarge, "item too large"),
        (entry(0xF1, 2**31 - 1), EntryTooLarge, "item too large"),
        (entry(0x85, 0, 0, 1, 0, 1), InvalidData, "corrupted PUT"),
        (entry(0x87, 0, 0, 1, 0, 1, 0, 0), InvalidData, "corrupted PUT"),
        (entry(0x91, 12, data=bytes(12)), InvalidData, "corrupted READ_DONE"),
        (entry(0x92, 8, 0, data=bytes(8)), InvalidData, "corrupted READ_DONE"),
        (entry(0x86, MAX_DATA_BYTES, 0, 1, 0, 1, 0), IncompleteEntry, "truncated entry"),
        (entry(0x91, 8, data=bytes(7)), IncompleteEntry, "truncated entry"),
        (entry(0x02, 1), IncompleteEntry, "truncated header: 4 left"),
        (entry(0x7F), IncompleteEntry, "truncated header: 0 left"),
    ],
)
def test_a_hostile_entry_is_refused(data: bytes, error: type[FormatError], reason: str):
    found = fault(data)
    assert type(found) is error
    assert found.reason == reason
    assert WRITER.is_torn(data, 0) == (error is IncompleteEntry)
    assert WRITER.skip(data, 0) is None


def test_the_largest_item_is_read_back():
    record = replace(PUT, data=bytes(MAX_DATA_BYTES))
    found = WRITER.decode(WRITER.encode(record), 0)
    assert found is not None
    assert found.record == record


@pytest.mark.parametrize(
    "record",
    [
        UnknownCommand(0x10, b"", b""),
        UnknownCommand(0x7F, bytes(range(60)), b""),
        UnknownCommand(0xF3, b"\4\0\0\0" + bytes(8), b"data"),
        UnknownCommand(0x89, b"\4\0\0\0" + bytes(32), b"item"),  # a PUT of a newer version
        UnknownCommand(0x8F, b"\0\0\0\0" + bytes(56), b""),
    ],
    ids=repr,
)
def test_an_unknown_command_is_kept_byte_for_byte(record: UnknownCommand):
    written = WRITER.encode(record)
    found = WRITER.decode(written + b"\x02", 0)
    assert found is not None
    assert (found.record, found.length) == (record, len(written))
    assert written == bytes([record.command_byte]) + record.header + record.data


@pytest.mark.parametrize(
    "record",
    [
        replace(PUT, data=bytes(MAX_DATA_BYTES + 1)),
        replace(PUT, item_id=2**63),
        replace(PUT, add_time_ms=-(2**63) - 1),
        replace(PUT, expire_time_ms=2**63),
        replace(PUT, error_count=2**31),
        ReadHead(2**63),
        ReadDone((1, 2**63)),
        ReadDone((0,) * (MAX_DATA_BYTES // 8 + 1)),
        UnknownCommand(0x00, b"", b""),
        UnknownCommand(0x02, bytes(8), b""),
        UnknownCommand(0x86, bytes(24), b""),
        UnknownCommand(0x91, bytes(4), b""),
        UnknownCommand(0x110, b"", b""),
        UnknownCommand(-1, b"", b""),
        UnknownCommand(0x11, b"", b""),
        UnknownCommand(0x10, b"", b"data"),
        UnknownCommand(0xF0, b"", b""),
        UnknownCommand(0xF1, b"\3\0\0\0", b"data"),
        UnknownCommand(0xF1, b"\xff\xff\xff\xff", b""),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_that_would_not_come_back_the_same_is_refused(record: Record):
    with pytest.raises(EncodeError):
        WRITER.encode(record)


def test_a_zero_byte_is_the_end_wherever_it_stands():
    data = WRITER.encode(PUT) + b"\0" + WRITER.encode(EXPIRING)
    first = WRITER.decode(data, 0)
    assert first is not None
    assert WRITER.decode(data, first.end) is None
    assert WRITER.decode(data, len(data)) is None


def test_entries_behind_a_stray_zero_byte_are_no_torn_tail():
    data = b"\0" + WRITER.encode(PUT) + bytes(5000)
    assert not WRITER.is_torn(data, 0)
    assert WRITER.resync(data, 0) == 1
    assert WRITER.is_torn(data, len(data) - 5000)


@pytest.mark.parametrize("record", [PUT, EXPIRING])
def test_a_put_without_its_first_byte_is_torn_only_inside_a_file_of_zeros(record: ItemPut):
    unfinished = b"\0" + WRITER.encode(record)[1:]
    assert WRITER.is_torn(unfinished + bytes(100), 0)
    assert not WRITER.is_torn(unfinished + bytes(100) + b"!", 0)
    assert not WRITER.is_torn(unfinished[:-1], 0)
    assert not WRITER.is_torn(unfinished[:9], 0)
    assert not WRITER.is_torn(unfinished[:4], 0)


def test_a_put_that_runs_over_the_next_one_was_damaged_and_not_cut_short():
    damaged = bytearray(WRITER.encode(PUT))
    damaged[3] ^= 0x10  # 1 MiB more than there is
    assert not WRITER.is_torn(damaged + WRITER.encode(EXPIRING), 0)
    assert WRITER.resync(damaged + WRITER.encode(EXPIRING), 1) == len(damaged)


@pytest.mark.parametrize("inner_id", [7, 100, 102])
def test_a_cut_put_may_hold_others_as_its_data(inner_id: int):
    first, second = replace(PUT, item_id=inner_id), replace(PUT, item_id=inner_id + 100)
    inner = WRITER.encode(first) + WRITER.encode(second)
    outer = WRITER.encode(replace(PUT, data=inner + b"and more"))
    assert WRITER.is_torn(outer[:-1], 0)
    assert WRITER.is_torn(outer[:-8], 0)


@pytest.mark.parametrize("size", [-1, MAX_DATA_BYTES + 1])
def test_a_zero_byte_before_an_impossible_size_is_no_torn_put(size: int):
    assert not WRITER.is_torn(entry(0, size, 1) + bytes(100), 0)


@pytest.mark.parametrize(
    ("behind", "found"),
    [
        (b"", True),
        (b"\0", True),
        (WRITER.encode(EXPIRING), True),
        (WRITER.encode(EXPIRING)[:20], True),
        (WRITER.encode(replace(EXPIRING, data=bytes(100)))[:50], True),
        (WRITER.encode(replace(EXPIRING, item_id=99)), False),
        (WRITER.encode(replace(EXPIRING, item_id=100)), False),
        (b"\x77", False),
        (WRITER.encode(replace(EXPIRING, error_count=1 << 16)), False),
        (entry(0x86, MAX_DATA_BYTES + 1, 0, 200, 0, 0, 0), False),
    ],
    ids=[
        "end",
        "zero",
        "put",
        "header cut short",
        "data cut short",
        "lower id",
        "same id",
        "junk",
        "implausible put",
        "too large",
    ],
)
def test_one_put_is_believed_for_what_stands_behind_it(behind: bytes, found: bool):
    data = b"\xee" * 40 + WRITER.encode(PUT) + behind
    assert (WRITER.resync(data, 0) == 40) == found


@pytest.mark.parametrize(
    "record",
    [
        replace(PUT, item_id=0),
        replace(PUT, item_id=-1),
        replace(PUT, item_id=2**48),
        replace(PUT, add_time_ms=-1),
        replace(PUT, expire_time_ms=2**48),
        replace(PUT, error_count=-1),
    ],
    ids=repr,
)
def test_a_put_with_unlikely_fields_is_read_but_not_guessed(record: ItemPut):
    data = WRITER.encode(record)
    found = WRITER.decode(data, 0)
    assert found is not None
    assert found.record == record
    assert WRITER.resync(data, 0) is None


def test_a_checkpoint_is_never_guessed():
    data = READER.encode(ReadHead(5)) + READER.encode(ReadDone((7,)))
    assert READER.resync(data, 0) is None
    assert READER.resync(WRITER.encode(PUT), 0) is None


def test_the_examples_in_the_documentation_are_right():
    page = Path(__file__).parents[2] / "docs" / "formats" / "kestrel.md"
    example = page.read_text().split("\n## Example\n")[1].split("\n## ")[0]
    lines = re.findall(r"^ {4}((?:[0-9a-f]{2,} ?)+)  ", example, re.MULTILINE)
    data = bytes.fromhex(" ".join(lines))
    writer_file, reader_file = data[: data.index(READER_MAGIC)], data[data.index(READER_MAGIC) :]
    soon = ItemPut(101, 1_321_401_903_634, 1_321_401_933_634, 0, b"soon")
    expected: list[tuple[Codec[Record], bytes, list[Record]]] = [
        (WRITER, writer_file, [PUT, soon]),
        (READER, reader_file, [ReadHead(1), ReadDone((3, 4))]),
    ]
    for codec, file, records in expected:
        entries, ending = scan(codec, file)
        assert [entry.record for entry in entries] == records
        assert ending.stop is Stop.EOF
        assert codec.header + b"".join(map(codec.encode, records)) == file

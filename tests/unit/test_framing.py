"""Reading any log, whole or in pieces, shown with the ztick codec."""

from __future__ import annotations

from typing import TypeVar

import pytest

from journeyman.errors import (
    BadHeader,
    EntryTooLarge,
    IncompleteEntry,
    InvalidData,
    UnknownEntryType,
)
from journeyman.formats.framing import (
    Buffer,
    Codec,
    Ending,
    Entry,
    Stop,
    iter_entries,
    scan,
)
from journeyman.formats.ztick import CODEC, JobRemoved, JobSet, Record, RuleRemoved, Status

R = TypeVar("R")

RECORDS: list[Record] = [
    JobSet("first", 1, Status.PLANNED),
    JobRemoved("second"),
    RuleRemoved("third"),
]
LOG = b"".join(map(CODEC.encode, RECORDS))
SIZES = [len(CODEC.encode(r)) for r in RECORDS]
UNKNOWN = bytes.fromhex("00000001 09")


# -- entries -------------------------------------------------------------------------------------


def test_entry_knows_where_it_ends():
    assert Entry(10, 5, "x").end == 15


def test_entries_follow_one_another_without_gaps():
    entries = list(iter_entries(CODEC, LOG))
    assert [e.record for e in entries] == RECORDS
    assert [e.length for e in entries] == SIZES
    assert [e.offset for e in entries] == [0, *[e.end for e in entries[:-1]]]


def test_iteration_begins_at_the_offset_asked_for_and_raises_at_the_fault():
    found: list[Entry[Record]] = []
    with pytest.raises(UnknownEntryType) as caught:
        found.extend(iter_entries(CODEC, LOG + UNKNOWN, SIZES[0]))
    assert caught.value.offset == len(LOG)
    found.clear()
    found.extend(iter_entries(CODEC, LOG, SIZES[0]))
    assert [e.record for e in found] == RECORDS[1:]


# -- scan ----------------------------------------------------------------------------------------


def test_whole_file_ends_at_eof_and_clean():
    entries, ending = scan(CODEC, LOG)
    assert [e.record for e in entries] == RECORDS
    assert ending == Ending(Stop.EOF, len(LOG))
    assert ending.clean


def test_empty_file_is_clean():
    assert scan(CODEC, b"") == ([], Ending(Stop.EOF, 0))


def test_truncated_tail_is_torn_and_not_corrupt():
    entries, ending = scan(CODEC, LOG[:-1])
    assert [e.record for e in entries] == RECORDS[:-1]
    assert (ending.stop, ending.offset) == (Stop.TORN, len(LOG) - SIZES[-1])
    assert isinstance(ending.error, IncompleteEntry)
    assert not ending.clean


def test_scan_stops_at_the_first_fault_and_keeps_what_came_before():
    entries, ending = scan(CODEC, LOG + UNKNOWN + LOG)
    assert [e.record for e in entries] == RECORDS
    assert (ending.stop, ending.offset) == (Stop.CORRUPT, len(LOG))
    assert isinstance(ending.error, UnknownEntryType)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(kind: type[Buffer]):
    assert scan(CODEC, kind(LOG)) == scan(CODEC, LOG)


def test_length_over_the_limit_is_a_fault_at_once_and_not_waited_for():
    assert isinstance(scan(CODEC, b"\xff\xff\xff\xff")[1].error, EntryTooLarge)


# -- formats with a header and a zero byte -------------------------------------------------------


class HeaderCodec:
    """ztick entries behind a header, ended by the byte EE."""

    name = "with-header"
    header = b"HEAD"
    has_checksum = False
    seals = None

    def check_header(self, data: Buffer) -> int:
        begun = bytes(data[: len(self.header)])
        if begun == self.header:
            return len(self.header)
        if self.header.startswith(begun):
            raise IncompleteEntry("a header cut short", 0, len(self.header))
        raise BadHeader("another header", 0)

    def decode(self, data: Buffer, offset: int) -> Entry[Record] | None:
        if offset < len(data) and data[offset] == 0xEE:
            return None
        return CODEC.decode(data, offset)

    def encode(self, record: Record) -> bytes:
        return CODEC.encode(record)

    def is_torn(self, data: Buffer, offset: int) -> bool:
        return CODEC.is_torn(data, offset)

    def skip(self, data: Buffer, offset: int) -> int | None:
        return CODEC.skip(data, offset)

    def resync(self, data: Buffer, offset: int, *, lone: bool = False) -> int | None:
        return CODEC.resync(data, offset, lone=lone)


WITH_HEADER: Codec[Record] = HeaderCodec()


@pytest.mark.parametrize(
    ("data", "count", "stop", "offset"),
    [
        (b"HEAD" + LOG, 3, Stop.EOF, 4 + len(LOG)),
        (b"HEAD", 0, Stop.EOF, 4),
        (b"HEAD" + LOG + b"\xee" + LOG, 3, Stop.ZERO_BYTE, 4 + len(LOG)),
        (b"HEAD" + LOG[:-2], 2, Stop.TORN, 4 + len(LOG) - SIZES[-1]),
        (b"HEAD" + LOG + UNKNOWN, 3, Stop.CORRUPT, 4 + len(LOG)),
        (b"", 0, Stop.BAD_HEADER, 0),
        (b"HE", 0, Stop.BAD_HEADER, 0),
        (b"FOOT" + LOG, 0, Stop.BAD_HEADER, 0),
    ],
)
def test_header_and_end_mark_are_no_entries(data: bytes, count: int, stop: Stop, offset: int):
    entries, ending = scan(WITH_HEADER, data)
    assert len(entries) == count
    assert (ending.stop, ending.offset) == (stop, offset)
    assert ending.clean == (stop in (Stop.EOF, Stop.ZERO_BYTE))


def test_moved_error_keeps_its_kind_and_what_it_needs():
    moved = IncompleteEntry("short", 3, needed=9).moved(10)
    assert (type(moved), moved.offset, moved.needed) == (IncompleteEntry, 13, 9)
    other = InvalidData("bad", 3).moved(10)
    assert (type(other), other.offset, str(other)) == (InvalidData, 13, "bad at offset 13")

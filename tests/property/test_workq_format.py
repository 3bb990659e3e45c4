"""Laws of the workq codec: what is written is read, whatever is cut off or damaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats import timed_frame
from journeyman.formats.framing import Ending, Entry, Stop, scan
from journeyman.formats.workq import CODEC, HEADER, Record
from tests.support.drawn_workq import (
    MAX_U64,
    RECORDS,
)

LOGS = st.lists(RECORDS, max_size=6)
MAX_UVARINT_BYTES = 10
SOME = st.lists(RECORDS, min_size=1, max_size=6)


def write(records: list[Record]) -> tuple[bytes, list[Entry[Record]]]:
    data = HEADER
    entries = []
    for record in records:
        encoded = CODEC.encode(record)
        entries.append(Entry(len(data), len(encoded), record))
        data += encoded
    return data, entries


def read_past_damage(data: bytes) -> list[Entry[Record]]:
    """Everything that can still be read, as a recovery would."""
    found = []
    offset: int | None = len(HEADER)
    while offset is not None:
        try:
            entry = CODEC.decode(data, offset)
        except FormatError:
            offset = CODEC.skip(data, offset) or CODEC.resync(data, offset + 1)
            continue
        if entry is None:
            break
        found.append(entry)
        offset = entry.end
    return found


@given(LOGS)
def test_what_is_written_is_read(records: list[Record]):
    data, entries = write(records)
    expected = (entries, Ending(Stop.EOF, len(data)))
    assert scan(CODEC, data) == expected
    assert scan(CODEC, bytearray(data)) == expected
    assert scan(CODEC, memoryview(data)) == expected


@given(LOGS, st.data())
def test_any_prefix_holds_exactly_its_whole_records(records: list[Record], draw: st.DataObject):
    data, entries = write(records)
    cut = draw.draw(st.integers(len(HEADER), len(data)))
    found, ending = scan(CODEC, data[:cut])
    assert found == [entry for entry in entries if entry.end <= cut]
    assert ending.offset == (found[-1].end if found else len(HEADER))
    assert ending.stop is (Stop.EOF if ending.offset == cut else Stop.TORN)


@given(RECORDS)
def test_every_proper_prefix_of_a_record_is_torn_and_asks_for_no_more_than_the_record(
    record: Record,
):
    encoded = CODEC.encode(record)
    for cut in range(1, len(encoded)):
        assert CODEC.is_torn(encoded[:cut], 0)
        with pytest.raises(IncompleteEntry) as caught:
            CODEC.decode(encoded[:cut], 0)
        assert cut < caught.value.needed <= len(encoded)
    assert not CODEC.is_torn(encoded, 0)
    assert not CODEC.is_torn(encoded, len(encoded))


@given(SOME, st.data())
def test_flipped_bits_never_yield_a_changed_record(records: list[Record], draw: st.DataObject):
    data, entries = write(records)
    damaged = bytearray(data)
    last_bit = 8 * len(data) - 1
    for bit in draw.draw(st.lists(st.integers(0, last_bit), min_size=1, max_size=3)):
        damaged[bit // 8] ^= 1 << bit % 8
    found, _ = scan(CODEC, damaged)
    assert found == entries[: len(found)]
    expected = [
        entry
        for entry in entries
        if damaged[entry.offset : entry.end] == data[entry.offset : entry.end]
    ]
    assert read_past_damage(bytes(damaged)) == expected


@given(SOME, st.data())
def test_resync_finds_exactly_the_next_whole_record(records: list[Record], draw: st.DataObject):
    data, entries = write(records)
    start = draw.draw(st.integers(len(HEADER), len(data) - 1))
    end = draw.draw(st.integers(start + 1, len(data)))
    # The stretch is replaced by one of any length: bytes changed, lost or put in between.
    junk = draw.draw(st.binary(max_size=200))
    damaged = data[:start] + junk + data[end:]
    moved = len(junk) - (end - start)
    expected = [entry.offset + moved for entry in entries if entry.offset >= end]
    search_from = draw.draw(st.integers(start, start + len(junk)))
    found = CODEC.resync(damaged, search_from)
    # The junk may by chance restore what it replaced; then a record before the end is right too.
    if found is not None and found < start + len(junk):
        assert CODEC.decode(damaged, found) in scan(CODEC, data)[0]
    else:
        assert found == (expected[0] if expected else None)


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused_but_never_crash(junk: bytes):
    found, ending = scan(CODEC, HEADER + junk)
    assert found == []
    assert ending.stop is not Stop.EOF or not junk


@given(st.integers(0, MAX_U64), st.integers(0, 9))
def test_numbers_are_read_back_however_they_are_padded(value: int, padding: int):
    shortest = timed_frame.write_varint(value)
    assert timed_frame.read_varint(b"\xff" + shortest, 1, 1 + len(shortest)) == (
        value,
        1 + len(shortest),
    )
    padded = shortest[:-1] + bytes([shortest[-1] | 0x80]) + b"\x80" * (padding - 1) + b"\0"
    if padding and len(padded) <= MAX_UVARINT_BYTES:
        assert timed_frame.read_varint(padded, 0, len(padded)) == (value, len(padded))
    for cut in range(len(shortest)):
        assert timed_frame.read_varint(shortest, 0, cut) == (0, timed_frame.CUT_SHORT)


@given(st.integers(-(2**31), 2**31 - 1))
def test_signs_are_folded_and_unfolded(value: int):
    assert timed_frame.unfold_sign(timed_frame.fold_sign(value)) == value
    assert timed_frame.fold_sign(value) == ((value << 1) ^ (value >> 63))

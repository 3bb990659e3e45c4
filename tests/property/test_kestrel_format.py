"""Laws of the kestrel codecs: what is written is read, whatever is cut off or damaged."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats.framing import Codec, Ending, Entry, Stop, scan
from journeyman.formats.kestrel import (
    MAX_DATA_BYTES,
    READER,
    WRITER,
    ItemPut,
    Record,
)
from tests.support.drawn_kestrel import RECORDS

CODECS = st.sampled_from([WRITER, READER])


FILES = st.lists(RECORDS, max_size=6)
SOME = st.lists(RECORDS, min_size=1, max_size=6)
# What a queue writes: ids that grow, times of this age, few errors.
TIMES_MS = st.integers(0, 2**42)
QUEUE = st.lists(
    st.builds(
        ItemPut,
        st.integers(1, 1000),
        TIMES_MS,
        st.none() | TIMES_MS,
        st.integers(0, 1000),
        st.binary(max_size=100),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda item: item.item_id,
).map(lambda items: sorted(items, key=lambda item: item.item_id))


def write(codec: Codec[Record], records: list[Record]) -> tuple[bytes, list[Entry[Record]]]:
    data = codec.header
    entries = []
    for record in records:
        encoded = codec.encode(record)
        entries.append(Entry(len(data), len(encoded), record))
        data += encoded
    return data, entries


@given(CODECS, FILES, st.integers(0, 100))
def test_what_is_written_is_read_up_to_the_zeros_behind_it(
    codec: Codec[Record], records: list[Record], zeros: int
):
    data, entries = write(codec, records)
    expected = (entries, Ending(Stop.ZERO_BYTE if zeros else Stop.EOF, len(data)))
    data += bytes(zeros)
    assert scan(codec, data) == expected
    assert scan(codec, bytearray(data)) == expected
    assert scan(codec, memoryview(data)) == expected


@given(CODECS, FILES, st.data())
def test_any_prefix_holds_exactly_its_whole_entries(
    codec: Codec[Record], records: list[Record], draw: st.DataObject
):
    data, entries = write(codec, records)
    cut = draw.draw(st.integers(len(codec.header), len(data)))
    found, ending = scan(codec, data[:cut])
    assert found == [entry for entry in entries if entry.end <= cut]
    assert ending.offset == (found[-1].end if found else len(codec.header))
    assert ending.stop is (Stop.EOF if ending.offset == cut else Stop.TORN)


@given(CODECS, RECORDS)
def test_every_proper_prefix_of_an_entry_is_torn_and_asks_for_no_more_than_the_entry(
    codec: Codec[Record], record: Record
):
    encoded = codec.encode(record)
    for cut in range(1, len(encoded)):
        assert codec.is_torn(encoded[:cut], 0)
        with pytest.raises(IncompleteEntry) as caught:
            codec.decode(encoded[:cut], 0)
        assert cut < caught.value.needed <= len(encoded)
    assert not codec.is_torn(encoded, 0)
    assert not codec.is_torn(encoded, len(encoded))


@given(CODECS, SOME, st.data())
def test_damage_changes_nothing_before_it_and_raises_nothing_but_format_errors(
    codec: Codec[Record], records: list[Record], draw: st.DataObject
):
    data, entries = write(codec, records)
    bit = draw.draw(st.integers(8 * len(codec.header), 8 * len(data) - 1))
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    found, ending = scan(codec, damaged)
    before = [entry for entry in entries if entry.end <= bit // 8]
    assert found[: len(before)] == before
    assert ending.error is None or isinstance(ending.error, FormatError)
    for entry in found:
        assert codec.encode(entry.record) == damaged[entry.offset : entry.end]


@given(CODECS, st.binary(max_size=100))
def test_whatever_is_read_is_written_back_as_it_was(codec: Codec[Record], junk: bytes):
    found, ending = scan(codec, codec.header + junk)
    written = codec.header + b"".join(codec.encode(entry.record) for entry in found)
    assert written == (codec.header + junk)[: ending.offset]


@given(QUEUE, st.binary(min_size=1, max_size=60), st.integers(0, 40), st.data())
def test_resync_finds_the_next_put_behind_a_damaged_stretch(
    records: list[Record], junk: bytes, zeros: int, draw: st.DataObject
):
    data, entries = write(WRITER, records)
    behind = draw.draw(st.integers(0, len(entries)))
    start = draw.draw(st.integers(len(WRITER.header), len(data)))
    at = entries[behind].offset if behind < len(entries) else len(data)
    damaged = data[: min(start, at)] + junk + data[at:] + bytes(zeros)
    first = min(start, at)
    expected = first + len(junk) if behind < len(entries) else None
    assert WRITER.resync(damaged, first) == expected
    assert READER.resync(damaged, first) is None


@given(QUEUE, st.data())
def test_resync_finds_the_last_whole_put_before_one_cut_short(
    records: list[Record], draw: st.DataObject
):
    data, entries = write(WRITER, records)
    last = entries[-1]
    cut = draw.draw(st.integers(last.offset + 1, last.end - 1))
    expected = entries[-2].offset if len(entries) > 1 else None
    search_from = expected if expected is not None else len(WRITER.header)
    assert WRITER.resync(data[:cut], search_from) == expected


@given(st.integers(MAX_DATA_BYTES + 1, 2**31 - 1) | st.integers(-(2**31), -1), st.data())
def test_no_size_outside_the_limits_is_ever_believed(size: int, draw: st.DataObject):
    command_byte = draw.draw(st.integers(0x81, 0xFF).filter(lambda byte: byte & 0x0F))
    entry = bytes([command_byte]) + struct.pack("<i", size) + bytes(200)
    with pytest.raises(FormatError) as caught:
        WRITER.decode(entry, 0)
    assert not isinstance(caught.value, IncompleteEntry)
    assert not WRITER.is_torn(entry, 0)

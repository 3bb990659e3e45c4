"""Laws of the keyspace file: what is written is read, in bulk too, whatever is cut or damaged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.columnar.keyspace import decode as columnar_keys
from journeyman.columnar.keyspace import file as columnar
from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats.framing import Ending, Entry, Stop, scan
from journeyman.formats.keyspace.file import CODEC, HEADER, KeyValue
from tests.support.columnar_twins import Twins, assert_twins
from tests.support.drawn_keyspace import RECORDS

# No deadline: the first call of a kernel compiles it.
plain = settings(deadline=None)
SOME = st.lists(RECORDS, min_size=1, max_size=6)


def write(records: list[KeyValue]) -> tuple[bytes, list[Entry[KeyValue]]]:
    data, entries = HEADER, []
    for record in records:
        encoded = CODEC.encode(record)
        entries.append(Entry(len(data), len(encoded), record))
        data += encoded
    return data, entries


def row(entry: Entry[KeyValue]) -> dict[str, Any]:
    key, value = entry.record.key, entry.record.value
    keys, values = pa.array([key], pa.binary()), pa.array([value], pa.binary())
    place = {"offset": entry.offset, "length": entry.length}
    content = {"raw_key": key, "value_size": len(value), "value": value}
    return place | content | columnar_keys.decode(keys, values).to_pylist()[0]


def _batches(data: Any, **options: Any) -> Any:
    return columnar.iter_batches(data, payloads=True, **options)


TWINS = Twins(CODEC, columnar.SCHEMA, _batches, columnar.hop, row)


def read_past_damage(data: bytes) -> list[Entry[KeyValue]]:
    found: list[Entry[KeyValue]] = []
    offset = len(HEADER)
    while True:
        try:
            entry = CODEC.decode(data, offset)
        except FormatError:
            behind = CODEC.skip(data, offset) or CODEC.resync(data, offset + 1)
            if behind is None:
                return found
            offset = behind
            continue
        if entry is None:
            return found
        found.append(entry)
        offset = entry.end


@given(st.lists(RECORDS, max_size=6))
def test_what_is_written_is_read(records):
    data, entries = write(records)
    assert scan(CODEC, data) == (entries, Ending(Stop.EOF, len(data)))
    assert scan(CODEC, memoryview(data)) == (entries, Ending(Stop.EOF, len(data)))


@given(SOME, st.data())
def test_any_prefix_holds_exactly_its_whole_entries(records, draw):
    data, entries = write(records)
    cut = draw.draw(st.integers(len(HEADER), len(data)))
    found, ending = scan(CODEC, data[:cut])
    assert found == [entry for entry in entries if entry.end <= cut]
    assert ending.stop is (Stop.EOF if ending.offset == cut else Stop.TORN)
    assert ending.stop is Stop.EOF or CODEC.is_torn(data[:cut], ending.offset)


@given(RECORDS)
def test_every_proper_prefix_of_an_entry_is_torn_and_asks_for_no_more_than_the_entry(record):
    encoded = CODEC.encode(record)
    for cut in range(1, len(encoded)):
        assert CODEC.is_torn(encoded[:cut], 0)
        with pytest.raises(IncompleteEntry) as caught:
            CODEC.decode(encoded[:cut], 0)
        assert cut < caught.value.needed <= len(encoded)
    assert not CODEC.is_torn(encoded, 0)
    assert not CODEC.is_torn(encoded, len(encoded))


@given(SOME, st.data())
def test_flipped_bits_never_yield_a_changed_entry_and_lose_no_other(records, draw):
    data, entries = write(records)
    damaged = bytearray(data)
    last_bit = 8 * len(data) - 1
    for bit in draw.draw(st.lists(st.integers(64, last_bit), min_size=1, max_size=3)):
        damaged[bit // 8] ^= 1 << bit % 8
    whole = [e for e in entries if damaged[e.offset : e.end] == data[e.offset : e.end]]
    assert read_past_damage(bytes(damaged)) == whole


@given(SOME, st.data())
def test_resync_finds_the_next_whole_entry_behind_any_junk(records, draw):
    data, entries = write(records)
    start = draw.draw(st.integers(len(HEADER), len(data) - 1))
    end = draw.draw(st.integers(start + 1, len(data)))
    junk = draw.draw(st.binary(max_size=100))
    damaged = data[:start] + junk + data[end:]
    moved = len(junk) - (end - start)
    expected = [entry.offset + moved for entry in entries if entry.offset >= end]
    found = CODEC.resync(damaged, start)
    # The junk may by chance restore what it replaced.
    if found is None or found >= start + len(junk):
        assert found == (expected[0] if expected else None)


@given(st.data())
@plain
def test_twins_agree_on_logs_whole_cut_and_damaged(data):
    log = bytearray(write(data.draw(st.lists(RECORDS, max_size=6)))[0])
    assert_twins(TWINS, log, max_records=data.draw(st.sampled_from([1, 2, 65_536])))
    assert_twins(TWINS, log[: data.draw(st.integers(0, len(log)))])
    log[data.draw(st.integers(0, len(log) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert_twins(TWINS, log, max_records=3)


@given(st.binary(max_size=200), st.booleans())
@plain
def test_twins_agree_on_garbage(junk, with_header):
    assert_twins(TWINS, (HEADER if with_header else b"") + junk)


@given(SOME)
@plain
def test_hop_lands_on_the_first_boundary_at_or_behind_its_target(records):
    data, entries = write(records)
    bounds = [entry.offset for entry in entries] + [len(data)]
    for target in range(len(HEADER), len(data) + 1):
        assert columnar.hop(data, len(HEADER), target) == min(b for b in bounds if b >= target)


@given(SOME)
@plain
def test_values_are_left_out_unless_asked_for_but_counts_are_not(records):
    data, _ = write(records)
    with_values = columnar.decode(data, payloads=True).batch
    without = columnar.decode(data).batch
    assert without.column("value").null_count == len(records)
    assert without.drop_columns("value").equals(with_values.drop_columns("value"))

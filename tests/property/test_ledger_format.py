"""Laws of the ledger's codec: what is written is read, whatever is cut off or damaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.errors import EncodeError, FormatError
from journeyman.formats.framing import Stop, scan
from journeyman.formats.ledger import (
    CODEC,
    HEADER,
    NewerRecord,
    QueuePaused,
    Record,
    TimetableSet,
    UnparsingLedger,
    encode_payload,
)
from journeyman.formats.timed_frame import Instant, cached_moment_bytes, write_frame
from journeyman.logs.damage import Damage, read_past_damage
from tests.support.drawn_ledger import LEDGERS, RECORDS

NOW = Instant(1_700_000_000_000_000_000)


def framed(payload: bytes) -> bytes:
    return write_frame(cached_moment_bytes(NOW.unix_ns, NOW.offset_min), payload)


def write(records: list[Record]) -> bytes:
    return HEADER + b"".join(CODEC.encode(record) for record in records)


@given(LEDGERS)
def test_what_is_written_is_read(records: list[Record]):
    data = write(records)
    entries, ending = scan(CODEC, data)
    assert [entry.record for entry in entries] == records
    assert (ending.stop, ending.offset) == (Stop.EOF, len(data))
    assert write([entry.record for entry in entries]) == data


@given(LEDGERS, st.data())
def test_a_prefix_has_exactly_its_whole_records(records: list[Record], data: st.DataObject):
    whole = write(records)
    cut = data.draw(st.integers(len(HEADER), len(whole)))
    entries, ending = scan(CODEC, whole[:cut])
    assert [entry.record for entry in entries] == records[: len(entries)]
    if ending.stop is Stop.TORN:
        assert CODEC.is_torn(whole[:cut], ending.offset)
    else:
        assert ending.offset == cut


@given(st.lists(RECORDS, min_size=2, max_size=5), st.data())
def test_one_damaged_byte_costs_one_record(records: list[Record], data: st.DataObject):
    whole = bytearray(write(records))
    at = data.draw(st.integers(len(HEADER), len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    found = list(read_past_damage(CODEC, bytes(whole)))
    kept = [item.record for item in found if not isinstance(item, Damage)]
    assert any(isinstance(item, Damage) for item in found)
    assert any(kept == records[:place] + records[place + 1 :] for place in range(len(records)))


@given(st.binary(max_size=60))
def test_a_proven_payload_is_a_record_or_damage_and_never_anything_else(payload: bytes):
    try:
        entry = CODEC.decode(framed(payload), 0)
    except FormatError:
        return
    assert entry is not None
    assert CODEC.encode(entry.record) == framed(payload) or not isinstance(
        entry.record, NewerRecord
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"7",
        b"{",
        b"\xff",
        b"{}",
        b'{"v":1}',
        b'{"kind":"queue-paused"}',
        b'{"v":true,"kind":"queue-paused","queue":"a"}',
        b'{"v":"1","kind":"queue-paused","queue":"a"}',
        b'{"v":1,"kind":7}',
        b'{"v":NaN,"kind":"x"}',
        b'{"v":1,"kind":"x","y":Infinity}',
        b'{"v":1,"kind":"x","y":-1e999}',
        b'{"v":1,"kind":"timetable-set","timetable":"a","body":{"n":01}}',
        b'{"v":1,"kind":"timetable-set","timetable":"a","body":{"n":1e999}}',
        b'{"v":1,"kind":"x","y":' + b"[" * 200_000,
        b'{"v":1,"kind":"x","y":' + b"9" * 10_000 + b"}",
        '{"v":1,"kind":"queue-paused","queue":"a"}'.encode("utf-16"),
    ],
)
def test_a_payload_that_is_not_an_object_with_version_and_kind_is_damage(payload: bytes):
    for codec in (CODEC, UnparsingLedger(("timetable-set",))):
        with pytest.raises(FormatError):
            codec.decode(framed(payload), 0)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"v":2,"kind":"queue-paused","queue":"a"}',
        b'{"v":0,"kind":"queue-paused","queue":"a"}',
        b'{"v":1,"kind":"moon-phase"}',
        b'{"v":1,"kind":"queue-paused"}',
        b'{"v":1,"kind":"queue-paused","queue":7}',
        b'{"v":1,"kind":"queue-paused","queue":"a","until":9}',
        b'{"v":1,"kind":"timetable-set","timetable":"a","body":[]}',
        b'{"v":1,"kind":"times-marked","head_bytes":1,"head_crc":2,"marks":[[1]]}',
        b'{"v":1,"kind":"times-marked","head_bytes":true,"head_crc":2,"marks":[]}',
    ],
)
def test_what_is_not_known_here_is_kept_byte_for_byte(payload: bytes):
    entry = CODEC.decode(framed(payload), 0)
    assert entry is not None
    assert isinstance(entry.record, NewerRecord)
    assert CODEC.encode(entry.record) == framed(payload)


def test_members_may_stand_in_any_order():
    entry = CODEC.decode(framed(b'{ "queue" : "\\u0061", "kind":"queue-paused", "v":1 }'), 0)
    assert entry is not None
    assert entry.record == QueuePaused(NOW, "a")


def test_the_payload_is_compact_json_with_version_and_kind_first():
    record = TimetableSet(NOW, "nächtlich", {"cron": "0 2 * * *"})
    assert encode_payload(record) == (
        b'{"v":1,"kind":"timetable-set","timetable":"n\\u00e4chtlich","body":{"cron":"0 2 * * *"}}'
    )


@pytest.mark.parametrize(
    "body", [{"x": float("nan")}, {"x": float("inf")}, {1: 2}, {"x": b"y"}, {"x": (1,)}, [1]]
)
def test_what_would_not_come_back_the_same_is_refused(body: object):
    with pytest.raises(EncodeError):
        CODEC.encode(TimetableSet(NOW, "a", body))  # type: ignore[arg-type]


def test_a_record_over_the_limit_is_refused():
    with pytest.raises(EncodeError, match="limit"):
        CODEC.encode(QueuePaused(NOW, "q" * 1_100_000))

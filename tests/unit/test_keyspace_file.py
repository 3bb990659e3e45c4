"""The keyspace file at its edges: limits, refusals, and damage that is meant to mislead."""

from __future__ import annotations

import pytest

from journeyman.errors import (
    BadHeader,
    ChecksumMismatch,
    EncodeError,
    EntryTooLarge,
    IncompleteEntry,
    InvalidData,
)
from journeyman.formats.framing import Stop, scan
from journeyman.formats.keyspace.file import CODEC, HEADER, KeyValue, follows
from journeyman.formats.keyspace.keys import MAX_KEY_BYTES
from journeyman.formats.keyspace.values import MAX_VALUE_BYTES

FIRST = CODEC.encode(KeyValue(b"v1:q:a", b"{}"))
SECOND = CODEC.encode(KeyValue(b"v1:q:b", b"1234567890"))


def test_the_bytes_are_as_the_page_says():
    assert HEADER.hex() == "4a4d4b5600000001"
    assert FIRST.hex() == "0000000600000002" + "76313a713a61" + "7b7d" + "adbdbfc9"


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"JMKW\0\0\0\1", BadHeader, "not a keyspace file"),
        (b"JMKV\0\0\0\2", BadHeader, "of version 2, not 1"),
        (b"JMKV\0", IncompleteEntry, "cut short"),
        (b"", IncompleteEntry, "cut short"),
    ],
)
def test_a_file_begins_with_the_header(data, error, words):
    with pytest.raises(error, match=words):
        CODEC.check_header(data)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (b"", b"", "a key of 0 bytes"),
        (b"k" * (MAX_KEY_BYTES + 1), b"", f"over|{MAX_KEY_BYTES}"),
        (b"k", bytes(MAX_VALUE_BYTES + 1), f"over {MAX_VALUE_BYTES}"),
    ],
)
def test_what_is_over_a_limit_is_not_written(key, value, words):
    with pytest.raises(EncodeError, match=words):
        CODEC.encode(KeyValue(key, value))


def test_the_largest_entry_is_written_and_read():
    record = KeyValue(b"k" * MAX_KEY_BYTES, bytes(MAX_VALUE_BYTES))
    encoded = CODEC.encode(record)
    entry = CODEC.decode(encoded, 0)
    assert entry is not None
    assert entry.record == record


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (bytes(16), InvalidData),
        ((MAX_KEY_BYTES + 1).to_bytes(4) + bytes(12), EntryTooLarge),
        ((1).to_bytes(4) + (MAX_VALUE_BYTES + 1).to_bytes(4) + bytes(8), EntryTooLarge),
        (FIRST[:-1] + b"?", ChecksumMismatch),
    ],
)
def test_damage_has_a_name(entry, error):
    entries, ending = scan(CODEC, HEADER + entry)
    assert entries == []
    assert ending.stop is Stop.CORRUPT
    assert type(ending.error) is error


def test_a_length_that_now_reaches_past_the_end_over_good_entries_is_no_torn_tail():
    damaged = FIRST[:6] + b"\x10" + FIRST[7:]
    assert CODEC.is_torn(damaged + FIRST[:10], 0)
    assert not CODEC.is_torn(damaged + SECOND, 0)
    assert not CODEC.is_torn(damaged + SECOND + FIRST[:10], 0)
    assert CODEC.resync(damaged + SECOND, 1) == len(damaged)


def test_a_value_that_quotes_entries_is_torn_where_it_is_cut():
    quoting = CODEC.encode(KeyValue(b"v1:q:c", b"<" + FIRST + SECOND + b">" * 40))
    for cut in range(1, len(quoting)):
        at_the_end_of_a_quote = quoting[:cut].endswith((FIRST, SECOND))
        in_a_quote = cut < 15 + len(FIRST + SECOND)
        if not (at_the_end_of_a_quote or in_a_quote):
            assert CODEC.is_torn(quoting[:cut], 0), cut


def test_an_entry_quoted_in_a_damaged_value_does_not_come_to_life():
    quoting = bytearray(CODEC.encode(KeyValue(b"v1:q:c", b"<" + FIRST + b">")))
    quoting[8] ^= 1
    assert CODEC.skip(bytes(quoting) + SECOND, 0) == len(quoting)
    assert CODEC.skip(bytes(quoting), 0) == len(quoting)


def test_a_length_that_ends_where_a_later_entry_ends_is_not_trusted():
    damaged = bytearray(FIRST + SECOND)
    damaged[7] += len(SECOND)
    assert CODEC.skip(bytes(damaged), 0) is None
    assert CODEC.resync(bytes(damaged), 1) == len(FIRST)


def test_zeros_at_the_end_are_a_torn_tail():
    assert CODEC.is_torn(bytes(30), 0)
    assert not CODEC.is_torn(bytes(30) + b"\1", 0)


def test_keys_ascend():
    assert follows(b"a", None)
    assert follows(b"b", b"a")
    assert not follows(b"a", b"a")
    assert not follows(b"a", b"b")

"""The laws of the ztick codec, for any record, any cut, any damage."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from journeyman.errors import (
    EncodeError,
    EntryTooLarge,
    FormatError,
    IncompleteEntry,
    InvalidData,
    StringOverflow,
    UnknownEntryType,
)
from journeyman.formats.framing import Entry, Stop, iter_entries, scan
from journeyman.formats.ztick import (
    CODEC,
    MAX_ENTRY_BYTES,
    MAX_LIST_ITEMS,
    MAX_STRING_BYTES,
    Amqp,
    Awf,
    Direct,
    JobRemoved,
    JobSet,
    Record,
    Redis,
    RuleRemoved,
    RuleSet,
    Shell,
    Status,
    layout,
)
from tests.support.drawn_ztick import records

law = settings(deadline=None)  # a busy machine breaks no law

logs = st.lists(records, max_size=6)


def encoded(items: list[Record]) -> bytes:
    return b"".join(map(CODEC.encode, items))


def decoded(data: bytes) -> list[Record]:
    return [e.record for e in scan(CODEC, data)[0]]


# -- codec and prefix ----------------------------------------------------------------------------


@law
@given(records)
def test_decode_gives_back_what_was_encoded(record: Record):
    data = CODEC.encode(record)
    for buffer in (data, bytearray(data), memoryview(data)):
        assert CODEC.decode(buffer, 0) == Entry(0, len(data), record)


@law
@given(logs)
def test_every_prefix_of_a_log_holds_exactly_its_whole_records(items: list[Record]):
    data = encoded(items)
    ends = [e.end for e in scan(CODEC, data)[0]]
    for size in range(len(data) + 1):
        entries, ending = scan(CODEC, data[:size])
        whole = sum(end <= size for end in ends)
        assert [e.record for e in entries] == items[:whole]
        at_boundary = size == ([0, *ends][whole])
        assert ending.stop is (Stop.EOF if at_boundary else Stop.TORN)
        assert ending.offset == [0, *ends][whole]


@law
@given(records, st.binary(max_size=20))
def test_every_proper_prefix_of_an_entry_is_torn_and_the_entry_is_not(
    record: Record, before: bytes
):
    data = before + CODEC.encode(record)
    start = len(before)
    for size in range(start + 1, len(data)):
        assert CODEC.is_torn(data[:size], start)
        with pytest.raises(IncompleteEntry) as caught:
            CODEC.decode(data[:size], start)
        assert caught.value.offset == start
        assert size - start < caught.value.needed <= len(data) - start
    assert not CODEC.is_torn(data, start)
    assert not CODEC.is_torn(data, len(data))


# -- damage --------------------------------------------------------------------------------------


@law
@given(logs.filter(bool), st.data())
def test_damage_raises_only_format_errors_and_what_decodes_is_exact(
    items: list[Record], data: st.DataObject
):
    raw = bytearray(encoded(items))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    faults: list[tuple[int, int]] = []
    for offset in range(len(raw)):
        CODEC.is_torn(raw, offset)
        skipped, resynced = CODEC.skip(raw, offset), CODEC.resync(raw, offset)
        assert skipped is None or offset < skipped <= len(raw)
        assert resynced is None or CODEC.decode(raw, resynced) is not None
        try:
            entry = CODEC.decode(raw, offset)
        except FormatError as error:
            faults.append((error.offset, offset))
        else:
            assert entry is not None
            assert CODEC.encode(entry.record) == raw[offset : entry.end]
    assert all(named == begun for named, begun in faults)


@law
@given(st.binary(max_size=60))
@example(bytes(4))
@example(bytes.fromhex("00000001 04"))
def test_any_bytes_decode_or_raise_a_format_error(data: bytes):
    entries, ending = scan(CODEC, data)
    assert encoded([e.record for e in entries]) == data[: ending.offset]


@law
@given(records, records, records, st.integers(4, 255))
def test_frame_with_bad_content_is_stepped_over(
    before: Record, bad: Record, after: Record, kind: int
):
    damaged = bytearray(CODEC.encode(bad))
    damaged[4] = kind
    head = CODEC.encode(before)
    data = head + bytes(damaged) + CODEC.encode(after)
    with pytest.raises(UnknownEntryType):
        CODEC.decode(data, len(head))
    assert CODEC.skip(data, len(head)) == len(head) + len(damaged)


@law
@given(st.binary(max_size=40).map(lambda b: b.replace(b"\0", b"?").replace(b"\1", b"!")), logs)
def test_resync_finds_the_first_record_behind_text(junk: bytes, items: list[Record]):
    data = junk + encoded(items)
    assert CODEC.resync(data, 0) == (len(junk) if items else None)


@law
@given(logs.filter(lambda items: len(items) > 1), st.data())
def test_resync_believes_an_entry_before_a_torn_tail_but_not_before_garbage(
    items: list[Record], data: st.DataObject
):
    first, last = CODEC.encode(items[0]), CODEC.encode(items[1])
    cut = data.draw(st.integers(1, len(last) - 1))
    assert CODEC.resync(first + last[:cut], 0) == 0
    assert CODEC.resync(first + b"\xff" * cut, 0) != 0


@law
@given(records, st.binary(max_size=30), st.integers(1, 2000))
def test_whole_entry_whose_length_was_blown_up_is_not_taken_for_a_torn_tail(
    record: Record, after: bytes, more: int
):
    entry = CODEC.encode(record)
    length = len(entry) - 4 + len(after) + more
    data = length.to_bytes(4, "big") + entry[4:] + after
    with pytest.raises(IncompleteEntry):
        CODEC.decode(data, 0)
    assert not CODEC.is_torn(data, 0)


def test_zeros_are_a_torn_tail_of_any_length():
    for count in (1, 3, 4, 100, 200_000):
        assert CODEC.is_torn(b"x" + bytes(count), 1)
        assert not CODEC.is_torn(bytes(count) + b"x" * 300, 0)


ALPHABET = (0x00, 0x01, 0x02, 0x61, 0xC3, 0xA9)


@pytest.mark.parametrize(
    ("length", "start"),
    [(3, b""), (4, b""), (5, b""), (8, b"\1\0"), (8, b"\1\0\0"), (9, b"\1\0\0\0"),
     (11, b"\1\0\0\0\0\2"), (12, b"\1\0\0\0\0\3\0"), (12, b"\0\0"), (6, b"\2\0\3"),
     (10, b"\1\0\0\0\0\4\0")],
)  # fmt: skip
def test_torn_means_that_some_entry_goes_on_like_this(length: int, start: bytes):
    """By trying every continuation: exact both ways, over an alphabet with half characters."""
    free = min(length - len(start), 6)
    fill = bytes(length - len(start) - free)  # zeros are a valid end for every case chosen here
    possible: set[bytes] = set()
    tried: set[bytes] = set()
    for letters in product(ALPHABET, repeat=free):
        payload = start + bytes(letters) + fill
        prefixes = {payload[:n] for n in range(len(start) + 1, len(start) + free)}
        tried |= prefixes
        try:
            CODEC.decode(length.to_bytes(4, "big") + payload, 0)
        except FormatError:
            continue
        possible |= prefixes
    assert possible
    for payload in tried:
        torn = CODEC.is_torn(length.to_bytes(4, "big") + payload, 0)
        assert torn == (payload in possible), payload.hex()


@pytest.mark.parametrize(
    ("hex_bytes", "torn"),
    [
        ("00000002", False),  # no entry is that short
        ("00000003", True),
        ("00000006 02 0003 f09f", False),  # a character of four bytes in a string of three
        ("00000007 02 0004 f09f", True),
        ("0000010b 00 00", True),  # a job with an id of 255 bytes
        ("0000010c 00 00", False),  # 256, so the first byte of its length would be 01
        ("00000109 01 0000 0000 02 0000 01", False),  # 256 arguments need 512 bytes
        ("0000020a 01 0000 0000 02 0000 01", True),
        ("00000209 01 0000 0000 02 0000 01", False),
    ],
)
def test_lengths_known_in_part_still_rule_entries_out(hex_bytes: str, torn: bool):
    assert CODEC.is_torn(bytes.fromhex(hex_bytes), 0) is torn


def test_resync_believes_an_entry_before_zeros_that_reach_the_end():
    entry = CODEC.encode(JobRemoved("a"))
    assert CODEC.resync(b"?" + entry + bytes(50), 0) == 1
    assert CODEC.resync(b"?" + entry + bytes(50) + b"?", 0) is None


def test_resync_passes_a_rule_that_ends_before_its_runner():
    assert CODEC.resync(bytes.fromhex("00000008 01 0000 0003 616161"), 0) is None


def test_frame_over_the_limit_is_not_stepped_over():
    for length, end in ((MAX_ENTRY_BYTES, MAX_ENTRY_BYTES + 4), (MAX_ENTRY_BYTES + 1, None)):
        assert CODEC.skip(length.to_bytes(4, "big") + bytes(length), 0) == end


# -- limits and refusals -------------------------------------------------------------------------

LONGEST = "x" * MAX_STRING_BYTES
LARGEST_ENTRY_ARGS = (LONGEST,) * 255 + ("x" * 65_269,)
TOO_LONG = "é" * (MAX_STRING_BYTES // 2 + 1)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (JobSet(TOO_LONG, 0, Status.PLANNED), "identifier"),
        (JobRemoved(TOO_LONG), "identifier"),
        (RuleSet("a", TOO_LONG, Shell("")), "pattern"),
        (RuleSet("a", "b", Shell(TOO_LONG)), "command"),
        (RuleSet("a", "b", Amqp("", TOO_LONG, "")), "exchange"),
        (RuleSet("a", "b", Direct("", ("", TOO_LONG))), r"args\[1\]"),
        (RuleSet("a", "b", Awf("\ud800", ())), "workflow"),
        (RuleRemoved("\udfff"), "identifier"),
        (JobSet("a", 2**63, Status.PLANNED), "execution_ns"),
        (JobSet("a", -(2**63) - 1, Status.PLANNED), "execution_ns"),
        (JobSet("a", 0, 4), "status"),  # type: ignore[arg-type]
        (RuleSet("a", "b", Direct("", ("",) * (MAX_LIST_ITEMS + 1))), "args"),
        (RuleSet("a", "b", Awf("", ("",) * (MAX_LIST_ITEMS + 1))), "inputs"),
        (RuleSet("", "", Direct("", (*LARGEST_ENTRY_ARGS, ""))), "entry"),
        (RuleSet("a", "", Direct("", LARGEST_ENTRY_ARGS)), "entry"),
    ],
)
def test_what_decode_would_not_return_is_refused_by_name(record: Record, field: str):
    with pytest.raises(EncodeError, match=field):
        CODEC.encode(record)


@pytest.mark.parametrize(
    "record",
    [
        JobSet(LONGEST, 2**63 - 1, Status.FAILED),
        RuleSet(LONGEST, LONGEST, Redis(LONGEST, LONGEST, LONGEST)),
        RuleSet("", "", Direct("", ("",) * MAX_LIST_ITEMS)),
        RuleSet("", "", Direct("", LARGEST_ENTRY_ARGS)),
        JobRemoved(""),
    ],
)
def test_records_at_the_limits_are_written_and_read(record: Record):
    assert decoded(CODEC.encode(record)) == [record]


def test_length_at_the_limit_is_incomplete_and_one_more_is_too_large():
    with pytest.raises(IncompleteEntry) as caught:
        CODEC.decode(MAX_ENTRY_BYTES.to_bytes(4, "big") + b"\1", 0)
    assert caught.value.needed == MAX_ENTRY_BYTES + 4
    with pytest.raises(EntryTooLarge):
        CODEC.decode((MAX_ENTRY_BYTES + 1).to_bytes(4, "big") + b"\1", 0)
    assert CODEC.is_torn(b"\1\0\0", 0)
    assert not CODEC.is_torn(b"\1\0\1", 0)


@pytest.mark.parametrize(
    ("hex_bytes", "error"),
    [
        ("00000000", InvalidData),  # no content
        ("00000001 04", UnknownEntryType),
        ("00000001 00", StringOverflow),  # no room for the length of the id
        ("00000003 02 0001", StringOverflow),
        ("00000004 02 0000 00", InvalidData),  # one byte too many
        ("00000004 02 0001 ff", InvalidData),  # not UTF-8
        ("00000005 02 0002 c080", InvalidData),  # an overlong zero
        ("00000006 02 0003 eda080", InvalidData),  # half a surrogate pair
        ("0000000c 00 0000 0000000000000000 04", InvalidData),  # status
        ("0000000b 00 0000 0000000000000000", InvalidData),  # no status
        ("0000000d 00 0000 0000000000000000 00 00", InvalidData),
        ("00000005 01 0000 0000", InvalidData),  # no runner
        ("00000008 01 0000 0000 06 0000", InvalidData),  # runner
        ("00000008 01 0000 0000 01 0000", StringOverflow),  # amqp has three strings
        ("00000008 01 0000 0000 02 0000", InvalidData),  # no count
        ("0000000a 01 0000 0000 02 0000 ffff", StringOverflow),
        ("0000000c 01 0000 0000 03 0000 0001 0001", StringOverflow),
    ],
)
def test_each_fault_has_its_own_error(hex_bytes: str, error: type[FormatError]):
    data = b"\xee" * 3 + bytes.fromhex(hex_bytes)
    with pytest.raises(FormatError) as caught:
        list(iter_entries(CODEC, data, 3))
    assert type(caught.value) is error
    assert caught.value.offset == 3


def test_search_through_made_up_bytes_gives_up_before_it_gets_quadratic(
    monkeypatch: pytest.MonkeyPatch,
):
    """Heads of rules that share one long list of arguments, each of them wrong by one byte."""
    heads, head_size = 40, 12
    args = b"\xff\xff" + 65_535 * b"\0\0" + b"\xff"
    hostile = b""
    for i in range(heads):
        executable = i * head_size  # runs over all the heads behind this one
        length = head_size - 4 + executable + len(args)
        head = length.to_bytes(4, "big") + b"\1\0\0\0\0\2" + executable.to_bytes(2, "big")
        hostile = head + hostile
    data = hostile + args + encoded([JobRemoved("a"), JobRemoved("b")])
    assert CODEC.resync(data, 0) is None
    monkeypatch.setattr(layout, "SEARCH_ALLOWANCE", 10_000)
    assert CODEC.resync(data, 0) == len(hostile + args)

"""Keys of listings: they sort as jobs do, come back, and meet no other prefix."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.errors import EncodeError, InvalidData, UnknownEntryType
from journeyman.formats.keyspace import keys
from journeyman.formats.keyspace.keys import (
    ARCHIVE,
    LISTINGS,
    PLACE_BYTES,
    TIMERS,
    decode_key,
    listing_of,
    listing_prefix,
    listing_range,
    place_of,
    uuid_of_place,
)
from journeyman.formats.keyspace.text import MAX_TIME_NS, MIN_TIME_NS

QUEUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
STATUSES = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters=":"),
    min_size=1,
    max_size=12,
)
TIMES = st.integers(MIN_TIME_NS, MAX_TIME_NS)
UUIDS = st.uuids()


def test_a_key_is_these_bytes():
    uuid = UUID("3f2504e0-4f89-41d3-9a0c-0305e82c3301")
    key = listing_prefix("critical", "new") + place_of(1_771_841_700_123_456_789, uuid)
    assert key.hex(" ", 4) == (
        b"v1:q_status_fifo:\x00\x08critical:new:"
        + bytes.fromhex("8000019c89fec11b 0006f855 3f2504e04f8941d39a0c0305e82c3301")
    ).hex(" ", 4)


@given(QUEUES, STATUSES, TIMES, UUIDS)
def test_what_a_key_says_comes_back(queue: str, status: str, created_ns: int, uuid: UUID):
    key = listing_prefix(queue, status) + place_of(created_ns, uuid)
    assert listing_of(key) == (queue, status, created_ns, uuid)
    assert uuid_of_place(key) == uuid


@given(TIMES, UUIDS, TIMES, UUIDS)
def test_places_sort_by_time_to_the_nanosecond_then_id(
    a_ns: int, a_uuid: UUID, b_ns: int, b_uuid: UUID
):
    a, b = place_of(a_ns, a_uuid), place_of(b_ns, b_uuid)
    assert (a < b) == ((a_ns, a_uuid.bytes) < (b_ns, b_uuid.bytes))
    assert len(a) == PLACE_BYTES


@given(QUEUES, STATUSES, QUEUES, STATUSES, TIMES, UUIDS)
def test_a_listing_holds_its_own_keys_only(
    queue: str, status: str, other: str, its_status: str, created_ns: int, uuid: UUID
):
    start, end = listing_range(listing_prefix(queue, status))
    key = listing_prefix(other, its_status) + place_of(created_ns, uuid)
    assert (start <= key < end) == ((queue, status) == (other, its_status))


def test_names_that_begin_alike_are_kept_apart():
    """``a`` and ``b`` against ``a:b``: what a key without the length would mix up."""
    start, end = listing_range(listing_prefix("a", "b"))
    assert not start <= listing_prefix("a:b", "c") < end


def test_no_prefix_begins_with_another_one():
    public = [value for name, value in vars(keys).items() if not name.startswith("_")]
    known = [value for value in public if isinstance(value, bytes)]
    assert len(known) == 10
    for ours in (LISTINGS, TIMERS, ARCHIVE, b"v1:storage:"):
        for other in known:
            assert ours == other or not ours.startswith(other)
            assert ours == other or not other.startswith(ours)


@given(QUEUES, STATUSES, TIMES, UUIDS)
def test_who_does_not_know_these_keys_leaves_them_alone(
    queue: str, status: str, created_ns: int, uuid: UUID
):
    with pytest.raises(UnknownEntryType):
        decode_key(listing_prefix(queue, status) + place_of(created_ns, uuid))


@given(st.binary(max_size=80))
def test_other_bytes_are_no_listing_key(rest: bytes):
    try:
        queue, status, created_ns, uuid = listing_of(LISTINGS + rest)
        again = listing_prefix(queue, status) + place_of(created_ns, uuid)
    except (InvalidData, EncodeError):
        return
    assert len(again) == len(LISTINGS + rest)

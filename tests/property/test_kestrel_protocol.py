"""However the bytes arrive, the kestrel machine says the same and keeps little."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from journeyman.protocols.kestrel.commands import Put
from journeyman.protocols.kestrel.parser import LINE_LIMIT_BYTES, KestrelParser

LINES = st.sampled_from(
    [
        b"get jobs/t=5/open\r\n",
        b"get jobs\n",
        b"confirm jobs 2\r\n",
        b"monitor jobs+r 1 5\r\n",
        b"set q 0 0 5\r\nhello\r\n",
        b"set q 0 0 0\r\n\r\n",
        b"set a.b 0 0 3\r\nabc\r\n",
        b"stats\r\n",
        b"get jobs/peek/abort\r\n",
        b"append q 0 0 1\r\nx\r\n",
        b"set q 0 0 99999999999\r\n",
        b"quit\r\n",
        b"\r\n",
        b"\n",
        b"\r",
    ]
)
STREAMS = st.lists(LINES | st.binary(max_size=40), max_size=12).map(b"".join)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in cuts)})
    return [data[begin:end] for begin, end in pairwise(places)]


@given(STREAMS, st.lists(st.integers(min_value=0, max_value=10_000), max_size=20))
def test_events_do_not_depend_on_how_the_bytes_were_cut(data, cuts):
    whole, pieces = KestrelParser(), KestrelParser()
    expected = whole.feed(data)
    got = [event for piece in cut(data, cuts) for event in pieces.feed(piece)]
    assert got == expected
    assert pieces.closed == whole.closed
    assert pieces.kept_bytes == whole.kept_bytes


@given(st.lists(st.binary(max_size=200), max_size=10), st.binary(max_size=300))
def test_no_bytes_raise_and_no_item_is_taken_for_a_command(noise, item):
    parser = KestrelParser()
    parser.feed(b"set q 0 0 %d\r\n" % len(item))
    (put,) = parser.feed(item + b"\r\n")
    assert put == Put("q", 0, item)
    for piece in noise:
        parser.feed(piece)
        assert parser.closed or parser.kept_bytes < LINE_LIMIT_BYTES or parser._pending is not None

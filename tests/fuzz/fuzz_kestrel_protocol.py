"""Fuzz target: the kestrel protocol on bytes of hostile clients."""

from __future__ import annotations

import sys

from journeyman.formats.kestrel import MAX_DATA_BYTES
from journeyman.protocols import Foreign
from journeyman.protocols.kestrel.commands import (
    MAX_WAIT_MS,
    Event,
    GetItem,
    HangUp,
    Key,
    Monitor,
    Put,
    PutTooLarge,
    RefusedRequest,
)
from journeyman.protocols.kestrel.parser import (
    LINE_LIMIT_BYTES,
    KestrelParser,
    is_queue_name,
    is_reader_name,
)
from tests.fuzz.runner import run


def corpus() -> list[bytes]:
    lines = [
        b"set jobs 0 0 5\r\nhello\r\n",
        b"SET jobs 1 -60 0 noreply\n\r\n",
        b"set a:b-c_D 0 1321401903 17\r\nflush_all\r\nquit\r\n\r\n",
        b"set jobs 0 0 16777217\r\n" + b"x" * 40,
        b"set a.b 0 0 3\r\nabc\r\n",
        b"set jobs x y 3\r\nabc\r\n",
        b"get jobs\r\ngets jobs+reader.1/t=250/open\r\nget jobs/close/open\r\n",
        b"get jobs/abort\r\nget jobs/peek/t=-5\r\nget jobs/t=99999999999999999\r\n",
        b"monitor jobs 10\r\nmonitor jobs+a 1 1000000\r\nconfirm jobs 3\r\n",
        b"delete jobs\r\nflush jobs+a\r\nflush_expired jobs\r\nflush_all\r\nflush_all_expired\r\n",
        b"stats\r\ndump_stats a b\r\nversion\r\nstatus\r\nstatus up\r\nreload\r\nshutdown\r\n",
        b"cas jobs 0 0 4 7\r\nquit\r\n",
        b"get ../../x\r\nget \r\nget jobs/peek/open\r\n",
        b"set q 0 0\r\nshutdown\r\n",
        b"\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\n\r\nset q 0 0 1\r\nx\r\n",
    ]
    return [*lines, b"".join(lines[:3]), b"x" * (LINE_LIMIT_BYTES + 9), b"version\nquit\nversion\n"]


def check(data: bytes) -> None:
    """Nothing raises, the same events however it is cut, and nothing out of bounds comes out."""
    events, closed, kept = fed([data])
    third = len(data) // 3
    assert fed([data[:third], data[third : 2 * third], data[2 * third :]]) == (events, closed, kept)
    assert kept <= len(data)
    assert closed == (bool(events) and ends(events[-1]))
    assert not any(map(ends, events[:-1]))
    for event in events:
        check_event(event)


def fed(pieces: list[bytes]) -> tuple[list[Event], bool, int]:
    parser = KestrelParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events, parser.closed, parser.kept_bytes


def ends(event: Event) -> bool:
    return isinstance(event, HangUp | Foreign) or (
        isinstance(event, RefusedRequest) and event.hangup
    )


def check_event(event: Event) -> None:
    if isinstance(event, RefusedRequest):
        assert event.reason.isprintable()
    elif isinstance(event, Put):
        assert is_queue_name(event.queue)
        assert len(event.data) <= MAX_DATA_BYTES
    elif isinstance(event, PutTooLarge):
        assert event.size > MAX_DATA_BYTES
    elif isinstance(event, GetItem | Monitor):
        check_key(event.key)
        assert 0 <= event.wait_ms <= MAX_WAIT_MS


def check_key(key: Key) -> None:
    """It becomes the name of a file."""
    assert is_queue_name(key.queue)
    assert not key.reader or is_reader_name(key.reader)
    assert "/" not in str(key)


if __name__ == "__main__":
    run(check, corpus(), sys.argv[1:])

"""Fuzz target: the workq protocol on bytes of hostile clients."""

from __future__ import annotations

import sys

from journeyman.protocols import Foreign
from journeyman.protocols.workq.commands import (
    MAX_PAYLOAD_BYTES,
    Add,
    Complete,
    Event,
    Fail,
    HangUp,
    RefusedLine,
    RunJob,
    ScheduleJob,
)
from journeyman.protocols.workq.parser import WorkqParser
from journeyman.protocols.workq.replies import reply_bytes
from tests.fuzz.runner import run

TEXT = b"00000000-0000-4000-8000-00000000000%d"


def corpus() -> list[bytes]:
    one = TEXT % 1
    lines = [
        b"add %b mail 1000 60000 4 -priority=-5 -max-attempts=3 -max-fails=2\r\nping\r\n" % one,
        b"add {%b} mail 1 1 0 -retry-delay=86400000 -x=y=z\r\n\r\n" % one,
        b"schedule urn:uuid:%b m 1 1 2099-01-01T0:00:00,5Z 1\r\nx\r\n" % one,
        b"run %b m 1000 100 2 -priority=+7\r\n\r\n\r\n" % one,
        b"complete %b 10\r\ndelete x\r\n\r\n" % one,
        b"fail %b 1048577\r\ninspect server\r\n" % one,
        b"lease a b.c A-Z_0 86400000\r\n",
        b"result %b 0\r\ndelete %b\r\nrequeue %b\r\n" % (one, one, one),
        b"inspect server\r\ninspect queues 0 100\r\ninspect job %b\r\n" % one,
        b"inspect jobs m 0 1\r\ninspect dead-jobs m 4294967295 1\r\npause m\r\nresume m\r\n",
        b"add %b m 1 1 %b\r\n" % (one, b"9" * 30),
        b'worker w-1 0 12\r\n{"slots": 2}\r\nprogress %b 23\r\n{"done":1,"log":["hi"]}\r\n' % one,
        b"step %b a:b 2 3 -attempt=1\r\nx\r\n\r\ninspect steps %b -attempt=1\r\n" % (one, one),
        b'park %b 38 -attempt=1\r\n{"step":"w","event":"e","within_ms":5}\r\n' % one,
        b"emit a.b 3\r\n{}\n\r\ninspect event a.b\r\n",
        b"fork %b %b a:b 1\r\ninspect progress %b\r\ncancel %b\r\n" % (one, TEXT % 2, one, one),
        b"requeue-all q 5\r\nlimit q -fair=1 -weights=a:2,:\r\ninspect token\r\n",
    ]
    return [*lines, b"".join(lines), b"x" * 3000 + b"\r\n", b"inspect server\n"]


def check(data: bytes) -> None:
    """Nothing raises, the same events however it is cut, and nothing out of bounds comes out."""
    events, closed, kept = fed([data])
    third = len(data) // 3
    assert fed([data[:third], data[third : 2 * third], data[2 * third :]]) == (events, closed, kept)
    assert kept <= len(data)
    endings = [event for event in events if isinstance(event, HangUp | Foreign)]
    assert endings == (events[-1:] if closed else [])
    for event in events:
        check_event(event)


def fed(pieces: list[bytes]) -> tuple[list[Event], bool, int]:
    parser = WorkqParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events, parser.closed, parser.kept_bytes


def check_event(event: Event) -> None:
    if isinstance(event, RefusedLine):
        assert reply_bytes(event).endswith(b"\r\n")
    elif isinstance(event, Add | ScheduleJob | RunJob):
        assert len(event.job_id) == 16
        assert event.name.isascii()
        assert len(event.payload) <= MAX_PAYLOAD_BYTES
    elif isinstance(event, Complete | Fail):
        assert len(event.result) <= MAX_PAYLOAD_BYTES


if __name__ == "__main__":
    run(check, corpus(), sys.argv[1:])

"""The first command where tokens are asked for, in the protocols of the queues."""

from __future__ import annotations

import pytest

from journeyman.protocols import HTTP, Auth, AuthRequired
from journeyman.protocols.kestrel.commands import Version
from journeyman.protocols.kestrel.parser import KestrelParser
from journeyman.protocols.workq.commands import Complaint, HangUp, InspectServer, RefusedLine
from journeyman.protocols.workq.parser import WorkqParser

SIZES = [1, 3, 10_000]


def fed(parser: WorkqParser | KestrelParser, data: bytes, size: int) -> list[object]:
    return [
        event for at in range(0, len(data), size) for event in parser.feed(data[at : at + size])
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("required", [True, False])
def test_a_secret_may_be_the_first_line_of_the_work_queue(size, required):
    parser = WorkqParser(auth_required=required)
    data = b"auth a secret \r\ninspect server\r\nauth again\r\n"
    assert fed(parser, data, size) == [
        Auth(b"a secret "),
        InspectServer(),
        RefusedLine(Complaint.UNKNOWN_COMMAND),
    ]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("data", "event"),
    [
        (b"inspect server\r\n", AuthRequired()),
        (b"add 6ba7b810-9dad-41d1-80b4-00c04fd430c8 q 1 1 0\r\n\r\n", AuthRequired()),
        (b"\r\n", AuthRequired()),
        (b"AUTH x\r\n", AuthRequired()),
        (b"auth\r\n", AuthRequired()),
        (b"auth x\n", HangUp()),
        (b"auth " + b"x" * 5000, HangUp()),
        (b"POST / HTTP/1.1\r\n", HTTP),
        (b"GET /" + b"x" * 5000, HTTP),
    ],
)
def test_anything_else_first_ends_the_connection_to_the_work_queue(data, event, size):
    parser = WorkqParser(auth_required=True)
    assert fed(parser, data + b"auth x\r\ninspect server\r\n", size) == [event]
    assert parser.closed
    assert parser.kept_bytes == 0


@pytest.mark.parametrize("size", SIZES)
def test_without_tokens_the_first_line_of_the_work_queue_is_any_command(size):
    for first in (b"a", b"au", b"auth", b"inspect server"):
        events = fed(WorkqParser(), first + b"\r\ninspect server\r\n", size)
        assert events[-1] == InspectServer()
        assert len(events) == 2


@pytest.mark.parametrize("size", SIZES)
def test_a_secret_comes_to_the_fan_out_queues_as_an_item(size):
    parser = KestrelParser(auth_required=True)
    data = b"SET k 0 0 13\r\nuser a secret\r\n"
    assert fed(parser, data, size) == [Auth(b"a secret")]
    assert parser.feed(b"version\r\n") == [Version()]


def test_nothing_behind_the_secret_is_read_before_it_is_known_to_be_right():
    parser = KestrelParser(auth_required=True)
    assert parser.feed(b"set k 0 0 3\r\nu x\r\nversion\r\nvers") == [Auth(b"x")]
    assert parser.take_rest() == b"version\r\nvers"
    assert parser.take_rest() == b""
    assert parser.feed(b"version\r\nvers") == [Version()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("data", "event"),
    [
        (b"version\r\n", AuthRequired()),
        (b"get a\r\n", AuthRequired()),
        (b"set k 0 0\r\n", AuthRequired()),
        (b"set k 0 0 x\r\n", AuthRequired()),
        (b"set k 0 0 2049\r\n", AuthRequired()),
        (b"set " + b"k" * 5000, AuthRequired()),
        (b"set k 0 0 6\r\nsecret\r\n", Auth(b"")),
        (b"POST / HTTP/1.1\r\n", HTTP),
        (b"GET /" + b"x" * 5000, HTTP),
    ],
)
def test_anything_else_first_is_no_secret_for_the_fan_out_queues(data, event, size):
    parser = KestrelParser(auth_required=True)
    assert fed(parser, data, size) == [event]
    assert parser.kept_bytes == 0

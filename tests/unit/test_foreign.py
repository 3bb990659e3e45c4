"""HTTP and TLS on a line protocol: the first such line ends the connection, commands do not."""

from __future__ import annotations

from itertools import product

import pytest

from journeyman.protocols import HTTP, TLS, Auth, AuthRequired, foreign
from journeyman.protocols.kestrel.commands import DeleteQueue, GetItem, Key, RefusedRequest
from journeyman.protocols.kestrel.parser import KestrelParser
from journeyman.protocols.workq.commands import Complaint, HangUp, InspectServer, RefusedLine
from journeyman.protocols.workq.parser import WorkqParser
from journeyman.protocols.ztick import commands
from journeyman.protocols.ztick.commands import Set, Stat
from journeyman.protocols.ztick.parser import ZtickParser

METHODS = ["GET", "POST", "PUT", "OPTIONS", "HEAD", "DELETE", "PATCH", "CONNECT", "TRACE"]
HEADERS = [
    "Host: 127.0.0.1:5678",
    "Host:127.0.0.1",
    "host: x",
    "User-Agent: SET job 0",
    "Content-Type: text/plain",
    "Content-Length: 12",
    "Content-Disposition: form-data",
    "Origin: http://evil.example",
    "Referer: http://evil.example/",
    "Accept: */*",
    "Accept-Encoding: gzip",
    "Connection: keep-alive",
    "Upgrade: websocket",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    'sec-ch-ua: "Chromium";v="1"',
    "X-Requested-With: SET job 0",
    "Cookie: a=b",
    "Access-Control-Request-Method: PUT",
    "Transfer-Encoding: chunked",
]
REQUESTS = [
    *(f"{method} / HTTP/1.1" for method in METHODS),
    "POST /a?b=-c=d HTTP/1.0",
    "CONNECT 127.0.0.1:5678 HTTP/1.1",
    "OPTIONS * HTTP/1.1",
    "GET http://127.0.0.1:5678/ HTTP/1.1",
    "GET /index.html",
    "PRI * HTTP/2.0",
    "add / HTTP/1.1",
    "lease /x HTTP/1.1",
    "fail /x HTTP/1.1",
    "delete /x HTTP/1.1",
    "STAT / HTTP/1.1",
    "POST  /  HTTP/1.1",
    " POST / HTTP/1.1",
]
ENDS = [b"\r\n", b"\n"]
ATTACK = {
    "ztick": b"x RULE SET r p. shell id\nx SET p.1 0\n",
    "workq": b"add 6ba7b810-9dad-41d1-80b4-00c04fd430c8 q 1000 1000 0\r\n\r\n",
    "kestrel": b"set q 0 0 1\r\nx\r\n",
}


def parser_of(protocol: str) -> ZtickParser | WorkqParser | KestrelParser:
    if protocol == "ztick":
        return ZtickParser()
    return WorkqParser() if protocol == "workq" else KestrelParser()


@pytest.mark.parametrize("protocol", ATTACK)
def test_a_line_of_http_ends_the_connection_and_nothing_after_it_is_read(protocol):
    for line, end, size in product([*REQUESTS, *HEADERS], ENDS, [1, 7, 10_000]):
        parser = parser_of(protocol)
        data = line.encode() + end + ATTACK[protocol]
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        events = [event for piece in pieces for event in parser.feed(piece)]
        assert (events, parser.closed, parser.kept_bytes) == ([HTTP], True, 0), (line, end, size)


@pytest.mark.parametrize("protocol", ATTACK)
def test_http_is_seen_after_commands_too(protocol):
    before = {"ztick": b"r1 STAT\n\n\n", "workq": b"inspect server\r\n", "kestrel": b"get q\r\n"}
    parser = parser_of(protocol)
    events = parser.feed(before[protocol] + b"POST / HTTP/1.1\r\n" + ATTACK[protocol])
    assert len(events) == 2
    assert events[1] == HTTP


@pytest.mark.parametrize("protocol", ATTACK)
def test_a_request_line_that_never_ends_is_http(protocol):
    parser = parser_of(protocol)
    events = parser.feed(b"GET /" + b"a" * 1_100_000)
    assert events == [HTTP]
    assert parser.closed


def test_an_overlong_request_line_with_its_end_is_http():
    parser = ZtickParser()
    assert parser.feed(b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nx SET j 0\n") == [HTTP]


@pytest.mark.parametrize("protocol", ["ztick", "kestrel"])
def test_a_tls_handshake_ends_the_connection(protocol):
    """A session ticket is bytes of the other server's choice, line breaks included."""
    parser = parser_of(protocol)
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03ticket:\n"
    assert parser.feed(hello + ATTACK[protocol]) == [TLS]


@pytest.mark.parametrize("auth_required", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 2, 7])
def test_a_quote_in_a_tls_handshake_does_not_hide_it(auth_required, cut):
    """A third of all handshakes have a quote among their random bytes: no line would end."""
    parser = ZtickParser(auth_required=auth_required)
    hello = b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"random\n\x00\x16'
    assert parser.feed(hello[:cut]) + parser.feed(hello[cut:]) == [TLS]
    assert parser.closed
    assert parser.kept_bytes == 0


def test_a_quote_in_the_request_line_hides_nothing():
    parser = ZtickParser()
    data = b'POST /" HTTP/1.1\r\nHost: a\r\n\r\n" \nx SET p.1 0\n'
    assert parser.feed(data) == [HTTP]


def test_before_auth_http_is_told_from_a_missing_secret():
    assert ZtickParser(auth_required=True).feed(b"POST / HTTP/1.1\r\nAUTH x\n") == [HTTP]
    assert ZtickParser(auth_required=True).feed(b"Host:x\nAUTH x\n") == [HTTP]
    assert ZtickParser(auth_required=True).feed(b"r1 STAT\n") == [AuthRequired()]
    assert ZtickParser(auth_required=True).feed(b"AUTH HTTP/1.1\n") == [Auth(b"HTTP/1.1")]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"r1 GET HTTP/1.1", commands.Get(b"r1", "HTTP/1.1")),
        (b"GET GET /path", commands.Get(b"GET", "/path")),
        (b"host:1 STAT", Stat(b"host:1")),
        (b"POST SET Host: 5", Set(b"POST", "Host:", 5)),
        (b"r: STAT", Stat(b"r:")),
        (b"Hosts: STAT", Stat(b"Hosts:")),
    ],
)
def test_commands_of_the_schedule_are_not_taken_for_http(line, command):
    assert ZtickParser().feed(line + b"\n") == [command]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"get name", GetItem(Key("name"))),
        (b"GET name", GetItem(Key("name"))),
        (b"get HTTP", GetItem(Key("HTTP"))),
        (b"delete name", DeleteQueue(Key("name"))),
        (b"DELETE name", DeleteQueue(Key("name"))),
        (b"get host:80", GetItem(Key("host:80"))),
    ],
)
def test_commands_of_the_fan_out_queues_are_not_taken_for_http(line, command):
    assert KestrelParser().feed(line + b"\r\n") == [command]


def test_commands_and_payloads_of_the_work_queue_are_not_taken_for_http():
    parser = WorkqParser()
    body = b"POST / HTTP/1.1\r\nHost: a\r\n\r\n"
    line = b"add 6ba7b810-9dad-41d1-80b4-00c04fd430c8 q 1000 1000 %d\r\n" % len(body)
    (added,) = parser.feed(line + body + b"\r\n")
    assert added.payload == body  # type: ignore[union-attr]
    assert parser.feed(b"inspect server\r\nGET\r\n") == [
        InspectServer(),
        RefusedLine(Complaint.UNKNOWN_COMMAND),
    ]


def test_items_of_the_fan_out_queues_may_hold_http():
    body = b"POST / HTTP/1.1\r\nHost: a\r\n"
    (put,) = KestrelParser().feed(b"set q 0 0 %d\r\n%b\r\n" % (len(body), body))
    assert put.data == body  # type: ignore[union-attr]


def test_looking_at_a_long_line_takes_linear_time():
    assert foreign(b"!" * 1_000_000) is None
    assert foreign(b"x " + b"/" * 1_000_000) is None
    assert foreign(b"POST " + b"a" * 1_000_000) is None
    assert foreign(b" " * 1_000_000) is None


# -- clients of the other services of this server --

JOB = "0da7e4d4-7a7d-4d0a-9ff1-3a3a4b0a1c11"
OF_QUEUES = [
    f"add {JOB} mail 1000 60000 5",
    f"schedule {JOB} mail 1000 60000 2026-01-01T00:00:00Z 5",
    f"result {JOB} 0",
    "lease mail 60000",
    "lease mail pings 60000 -max=8 -worker=w",
    "inspect queues 0 10",
    "limit mail -rate=1/s",
    "auth secret",
    "set orders 0 0 5",
    "get orders/t=500/open",
]


@pytest.mark.parametrize("line", OF_QUEUES)
def test_the_schedule_answers_clients_of_the_queues(line):
    parser = ZtickParser()
    (refused,) = parser.feed(f"{line}\r\n".encode())
    assert isinstance(refused, commands.RefusedCommand)
    assert refused.message == "this is the port of the schedule"
    assert parser.feed(b"r1 STAT\n") == [Stat(b"r1")]


@pytest.mark.parametrize(
    "line",
    [
        "add",
        "add 5",
        "get",
        "set a b",
        "lease mail",
        "jobs add mail",
        f"x add {JOB}",
        "GET x",
        "r1 y",
    ],
)
def test_the_schedule_stays_silent_about_unknown_commands(line):
    assert ZtickParser().feed(f"{line}\n".encode()) == []


@pytest.mark.parametrize("line", ["r1 SET job 0", "r1 GET job", "r1 STAT", "AUTH secret"])
@pytest.mark.parametrize("auth_required", [False, True])
def test_the_work_queue_answers_clients_of_the_schedule(line, auth_required):
    parser = WorkqParser(auth_required=auth_required)
    refused, hangup = parser.feed(f"{line}\n".encode())
    assert refused == RefusedLine(Complaint.UNKNOWN_COMMAND)
    assert hangup == HangUp()
    assert parser.closed


def test_the_fan_out_queues_do_not_wait_for_the_payload_of_a_job():
    parser = KestrelParser()
    (refused,) = parser.feed(f"add {JOB} mail 1000 60000 5\r\nhello\r\n".encode())
    assert isinstance(refused, RefusedRequest)
    assert parser.closed
    # Of memcached: the item is passed over, then its command is refused.
    waiting = KestrelParser()
    assert waiting.feed(b"add orders 0 0 5\r\n") == []
    assert len(waiting.feed(b"hello\r\n")) == 1

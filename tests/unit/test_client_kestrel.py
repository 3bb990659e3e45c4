"""The client of the fan-out queues, against scripted exchanges."""

from __future__ import annotations

from typing import Any

import pytest

from journeyman.client import AsyncKestrelClient, KestrelClient, errors
from tests.support.client_kinds import KINDS, kind_of
from tests.support.scripted_peer import Cut, Exchange, ScriptedPeer

ITEM = b"VALUE q+r 0 3\r\na\r\n\r\nEND\r\n"


@pytest.fixture(params=KINDS)
def client_of(request: pytest.FixtureRequest) -> Any:
    return kind_of(request.param, KestrelClient, AsyncKestrelClient)


def play(*script: Exchange) -> ScriptedPeer:
    return ScriptedPeer(script)


def test_items_are_put(client_of: Any):
    with (
        play(
            (b"set q 0 0 3\r\na\r\n\r\n", b"STORED\r\n"),
            (b"set q 0 -5 0\r\n\r\n", b"NOT_STORED\r\n"),
        ) as peer,
        client_of(peer) as client,
    ):
        assert client.put("q", b"a\r\n") is True
        assert client.put("q", b"", expiry_s=-5) is False


def test_items_are_taken(client_of: Any):
    with (
        play(
            (b"get q+r\r\n", ITEM),
            (b"get q/t=5/open\r\n", b"END\r\n"),
            (b"get q/peek\r\n", b"VALUE q 0 0\r\n\r\nEND\r\n"),
            (b"get q/abort\r\n", b"END\r\n"),
            (b"confirm q+r 2\r\n", b"END\r\n"),
        ) as peer,
        client_of(peer) as client,
    ):
        assert client.get("q", reader="r") == b"a\r\n"
        assert client.open("q", wait_ms=5) is None
        assert client.peek("q") == b""
        client.abort("q")
        client.confirm("q", reader="r", count=2)


def test_questions_and_whole_queues(client_of: Any):
    with (
        play(
            (b"flush q\r\n", b"END\r\n"),
            (b"delete q+r\r\n", b"DELETED\r\n"),
            (b"stats\r\n", b"STAT uptime 5\r\nSTAT queue_q_items 2\r\nEND\r\n"),
            (b"version\r\n", b"VERSION 2.4.8\r\n"),
        ) as peer,
        client_of(peer) as client,
    ):
        client.flush("q")
        client.delete("q", reader="r")
        assert client.stats() == {"uptime": "5", "queue_q_items": "2"}
        assert client.version() == "2.4.8"


def test_refusals_are_told_and_an_open_read_in_the_way_ends_the_connection(client_of: Any):
    with (
        play(
            (b"confirm q 1\r\n", b"ERROR\r\n"),
            (b"get q\r\n", b"SERVER_ERROR no such luck\r\n"),
            (b"get q/open\r\n", b"ERROR\r\n"),
            (b"", Cut),
            (b"get q/open\r\n", b"END\r\n"),
        ) as peer,
        client_of(peer) as client,
    ):
        with pytest.raises(errors.Refused) as found:
            client.confirm("q")
        assert found.value.code == "ERROR"
        with pytest.raises(errors.Refused, match="SERVER_ERROR: no such luck"):
            client.get("q")
        with pytest.raises(errors.Refused):
            client.open("q")
        assert client.open("q") is None


def test_questions_are_asked_again_and_nothing_else_is(client_of: Any):
    with (
        play(
            (b"version\r\n", Cut),
            (b"version\r\n", b"VERSION 1\r\n"),
            (b"set q 0 0 1\r\nx\r\n", Cut),
            (b"get q\r\n", Cut),
        ) as peer,
        client_of(peer) as client,
    ):
        assert client.version() == "1"
        with pytest.raises(errors.AnswerLost, match="set q 0 0 1 may have happened, or not"):
            client.put("q", b"x")
        with pytest.raises(errors.AnswerLost):
            client.get("q")


@pytest.mark.parametrize(
    "answer",
    [
        b"VALUE q 0 x\r\n",
        b"HTTP/1.1 400\r\n",
        b"VALUE q 0 1\r\nabc",
        b"VALUE q 0 1\r\nx\r\nDNE\r\n",
    ],
)
def test_answers_that_no_kestrel_gives(answer: bytes, client_of: Any):
    with (
        play((b"get q\r\n", answer)) as peer,
        client_of(peer) as client,
        pytest.raises(errors.BadAnswer),
    ):
        client.get("q")


def test_what_would_be_misread_is_not_sent():
    client = KestrelClient(port=1)
    for queue, reader in (("a b", ""), ("", ""), ("q\r\nflush_all", ""), ("q", "a b"), ("q+r", "")):
        with pytest.raises(errors.InvalidRequest):
            client.get(queue, reader=reader)
    with pytest.raises(errors.InvalidRequest):
        client.put("q", bytes(16 * 1024 * 1024 + 1))
    with pytest.raises(errors.InvalidRequest):
        client.get("q", wait_ms=-1)
    with pytest.raises(errors.CannotConnect):
        client.get("q")


def test_several_items_are_opened_at_once(client_of: Any):
    with (
        play(
            (b"monitor q+r 5 10\r\n", ITEM + ITEM + b"END\r\n"),
            (b"get q+r/close/open\r\n", ITEM),
        ) as peer,
        client_of(peer) as client,
    ):
        assert client.monitor("q", reader="r", wait_s=5, count=10) == [b"a\r\n"] * 2
        assert client.confirm_and_open("q", reader="r") == b"a\r\n"


def test_the_server_is_administered(client_of: Any):
    dump = b"queue 'q+r' {\r\n  items=1\r\n  age=5\r\n}\r\nqueue 'p' {\r\n}\r\nEND\r\n"
    with (
        play(
            (b"flush_all\r\n", b"Flushed all queues.\r\n"),
            (b"flush_expired q\r\n", b"3\r\n"),
            (b"flush_all_expired\r\n", b"0\r\n"),
            (b"dump_stats q p\r\n", dump),
            (b"status\r\n", b"UP\r\n"),
            (b"status READONLY\r\n", b"END\r\n"),
            (b"shutdown\r\n", b"SERVER_ERROR not allowed\r\n"),
            (b"shutdown\r\n", Cut),
        ) as peer,
        client_of(peer) as client,
    ):
        client.flush_all()
        assert client.flush_expired("q") == 3
        assert client.flush_all_expired() == 0
        assert client.dump_stats("q", "p") == {"q+r": {"items": "1", "age": "5"}, "p": {}}
        assert client.status() == "UP"
        client.set_status("readonly")
        with pytest.raises(errors.Refused, match="not allowed"):
            client.shutdown()
        client.shutdown()
    with pytest.raises(errors.InvalidRequest, match="status must be one of UP"):
        KestrelClient(port=1).set_status("DOWN")

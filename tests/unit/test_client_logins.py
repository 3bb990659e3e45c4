"""Logins that the server could not check: tried again. AccessDenied is a verdict, and final."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from journeyman.client import (
    AsyncKestrelClient,
    AsyncSchedule,
    AsyncWorkQueue,
    KestrelClient,
    Schedule,
    WorkQueue,
    errors,
)
from journeyman.client.conversation import CONNECT, Link, Pause, Send, greeting
from journeyman.client.service import parse_url
from journeyman.tasks.worker.link import WorkerLink
from tests.support.client_kinds import KINDS, kind_of
from tests.support.scripted_peer import Cut, Exchange, ScriptedPeer

SCHEDULE = (Schedule, AsyncSchedule, b"AUTH s\n", b"OK\n")
WORK = (WorkQueue, AsyncWorkQueue, b"auth s\r\n", b"+OK\r\n")
FAN_OUT = (KestrelClient, AsyncKestrelClient, b"set auth 0 0 12\r\njourneyman s\r\n", b"STORED\r\n")
ASKS: dict[type, tuple[str, Exchange]] = {
    Schedule: ("stat", (b"1 STAT\n", b"1 OK\n")),
    WorkQueue: ("pause", (b"pause q\r\n", b"+OK\r\n")),
    KestrelClient: ("version", (b"version\r\n", b"VERSION 1\r\n")),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(client: Any, service: type) -> None:
    name = ASKS[service][0]
    getattr(client, name)(*(["q"] if name == "pause" else []))


@pytest.mark.parametrize(
    ("service", "not_checked"),
    [
        (SCHEDULE, [Cut]),
        (SCHEDULE, [Cut, Cut, Cut]),
        (WORK, [b"-SERVER-ERROR Busy, try again\r\n", Cut]),
        (FAN_OUT, [b"SERVER_ERROR busy, try again\r\n", Cut]),
        (WORK, [Cut]),
        (FAN_OUT, [Cut]),
    ],
)
def test_a_login_that_was_not_checked_is_tried_again(kind, service, not_checked):
    blocking, awaiting, secret, welcome = service
    script: list[Exchange] = []
    for answer in not_checked:
        script.append((secret, answer))
        if answer is not Cut:  # it closes after its words
            script.append((b"", Cut))
    script += [(secret, welcome), ASKS[blocking][1]]
    with (
        ScriptedPeer(script) as peer,
        kind_of(kind, blocking, awaiting)(peer, token="s") as client,
    ):
        ask(client, blocking)


@pytest.mark.parametrize(
    ("service", "verdict"),
    [
        (SCHEDULE, b"ERROR auth_failed\n"),
        (WORK, b"-CLIENT-ERROR Authentication failed\r\n"),
        (FAN_OUT, b"CLIENT_ERROR authentication failure\r\n"),
    ],
)
def test_a_verdict_is_final(kind, service, verdict):
    blocking, awaiting, secret, _ = service
    with (
        ScriptedPeer([(secret, verdict)]) as peer,
        kind_of(kind, blocking, awaiting)(peer, token="s") as client,
        pytest.raises(errors.AccessDenied),
    ):
        ask(client, blocking)


@pytest.mark.parametrize("service", [SCHEDULE, WORK, FAN_OUT])
def test_what_no_such_server_says_is_no_verdict(kind, service):
    blocking, awaiting, secret, _ = service
    with (
        ScriptedPeer([(secret, b"HTTP/1.1 400 Bad Request\r\n")]) as peer,
        kind_of(kind, blocking, awaiting)(peer, token="s") as client,
        pytest.raises(errors.BadAnswer, match="is the port of HTTP, not of"),
    ):
        ask(client, blocking)


def test_it_ends_after_some_attempts(kind):
    script: list[Exchange] = [(b"AUTH s\n", Cut)] * 7
    with (
        ScriptedPeer(script) as peer,
        kind_of(kind, Schedule, AsyncSchedule)(peer, token="s") as client,
        pytest.raises(errors.LoginBusy, match="the token was not checked"),
    ):
        client.stat()


def test_it_ends_when_no_time_is_left_for_a_pause():
    link = Link("here", "the schedule", 5678, greeting=greeting(b"AUTH s\n", b"OK", b"ERROR", None))
    steps = link.connected()
    assert next(steps) is CONNECT
    assert next(steps) == Send(b"AUTH s\n")
    assert steps.throw(errors.ConnectionFailed("cut")) == Pause(1)
    with pytest.raises(errors.LoginBusy, match="cut; the token was not checked"):
        steps.throw(errors.ConnectionFailed("too late"))
    assert not link.is_open


def test_pauses_grow_to_a_bound():
    assert Pause(1).seconds < Pause(3).seconds < Pause(6).seconds <= 2.4
    assert Pause(50).seconds <= 2.4


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"-SERVER-ERROR Busy, try again\r\n", errors.LoginBusy),
        (Cut, errors.LoginBusy),
        (b"-CLIENT-ERROR Authentication failed\r\n", errors.AccessDenied),
    ],
)
def test_a_worker_tells_a_verdict_from_what_passes(answer, error):
    async def connect(port: int) -> None:
        await WorkerLink.connect(parse_url(f"journeyman://s@127.0.0.1:{port}"))

    with ScriptedPeer([(b"auth s\r\n", answer)]) as peer, pytest.raises(error):
        asyncio.run(connect(peer.port))

"""What callers give to the clients: taken, or refused with a sentence before anything is sent."""

from __future__ import annotations

import re
import socket
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

import numpy
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
from journeyman.client.checks import moment
from journeyman.client.workq import NewJob
from journeyman.formats.ztick import Awf, Direct, Shell
from tests.support.client_kinds import of

# Nothing listens there: a call that passes its checks raises CannotConnect instead.
NOWHERE = 1
JOB = uuid4()
NOW = datetime.now(UTC)


def schedule() -> Any:
    return Schedule(port=NOWHERE, timeout_s=5.0)


def work() -> Any:
    return WorkQueue(port=NOWHERE, timeout_s=5.0)


def queues() -> Any:
    return KestrelClient(port=NOWHERE, timeout_s=5.0)


WHENS = [1.5, "5", None, date(2026, 11, 16), True, b"5", Decimal(5), object(), numpy.float64(5)]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("when", WHENS, ids=lambda when: type(when).__name__)
def test_what_is_no_time_is_refused_at_once(when: object):
    with pytest.raises(errors.InvalidRequest, match=r"^when must be a datetime with a time zone"):
        schedule().set("job", when)
    [(_, refusal)] = schedule().set_many([("job", when)])
    assert refusal.code == "invalid_request"
    assert refusal.reason.startswith("when must be a datetime")


def test_whole_numbers_of_numpy_are_taken_as_such():
    assert moment(numpy.int64(5)) == 5
    assert type(moment(numpy.int64(5))) is int
    with pytest.raises(errors.CannotConnect):
        schedule().set("job", numpy.int64(5))
    with pytest.raises(errors.CannotConnect):
        work().lease("mail", wait_ms=numpy.int32(5))


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: schedule().set(5, 5), r"identifier must be a str, not 5 \(int\)"),
    (lambda: schedule().set("job", 2**63), r"outside the signed 64-bit range"),
    (lambda: schedule().set("job", datetime(2026, 1, 1)), r"has no time zone"),  # noqa: DTZ001
    (lambda: schedule().get(None), r"identifier must be a str"),
    (lambda: schedule().query(None), r"prefix must be a str"),
    (lambda: schedule().remove(b"job"), r"identifier must be a str, not b'job' \(bytes\)"),
    (lambda: schedule().remove_rule(7), r"identifier must be a str"),
    (lambda: schedule().set_many(5), r"jobs must be an iterable of \(identifier, when\)"),
    (lambda: list(schedule().set_many(["job"])), r"each job must be \(identifier, when\)"),
    (lambda: schedule().set_many([], batch=0), r"batch must be a whole number from 1"),
    (
        lambda: schedule().set_rule("r", "p.", "shell echo"),
        r"runner must be a runner, for example Shell\(\"echo hello\"\)",
    ),
    (lambda: schedule().set_rule("r", None, Shell("echo")), r"pattern must be a str"),
    (lambda: schedule().set_rule("r", "p.", Shell(5)), r"each argument of the runner"),  # type: ignore[arg-type]
    (lambda: schedule().set_rule("r", "p.", Direct("x", (5,))), r"each argument"),  # type: ignore[arg-type]
    (lambda: schedule().set_rule("r", "p.", Awf("x", (None,))), r"each argument"),  # type: ignore[arg-type]
    (
        lambda: work().add("mail", "text"),
        r"payload must be bytes, not 'text' \(str\); encode it first",
    ),
    (lambda: work().add("mail", None), r"payload must be bytes"),
    (lambda: work().add("mail", b"x" * (2**20 + 1)), r"payload has 1048577 bytes"),
    (lambda: work().add(5), r"name must be a str"),
    (lambda: work().add("no spaces"), r"a name is 1 to 255 of"),
    (lambda: work().add("mail", job_id=5), r"job_id must be a UUID"),
    (lambda: work().add("mail", job_id="x"), r"job_id must be a UUID, not 'x'"),
    (lambda: work().add("mail", ttr_ms=1.5), r"ttr_ms must be a whole number from 1 to 86400000"),
    (lambda: work().add("mail", ttl_ms="60"), r"ttl_ms must be a whole number"),
    (lambda: work().add("mail", ttl_ms=0), r"ttl_ms must be a whole number from 1 .*, not 0$"),
    (lambda: work().add("mail", priority=None), r"priority must be a whole number"),
    (lambda: work().add("mail", max_attempts=True), r"max_attempts must be a whole number"),
    (lambda: work().add("mail", max_fails=256), r"max_fails must be a whole number from 0 to 255"),
    (lambda: work().add("mail", time=5), r"time must be a datetime with a time zone"),
    (lambda: work().schedule("mail", "soon"), r"time must be a datetime with a time zone"),
    (lambda: work().schedule("mail", None), r"time must be a datetime with a time zone"),
    (lambda: work().add_many(None), r"jobs must be an iterable of NewJob"),
    (lambda: list(work().add_many(["mail"])), r"each job must be a NewJob"),
    (lambda: work().add_many([], batch="x"), r"batch must be a whole number"),
    (lambda: work().run("mail", "text", wait_ms=5), r"payload must be bytes"),
    (lambda: work().run("mail", b"", wait_ms=None), r"wait_ms must be a whole number"),
    (lambda: work().run("mail", b"", wait_ms=5, priority=0.5), r"priority must be a whole number"),
    (lambda: work().result(None), r"job_id must be a UUID"),
    (lambda: work().result(JOB, wait_ms=0.5), r"wait_ms must be a whole number"),
    (lambda: work().delete(7), r"job_id must be a UUID"),
    (lambda: work().lease(5, wait_ms=5), r"name must be a str"),
    (lambda: work().lease(["mail"], wait_ms=5), r"name must be a str, not \['mail'\] \(list\)"),
    (lambda: work().lease("mail", wait_ms="5"), r"wait_ms must be a whole number"),
    (lambda: work().lease(wait_ms=5), r"lease needs the name of a queue"),
    (lambda: work().complete(JOB, "done"), r"result must be bytes, not 'done'"),
    (lambda: work().fail(JOB, 5), r"result must be bytes"),
    (lambda: work().inspect_job(5), r"job_id must be a UUID"),
    (lambda: work().inspect_jobs(None), r"name must be a str"),
    (lambda: work().inspect_scheduled_jobs("mail", limit=None), r"limit must be a whole number"),
    (lambda: work().inspect_queue(None), r"name must be a str"),
    (lambda: work().inspect_queues(offset="0"), r"offset must be a whole number"),
    (lambda: queues().put("orders", "text"), r"data must be bytes, not 'text' \(str\); encode"),
    (lambda: queues().put(5, b""), r"queue must be a str"),
    (lambda: queues().put("orders", b"", expiry_s=1.5), r"expiry_s must be a whole number"),
    (lambda: queues().get("orders", reader=5), r"reader must be a str"),
    (lambda: queues().get("orders", wait_ms=None), r"wait_ms must be a whole number"),
    (lambda: queues().open("orders", wait_ms=0.5), r"wait_ms must be a whole number"),
    (lambda: queues().peek(None), r"queue must be a str"),
    (lambda: queues().confirm("orders", count="1"), r"count must be a whole number"),
    (lambda: queues().abort(5), r"queue must be a str"),
    (lambda: queues().flush("orders", reader=None), r"reader must be a str"),
    (lambda: queues().delete(b"orders"), r"queue must be a str"),
]


@pytest.mark.parametrize(("call", "said"), CALLS, ids=[said for _, said in CALLS])
def test_every_call_says_what_it_expects(call: Callable[[], object], said: str):
    with pytest.raises(errors.InvalidRequest, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


CLIENTS: list[Any] = [
    Schedule,
    WorkQueue,
    KestrelClient,
    AsyncSchedule,
    AsyncWorkQueue,
    AsyncKestrelClient,
]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("queue.internal:9922",),
            r"contains the port: give them separately, \w+\('queue.internal',",
        ),
        (("[::1]:9922",), r"contains the port: give them separately, \w+\('::1', 9922\)"),
        (("",), r"host must not be empty"),
        (("http://queue.internal",), r"not a URL \(http://...\): use \w+.from_url"),
        ((5,), r"host must be a str"),
        (("queue.internal", "9922"), r"port must be a whole number from 1 to 65535, not '9922'"),
        (("queue.internal", 65536), r"port must be a whole number from 1 to 65535, not 65536"),
        (("queue.internal", 0), r"port must be a whole number"),
    ],
)
def test_an_address_that_cannot_be_is_refused_when_the_client_is_made(
    client: Any, arguments: tuple[Any, ...], said: str
):
    with pytest.raises(errors.InvalidRequest, match=said):
        client(*arguments)


@pytest.mark.parametrize("client", CLIENTS)
def test_other_options_are_checked_when_the_client_is_made(client: Any):
    with pytest.raises(errors.InvalidRequest, match="timeout_s must be a number of seconds"):
        client(timeout_s="10")
    with pytest.raises(errors.InvalidRequest, match="timeout_s must be more than 0"):
        client(timeout_s=0)
    with pytest.raises(errors.InvalidRequest, match="tls must be True, False"):
        client(tls="yes")
    with pytest.raises(errors.InvalidRequest, match="token must be a str"):
        Schedule(token=5)  # type: ignore[arg-type]


def test_bytes_of_other_kinds_are_taken():
    for payload in (bytearray(b"x"), memoryview(b"x")):
        request = NewJob(JOB, "mail", payload).request()  # type: ignore[arg-type]
        assert request.endswith(b" 1\r\nx\r\n")


# -- a port that is another's --------------------------------------------------------------------


class Listening:
    """A port that answers every connection with ``answer``, then closes it or stays silent."""

    def __init__(self, answer: bytes, *, close: bool) -> None:
        self._answer = answer
        self._close = close
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Listening:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        for each in self._open:
            each.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            connection.recv(4096)
            connection.sendall(self._answer)
            if self._close:
                connection.close()
            else:
                self._open.append(connection)


ASK: list[tuple[Any, Callable[[Any], object], str]] = [
    (Schedule, lambda client: client.remove("job"), "the schedule"),
    (Schedule, lambda client: client.get("job"), "the schedule"),
    (WorkQueue, lambda client: client.complete(JOB), "the work queue"),
    (WorkQueue, lambda client: client.add("mail"), "the work queue"),
    (KestrelClient, lambda client: client.put("orders", b""), "the fan-out queues"),
    (KestrelClient, lambda client: client.version(), "the fan-out queues"),
    (of(AsyncSchedule), lambda client: client.remove("job"), "the schedule"),
    (of(AsyncWorkQueue), lambda client: client.add("mail"), "the work queue"),
    (of(AsyncKestrelClient), lambda client: client.put("orders", b""), "the fan-out queues"),
]


def ask_of(client: Any, ask: Callable[[Any], object], **options: Any) -> None:
    with client(**options) as made:
        ask(made)


@pytest.mark.parametrize(("client", "ask", "service"), ASK)
def test_port_where_nothing_listens(client: Any, ask: Callable[[Any], object], service: str):
    said = f"cannot connect to 127.0.0.1:1: .*; is journeyman serve running there, with {service}"
    with pytest.raises(errors.CannotConnect, match=said):
        ask_of(client, ask, port=NOWHERE)


@pytest.mark.parametrize(("client", "ask", "service"), ASK)
def test_port_that_speaks_tls_is_told_from_one_that_lost_the_answer(
    client: Any, ask: Callable[[Any], object], service: str
):
    alert = bytes.fromhex("15030100020246")
    said = r"speaks TLS: connect with journeyman\+tls://HOST, or tls=True"
    with Listening(alert, close=True) as peer, pytest.raises(errors.CannotConnect, match=said):
        ask_of(client, ask, port=peer.port)


@pytest.mark.parametrize(("client", "ask", "service"), ASK)
def test_port_that_does_not_speak_tls(client: Any, ask: Callable[[Any], object], service: str):
    said = "does this port speak TLS"
    plain = Listening(b"ERROR what is this\r\n", close=True)
    with plain as peer, pytest.raises(errors.CannotConnect, match=said):
        ask_of(client, ask, port=peer.port, tls=True)


@pytest.mark.parametrize(("client", "ask", "service"), ASK)
def test_port_that_never_says_a_word(client: Any, ask: Callable[[Any], object], service: str):
    said = f"is this the port of {service}"
    with (
        Listening(b"", close=False) as peer,
        pytest.raises(errors.ConnectionFailed, match=said),
    ):
        ask_of(client, ask, port=peer.port, timeout_s=0.3)
    with Listening(b"", close=True) as peer, pytest.raises(errors.ConnectionFailed, match=said):
        ask_of(client, ask, port=peer.port)


@pytest.mark.parametrize(("client", "ask", "service"), ASK)
def test_port_that_lets_a_tls_handshake_wait(
    client: Any, ask: Callable[[Any], object], service: str
):
    said = "does this port speak TLS"
    silent = Listening(b"", close=False)
    with silent as peer, pytest.raises(errors.CannotConnect, match=said):
        ask_of(client, ask, port=peer.port, tls=True, timeout_s=0.3)


@pytest.mark.parametrize(("client", "ask", "service"), ASK)
def test_port_of_another_service(client: Any, ask: Callable[[Any], object], service: str):
    said = f"answers 'HELLO?'; is this the port of {service}"
    with (
        Listening(b"HELLO?\r\n", close=False) as peer,
        pytest.raises(errors.BadAnswer, match=re.escape(said)),
    ):
        ask_of(client, ask, port=peer.port)


@pytest.mark.parametrize(("client", "ask", "service"), ASK)
def test_an_error_is_short_in_a_traceback(client: Any, ask: Callable[[Any], object], service: str):
    with pytest.raises(errors.CannotConnect) as raised:
        ask_of(client, ask, port=NOWHERE)
    lines = traceback.format_exception(raised.value)
    assert not [line for line in lines if "ConnectionRefusedError" in line]
    assert not [line for line in lines if "/client/conversation.py" in line]


@pytest.mark.parametrize("client", [Schedule, WorkQueue, KestrelClient])
@pytest.mark.parametrize("token", [b"sk_secret", ["sk_secret"]])
def test_token_of_the_wrong_type_is_not_shown(client: Any, token: object):
    with pytest.raises(errors.InvalidRequest, match=r"^token must be a str, not an? \w+$") as info:
        client(port=NOWHERE, token=token)
    assert "sk_secret" not in str(info.value)

"""A worker's connections to the work queue: commands without waiting, reports that are not lost.

``WorkerLink`` is a pipelined connection: many commands on the way, replies in order.

    ask(request) -> Future[list[Row]]       one write per turn of the event loop, however many asks
    lost        every open future raises ConnectionResetError; ``connect`` makes a new one
    misread     every open future raises BadAnswer: this is not the port of a work queue

A reply is a head line, and for ``lease`` and ``inspect`` the blocks after it. A Row is a line of
words and the payload that follows it. Errors of the server are ``LinkRefused`` with its words.

``Reports`` says how jobs ended; each report is sent until it is acknowledged.

    send(job, outcome)    the next job of a chain first, acknowledged; then complete or fail
    touch(job)            renew a lease; not repeated

All reports of one turn of the event loop leave in one write. After a lost connection every open
report is sent again: a job that is already finished answers ``Duplicate result``, one that is
already to be tried again ``Job is not leased``, a next job that is already there ``Duplicate job``;
all are what was asked for.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Self, cast

from journeyman.client import AccessDenied, BadAnswer, CannotConnect, ClientError, LoginBusy
from journeyman.client.conversation import unexpected_answer
from journeyman.client.service import ServerUrl, tls_context
from journeyman.client.workq import DEFAULT_PORT
from journeyman.client.workq.calls import PROBE, SERVICE
from journeyman.local_access import has_token, is_local, socket_path, token_for
from journeyman.protocols.workq.commands import Complaint
from journeyman.tasks import outcomes
from journeyman.tasks.broker import Order
from journeyman.tasks.envelope import Failure

_END = b"\r\n"
_DONE_BEFORE = (Complaint.DUPLICATE_JOB, Complaint.DUPLICATE_RESULT, Complaint.NOT_LEASED)
_VERDICT = "CLIENT-ERROR"  # how a refusal begins that another attempt does not change
_MAX_BUFFER_BYTES = 64 * 1024 * 1024
CONNECT_TIMEOUT_S = 10.0


class Row(NamedTuple):
    """``ID NAME TTR SIZE ...`` and SIZE bytes."""

    words: list[str]
    payload: bytes


class LinkRefused(ClientError):
    """The server refused a command; the text is its reply without the minus."""


class NothingReady(LinkRefused):
    """``-TIMEOUT``."""


class WorkerLink(asyncio.Protocol):
    """See the module. One event loop, one WorkerLink."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._where = ""
        # With the place of SIZE in the row.
        self._open: deque[tuple[asyncio.Future[list[Row]], int]] = deque()
        self._buffer = bytearray()
        self._needed = 0  # bytes; parsing is tried again only then
        self._unsent: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self.lost = self._loop.create_future()
        self.lost.add_done_callback(lambda future: future.exception())

    @classmethod
    async def connect(cls, address: ServerUrl) -> Self:
        """Raises CannotConnect, AccessDenied."""
        host, port = address.place("work_queue")
        port = DEFAULT_PORT if port is None else port
        where = host if socket_path(host) else f"{host}:{port}"
        tls = tls_context(address.tls_setting())
        link = await cls._reach(host, port, where, tls)
        token = address.token
        if not token and is_local(host) and has_token() and await link._asks_for_token():
            token = token_for(host, port)
            link.close()
            link = await cls._reach(host, port, where, tls)
        if token:
            await link._log_in(token, where)
        return link

    @classmethod
    async def _reach(cls, host: str, port: int, where: str, tls: ssl.SSLContext | None) -> Self:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if path := socket_path(host):
                    name = None if tls is None else "localhost"
                    _, link = await loop.create_unix_connection(
                        cls, path, ssl=tls, server_hostname=name
                    )
                else:
                    _, link = await loop.create_connection(cls, host, port, ssl=tls)
        except (OSError, TimeoutError) as error:
            reason = str(error) or "timed out"
            if isinstance(error, ConnectionRefusedError | FileNotFoundError):
                reason = "connection refused; is journeyman serve running there?"
            raise CannotConnect(f"cannot connect to {where}: {reason}") from None
        link._where = where
        return link

    async def _asks_for_token(self) -> bool:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self.ask(PROBE.request)
        except LinkRefused as error:
            return f"-{error}".encode().startswith(PROBE.asks)
        except (ConnectionError, TimeoutError):
            pass  # the next command finds out
        return False

    async def _log_in(self, token: str, where: str) -> None:
        """Raises AccessDenied, or CannotConnect if the token was not checked: try again."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self.ask(b"auth %b\r\n" % token.encode())
        except LinkRefused as error:
            self.close()
            if str(error).startswith(_VERDICT):
                raise AccessDenied("auth_failed", str(error)) from None
            raise LoginBusy(f"{where} could not check the token: {error}") from None
        except (ConnectionError, TimeoutError) as error:
            self.close()
            reason = str(error) or "timed out"
            raise LoginBusy(f"{where} did not check the token: {reason}") from None

    def ask(self, request: bytes, size_at: int = -1) -> asyncio.Future[list[Row]]:
        """Send a command. ``size_at``: which word of a reply's line is the size of its payload."""
        future: asyncio.Future[list[Row]] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(ConnectionResetError("the connection is closed"))
            return future
        self._open.append((future, size_at))
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(request)
        return future

    def end_input(self) -> None:
        """No more commands: a waiting lease is answered at once."""
        self._flush()
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if (
            sock is not None and sock.family != socket.AF_UNIX
        ):  # a server that vanished is noticed also while nothing is sent
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) < self._needed:
            return
        at = 0
        try:
            while self._open and (end := self._read_reply(at)) >= 0:
                at = end
        except BadAnswer as error:
            self._fail(error)
        except (ValueError, IndexError) as error:
            self._fail(BadAnswer(f"{self._where}: not a reply of the work queue: {error}"))
        if len(self._buffer) - at > _MAX_BUFFER_BYTES:
            self._fail(BadAnswer("the server sends more than was asked for"))
        del self._buffer[:at]
        self._needed -= at

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    # -- details -----------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._unsent and self._transport is not None:
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()

    def _read_reply(self, at: int) -> int:
        """Where the reply that begins at ``at`` ends, its future done; -1: it is not all here."""
        buffer = self._buffer
        end = buffer.find(_END, at)
        if end < 0:
            if (end := buffer.find(b"\n", at)) >= 0:  # replies of the schedule end so
                raise self._unexpected(buffer[at:end].decode())
            self._needed = len(buffer) + 1
            return -1
        head = buffer[at:end].decode()
        if not head.startswith(("+OK", "-")):
            raise self._unexpected(head)
        future, size_at = self._open[0]
        rows: list[Row] = []
        at = end + 2
        if head.startswith("+OK "):
            for _ in range(int(head[4:])):
                end = buffer.find(_END, at)
                if end < 0:
                    self._needed = len(buffer) + 1
                    return -1
                words = buffer[at:end].decode().split(" ")
                at = end + 2
                size = int(words[size_at])
                if len(buffer) < at + size + 2:
                    self._needed = at + size + 2
                    return -1
                rows.append(Row(words, bytes(buffer[at : at + size])))
                at += size + 2
        self._open.popleft()
        if not future.done():
            if head.startswith("+OK"):
                future.set_result(rows)
            else:
                kind = NothingReady if head == "-TIMEOUT" else LinkRefused
                future.set_exception(kind(head[1:]))
        return at

    def _unexpected(self, answer: str) -> BadAnswer:
        return BadAnswer(unexpected_answer(self._where, SERVICE.title, DEFAULT_PORT, answer))

    def _fail(self, error: Exception) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        while self._open:
            future, _ = self._open.popleft()
            if not future.done():
                is_answer = isinstance(error, BadAnswer)
                future.set_exception(error if is_answer else ConnectionResetError(str(error)))
        if not self.lost.done():
            self.lost.set_exception(error)


logger = logging.getLogger("journeyman.worker")

_DELAY = re.compile(rb" -delay=\d+")
AGAIN_S = 1.0  # after a refusal that may pass, like a full disk
MAX_UNSAID = 1_000  # notes that wait for a connection; older ones are dropped


class Reports:
    """See the module. ``connect`` gives a new link, however long that takes; None: too late."""

    def __init__(
        self, connect: Callable[[], Awaitable[WorkerLink | None]], *, has_token: bool = False
    ) -> None:
        """``has_token``: a next job names the one that it follows, whose sender counts."""
        self._connect = connect
        self._has_token = has_token
        self._link: WorkerLink | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._open: dict[str, _Report] = {}  # by job
        self._unsaid: deque[bytes] = deque(maxlen=MAX_UNSAID)
        self._loop = asyncio.get_running_loop()

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def send(self, job_id: str, attempt: int, outcome: outcomes.Outcome) -> None:
        requests = _requests(job_id, attempt, outcome, self._has_token)
        self._open[job_id] = _Report(attempt, requests)
        self._next(job_id)

    def touch(self, job_id: str, refused: Callable[[str], None]) -> None:
        """``refused`` gets the refusal of the server, if there is one."""
        if self._link is None:
            self._reconnect()
            return

        def answered(future: asyncio.Future[list[Row]]) -> None:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, LinkRefused):
                refused(str(error))

        self._link.ask(f"touch {job_id}\r\n".encode()).add_done_callback(answered)

    def say(self, request: bytes) -> None:
        """A command that is sent once, when there is a connection, whatever its answer is."""
        if self._link is None:
            self._unsaid.append(request)
            self._reconnect()
        else:
            self._link.ask(request).add_done_callback(lambda future: future.exception())

    async def ask(self, request: bytes, size_at: int = -1) -> list[Row]:
        """Send a command until it is answered, which may be on another connection: only for those
        that can come twice. Raises LinkRefused; ConnectionResetError if it is too late."""
        while True:
            if self._link is None:
                self._reconnect()
                assert self._connecting is not None
                await asyncio.wait([self._connecting])
            link = self._link
            if link is None:
                raise ConnectionResetError("the worker has closed its connection")
            try:
                return await link.ask(request, size_at)
            except (ConnectionError, BadAnswer):
                if self._link is link:
                    self._reconnect()
            except LinkRefused as error:
                if not str(error).startswith("SERVER-ERROR"):
                    raise
                logger.warning("the server cannot record a step (%s); trying again", error)
                await asyncio.sleep(AGAIN_S)

    def check(self) -> None:
        """Raises why no connection is tried any more."""
        if self._connecting is not None and self._connecting.done():
            self._connecting.result()

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.close()

    # -- details -----------------------------------------------------------------------------------

    def _next(self, job_id: str) -> None:
        """Send the next request of a job; nothing while there is no connection."""
        if self._link is None:
            self._reconnect()
            return
        future = self._link.ask(self._open[job_id].requests[0])
        future.add_done_callback(lambda done: self._answered(job_id, done))

    def _answered(self, job_id: str, future: asyncio.Future[list[Row]]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, ConnectionError | BadAnswer):
            self._reconnect()
            return
        if isinstance(error, LinkRefused):
            text = str(error)
            if text.startswith("SERVER-ERROR"):
                logger.warning("the server cannot take a report (%s); trying again", text)
                self._loop.call_later(AGAIN_S, self._take_next, job_id)
                return
            report = self._open.get(job_id)
            if report is not None and text.endswith(Complaint.NO_LEDGER) and report.has_delay:
                report.requests[0] = _DELAY.sub(b"", report.requests[0], count=1)
                self._next(job_id)  # the job is tried again at once, rather than not at all
                return
            if text.endswith(Complaint.LEASED_AGAIN):
                logger.warning("job %s: its lease ran out and another worker has it;"
                               " the outcome is dropped", job_id)  # fmt: skip
            elif text.endswith(Complaint.CANCELLED):
                del self._open[job_id]  # it has ended, and nothing follows
                return
            elif not text.endswith(_DONE_BEFORE):
                logger.warning("job %s: the server refused its report: %s", job_id, text)
                is_chain = report is not None and not report.requests[-1].startswith(b"fail ")
                if report is not None and is_chain and len(report.requests) > 1:
                    # The next job is not there: a job that completed would hide that.
                    report.requests[1] = _refused(job_id, report.attempt, text)
        report = self._open.get(job_id)
        if report is None:
            return
        report.requests.pop(0)
        if report.requests:
            self._next(job_id)
        else:
            del self._open[job_id]

    def _take_next(self, job_id: str) -> None:
        if job_id in self._open:
            self._next(job_id)

    def _reconnect(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._connecting is None or self._connecting.done():
            self._connecting = self._loop.create_task(self._begin_again())

    async def _begin_again(self) -> None:
        self._link = await self._connect()
        while self._unsaid and self._link is not None:
            self.say(self._unsaid.popleft())
        for job_id in list(self._open) if self._link is not None else ():
            self._next(job_id)


@dataclass(slots=True)
class _Report:
    attempt: int
    requests: list[bytes]  # not sent yet

    @property
    def has_delay(self) -> bool:
        line, _, _ = self.requests[0].partition(b"\r\n")
        return _DELAY.search(line) is not None


def _refused(job_id: str, attempt: int, text: str) -> bytes:
    """The end of a job whose next one the server does not take."""
    failure = Failure("ChainRefused", f"the server refused the next job of the chain: {text}")
    return _finish("fail", job_id, failure.encode(), f" -attempt={attempt} -final=1")


def _requests(job_id: str, attempt: int, outcome: outcomes.Outcome, has_token: bool) -> list[bytes]:
    """Return the commands that report an outcome, with the number of the attempt: if the lease ran
    out meanwhile and another worker has the job, that one is right. Otherwise it could begin a job
    whose completion was acknowledged."""
    flags = f" -attempt={attempt}"
    if isinstance(outcome, outcomes.TaskDone):
        last = _finish("complete", job_id, outcome.result, flags)
        if outcome.following is None:
            return [last]
        return [_add(outcome.following, job_id, has_token), last]
    assert not isinstance(outcome, outcomes.AttemptParked)
    if isinstance(outcome, outcomes.Again | outcomes.GivenBack):
        flags += f" -delay={outcome.delay_ms}"
        if isinstance(outcome, outcomes.GivenBack):
            flags += " -release=1"
    else:
        flags += " -final=1"
    last = _finish("fail", job_id, outcome.failure.encode(), flags)
    report = outcome.report if isinstance(outcome, outcomes.Dead) else None
    return [last] if report is None else [_add(report, job_id, has_token), last]


def _finish(word: str, job_id: str, result: bytes, flags: str) -> bytes:
    return b"%b %b %d%b\r\n%b\r\n" % (
        word.encode(), job_id.encode(), len(result), flags.encode(), result,
    )  # fmt: skip


def _add(order: Order, follows: str, has_token: bool) -> bytes:
    """``follows``: the job before it; if that one was cancelled, the server refuses this one."""
    options = order.options
    chain = f" -follows={follows}{' -then=1' if has_token and order.has_followers else ''}"
    line = (
        f"add {order.job_id} {options.queue} {options.lease_ms} {options.ttl_ms}"
        f" {len(order.payload)} -priority={options.priority}"
        f" -max-fails={options.max_fails}"
        f"{f' -key={order.limit_key}' if order.limit_key else ''}{chain}"
    )
    return line.encode() + b"\r\n" + order.payload + b"\r\n"

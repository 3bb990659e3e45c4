"""The data directory of a server in PostgreSQL: taken by one server, waited for by the others.

    start --> does another server have the directory?
                no   take it, load the services and open their ports: active
                yes  stand by; try again several times per second
                     ports of the protocols   closed
                     HTTP                     /health: 200 {"status":"standby"}; all else: 503
    the other server stops, is killed, or its host is lost --> active

The one that takes over raises the epoch, which fences off the previous server (disk/guard.py).
Everything that server acknowledged is committed, so it is loaded. Ports open when the previous
server cannot give a stale answer any more.

An active server that may have been replaced answers nothing, and ends within seconds. A database
that does not answer is waited for as well. SIGTERM and SIGINT end the wait, exit 0.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

from journeyman.clock import Clock
from journeyman.config import Settings
from journeyman.disk import postgres_disk_of
from journeyman.errors import LogError
from journeyman.servers.core.access import Access
from journeyman.servers.core.listener import bind_unix
from journeyman.servers.core.server_log import ServerLog, ServiceManager
from journeyman.units import NS_PER_MS

if TYPE_CHECKING:
    from journeyman.disk.guard import Guard
    from journeyman.disk.postgres import PostgresDisk

TRY_S: Final = 0.1  # between two tries
END_S: Final = 1.0  # for a server that was replaced to stop in order
HEALTH_PATHS: Final = ("/health", "/v1/health")
_PROBLEM: Final = {
    "type": "about:blank",
    "title": "Service Unavailable",
    "status": 503,
    "code": "standby",
    "detail": "this server stands by: another one is active; ask that one",
}


async def take_directory(
    settings: Settings, access: Access, clock: Clock, messages: ServerLog, manager: ServiceManager
) -> PostgresDisk | None:
    """The disk, with a guard; None: the wait was ended by a signal."""
    return await _StandBy(settings, access, clock, messages, manager).wait()


def end_when_lost(guard: Guard, messages: ServerLog, lost: Callable[[BaseException], None]) -> None:
    """Stop the server when another one may have the directory; by force if that takes long."""
    loop = asyncio.get_running_loop()

    def on_lost(reason: str) -> None:
        ending = threading.Timer(END_S, os._exit, (1,))
        ending.daemon = True
        ending.start()
        messages.error("this server is no longer the active one", reason=reason)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lost, LogError("data.directory", reason))

    guard.on_lost = on_lost
    if guard.lost is not None:
        on_lost(guard.lost)


class _StandBy:
    def __init__(
        self,
        settings: Settings,
        access: Access,
        clock: Clock,
        messages: ServerLog,
        manager: ServiceManager,
    ) -> None:
        from journeyman.disk.guard import Guard

        self._settings = settings
        self._access = access
        self._clock = clock
        self._messages = messages
        self._manager = manager
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._disk = postgres_disk_of(settings.data.directory)
        self._guard = Guard(self._disk.database, list(_listening(settings)))
        self._is_taken = False
        self._last_message = ""

    async def wait(self) -> PostgresDisk | None:
        begin_ns = self._clock.monotonic_ns()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopped.set)
        self._loop.add_signal_handler(signal.SIGHUP, lambda: None)
        is_active = await self._loop.run_in_executor(None, self._try)
        if not is_active:
            is_active = await self._wait_until_active()
        if is_active:
            waited_ms = (self._clock.monotonic_ns() - begin_ns) // NS_PER_MS
            self._messages.info(
                "active: this server has the data directory now", waited_ms=waited_ms
            )
            self._disk.guard = self._guard
            self._disk.begin_upkeep()
            return self._disk
        self._messages.info("stopped while standing by")
        await self._loop.run_in_executor(None, self._guard.release)
        return None

    async def _wait_until_active(self) -> bool:
        living = self._loop.create_task(self._manager.show_life())
        self._manager.ready()  # a start that waits for another server to end has not failed
        close_http = await self._open_http()
        try:
            while not self._stopped.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), TRY_S)
                    break
                if await self._loop.run_in_executor(None, self._try):
                    return True
            return False
        finally:
            await close_http()
            living.cancel()

    def _try(self) -> bool:
        """True if this server may open its ports now."""
        import psycopg

        from journeyman.disk.database import reason_of

        try:
            if not self._is_taken:
                self._disk.prepare()
                self._is_taken = self._guard.take()
        except (OSError, psycopg.Error) as error:
            self._say(f"standing by: the database does not answer: {reason_of(error)}")
            return False
        if not self._is_taken:
            self._say("standing by: another server has the data directory")
            return False
        if not self._guard.may_open:
            self._say("waiting until the lease of the last server has ended")
            return False
        return True

    def _say(self, message: str) -> None:
        """Log a message once, not at every try."""
        if message != self._last_message:
            self._last_message = message
            self._messages.info(message)

    async def _open_http(self) -> Callable[[], Awaitable[None]]:
        """Say that this server stands by; what ends that."""
        http = self._settings.http
        if not http.enabled or not http.listen.port:
            return _nothing  # a socket in the file system is for the active server
        # Modules of an active server are imported now, not when every moment counts.
        await self._loop.run_in_executor(None, import_module, "journeyman.servers.http.server")
        from aiohttp import web

        async def answer(request: web.BaseRequest) -> web.Response:
            if request.path in HEALTH_PATHS:
                return web.json_response({"status": "standby"})
            kind = "application/problem+json"
            return web.json_response(
                _PROBLEM, status=503, content_type=kind, headers={"Retry-After": "1"}
            )

        # Clients that are in the middle of a request must not hold up a takeover.
        runner = web.ServerRunner(web.Server(answer, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        tls, path = self._access.tls, http.listen.path
        try:
            if path:
                bound = bind_unix(path, int(self._settings.access.socket_mode, 8))
                await web.SockSite(runner, bound, ssl_context=tls).start()
            else:
                host, port = http.listen.host, http.listen.port
                await web.TCPSite(runner, host, port, ssl_context=tls).start()
        except OSError as error:  # on one machine: the active server has the port
            self._messages.info("HTTP is closed while standing by", reason=error.strerror or error)
        else:
            self._messages.info(f"HTTP says that this server stands by on {http.listen}")
        return runner.cleanup


def _listening(settings: Settings) -> list[tuple[str, int]]:
    ports = (settings.controller, settings.workq, settings.kestrel, settings.http)
    return [(port.listen.host, port.listen.port) for port in ports if port.enabled]


async def _nothing() -> None:
    """There is nothing to close."""

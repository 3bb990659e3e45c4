"""Standing by: a server that waits until the store is its own (storage.standby).

    start --> is another server on the store?
                no   it is taken, the services load and open their ports: active
                yes  standing by; a few times a second it tries again
                     ports of the protocols   closed
                     HTTP                     /health: 200 {"status":"standby"}; all else: 503
    the other one ends, is killed, or its host is gone --> active

The lock is that of the database, held by the session that writes, and with it goes the epoch that
fences off the one before (storage/postgres.py). What that one acknowledged is committed, so it is
loaded. Only postgres can do this: the state must not be on the host that is gone.

An active server that was frozen, or cut off from the database for a while, may have been succeeded.
It cannot write; once a second it looks whether it still is the active one, and stops if not.

A database that does not answer is waited for as well. SIGTERM and SIGINT end the wait, exit 0.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from typing import Final

from journeyman.clock import Clock
from journeyman.config import Settings
from journeyman.errors import StorageError, StorageLocked
from journeyman.servers.core.access import Access
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.service_manager import ServiceManager
from journeyman.servers.core.store import be_alone, open_store
from journeyman.storage import Storage
from journeyman.units import NS_PER_MS

TRY_S: Final = 0.25  # between two tries
WATCH_S: Final = 1.0  # between two looks of an active server
HEALTH_PATHS: Final = ("/health", "/v1/health")
_PROBLEM: Final = {
    "type": "about:blank",
    "title": "Service Unavailable",
    "status": 503,
    "code": "standby",
    "detail": "this server stands by: another one is active; ask that one",
}


async def take_store(
    settings: Settings, access: Access, clock: Clock, messages: ServerLog, manager: ServiceManager
) -> Storage | None:
    """The store, open and alone; None: the wait was ended. UsageError: it cannot be had."""
    if settings.storage.standby:
        return await _StandBy(settings, access, clock, messages, manager).wait()
    storage = open_store(settings, messages)
    try:
        be_alone(storage)
    except BaseException:
        storage.close()
        raise
    return storage


async def watch_store(storage: Storage, failed: Callable[[BaseException], None]) -> None:
    """Until cancelled, or until another server has the store: that is a failure."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(WATCH_S)
        try:
            await loop.run_in_executor(None, storage.backend.check_alone)
        except StorageLocked as error:
            failed(error)
            return
        except StorageError:
            continue  # it does not answer: writes find out, and reads go on


class _StandBy:
    def __init__(
        self,
        settings: Settings,
        access: Access,
        clock: Clock,
        messages: ServerLog,
        manager: ServiceManager,
    ) -> None:
        self._settings = settings
        self._access = access
        self._clock = clock
        self._messages = messages
        self._manager = manager
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._storage: Storage | None = None
        self._is_active = False
        self._told = ""

    async def wait(self) -> Storage | None:
        begin_ns = self._clock.monotonic_ns()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopped.set)
        self._loop.add_signal_handler(signal.SIGHUP, lambda: None)
        if not await self._loop.run_in_executor(None, self._try):
            await self._wait_until_active()
        if self._is_active:
            waited_ms = (self._clock.monotonic_ns() - begin_ns) // NS_PER_MS
            self._messages.info("active: the store is this server's", waited_ms=waited_ms)
            return self._storage
        self._messages.info("stopped while standing by")
        if self._storage is not None:
            self._storage.close()
        return None

    async def _wait_until_active(self) -> None:
        living = self._loop.create_task(self._manager.show_life())
        self._manager.ready()  # a start that waits for another server to end has not failed
        close_http = await self._open_http()
        try:
            while not self._stopped.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), TRY_S)
                    break
                if await self._loop.run_in_executor(None, self._try):
                    break
        finally:
            await close_http()
            living.cancel()

    def _try(self) -> bool:
        """Whether the store is this server's now. UsageError is final."""
        try:
            if self._storage is None:
                self._storage = Storage.from_settings(self._settings.storage)
            self._storage.backend.be_alone()
        except StorageLocked:
            self._tell("standing by: another server has the store")
        except StorageError as error:
            self._tell(f"standing by: the store does not answer: {error}")
        else:
            self._is_active = True
        return self._is_active

    def _tell(self, what: str) -> None:
        """Once, not at every try."""
        if what != self._told:
            self._told = what
            self._messages.info(what)

    async def _open_http(self) -> Callable[[], Awaitable[None]]:
        """Say that this server stands by; what ends that."""
        http = self._settings.http
        if not http.enabled:
            return _nothing
        # What an active server needs is read now, not when every moment counts.
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
        site = web.TCPSite(runner, http.listen.host, http.listen.port, ssl_context=self._access.tls)
        try:
            await site.start()
        except OSError as error:  # on one machine: the active server has the port
            self._messages.info("HTTP is closed while standing by", reason=error.strerror or error)
        else:
            self._messages.info(f"HTTP says that this server stands by on {http.listen}")
        return runner.cleanup


async def _nothing() -> None:
    """There is nothing to close."""

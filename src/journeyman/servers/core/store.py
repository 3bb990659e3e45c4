"""The store of a server process: opened once, for all services that keep their state in it.

    start    opened for this process only: another server on the same store is an error, or, with
             storage.standby, this server waits for it
    serving  each service writes through the same group commit, and loads its own prefix
    stop     closed after all services and the ledger

A store that cannot be opened is a settings error: one line, exit code 2.

A standby waits until it can take the store:

    start --> does another server use the store?
                no   take it, load the services and open their ports: active
                yes  stand by; try again a few times per second
                     ports of the protocols   closed
                     HTTP                     /health: 200 {"status":"standby"}; all else: 503
    the other server ends, is killed, or its host is lost --> active

The database's lock is held by the session that writes. Taking it raises the epoch, which fences off
the previous server (storage/postgres.py). Everything that server acknowledged is committed, so it
is loaded. Only postgres can do this, because the state must not be on the lost host.

An active server that was frozen, or cut off from the database, may have been replaced. It cannot
write; it checks once per second whether it is still the active one, and stops if not.

The server also waits for a database that does not answer. SIGTERM and SIGINT end the wait, exit 0.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain
from typing import Final

from journeyman import errors
from journeyman.clock import Clock
from journeyman.config import Persistence, Settings, WorkqPersistence
from journeyman.errors import StorageError, StorageLocked
from journeyman.folds import ledger as ledger_fold
from journeyman.formats.ledger import KINDS, is_state
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.ztick import Record
from journeyman.logs.ledger import Absorbing
from journeyman.servers.core.access import Access
from journeyman.servers.core.server_log import ServerLog, ServiceManager
from journeyman.storage import Operation, PutEntries, Storage
from journeyman.storage.checking import in_batches
from journeyman.storage.contract import Changes
from journeyman.storage.folded import FoldedRecords, Report, folded_ledger
from journeyman.units import NS_PER_MS

HISTORIES_TO_LOOK = 10_000  # audits written until those that are too old are looked for
TOLD_ONE_BY_ONE = 20  # records that cannot be read; of more only the number is logged

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


def holds_schedule(settings: Settings) -> bool:
    return settings.database.persistence is Persistence.STORAGE


def holds_work(settings: Settings) -> bool:
    return settings.workq.enabled and settings.workq.persistence is WorkqPersistence.STORAGE


def is_store_used(settings: Settings) -> bool:
    return holds_schedule(settings) or holds_work(settings)


def open_store(settings: Settings, messages: ServerLog) -> Storage:
    """UsageError: it cannot be opened."""
    try:
        return Storage.from_settings(settings.storage, say=messages.info)
    except errors.StorageError as error:
        raise errors.UsageError(f"storage: {error}") from error


def be_alone(storage: Storage) -> None:
    """Two servers on one store would run the same jobs. UsageError: there is another."""
    try:
        storage.backend.be_alone()
    except errors.StorageLocked as error:
        reason = "another server has its jobs here; stop it, or choose another storage.path"
        raise errors.UsageError(f"storage: {storage.path}: {reason}") from error


@contextmanager
def as_log_errors() -> Iterator[None]:
    """An error in a commit leaves open whether it was done, unless the engine knows better."""
    try:
        yield
    except errors.StorageClosed as error:
        raise errors.LogClosed(error.place, error.reason) from error
    except errors.StorageFull as error:
        raise errors.LogFull(error.place, error.reason) from error
    except errors.StorageUnavailable as error:
        raise errors.LogUnavailable(error.place, error.reason) from error
    except errors.StorageError as error:
        raise errors.LogPoisoned(error.place, error.reason) from error


class UnreadableReport:
    """Reports records that cannot be read: some by name, the others by their number."""

    def __init__(self, messages: ServerLog) -> None:
        self._messages = messages
        self.count = 0

    def tell(self, key: str, reason: str) -> None:
        self.count += 1
        if self.count <= TOLD_ONE_BY_ONE:
            self._messages.warn("a record cannot be read and is skipped", key=key, reason=reason)

    def tell_key(self, key: bytes, reason: str) -> None:
        self.tell(key.decode("utf-8", "backslashreplace"), reason)

    def sum_up(self) -> None:
        if self.count:
            self._messages.warn(
                "records that cannot be read were skipped; see: journeyman storage check",
                records=self.count,
            )


class StoredLedger:
    """The ledger in the store: what LedgerLog is on a disk."""

    def __init__(self, storage: Storage, absorbing: Absorbing, report: Report) -> None:
        self._storage = storage
        self.folded = folded_ledger(storage)
        self.states: dict[ledger_fold.Key, LedgerRecord] = {}
        self._histories = 0  # written since they were last looked at

        def each(record: LedgerRecord) -> None:
            if not absorbing.absorb(record) and is_state(record):
                self.states[ledger_fold.key_of(record)] = record

        self.folded.load(each, report)

    def append(
        self,
        records: Sequence[LedgerRecord],
        *,
        sync: bool = True,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Durable, and ``then`` is done; or neither. For services that are not in the store."""
        del sync  # every commit is synced
        changes = self.folded.changes(records)
        with self._storage.backend.view() as view:
            before = dict(zip(changes, view.get_many(list(changes)), strict=True))
        self._apply(changes)
        self._histories += sum(not is_state(record) for record in records)
        if then is not None:
            try:
                then()
            except errors.JourneymanError:
                self._apply(before)
                raise

    def _apply(self, changes: Changes) -> None:
        with as_log_errors():
            self._storage.apply([PutEntries(changes)])

    def sync(self) -> None:
        """Every commit was synced."""

    @property
    def is_bloated(self) -> bool:
        """Whether audits should be looked at again; states replace each other."""
        return self._histories >= HISTORIES_TO_LOOK

    def records(self) -> Iterator[LedgerRecord]:
        return iter(self.folded.records())

    def compact(self, keeps: Callable[[LedgerRecord], bool]) -> None:
        """Of states the last one is all that there is, and they may be very many."""
        self._histories = 0
        families = {kind.family for kind in KINDS.values() if kind.key is None}
        records = chain.from_iterable(map(self.folded.records, sorted(families)))
        gone = [record for record in records if not keeps(record)]
        for some in in_batches(gone):
            self._apply(self.folded.removal(some))

    def close(self) -> None:
        """The store is closed by the process."""


class ScheduleRecorder:
    """The schedule in the store, as its writer sees it: records, and what the ledger says of them,
    in one commit."""

    def __init__(
        self,
        storage: Storage,
        schedule: FoldedRecords[Record],
        ledger: FoldedRecords[LedgerRecord] | None,
    ) -> None:
        self._storage = storage
        self._schedule = schedule
        self._ledger = ledger

    def write(self, records: Sequence[Record], ledger: Sequence[LedgerRecord] = ()) -> None:
        """Durable when it returns. JourneymanError: nothing was written, unless it is final."""
        operations: list[Operation] = [PutEntries(self._schedule.changes(records))]
        if ledger:
            assert self._ledger is not None
            operations.append(PutEntries(self._ledger.changes(ledger)))
        with as_log_errors():
            self._storage.apply(operations)


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
            self._messages.info("active: this server has the store now", waited_ms=waited_ms)
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

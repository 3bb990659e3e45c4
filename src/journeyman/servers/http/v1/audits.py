"""Who changed what over HTTP: actions of the console and requests of the API, in the ledger.

What programs do all day is not there: adding, leasing and finishing jobs, putting and reading
items, planning jobs. The logs hold that, and a ledger that kept it again would outgrow them. A
change that cannot be audited stays done; the server's log says so.
"""

from __future__ import annotations

import asyncio

from journeyman.errors import JourneymanError
from journeyman.formats.ledger import CODEC, ActionAudited
from journeyman.formats.timed_frame import Instant
from journeyman.logs.segments import ledger_files
from journeyman.servers.core.ledger import Ledger
from journeyman.servers.http import records
from journeyman.servers.http.v1.backend import HttpBackend

MAX_CHARS = 500  # the limit of a target, and of an outcome


class Audits:
    """Notes who changed what in the ledger, and reads it back."""

    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend
        self._waiting: list[tuple[ActionAudited, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def note(self, who: str, via: str, what: str, target: str, outcome: str) -> None:
        """Returns when it is durable, or has failed."""
        backend = self._backend
        backend.messages.info(f"{via}: {what}", who=who, target=target[:200], outcome=outcome[:200])
        if backend.ledger is None:
            return
        now = Instant(backend.clock.now_ns())
        record = ActionAudited(now, who, via, what, target[:MAX_CHARS], outcome[:MAX_CHARS])
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(backend.ledger))
        await written

    async def _write(self, to: Ledger) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    await to.note([record for record, _ in batch])
                except JourneymanError as error:
                    count = len(batch)
                    self._backend.messages.warn("audits are lost", count=count, reason=error)
                for _, written in batch:
                    if not written.done():
                        written.set_result(None)
        finally:
            self._writing = None

    async def last(self, limit: int, until_ns: int | None = None) -> list[ActionAudited]:
        """Newest first, by a moment if one is given; of each file of the ledger the last ones."""
        ledger = self._backend.ledger
        if ledger is None:
            return []
        place = self._backend.settings.ledger.path
        return await asyncio.to_thread(self._read, place, limit, until_ns)

    def _read(self, directory: str, limit: int, until_ns: int | None) -> list[ActionAudited]:
        disk, found = self._backend.disk, []
        for path in reversed(ledger_files(disk, directory)):
            last = records.last_records(disk, CODEC, path, 10_000)
            audits = [r for each in last if isinstance(r := each.entry.record, ActionAudited)]
            found += [r for r in audits if until_ns is None or r.logged.unix_ns <= until_ns]
            if len(found) >= limit:
                break
        return found[:limit]

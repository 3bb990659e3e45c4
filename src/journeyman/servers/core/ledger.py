"""The ledger of a server process: one for all its services.

    start      opened and folded before any service loads; each takes the families that are its own
    batch      engine --take_ledger--> Batch.ledger --write, sync--> ledger, then the service's log
    HTTP       await note([ActionAudited(...)])    a record that belongs to no batch
    compaction in a thread of its own, when more of it may be dead than live
    stop       closed after all services

It is in ``settings.ledger.path``, which is ``ledger`` in the data directory. Without a ledger
(``settings.ledger.enabled``) a service is given None: what has to be in the ledger is refused with
NO_LEDGER, and what is only an extra is not kept.

A damaged ledger loses what stood in the damaged part, and the server starts. A ledger that cannot
be written refuses the batch that needs it, as the log does; a failed sync of it stops the server.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from journeyman import threads
from journeyman.clock import Clock
from journeyman.config import Persistence, Settings, WorkqPersistence
from journeyman.disk import Disk, absolute
from journeyman.engines.ztick.timetables import TimetableLoader
from journeyman.errors import JourneymanError
from journeyman.formats.ledger import ActionAudited, AttemptsBegun, Record, TimesMarked
from journeyman.logs.holders import Holders
from journeyman.logs.ledger import FileHead, LedgerLog, heads_of
from journeyman.logs.segments import ledger_files
from journeyman.servers.core.server_log import ServerLog, tell_recovery
from journeyman.units import DAY_MS, NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from journeyman.servers.core.writes import WriteWatch

COMPACTION_PAUSE_NS: Final = 60 * NS_PER_S  # between two, also after one that failed
ATTEMPTS_NS: Final = 30 * DAY_MS * NS_PER_MS  # as long as a job can live
_NEVER_NS: Final = 2**63
NO_LEDGER = "this needs the ledger: set data.directory, or ledger.path"


class Ledger:
    """See the module's docstring. ``write`` is safe from any thread."""

    def __init__(
        self,
        log: LedgerLog,
        disk: Disk,
        clock: Clock,
        messages: ServerLog,
        *,
        audit_days: int = 0,
        timetables: TimetableLoader | None = None,
        writes: WriteWatch | None = None,
    ) -> None:
        """``audit_days``: how long audits are kept; 0 is for ever."""
        self._log = log
        # Timetables of the schedule that it holds.
        self.timetables = timetables or TimetableLoader()
        self._disk = disk
        self._clock = clock
        self._messages = messages
        self._writes = writes
        self._audit_ns = audit_days * DAY_MS * NS_PER_MS
        self._timed_files: tuple[str, ...] = ()
        self._compaction: threads.StartedThread | None = None
        self._compactions = threading.Lock()
        self._no_compaction_before_ns = -_NEVER_NS  # monotonic
        self._states = log.states

    def take(self, family: str) -> dict[str, Record]:
        """The state of a family by key, in the order of the ledger. It is given away once.

        Histories are not in memory: ``records`` reads them.
        """
        keys = [key for key in self._states if key[0] == family]
        return {key: self._states.pop((family, key)) for _, key in keys}

    def take_together(self, *families: str) -> Iterator[Record]:
        """Take the records of several families, in the order of the ledger, one after another: they
        may be large."""
        for key in [key for key in self._states if key[0] in families]:
            yield self._states.pop(key)

    def records(self) -> Iterator[Record]:
        """Every record on disk, in order. Blocks."""
        return self._log.records()

    def keeps_times_of(self, files: Iterable[str]) -> None:
        """Marks of these files are kept, and no others."""
        self._timed_files = tuple(files)

    def write(
        self,
        records: Sequence[Record],
        *,
        sync: bool = True,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Returns when they are durable and ``then`` has been done; JourneymanError: neither is.

        Without ``sync`` they are durable after the next sync of the ledger.
        """
        self._log.append(records, sync=sync, then=then)
        if self._log.is_bloated:
            self._begin_compaction()

    def try_lock(self) -> bool:
        """Let no other thread write until ``unlock``; False: one does, or may have to wait."""
        return self._log.appender.try_lock()

    def unlock(self) -> None:
        self._log.appender.unlock()

    def sync(self) -> None:
        """Make durable what was written without a sync. Errors as of an appender's sync."""
        self._log.sync()

    def note_quietly(self, record: Record) -> None:
        """Append a record without a sync, and without a word if that fails: only an
        extra is lost."""
        with suppress(JourneymanError):
            self.write([record], sync=False)

    async def note(self, records: Sequence[Record]) -> None:
        """Append records that belong to no batch, from the event loop."""
        writing = asyncio.get_running_loop().run_in_executor(None, self.write, records)
        if self._writes is not None:
            # The write goes on even if the one who waits for it is cancelled.
            end = self._writes.begin("ledger")
            writing.add_done_callback(lambda _: end())
        await writing

    def close(self) -> None:
        """Blocks. All services are closed."""
        with self._compactions:
            self._no_compaction_before_ns = _NEVER_NS
            compaction = self._compaction
        if compaction is not None:
            compaction.join()
        self._log.close()

    # -- compaction --

    def _begin_compaction(self) -> None:
        with self._compactions:
            is_running = self._compaction is not None and self._compaction.is_alive()
            if is_running or self._clock.monotonic_ns() < self._no_compaction_before_ns:
                return
            self._no_compaction_before_ns = self._clock.monotonic_ns() + COMPACTION_PAUSE_NS
            self._compaction = threads.start(self._compact, "journeyman-ledger")

    def _compact(self) -> None:
        try:
            self._log.compact(self._keeping())
        except (OSError, JourneymanError) as error:
            self._messages.warn("the ledger could not be compacted; nothing is lost", reason=error)

    def _keeping(self) -> Callable[[Record], bool]:
        oldest_ns = self._clock.now_ns() - self._audit_ns if self._audit_ns else None
        attempts_ns = self._clock.now_ns() - ATTEMPTS_NS
        heads: dict[int, set[FileHead]] = {}

        def keeps(record: Record) -> bool:
            if isinstance(record, ActionAudited):
                return oldest_ns is None or record.logged.unix_ns >= oldest_ns
            if isinstance(record, AttemptsBegun):
                return record.logged.unix_ns >= attempts_ns
            if isinstance(record, TimesMarked):
                size = record.head_bytes
                if size not in heads:
                    heads[size] = heads_of(self._disk, self._timed_files, size)
                return FileHead(size, record.head_crc) in heads[size]
            return True

        return keeps


def open_ledger(
    settings: Settings,
    disk: Disk,
    clock: Clock,
    messages: ServerLog,
    holders: Holders | None = None,
    writes: WriteWatch | None = None,
) -> Ledger | None:
    """Open the ledger. None: there is no place for one, or nothing is kept anyway."""
    path = settings.ledger.path
    if not is_used(settings):
        logs = (settings.database.logfile_path, settings.workq.cmdlog_path)
        unused = next(filter(None, (unused_ledger_beside(settings, log) for log in logs)), "")
        if unused and ledger_files(disk, unused):
            messages.warn(
                "the ledger is off: its timetables, limits, pauses and waiting jobs are ignored; "
                "set ledger.enabled = true to use them",
                ledger=unused,
            )
        return None
    timetables = TimetableLoader()
    log = LedgerLog.open(disk, clock, path, absorbing=timetables, holders=holders)
    tell_recovery(messages, log.recovery)
    live = len(log.states) + timetables.live_records
    messages.info(f"loaded {live} entries of the ledger", ledger=path)
    days = settings.ledger.audit_days
    return Ledger(log, disk, clock, messages, audit_days=days, timetables=timetables, writes=writes)


def unused_ledger_beside(settings: Settings, log: str) -> str:
    """Where a ledger is that is switched off, in the same data directory as a log; empty: none.

    Elsewhere it may be that of another server.
    """
    places = {os.path.dirname(absolute(path)) for path in (settings.ledger.path, log)}
    return "" if settings.ledger.enabled or len(places) > 1 else settings.ledger.path


def is_used(settings: Settings) -> bool:
    """Return whether there is one: it is on, and a service that has something for it keeps its
    state.
    """
    return settings.ledger.enabled and (
        settings.database.persistence is not Persistence.MEMORY
        or (settings.workq.enabled and settings.workq.persistence is not WorkqPersistence.MEMORY)
    )

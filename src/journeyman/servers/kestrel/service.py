"""The fan-out queues as a whole: built from the settings, started, and stopped in order.

    start    every queue of the folder is locked and read; the port opens when all are loaded
    stop     1 no new connections; waits end, what was open goes back
             2 what was received is answered, connections are closed
             3 the last checkpoints are written, the journals synced and closed: ``close``

It shares the process and the figures with the other services, and nothing else: it has its own
journals, writer and ticker. A failed sync stops all of them at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from journeyman import threads
from journeyman.config import Settings, WorkqSync
from journeyman.config.queue_settings import READER, READER_KEYS
from journeyman.disk import absolute
from journeyman.engines.kestrel.engine import KestrelEngine
from journeyman.engines.kestrel.messages import Checkpoint, Effect, SaveCheckpoint, StopServer
from journeyman.engines.kestrel.queue import KestrelOptions, QueueSettings, ReaderSettings
from journeyman.engines.kestrel.state import LoadedReader
from journeyman.errors import JourneymanError
from journeyman.formats.kestrel import MAX_DATA_BYTES, SEAL_BYTES
from journeyman.logs.kestrel.log import DEFAULT_SEGMENT_BYTES, KestrelLog
from journeyman.protocols.kestrel.commands import Put
from journeyman.protocols.kestrel.replies import NOT_STORED, STORED, ServerError
from journeyman.servers.core.contract import Requests
from journeyman.servers.core.internal_call import NotDone
from journeyman.servers.core.metrics import Family
from journeyman.servers.core.server_log import tell_recovery
from journeyman.servers.core.service import FRAMERATE, Service, ServiceContext
from journeyman.servers.core.shared import delay_to_second
from journeyman.servers.kestrel.metrics import KestrelInquiries, KestrelMetrics
from journeyman.servers.kestrel.persistence import KestrelLogs
from journeyman.servers.kestrel.session import KestrelContext, KestrelSession
from journeyman.servers.kestrel.writer import KestrelDialect
from journeyman.units import NS_PER_MS

ITEM_OVERHEAD_BYTES = 4 + 33  # the magic of a segment, and the longest head of an entry
SHOWN_OLD_JOURNALS = 5


def queue_settings(settings: Settings) -> KestrelOptions:
    """The limits of every queue and reader; the settings have been checked.

        reader's table  <-  its queue's table  <-  [kestrel.default]        key by key

    In a table 0 lifts a limit, and an empty name says that there is no such queue: both become
    None.
    """
    kestrel = settings.kestrel
    return KestrelOptions(
        default=_queue_settings(kestrel.default, {}),
        queues={
            name: _queue_settings(kestrel.default, limits) for name, limits in kestrel.queue.items()
        },
        max_item_bytes=_max_item_bytes(kestrel.segment_bytes),
        max_queues=kestrel.max_queues,
        max_readers=kestrel.max_readers,
        window_items=kestrel.window_items,
        window_bytes=kestrel.window_bytes,
        sweep_interval_ms=kestrel.sweep_interval_ms,
        shutdown_allowed=kestrel.allow_shutdown,
    )


def _max_item_bytes(segment_bytes: int) -> int:
    """Return what fits a segment, seals included: one opens it, one ends the batch, one closes it.
    The original cannot open a queue whose last segment is longer than its own setting, 16 MiB by
    default; so smaller segments here may grow up to that."""
    room = max(segment_bytes, DEFAULT_SEGMENT_BYTES) - ITEM_OVERHEAD_BYTES - 3 * SEAL_BYTES
    return min(room, MAX_DATA_BYTES)


def _queue_settings(default: Mapping[str, Any], limits: Mapping[str, Any]) -> QueueSettings:
    given = {**default, **limits}
    return QueueSettings(
        reader=_reader_settings(given),
        readers={
            name: _reader_settings({**given, **own}) for name, own in limits.get(READER, {}).items()
        },
        max_item_bytes=given.get("max_item_bytes") or None,
        max_age_ms=given.get("max_queue_age_ms") or None,
    )


def _reader_settings(options: Mapping[str, Any]) -> ReaderSettings:
    values = {key: options[key] for key in READER_KEYS if key in options}
    lifted = {key: None for key, value in values.items() if value in (0, "") and value is not False}
    return ReaderSettings(**{**values, **lifted})


class KestrelServer(Service):
    """The running fan-out queues."""

    name = "the fan-out queues"
    log_name = "kestrel"
    listens = "the fan-out queues listen"
    refusal = "a journal cannot be written: puts are refused"
    recovery = "the journals can be written again"

    dialect: KestrelDialect
    port_context: KestrelContext
    facts: KestrelInquiries
    figures: KestrelMetrics

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        kestrel = self._kestrel = context.settings.kestrel
        self._logs = KestrelLogs(
            self._disk,
            self._clock,
            kestrel.queue_path,
            waits_for_sync=kestrel.sync is WorkqSync.ALWAYS,
            seal=kestrel.seals,
            segment_bytes=kestrel.segment_bytes,
            archive_directory=kestrel.archive_path,
            holders=context.holders,
        )
        self._engine = KestrelEngine(queue_settings(context.settings))
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._to_save: dict[tuple[str, str], SaveCheckpoint] = {}  # the last of each reader
        self._saving: Future[list[str]] | None = None
        self._is_closing = False
        self._save_trouble = ""  # the last failure
        self._index_trouble = ""
        self._being_saved: dict[tuple[str, str], SaveCheckpoint] = {}
        self._saver = threads.pool(1, "journeyman-checkpoints")

    def families(self) -> list[Family]:
        """The figures; ready to be asked when the service has started."""
        return self.figures.families()

    async def put(self, queue: str, data: bytes) -> str:
        """Put an item for a rule of the schedule. Returns why that failed, or nothing."""
        reply = await self.writer.ask(Put(queue, 0, data))
        if isinstance(reply, NotDone):
            return reply.reason
        if reply is STORED:
            return ""
        if reply is NOT_STORED:
            return f"queue {queue} refused the item: it is full, or the item is too large"
        reason = reply.reason if isinstance(reply, ServerError) else ""
        return f"queue {queue} refused the item: {reason}"

    # -- start --

    async def start(self) -> None:
        """Load and listen. Raises what stands in the way; nothing is left open then."""
        begin_ns = self._clock.monotonic_ns()
        try:
            for queue, log in self._logs.open_all().items():
                self._load(queue, log)
            self._see_to_old_journals()
            for queue, note in self._logs.new_notes():
                self._messages.warn(f"{note.kind}: {note.detail}", queue=queue, reader=note.key)
            self._build()
            kestrel = self._kestrel
            await self._open_port(kestrel.listen, KestrelSession, kestrel.idle_timeout_ms)
        except BaseException:
            self._logs.close()
            raise
        stats = self._engine.stats()
        self._messages.info(
            f"loaded {stats.queues} fan-out queues with {stats.readers} readers",
            folder=self._logs.folder,
            took_ms=(self._clock.monotonic_ns() - begin_ns) // NS_PER_MS,
        )
        self._plan_checkpoint()

    def _see_to_old_journals(self) -> None:
        """Say which queues have them; commands to these queues are refused."""
        found = self._logs.old_journals
        if not found:
            return
        self._engine.hold_off(name.partition("+")[0] for name in found)
        listed = sorted(found)
        shown = ", ".join(listed[:SHOWN_OLD_JOURNALS])
        more = len(listed) - SHOWN_OLD_JOURNALS
        self._messages.warn(
            f"found {len(listed)} journals of kestrel 1.x or 2.x: this server cannot read them, "
            "leaves them as they are and refuses commands to their queues; empty them with the "
            "kestrel that wrote them, or move them elsewhere",
            folder=absolute(self._logs.folder),
            queues=shown if more <= 0 else f"{shown} and {more} more",
        )

    def _load(self, queue: str, log: KestrelLog) -> None:
        tell_recovery(self._messages, log.recovery, path=self._logs.folder, queue=queue)
        for anomaly in log.anomalies:
            self._messages.warn(
                f"{anomaly.kind}: {anomaly.detail}", queue=queue, reader=str(anomaly.key)
            )
        readers = [
            LoadedReader(name, place, *log.left_for(place)) for name, place in log.readers.items()
        ]
        now_ms = self._clock.now_ns() // NS_PER_MS
        self._engine.load(queue, next_id=log.next_id, created_ms=now_ms, readers=readers)

    def _build(self) -> None:
        engine = self._engine
        sessions: set[KestrelSession] = set()
        self.figures = KestrelMetrics(
            engine.stats, lambda: engine.counts, sessions, engine.queues.values
        )
        self.facts = KestrelInquiries(engine, self._clock, self.figures, self._logs.size_of)
        self.dialect = KestrelDialect(engine, self._clock, self, self._logs, self.facts)
        self._open_writer(self.dialect, self._logs, engine.next_due_ns, FRAMERATE)
        if self._kestrel.sync is WorkqSync.INTERVAL:
            delay_s = self._kestrel.sync_interval_ms / 1000
            self._do_later(lambda: self._logs.is_unsynced, self._logs.sync, delay_s)
        self.port_context = self.facts.port_context = self._make_port_context(
            KestrelContext, sessions=sessions
        )

    # -- while it runs --

    def on_answered(self, requests: Requests, outcomes: Sequence[object], begun_ns: int) -> None:  # noqa: ARG002
        self.figures.count(requests, outcomes)
        if self._checkpoint_timer is None and any(
            type(request) is not Checkpoint for _, request in requests
        ):
            self._plan_checkpoint()

    def on_effect(self, effect: Effect) -> None:
        if isinstance(effect, SaveCheckpoint):
            self._to_save[effect.queue, effect.reader] = effect
            self._loop.call_soon(self._save)
        elif isinstance(effect, StopServer):
            self._messages.info("a client asked for shutdown")
            self._context.stop_server()

    def _plan_checkpoint(self) -> None:
        if self._is_closing:  # close() has asked for the last one
            return
        delay_s = delay_to_second(self._loop, self._kestrel.checkpoint_interval_ms / 1000)
        self._checkpoint_timer = self._loop.call_later(delay_s, self._checkpoint)

    def _checkpoint(self) -> None:
        """The next one is planned with the next command: an idle server does not wake up."""
        self._checkpoint_timer = None
        if self._saving is not None:
            self._plan_checkpoint()
            return
        self.writer.submit_own(Checkpoint())
        self._save()  # saves the indexes, and the state if that failed the last time

    def _save(self) -> None:
        """Hand all that is to be saved to the thread; what comes meanwhile goes with the next."""
        if self._is_closing:  # all that is left is saved at the very end
            return
        if self._saving is not None or not (self._to_save or self._logs.is_unindexed):
            return
        self._being_saved, self._to_save = self._to_save, {}
        self._saving = self._saver.submit(self._logs.save, self._being_saved.values())
        self._saving.add_done_callback(
            lambda future: self._loop.call_soon_threadsafe(self._saved, future)
        )

    def _saved(self, future: Future[list[str]]) -> None:
        self._saving = None
        error = future.exception()
        said, self._save_trouble = self._save_trouble, "" if error is None else str(error)
        if error is not None:
            # The journals are whole: after a crash a little more is delivered again.
            if self._save_trouble != said:  # once, not every second
                self._messages.warn("checkpoints could not be written; trying again", reason=error)
            self._to_save = self._being_saved | self._to_save  # with the next ones
            if self._checkpoint_timer is None:
                self._plan_checkpoint()
        self._tell_index_trouble()
        for path, offset, reason in self._logs.new_damages():
            self._messages.warn(
                f"damaged bytes in a journal: {reason}; the next items are read on",
                file=path,
                offset=offset,
            )
        if error is None and self._to_save:
            self._save()

    def _tell_index_trouble(self) -> None:
        said, self._index_trouble = self._index_trouble, self._logs.index_trouble
        if self._index_trouble not in ("", said):  # once, not every second
            self._messages.warn(
                "indexes of journals could not be written: starts and Spark read whole files",
                reason=self._index_trouble,
            )

    def on_unread(self, error: Exception) -> None:
        self._messages.warn("items could not be read; trying again", reason=error)

    # -- stop --

    async def close(self) -> None:
        """Write what is left, and let go of the journals."""
        self._is_closing = True
        self._ticker.stop()
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
        if self.writer.failure is None:
            self.writer.submit_own(Checkpoint())
        await self._close_writer()
        self.dialect.fetcher.close()
        await self._loop.run_in_executor(None, self._saver.shutdown)
        await asyncio.sleep(0)  # the result of the last save is reported now
        try:
            await self._loop.run_in_executor(None, self._logs.save, self._to_save.values())
        except (OSError, JourneymanError) as error:
            self._messages.warn("checkpoints could not be written", reason=error)
        self._tell_index_trouble()
        await self._loop.run_in_executor(None, self._logs.close)

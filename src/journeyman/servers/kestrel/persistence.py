"""The journals of all queues in one folder, as the writer of the fan-out queues sees them.

    write        for the writer: items to append, readers to register, queues to erase
    read_after   in another thread: items that are not in memory
    save         in a third: checkpoints, retention, indexes

    always      each log is written and synced
    interval    written; synced by the clock, see sync
    os          written

A batch may touch several journals, and each is a file of its own. If one of them cannot be written
the others may have been: PartlyWritten says which items are stored all the same. In a database up
to MOST_TOGETHER journals are one commit.

Items that are not in memory, read from the journals in threads of their own.

    Fetch --> a thread reads --> Fetched, to the writer, which has decided much else meanwhile

What cannot be read now is tried again a little later: nothing is lost by waiting, and only
the clients that want these very items wait.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from journeyman import threads
from journeyman.clock import Clock
from journeyman.disk import Disk, is_database, is_full
from journeyman.engines.kestrel import messages
from journeyman.errors import LogError, LogPoisoned
from journeyman.folds import Anomaly
from journeyman.formats.kestrel import ItemPut
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.holders import Holders
from journeyman.logs.kestrel.log import (
    DEFAULT_SEGMENT_BYTES,
    KestrelLog,
    finish_publication,
    remove_stale_locks,
)
from journeyman.logs.kestrel.old_journals import find_old_journals
from journeyman.logs.kestrel.segments import Segment
from journeyman.logs.segments import kestrel_queues
from journeyman.servers.core.contract import Dialect, Recorder, WriteWait
from journeyman.servers.core.group_commit import QUICK_BYTES, RETRY_S

THREADS = 2
QUICK_JOURNALS = 4  # each is synced for itself; for more of them the event loop does not wait
MOST_TOGETHER = 64  # journals in one commit: each is written while those before it wait
FETCH_ITEMS = 512
_FOR_NOW = (errno.EMFILE, errno.ENFILE)  # no file can be opened: a matter of the moment
FETCH_BYTES = 256 * 1024
ITEM_HEAD_BYTES = 25  # the head of an item that does not expire


class ItemFetcher:
    """Methods are called on the event loop, and so are the callbacks."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        read_after: Callable[[str, int], tuple[ItemPut, ...]],
        dialect: Dialect,
        *,
        on_unread: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._read_after = read_after
        self._dialect = dialect
        self._on_unread = on_unread
        self._threads = threads.pool(THREADS, "journeyman-reading")
        self._closed = False

    def fetch(self, fetch: messages.Fetch) -> None:
        if not self._closed:
            reading = self._threads.submit(self._read_after, fetch.queue, fetch.after)
            reading.add_done_callback(
                lambda future: self._loop.call_soon_threadsafe(self._fetched, fetch, future)
            )

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=True)

    def _fetched(self, fetch: messages.Fetch, future: Future[tuple[ItemPut, ...]]) -> None:
        error = future.exception()
        if error is None:
            self._dialect.writer.submit_own(messages.Fetched(fetch, future.result()))
        elif isinstance(error, OSError | LogError):
            self._on_unread(error)
            self._loop.call_later(RETRY_S, self.fetch, fetch)
        else:
            self._dialect.writer.fail(error)


class LogSize(NamedTuple):
    stored_bytes: int  # items and their headers
    closed_segments: int
    spans: tuple[Segment, ...] = ()  # with the ids and times of their items, oldest first


class PartlyWritten(LogError):
    """One journal could not be written; others were all the same.

    ``written`` are the items that are stored, by queue, ``erased`` the queues that were erased;
    those that are in both were made again after that.
    """

    def __init__(
        self, error: LogError, written: dict[str, list[ItemPut]], erased: set[str]
    ) -> None:
        super().__init__(error.path, error.reason)
        self.written = written
        self.erased = erased


class KestrelLogs(Recorder):
    """``write`` and ``sync`` never run at the same time: the writer sees to that."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: str,
        *,
        waits_for_sync: bool,
        seal: bool = True,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        archive_directory: str | None = None,
        holders: Holders | None = None,
    ) -> None:
        self._holders = holders
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._together = MOST_TOGETHER if is_database(directory) else 1
        self._waits = waits_for_sync
        self._seal = seal
        self._segment_bytes = segment_bytes
        self._archive_directory = archive_directory
        self._logs: dict[str, KestrelLog] = {}
        self._unsynced: set[str] = set()
        # The numbers of readers that were not loaded, by queue and name; see AddReader.
        self._serials: dict[str, dict[str, int]] = {}
        # Journals of kestrel 1.x and 2.x, left as they are.
        self.old_journals: dict[str, list[str]] = {}
        self._notes: list[tuple[str, Anomaly]] = []  # by queue, of those that were opened
        # Queues that have closed segments without an index, or that a holder has not read.
        self._unindexed: set[str] = set()
        self.index_trouble = ""  # why the last ``save`` could not write some; it was tried

    # -- start and end --

    def open_all(self) -> dict[str, KestrelLog]:
        """Every queue that the folder holds; the folder is made if it is missing."""
        self._disk.make_dirs(self._directory)
        finish_publication(self._disk, self._directory)
        names = self._disk.list_dir(self._directory)
        remove_stale_locks(self._disk, self._directory, names)
        self.old_journals = find_old_journals(self._disk, self._directory, names)
        old = {name for files in self.old_journals.values() for name in files}
        names = [name for name in names if name not in old]
        by_queue: dict[str, list[str]] = {}  # so that not every queue looks through all names
        for name in names:
            by_queue.setdefault(name.partition(".")[0], []).append(name)
        for queue in kestrel_queues(names):
            if self._open(queue, by_queue[queue]).is_unindexed:
                self._unindexed.add(queue)
        return self._logs

    def close(self) -> None:
        """All of them, whatever goes wrong with one; that is raised in the end."""
        errors: list[OSError | LogError] = []
        for log in self._logs.values():
            try:
                log.close()
            except (OSError, LogError) as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _open(self, queue: str, names: Sequence[str] | None = None) -> KestrelLog:
        policy = SyncPolicy.ALWAYS if self._waits else SyncPolicy.OS
        log = KestrelLog.open(
            self._disk,
            self._clock,
            self._directory,
            queue,
            sync=policy,
            seal=self._seal,
            segment_bytes=self._segment_bytes,
            archive_directory=self._archive_directory,
            names=names,
            notes=lambda anomaly: self._notes.append((queue, anomaly)),
            holders=self._holders,
        )
        self._logs[queue] = log
        return log

    # -- for the writer --

    @property
    def is_unsynced(self) -> bool:
        return bool(self._unsynced)

    def wait_of(self, writes: Sequence[messages.Write]) -> WriteWait:
        sizes: dict[str, int] = {}
        for write in writes:
            if type(write) is not messages.Append or write.queue not in self._logs:
                return WriteWait.MORE
            sizes[write.queue] = sizes.get(write.queue, 0) + len(write.item.data) + 64
        if not all(self._fits(queue, size) for queue, size in sizes.items()):
            return WriteWait.MORE
        if not self._waits:
            return WriteWait.NOTHING
        is_little = len(sizes) <= QUICK_JOURNALS and sum(sizes.values()) <= QUICK_BYTES
        return WriteWait.SYNC if is_little else WriteWait.MORE

    def _fits(self, queue: str, size: int) -> bool:
        log = self._logs[queue]
        return log.appender.has_begun and log.has_room_for(size)

    def write(self, writes: Sequence[messages.Write]) -> None:
        """JourneymanError: nothing was written, unless it is PartlyWritten or LogPoisoned."""
        written: dict[str, list[ItemPut]] = {}
        erased: set[str] = set()
        try:
            self._write(writes, written, erased)
        except LogPoisoned:
            raise
        except LogError as error:
            if written or erased:
                raise PartlyWritten(error, written, erased) from error
            raise

    def _write(
        self, writes: Sequence[messages.Write], written: dict[str, list[ItemPut]], erased: set[str]
    ) -> None:
        items: dict[str, list[ItemPut]] = {}
        for write in writes:
            if type(write) is messages.Append:
                items.setdefault(write.queue, []).append(write.item)
                continue
            if write.queue in items:
                self._append([write.queue], items, written)
                del items[write.queue]
            try:
                self._change(write)
            except OSError as error:
                if error.errno not in _FOR_NOW and not is_full(error):
                    raise
                raise LogError(self._directory, error.strerror or str(error)) from error
            if type(write) is messages.EraseQueue:
                written.pop(write.queue, None)
                erased.add(write.queue)
        queues = list(items)
        for first in range(0, len(queues), self._together):
            self._append(queues[first : first + self._together], items, written)

    def _append(
        self,
        queues: Sequence[str],
        items: dict[str, list[ItemPut]],
        written: dict[str, list[ItemPut]],
    ) -> None:
        """All or nothing. In a database a sync commits all that was written, so the last one's
        does for all of them."""
        queue, *others = queues
        sync, then = None, None
        if others:
            sync, then = False, partial(self._append, others, items, written)
        if self._logs[queue].append(items[queue], sync=sync, then=then):
            self._unindexed.add(queue)
        written.setdefault(queue, []).extend(items[queue])
        self._unsynced.add(queue)

    def _change(
        self,
        write: messages.AddReader | messages.RemoveReader | messages.EraseQueue | messages.Append,
    ) -> None:
        log = self._logs.get(write.queue)
        if isinstance(write, messages.EraseQueue):
            if log is not None:
                log.erase()
                del self._logs[write.queue]
                self._serials.pop(write.queue, None)
                self._unsynced.discard(write.queue)
        elif isinstance(write, messages.AddReader):
            if log is None:
                log = self._open(write.queue)
            if write.reader not in log.readers:
                log.add_reader(write.reader)
            self._serials.setdefault(write.queue, {})[write.reader] = write.serial
        elif isinstance(write, messages.RemoveReader) and log is not None:
            log.drop_reader(write.reader)
            self._serials.get(write.queue, {}).pop(write.reader, None)

    def sync(self) -> None:
        for queue in list(self._unsynced):
            if queue in self._logs:
                self._logs[queue].appender.sync()
            self._unsynced.discard(queue)

    # -- in other threads --

    def read_after(self, queue: str, item_id: int) -> tuple[ItemPut, ...]:
        log = self._logs.get(queue)
        if log is None:
            return ()
        return tuple(log.read_after(item_id, max_items=FETCH_ITEMS, max_bytes=FETCH_BYTES))

    @property
    def is_unindexed(self) -> bool:
        """Return whether ``save`` has something to do without any checkpoint."""
        return bool(self._unindexed)

    def save(self, checkpoints: Iterable[messages.SaveCheckpoint]) -> list[str]:
        """Write checkpoints, remove what no reader needs, index what stays; what went.

        What goes wrong with one queue does not keep the others; it is raised in the end. An index
        can do without: see ``index_trouble``.
        """
        self.index_trouble = ""
        went: list[str] = []
        errors: list[OSError | LogError] = []
        by_queue: dict[str, list[messages.SaveCheckpoint]] = {
            queue: [] for queue in self._unindexed.copy()
        }
        for checkpoint in checkpoints:
            by_queue.setdefault(checkpoint.queue, []).append(checkpoint)
        for queue, its_checkpoints in by_queue.items():
            self._unindexed.discard(queue)  # before: the writer may say so again meanwhile
            log = self._logs.get(queue)
            try:
                if log is not None:
                    went += self._save_queue(log, its_checkpoints)
                    if not self._index(log) or log.is_held:
                        self._unindexed.add(queue)
            except (OSError, LogError) as error:
                self._unindexed.add(queue)
                errors.append(error)
        if errors:
            raise errors[0]
        return went

    def _save_queue(
        self, log: KestrelLog, checkpoints: Sequence[messages.SaveCheckpoint]
    ) -> list[str]:
        saved = False
        for queue, reader, serial, state in checkpoints:
            # If not: it was removed, and there may be another of its name.
            is_the_same = self._serials.get(queue, {}).get(reader, 0) == serial
            saved |= is_the_same and log.checkpoint_if_known(reader, state)
        return log.retain() if saved or log.is_held else []

    def _index(self, log: KestrelLog) -> bool:
        try:
            log.save_indexes()
        except (OSError, LogError) as error:
            self.index_trouble = str(error)
            return False
        return True

    def new_notes(self) -> list[tuple[str, Anomaly]]:
        """Readers that do not stand where their checkpoints said, by queue, since the last time."""
        notes, self._notes = self._notes, []
        return notes

    def new_damages(self) -> list[tuple[str, int, str]]:
        """Damage met in reading since the last time: path, offset, reason."""
        found = []
        for log in list(self._logs.values()):
            while log.damages:
                found.append(log.damages.pop())
        return found

    def size_of(self, queue: str) -> LogSize:
        """Return what is stored of a queue now, without a look at the disk."""
        log = self._logs.get(queue)
        segments = log.segments if log is not None else []
        return LogSize(
            sum(segment.data_bytes + ITEM_HEAD_BYTES * segment.items for segment in segments),
            max(0, len(segments) - 1),
            tuple(each for each in segments if each.items),
        )

    @property
    def folder(self) -> str:
        return self._directory.rstrip("/") or self._directory

"""The command log, as the writer of the work queue sees it: a batch goes in, and is as durable as
the policy says when ``write`` returns.

    always      written and synced                       in the writer's thread
    interval    written; synced by the clock, see sync   here and now: nothing waits for the disk
    os          written                                  here and now

Here and now, unless that would wait after all: for the sync of a segment that is full, or for the
lock while the log is cleaned. ``is_quick`` tells.

The names of paused queues belong to a batch like its records. They are prepared before the records
are written and put in place behind them, so a batch that finds no room changes neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from journeyman.config import WorkqSync
from journeyman.disk import Disk
from journeyman.errors import LogError, LogPoisoned
from journeyman.formats.workq import CODEC, Record
from journeyman.logs.sync import SyncPolicy
from journeyman.logs.workq import pauses
from journeyman.logs.workq.log import WorkqLog


def policy_of(sync: WorkqSync) -> SyncPolicy:
    """What the log itself has to do; intervals are kept by whoever calls ``sync``."""
    return SyncPolicy.always() if sync is WorkqSync.ALWAYS else SyncPolicy.os()


class WorkqJournal:
    """``write`` and ``sync`` never run at the same time: the writer sees to that."""

    def __init__(
        self, log: WorkqLog, disk: Disk, directory: str, *, sync: WorkqSync, segment_bytes: int
    ) -> None:
        self._log = log
        self._disk = disk
        self._directory = directory
        self._waits = sync is WorkqSync.ALWAYS
        self._segment_bytes = segment_bytes
        end = log.appender.end()
        self._end = end.offset if end is not None else 0
        self.is_unsynced = False  # something was written since the last ``sync``
        self.is_shared = False  # another thread is at the log

    @property
    def is_quick(self) -> bool:
        """Whether a write now would wait for no disk and no lock."""
        return not self._waits and not self.is_shared and self._end < self._segment_bytes

    def write(self, records: Sequence[Record], paused: Iterable[str] | None = None) -> None:
        """JourneymanError: nothing was written, unless it is LogPoisoned."""
        if paused is not None:
            pauses.prepare(self._disk, self._directory, paused)
        if records:
            try:
                self._append(records)
            except LogError:
                if paused is not None:
                    pauses.discard(self._disk, self._directory)
                raise
        if paused is not None:
            self._put_pauses_in_place()

    def sync(self) -> None:
        """Make durable what was written. LogPoisoned: it is not, and never will be."""
        self.is_unsynced = False
        self._log.appender.sync()

    def _append(self, records: Sequence[Record]) -> None:
        # One piece, not one a record: nobody asks where in the log a record of a batch stands.
        data = b"".join([CODEC.encode(record) for record in records])
        future = self._log.appender.append(data)
        self._log.commit()
        begin = future.result()  # nobody else commits, so it has been decided by now
        self._end = begin.offset + len(data)
        self.is_unsynced = True

    def _put_pauses_in_place(self) -> None:
        try:
            pauses.finish(self._disk, self._directory)
        except OSError as error:
            reason = f"the paused queues could not be saved: {error.strerror or error}"
            raise LogPoisoned(self._directory, reason) from error

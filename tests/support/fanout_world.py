"""The fan-out queues without sockets, threads and time: the engine, and its journals on a disk.

    put, get, confirm --> engine --> journals.write --> replies
                            ^                            |
                            +---- Fetched <-- Fetch -----+     read at once, as if by the thread

What the server does in order, this does in order, one command a batch.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from journeyman.engines.kestrel.engine import KestrelEngine
from journeyman.engines.kestrel.messages import (
    Checkpoint,
    Effect,
    Fetch,
    Fetched,
    KestrelAnswer,
    KestrelOutcome,
    SaveCheckpoint,
)
from journeyman.engines.kestrel.queue import KestrelOptions, QueueSettings, ReaderSettings
from journeyman.engines.kestrel.state import LoadedReader
from journeyman.protocols.kestrel.commands import Confirm, DeleteQueue, Flush, GetItem, Key, Put
from journeyman.protocols.kestrel.replies import reply_bytes
from journeyman.servers.kestrel.persistence import KestrelLogs
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk

__all__ = ["SPOOL", "FanOutWorld", "data_of"]

SPOOL = "/data/spool"
STORED, END = b"STORED\r\n", b"END\r\n"
SMALL = KestrelOptions(
    QueueSettings(ReaderSettings(max_open=1000)), window_items=3, window_bytes=1000
)


def data_of(reply: bytes) -> bytes | None:
    """The item in a reply to get; None: there was none."""
    if reply == END:
        return None
    line, _, rest = reply.partition(b"\r\n")
    assert line.startswith(b"VALUE "), reply
    size = int(line.rpartition(b" ")[2])
    assert rest[size:] == b"\r\nEND\r\n"
    return rest[:size]


class FanOutWorld:
    """One life of the queues in ``SPOOL``. Three items of a queue are in memory, unless set."""

    def __init__(
        self,
        disk: SimulatedDisk,
        *,
        settings: KestrelOptions = SMALL,
        sync: bool = True,
        segment_bytes: int = 16 * 1024 * 1024,
        archive_directory: str | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.engine = KestrelEngine(settings)
        self.journals = KestrelLogs(
            disk,
            self.clock,
            SPOOL,
            waits_for_sync=sync,
            segment_bytes=segment_bytes,
            archive_directory=archive_directory,
        )
        self.opened = self.journals.open_all()
        self.reports = {queue: journal.recovery for queue, journal in self.opened.items()}
        for queue, journal in self.opened.items():
            readers = [
                LoadedReader(name, place, *journal.left_for(place))
                for name, place in journal.readers.items()
            ]
            self.engine.load(queue, next_id=journal.next_id, created_ms=0, readers=readers)
        self._clients = count(1)
        self._answers: dict[Any, list[bytes]] = {}

    # -- the spine --

    def ask(self, command: Any, client: Any = None) -> bytes:
        """The answer to a command, which must not have to wait for a put."""
        client = next(self._clients) if client is None else client
        reply = self.decide(command, client)
        if reply is not None:
            return reply
        assert client in self._answers, f"{command} is not answered"
        return b"".join(self._answers.pop(client))

    def decide(self, command: Any, client: Any = None) -> bytes | None:
        self.engine.begin_batch()
        outcome = self.engine.decide(command, self.clock.now_ns(), client)
        if outcome.records:
            self.journals.write(outcome.records)
        self.engine.commit_batch()
        self._carry_out(outcome)
        return None if outcome.reply is None else reply_bytes(outcome.reply)

    def _carry_out(self, outcome: KestrelOutcome) -> None:
        saved: list[SaveCheckpoint] = []
        effects: list[Effect] = list(outcome.effects)
        for effect in effects:
            if isinstance(effect, Fetch):
                items = self.journals.read_after(effect.queue, effect.after)
                self.decide(Fetched(effect, items))
            elif isinstance(effect, KestrelAnswer):
                self._answers.setdefault(effect.client, []).append(reply_bytes(effect.reply))
            elif isinstance(effect, SaveCheckpoint):
                saved.append(effect)
        if saved or self.journals.is_unindexed:
            self.journals.save(saved)

    # -- what clients do --

    def put(self, queue: str, *items: bytes) -> None:
        for data in items:
            self.clock.advance(0.001)
            assert self.ask(Put(queue, 0, data)) == STORED

    def get(self, queue: str, reader: str = "", **options: Any) -> bytes | None:
        """Confirmed by being given out, unless ``open`` is given together with a ``client``."""
        client = options.pop("client", None)
        return data_of(self.ask(GetItem(Key(queue, reader), **options), client))

    def confirm(self, queue: str, reader: str, items: int, client: Any) -> None:
        assert self.ask(Confirm(Key(queue, reader), items), client) == END

    def delete(self, queue: str, reader: str = "") -> None:
        assert self.ask(DeleteQueue(Key(queue, reader))) == b"DELETED\r\n"

    def flush(self, queue: str, reader: str = "") -> None:
        assert self.ask(Flush(Key(queue, reader))) == END

    def drained(self, queue: str, reader: str = "") -> list[bytes]:
        """Everything that this reader is given."""
        items: list[bytes] = []
        while (data := self.get(queue, reader)) is not None:
            items.append(data)
        return items

    def checkpoint(self) -> None:
        self.decide(Checkpoint())

    def close(self) -> None:
        self.checkpoint()
        self.journals.close()

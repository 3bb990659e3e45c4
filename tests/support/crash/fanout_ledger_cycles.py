"""Kill a server with loaded fan-out queues, look at its files, start it again; again and again.

    life 1  start ... load ... kill -9      at a random moment of the load,
    life 2  look, start, load ... kill      or while a checkpoint is being written,
    ...                                     or before the server has even started
    the end start, read all that is left, look; stop in order, look

A kill of the process takes nothing that was written, so all policies must hold: each life has
another one. Segments are small and checkpoints frequent, so that segments go all the time.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from journeyman.folds.kestrel import fold_reader
from journeyman.formats.framing import Codec, scan
from journeyman.formats.kestrel import READER, WRITER, ItemPut, Record
from journeyman.logs.segments import kestrel_readers, kestrel_segments
from tests.support.crash.fanout_ledger import FanBook
from tests.support.crash.fanout_ledger_load import MAX_OPEN, FanProducer, FanReaderThread, FanWire
from tests.support.crash.kill_loop import KillLoop, LoadThread
from tests.support.servers.fanout_process import FanOutProcess

__all__ = ["KILLS", "FanCycles", "FanTally"]

KILLS = ("load", "checkpoint", "start")
POLICIES = ("always", "interval", "os")
QUEUES = {"one": ("",), "fan": ("a", "b", "c")}
PRODUCERS, READERS = 2, 2  # of each queue; of each reader
MAX_LOAD_S = 0.8
MAX_START_S = 0.2  # servers of tests begin with everything imported: see servers/nursery.py
CHECKPOINT_LIMIT_S = 10.0  # of looking for one that is being written
END_LIMIT_S = 120.0


@dataclass(slots=True)
class FanTally:
    """What the cycles came across."""

    kills: Counter[str] = field(default_factory=Counter)
    checkpoints_cut: int = 0  # kills that left one unfinished
    stored: int = 0
    confirmed: int = 0
    redelivered: int = 0
    segments: set[str] = field(default_factory=set)  # that were seen
    slowest_start_s: float = 0.0

    def __str__(self) -> str:
        kills = ", ".join(f"{self.kills[kind]} {kind}" for kind in KILLS)
        return (
            f"{self.kills.total()} kills ({kills}; {self.checkpoints_cut} checkpoints cut off), "
            f"{self.stored} items stored in {len(self.segments)} segments, {self.confirmed} times "
            f"one was confirmed, {self.redelivered} times one came again; "
            f"slowest start {self.slowest_start_s:.2f} s"
        )


class FanCycles(KillLoop[FanTally, FanOutProcess]):
    """The loop, over one folder. AssertionError: a book does not agree."""

    kinds = KILLS
    segment_bytes = 5_000

    def __init__(self, directory: Path, *, seed: int) -> None:
        self.directory = directory
        self.tally = FanTally()
        self._random = random.Random(seed)
        self._books = {queue: FanBook(readers) for queue, readers in QUEUES.items()}
        self._life = 0
        self._server = self._start()
        self._register_readers()

    def _register_readers(self) -> None:
        """A reader is owed what is put after it came: so they come first."""
        client = FanWire(self._server.fanout_port)
        for queue, readers in QUEUES.items():
            for reader in readers:
                assert client.get(f"{queue}+{reader}" if reader else queue) is None
        client.close()

    def _cycle(self, kind: str) -> None:
        loaders = self._load()
        self._wait_for_load(lambda: sum(book.stored for book in self._books.values()))
        if kind == "checkpoint":
            self._wait_for_checkpoint()
        else:
            time.sleep(self._random.uniform(0, MAX_LOAD_S))
        self._server.kill()
        for loader in loaders:
            loader.join()
        self.tally.checkpoints_cut += any(self._server.queues.glob("*~~*"))
        if kind == "start":
            self._look()
            self._server = self._new_life(wait=False)
            time.sleep(self._random.uniform(0, MAX_START_S))
            self._server.kill()
        self.tally.kills[kind] += 1
        self._no_errors(loaders)
        self._look()
        self._server = self._start()

    def _load(self) -> list[LoadThread]:
        port = self._server.fanout_port
        loaders: list[LoadThread] = []
        for queue, book in self._books.items():
            loaders += [FanProducer(port, n, queue, book, self._life) for n in range(PRODUCERS)]
            loaders += self._readers(READERS, queue)
        for loader in loaders:
            loader.start()
        return loaders

    def _readers(self, count: int, queue: str) -> list[FanReaderThread]:
        port, book = self._server.fanout_port, self._books[queue]
        return [
            FanReaderThread(port, n, queue, reader, book, self._life)
            for reader in QUEUES[queue]
            for n in range(count)
        ]

    def _wait_for_checkpoint(self) -> None:
        """Return when one is being written; where that is too fast to be seen, after many."""
        deadline = time.monotonic() + CHECKPOINT_LIMIT_S
        while not any(self._server.queues.glob("*~~*")) and time.monotonic() < deadline:
            pass

    # -- processes --

    def _new_life(self, *, wait: bool) -> FanOutProcess:
        self._life += 1
        process = FanOutProcess(
            self.directory,
            settings={
                "kestrel.sync": POLICIES[self._life % len(POLICIES)],
                "kestrel.segment_bytes": self.segment_bytes,
                "kestrel.checkpoint_interval_ms": 10,
                "kestrel.window_items": 50,
                "kestrel.default": f"{{max_open = {MAX_OPEN}}}",
                "log.level": "info",
            },
        )
        return process.start(wait=wait)

    def _start(self) -> FanOutProcess:
        begin = time.monotonic()
        process = self._new_life(wait=True)
        took_s = time.monotonic() - begin
        self.tally.slowest_start_s = max(self.tally.slowest_start_s, took_s)
        return process

    # -- comparing --

    def _look(self) -> None:
        """The files of a server that is dead, and what they say is left for each reader."""
        folder = self._server.queues
        names = [path.name for path in folder.iterdir()]
        for queue, book in self._books.items():
            items: dict[int, str] = {}
            for name in kestrel_segments(queue, names):
                self.tally.segments.add(name)
                for record in _records(WRITER, (folder / name).read_bytes()):
                    if isinstance(record, ItemPut):
                        items[record.item_id] = record.data.decode()
            places = {
                reader: fold_reader(_records(READER, (folder / file).read_bytes()))
                for reader, file in kestrel_readers(queue, names).items()
            }
            book.settle(
                {
                    reader: {item for at, item in items.items() if not place.is_past(at)}
                    for reader, place in places.items()
                }
            )

    def _end(self) -> None:
        for queue, book in self._books.items():
            readers = self._readers(1, queue)
            for reader in readers:
                reader.stopping.set()  # at once: it reads to the end
                reader.start()
            for reader in readers:
                reader.join(END_LIMIT_S)
                assert not reader.is_alive(), f"{queue}: {reader.name} does not come to an end"
            self._no_errors(readers)
            book.close()
            self.tally.stored += book.stored
            self.tally.confirmed += sum(map(book.confirmed, book.readers))
            self.tally.redelivered += book.redelivered
        assert self._server.stop() == 0
        self._look()


def _records(codec: Codec[Record], data: bytes) -> Sequence[Record]:
    """Up to where a kill cut a record short, if it did."""
    return [entry.record for entry in scan(codec, data)[0]]

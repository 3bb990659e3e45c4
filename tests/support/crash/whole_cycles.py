"""Kill a server with all its services under load, start it again; in the end check all answers.

    life 1  start ... load ... kill -9      at a random moment, with compaction, cleaning,
    life 2  start, load ... kill -9         rotation, checkpoints, timetables and workers under way,
    ...                                     or before the server has even started
    the end stop the load, do and read all that is left, check the history

The load and the checks are those of tests.simulation, on real sockets, HTTP included:
each answer is noted, jobs must be linearizable, leases exclusive, items in order; no occurrence may
be missing. Programs of jobs append ``<life> <job>`` to a file.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from tests.simulation.cast import Cast
from tests.simulation.clients import (
    FAN_OUT_PORT,
    HTTP_PORT,
    SCHEDULE_PORT,
    WORK_PORT,
    ClientPace,
    Notes,
)
from tests.simulation.history import History
from tests.simulation.network import ConnectionCut
from tests.support.servers.whole_process import WholeProcess

KILLS = ("load", "start")
MAX_LOAD_S = 1.0
MAX_START_S = 0.6
ENOUGH = 150  # operations between two kills, at least
SETTLE_MS = 4_000  # longer than the longest TTR
TIMETABLES = {"secondly": 1, "often": 2}
RUNS = "runs"
PROGRAM = f"echo $LEDGER_LIFE $JOURNEYMAN_JOB_ID >> {RUNS}"
SETTINGS = {
    "database.compression_interval": "1",
    "workq.cmdlog_seg_size": "20000",
    "workq.cmdlog_clean_int": "100",
    "kestrel.segment_bytes": "20000",
    "kestrel.checkpoint_interval_ms": "50",
    "kestrel.window_items": "50",
}
_NAMES = {SCHEDULE_PORT: "schedule", WORK_PORT: "work", FAN_OUT_PORT: "fan-out", HTTP_PORT: "http"}


@dataclass(slots=True)
class WholeTally:
    """What the cycles came across."""

    kills: Counter[str] = field(default_factory=Counter)
    operations: int = 0
    checked: int = 0
    occurrences: int = 0
    over_http: int = 0  # of the operations

    def __str__(self) -> str:
        return (
            f"{self.kills.total()} kills, {self.operations} operations ({self.over_http} over "
            f"HTTP), {self.checked} of them checked for linearizability, {self.occurrences} "
            "occurrences of timetables"
        )


class SocketWire:
    """A real connection, in the manner of the simulation's."""

    def __init__(self, port: int) -> None:
        self._opening = asyncio.ensure_future(asyncio.open_connection("127.0.0.1", port))
        self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting = b""
        self._is_over = False

    def send(self, data: bytes) -> None:
        if self._is_over:
            raise ConnectionCut
        if self._opening.done():
            self._streams()[1].write(data)
        else:
            self._waiting += data

    async def read_line(self) -> bytes:
        return (await self._read(lambda reader: reader.readuntil(b"\n")))[:-1].removesuffix(b"\r")

    async def read_lines(self, most: int) -> list[str]:
        del most
        return [(await self.read_line()).decode()]

    async def read_bytes(self, size: int) -> bytes:
        return await self._read(lambda reader: reader.readexactly(size))

    def cut(self) -> None:
        self._is_over = True
        if not self._opening.done():
            self._opening.cancel()
        elif not self._opening.cancelled() and self._opening.exception() is None:
            self._opening.result()[1].transport.abort()

    def _streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._opening.cancelled():
            raise ConnectionCut
        try:
            return self._opening.result()
        except OSError:
            raise ConnectionCut from None

    async def _read(self, read: Callable[[asyncio.StreamReader], Any]) -> bytes:
        with suppress(OSError):
            await asyncio.wait([self._opening])
        reader, writer = self._streams()
        if self._waiting:
            writer.write(self._waiting)
            self._waiting = b""
        try:
            data: bytes = await read(reader)
        except (OSError, asyncio.IncompleteReadError):
            self.cut()
            raise ConnectionCut from None
        return data


class WholeCycles:
    """The loop. AssertionError: what was answered does not hold."""

    def __init__(
        self, directory: Path, *, seed: int, load_s: float = MAX_LOAD_S, http_every: int = 1
    ) -> None:
        """``load_s``: how long the load goes on, at most, after ENOUGH operations. ``http_every``:
        HTTP is on in the first of so many lives; it makes a start dearer."""
        self.directory = directory
        self._http_every = http_every
        self._load_s = load_s
        self.tally = WholeTally()
        self._seed = seed
        self._random = random.Random(seed)
        self._life = 0
        self._history = History(time.monotonic_ns)
        self._wires: list[SocketWire] = []
        self._server = self._new_life()

    # -- what the processes need --

    def fork(self, name: object) -> random.Random:
        return random.Random(f"{self._seed}/{name}")

    def connect(self, loop: Any, port: int) -> SocketWire:
        del loop
        number = self._server.ports.get(_NAMES[port])
        if number is None or self._server.process.poll() is not None:
            raise ConnectionCut
        self._wires.append(SocketWire(number))
        return self._wires[-1]

    # -- the loop --

    def run(self, cycles: int, each: Callable[[str], None] = lambda _: None) -> WholeTally:
        try:
            asyncio.run(self._run(cycles, each))
        finally:
            if self._server.process.poll() is None:
                self._server.kill()
        return self.tally

    async def _run(self, cycles: int, each: Callable[[str], None]) -> None:
        notes = Notes(self._history, time.time_ns)
        cast = Cast(
            asyncio.get_running_loop(),
            self,
            notes,
            ClientPace(short_s=0.005, long_s=0.2, long=0.05),
            life=lambda: self._life,
            timetables=TIMETABLES,
            program=PROGRAM,
            settle_ms=SETTLE_MS,
            has_http=True,
        )
        await asyncio.to_thread(self._start)
        await cast.set_up()
        cast.begin()
        for number in range(cycles):
            kind = KILLS[number] if number < len(KILLS) else self._random.choice(KILLS)
            await self._cycle(kind, notes)
            each(kind)
            assert not notes.wrong, notes.wrong[:5]
        await cast.stop()
        await cast.finish()
        self._cut_all()
        await asyncio.sleep(0)  # transports close a turn later
        errors = [line for line in self._server.lines if " ERROR " in line]
        assert not errors, errors[:5]
        assert await asyncio.to_thread(self._server.stop) == 0
        tally = self.tally
        tally.operations, tally.over_http = self._history.asked, notes.over_http
        tally.checked, tally.occurrences = cast.check(self._runs())

    async def _cycle(self, kind: str, notes: Notes) -> None:
        enough, deadline = self._history.asked + ENOUGH, time.monotonic() + 60
        over_http = notes.over_http + ("http" in self._server.ports)  # one at least
        while self._history.asked < enough or notes.over_http < over_http:
            assert time.monotonic() < deadline, f"no load: {self._server.lines[-20:]}"
            await asyncio.sleep(0.01)
        await asyncio.sleep(self._random.uniform(0, self._load_s))
        self._server.kill()
        self._history.server_died()
        self._cut_all()
        errors = [line for line in self._server.lines if " ERROR " in line]
        assert not errors, errors[:5]
        if kind == "start":
            self._server = self._new_life()
            self._start(wait=False)
            await asyncio.sleep(self._random.uniform(0, MAX_START_S))
            self._server.kill()
        self._server = self._new_life()
        await asyncio.to_thread(self._start)
        self.tally.kills[kind] += 1

    def _cut_all(self) -> None:
        for wire in self._wires:
            wire.cut()
        self._wires.clear()

    def _new_life(self) -> WholeProcess:
        has_http = self._life % self._http_every == 0
        self._life += 1
        http = {"http.listen": "127.0.0.1:0"} if has_http else {}
        return WholeProcess(self.directory, settings={**SETTINGS, **http})

    def _start(self, *, wait: bool = True) -> None:
        with mock.patch.dict(os.environ, LEDGER_LIFE=str(self._life)):
            self._server.start(wait=wait)

    def _runs(self) -> list[tuple[int, str]]:
        lines = (self.directory / RUNS).read_text().splitlines()
        return [(int(life), job) for life, _, job in (line.partition(" ") for line in lines)]

"""A simulated computer with a server on it: the real services, on a disk and a network in memory.

    start      the server opens its logs and ports, as journeyman.servers.process has it do
    stop       in order, as with SIGTERM
    kill       the process ends at once; what it has written stays
    power cut  at any operation of the disk; what was not synced survives by chance
    failed     a sync failed: the server ends itself
    stall      the disk does nothing for a while: syncs do not return, neither in threads nor on the
               event loop, which is blocked then
    freeze     the process does nothing for a while, as with SIGSTOP; the others go on

What the server says about itself is compared with what is known here (``probe``): while a write is
older than the deadline it must not be ready, and else it must not call itself stuck.

After each end the next start finds what is left. ``life`` counts the starts. Programs that jobs run
are simulated: each takes a while by chance, and is noted in ``runs``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

from journeyman import threads
from journeyman.config import Configuration, LogLevel
from journeyman.disk import Disk
from journeyman.errors import JourneymanError
from journeyman.formats.ztick import FanOutRunner, Shell, WorkQueueRunner
from journeyman.formats.ztick import Runner as RunnerRecord
from journeyman.runners.contract import Runner, RunRequest, RunResult
from journeyman.runners.runner_set import AddsWork, JournalRunner, PutsItems, QueueRunner
from journeyman.servers.assembly import Assembly
from journeyman.servers.core.access import Access
from journeyman.servers.core.contract import AnswerLease
from journeyman.servers.core.ledger import open_ledger
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.service import ServiceContext
from journeyman.servers.core.shared import Shared
from journeyman.servers.core.writes import WriteWatch
from journeyman.servers.preflight import prepare_data_directory
from journeyman.units import NS_PER_S
from tests.simulation.network import Network
from tests.simulation.world import Loop, SimulatedThreads, World
from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.support.simulated_files import Survival

MAX_RUN_S = 2.0
STALLED_LOOK_S = 0.5  # between two looks of the watch while the event loop is blocked
WRITER = "journeyman-writer"
KEPT_LINES = 200


class Machine:
    """See the module. ``ended`` is called when the server has ended, however it did."""

    def __init__(
        self,
        world: World,
        network: Network,
        configuration: Configuration,
        outside: Loop,
        survival: Callable[[], Survival],
    ) -> None:
        """``survival`` chooses what a power cut leaves; ``outside`` is the loop of the others."""
        self.world = world
        self.disk = SimulatedDisk()
        self.life = 0
        self.runs: list[tuple[int, str]] = []  # (life, job), when the program was started
        self.lines: list[str] = []  # that the server said
        self.mistakes: list[str] = []  # exceptions that nothing caught
        self.slow = 1.0  # how many times slower than usual the disk is
        self.times_stuck = 0  # probes that met a write older than the deadline
        self._stalled_until_ns = 0  # monotonic
        self._threads: SimulatedThreads
        self._writes: WriteWatch
        self._network = network
        self.configuration = configuration
        self._outside = outside
        self._survival = survival
        self.ended: Callable[[], None] = lambda: None
        self._loop: Loop | None = None
        self._stopping: asyncio.Event
        self._serving: asyncio.Task[None]
        self.is_ready = False
        self.assembly: Assembly

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    def start(self) -> None:
        assert self._loop is None
        self.life += 1
        self.world.note("start", self.life)
        chance = self.world.fork(f"life {self.life}")
        loop = self._loop = self.world.loop()
        loop.on_mistake = self._on_mistake
        loop.listen = self._network.listener(loop)
        disk_threads = SimulatedThreads(loop, chance, self._delay_s, self._stalled_s)
        self._threads = disk_threads
        loop.use_executor(disk_threads.pool(4, "default"))
        self.disk.when_cut = self._power_is_cut
        self.disk.before_sync = lambda: self._sync(chance)
        self._stopping = asyncio.Event()
        with threads.using(disk_threads):
            self._serving = loop.create_task(self._serve(loop, chance))
        self._serving.add_done_callback(self._served)

    def stop(self) -> None:
        self._stopping.set()

    def stall(self, seconds: float) -> None:
        """From now on the disk does nothing for so long; 0: it works again."""
        self._stalled_until_ns = self.world.clock.monotonic_ns() + int(seconds * NS_PER_S)

    def freeze(self, seconds: float) -> None:
        """From now on the process does nothing for so long."""
        if self._loop is not None:
            self.world.note("freeze")
            until_ns = self.world.clock.monotonic_ns() + int(seconds * NS_PER_S)
            self._loop.frozen_until_ns = until_ns

    def probe(self) -> None:
        """Compare what GET /v1/ready would say with what the threads of the process wait for."""
        is_serving = self.is_ready and not self._stopping.is_set()
        if self._loop is None or self._loop.frozen_until_ns or not is_serving:
            return  # nothing answers
        self._writes.report()
        now_ns, deadline_ns = self.world.clock.monotonic_ns(), self._writes.deadline_ns
        writing_ns, any_ns = self._threads.begun_ns(WRITER), self._threads.begun_ns()
        if writing_ns is not None and now_ns - writing_ns >= deadline_ns:
            self._must_be_stuck()
        elif any_ns is None or now_ns - any_ns < deadline_ns:
            self._expect(not self._writes.stuck(), "not ready, although nothing is stuck")

    def kill(self) -> None:
        """End the process, not the machine: what was written stays, synced or not."""
        self.lose_power("keep_all_unsynced")

    def lose_power(self, survival: Survival) -> None:
        """Now, or at an operation of the disk before: what is left of the disk?"""
        self.disk.when_cut = None
        self.disk.cut_power()
        self._die()
        self.disk = self.disk.after_crash(survival)

    # -- the process --

    async def _serve(self, loop: Loop, chance: random.Random) -> None:
        messages = ServerLog(self.world.clock, self._say, level=LogLevel.INFO)
        await self._serve_on(self.disk, None, loop, chance, messages)

    async def _serve_on(
        self,
        disk: Disk,
        lease: AnswerLease | None,
        loop: Loop,
        chance: random.Random,
        messages: ServerLog,
    ) -> None:
        settings, clock = self.configuration.settings, self.world.clock
        prepare_data_directory(self.configuration, disk, messages)
        self._writes = writes = WriteWatch(clock, messages, settings.limits)
        ledger = open_ledger(settings, disk, clock, messages, writes=writes)
        failures: list[BaseException] = []
        hurry = asyncio.Event()

        def failed(error: BaseException) -> None:
            failures.append(error)
            self._stopping.set()

        self._begin_serving(failed, messages)
        context = ServiceContext(
            settings,
            disk,
            clock,
            messages,
            Shared.create(loop, messages, settings.limits.total_unsent_bytes),
            Access(),
            failed,
            writes,
            self._stopping.set,
            ledger,
            self.configuration.origins,
            lease=lease,
        )
        try:
            assembly = self.assembly = Assembly(
                context, lambda add, put: SimulatedRunner(add, put, chance, self._program_begins)
            )
            await assembly.start()
            self.is_ready = True
            await self._opened(loop)
            await self._stopping.wait()
            if failures:
                hurry.set()
            await assembly.stop(hurry)
        finally:
            if ledger is not None:
                ledger.close()
        if failures:
            raise failures[0]

    def _begin_serving(self, failed: Callable[[BaseException], None], messages: ServerLog) -> None:
        """The server is about to start."""

    async def _opened(self, loop: Loop) -> None:
        """Its ports are open."""

    def _served(self, serving: asyncio.Task[None]) -> None:
        """The process has ended by itself: stopped, failed, or could not start."""
        error = None if serving.cancelled() else serving.exception()
        if isinstance(error, PowerCut) or self._loop is None:
            return
        if error is not None and not isinstance(error, JourneymanError | OSError):
            self.mistakes.append(f"the server ended with {error!r}")
        self.world.note("ended", type(error).__name__)
        self._die()
        self.disk = self.disk.after_crash("keep_all_unsynced")

    def _die(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            self.is_ready = False
            loop.die()
            self._network.server_died(loop)
            self.ended()

    def _power_is_cut(self) -> None:
        """At an operation of the disk: nothing of the process happens after it."""
        assert self._loop is not None
        self._loop.is_dead = True
        self._outside.call_soon(self._lose_power, self.disk)

    def _lose_power(self, disk: SimulatedDisk) -> None:
        if disk is self.disk:
            self.lose_power(self._survival())

    def _program_begins(self, job: str) -> None:
        self.runs.append((self.life, job))
        self.world.note("run", job)

    def _delay_s(self, chance: random.Random) -> float:
        """How long the disk keeps a thread, and ten times a sync: mostly little, sometimes long."""
        usual_s = chance.random() * 0.002
        return self.slow * (usual_s if chance.random() < 0.98 else usual_s * 100)

    def _stalled_s(self) -> float:
        return max(0, self._stalled_until_ns - self.world.clock.monotonic_ns()) / NS_PER_S

    def _sync(self, chance: random.Random) -> None:
        """A file is synced, in a thread or on the event loop."""
        begun_ns = self.world.clock.monotonic_ns()
        self.world.clock.advance(self._delay_s(chance) / 10)
        # Threads do nothing while the disk is stalled, so it is the loop that waits.
        while (left_s := self._stalled_s()) > 0:
            self.world.clock.advance(min(left_s, STALLED_LOOK_S))
            if self.is_ready and not self._stopping.is_set():
                self._writes.report()
                if self.world.clock.monotonic_ns() - begun_ns >= self._writes.deadline_ns:
                    self._must_be_stuck()
                    self._expect(self._writes.is_loop_held(), "no stand-in for a loop that waits")

    def _must_be_stuck(self) -> None:
        self.times_stuck += 1
        self._expect(bool(self._writes.stuck()), "ready while stuck")

    def _expect(self, is_so: bool, otherwise: str) -> None:
        if not is_so and otherwise not in self.mistakes:
            self.mistakes.append(otherwise)

    def _say(self, line: str) -> None:
        self.lines.append(line)
        if " ERROR " in line and " trace=" in line:
            self.mistakes.append(line)
        if len(self.lines) > 2 * KEPT_LINES:
            del self.lines[:-KEPT_LINES]

    def _on_mistake(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, PowerCut):
            self.mistakes.append(f"{context.get('message')}: {error!r}")


class SimulatedRunner:
    """Runs of rules: programs are simulated, the queues of this server are the real ones."""

    def __init__(
        self,
        add_work: AddsWork | None,
        put_item: PutsItems | None,
        chance: random.Random,
        begins: Callable[[str], None],
    ) -> None:
        self._chance = chance
        self._begins = begins
        self._others: dict[type[RunnerRecord], Runner[Any]] = {
            WorkQueueRunner: QueueRunner(add_work),
            FanOutRunner: JournalRunner(put_item),
        }

    async def run(self, request: RunRequest[RunnerRecord]) -> RunResult:
        if not isinstance(request.runner, Shell):
            return await self._others[type(request.runner)].run(request)
        self._begins(request.job_id)
        await asyncio.sleep(self._chance.random() * MAX_RUN_S)
        return RunResult(True) if self._chance.random() < 0.95 else RunResult(False, "exit code 1")

    def prepare(self, kinds: Iterable[type]) -> None:
        """There is nothing to import."""

    async def close(self) -> None:
        """Runs share nothing."""

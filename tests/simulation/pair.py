"""Two servers on one PostgreSQL: one is active, the other takes over, whatever happens to them.

    python -m tests.simulation --pair --seed 7

Everything of a server is the code that runs in production: services, engines, logs, the disk in
PostgreSQL, its guard with the lease, and the standby. What is simulated is the database
(database.py), the threads (strands.py), the network and the time.

    troubles   a server is killed, stopped or frozen; its machine is lost; its link to the database
               stalls, is reset, or is cut; the database is killed, full, or slow. Sometimes one
               comes right after another. A server that has ended is started again.
    failover   in some stories the database loses its last commits in the end: then what was
               acknowledged may be missing, but a server starts and has invented nothing
    checks     those of one server (checks.py), and two more at every probe: no server calls itself
               ready when the database has not confirmed it for the time of a lease, and no two
               servers are ready at once
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import psycopg

from journeyman import threads
from journeyman.config import Configuration, LogLevel
from journeyman.disk import database, guard
from journeyman.disk.guard import Guard
from journeyman.disk.postgres import PostgresDisk
from journeyman.errors import JourneymanError
from journeyman.servers.core import standby
from journeyman.servers.core.access import Access
from journeyman.servers.core.server_log import ServerLog, ServiceManager
from journeyman.units import NS_PER_S
from tests.simulation import scenario
from tests.simulation.cast import Cast
from tests.simulation.checks import tell
from tests.simulation.clients import Notes
from tests.simulation.database import Link, Postgres
from tests.simulation.history import History
from tests.simulation.machine import Machine
from tests.simulation.network import Network, Weather
from tests.simulation.strands import (
    ProcessEnded,
    StrandLoop,
    StrandThreads,
    current_strand,
    replaced,
    simulated,
)
from tests.simulation.world import Loop, World

ADDRESS = "postgresql://journeyman@database/journeyman"
PROMISED_LEASE_S = 3.0
PROBE_S = 0.1
RESTART_S = 1.0
OUTAGE_S = (0.05, 1.0, 3.5, 6.0, 12.0, 40.0)
LATE_S = 20.0
NO_ANSWER_S = 600.0  # then no server will answer
TROUBLES = (
    *("kill", "kill", "lost", "stop", "freeze", "freeze", "stall", "stall", "late"),
    *("reset", "cut", "cut", "database", "database", "full", "slow", "both", "standby"),
    "failover",  # comes in the end
)
ALL_SERVICES = frozenset({"schedule", "timetables", "work", "fan-out"})


class DatabaseMachine(Machine):
    """A machine whose server has its logs in the database. ``life`` is the number of times that a
    server of the story was active, up to this one."""

    def __init__(
        self, story: PairStory, number: int, configuration: Configuration, outside: Loop
    ) -> None:
        super().__init__(story.world, story.network, configuration, outside, lambda: 0)
        self._story = story
        self.host = f"10.0.0.{number}"
        self.name = f"machine {number}"
        self.link = Link(story.postgres, self.name, story.world.fork(self.name))
        self.guard: Guard | None = None
        self.is_lost = False  # the machine itself has no power
        self.process_id = 0
        self._starts = 0

    def start(self) -> None:
        assert self._loop is None
        self._starts += 1
        self.is_lost = False
        self.process_id = self._story.next_process_id()
        self.world.note("start", self.name, self._starts)
        chance = self.world.fork(f"{self.name} start {self._starts}")
        loop = self._loop = StrandLoop(self.world)  # type: ignore[abstract]
        self._story.machines_by_loop[loop] = self
        loop.on_mistake = self._on_mistake
        loop.listen = self._network.listener(loop)
        self._threads = StrandThreads(loop)  # type: ignore[assignment]
        loop.use_executor(self._threads.pool(4, "default"))
        self._stopping = asyncio.Event()
        with threads.using(self._threads):
            self._serving = loop.create_task(self._serve(loop, chance))
        self._serving.add_done_callback(self._served)

    async def _serve(self, loop: Loop, chance: random.Random) -> None:
        settings, clock = self.configuration.settings, self.world.clock
        messages = ServerLog(clock, self._say, level=LogLevel.INFO)
        manager = ServiceManager.from_environment({})
        disk = await standby.take_directory(settings, Access(), clock, messages, manager)
        if disk is None:
            return
        self.guard = disk.guard
        self.life = self._story.next_life()
        try:
            await self._serve_on(disk, self.guard, loop, chance, messages)
        finally:
            disk.close()

    def _begin_serving(self, failed: Callable[[BaseException], None], messages: ServerLog) -> None:
        assert self.guard is not None
        standby.end_when_lost(self.guard, messages, failed)

    async def _opened(self, loop: Loop) -> None:
        if self.guard is not None:
            await loop.run_in_executor(None, self.guard.advertise)

    def stop(self) -> None:
        if self.guard is not None:
            super().stop()
        elif isinstance(self._loop, StrandLoop):
            self._loop.handle_signal(signal.SIGTERM)

    def kill(self, *, is_lost: bool = False) -> None:
        """End the process; ``is_lost``: and the machine, so that nothing is sent any more."""
        if self._loop is not None:
            self.is_lost = is_lost
            self.link.lose_process(silent=is_lost)
            self._die()

    def exit_now(self) -> None:
        """Called by the process itself."""
        assert self._loop is not None
        self._loop.is_dead = True
        self._outside.call_soon(self._end, self._loop)

    def _end(self, loop: Loop) -> None:
        if self._loop is loop:
            self.kill()

    def _served(self, serving: asyncio.Task[None]) -> None:
        error = None if serving.cancelled() else serving.exception()
        if self._loop is None:
            return
        if error is not None and not isinstance(error, JourneymanError | OSError):
            self.mistakes.append(f"the server ended with {error!r}")
        self.world.note("ended", self.name, type(error).__name__)
        self.exit_now()

    def _die(self) -> None:
        loop = self._loop
        self.guard = None
        super()._die()
        self._story.on_end(self, loop)

    @property
    def is_serving(self) -> bool:
        return self._loop is not None and self.is_ready and not self._stopping.is_set()

    @property
    def is_reachable(self) -> bool:
        """True if a port of it accepts connections; a kernel does so for a frozen process."""
        return self._loop is not None and self._network.listens(self._loop)

    def probe(self) -> None:
        super().probe()
        if not self.is_serving or self._loop is None or self._loop.frozen_until_ns:
            return
        states = {service.state for service in self.assembly.services.values()}
        confirmed_ns = self._story.postgres.confirmed_ns.get(self.name, 0)
        age_ns = self.world.clock.monotonic_ns() - confirmed_ns
        if "ok" in states and age_ns > PROMISED_LEASE_S * NS_PER_S:
            self._expect(False, f"ready, and not confirmed for {age_ns / NS_PER_S:.1f} s")


class PairStory:
    """See the module."""

    def __init__(self, seed: int, plan: scenario.SimulationPlan) -> None:
        self.plan = plan
        self._troubles = [trouble for trouble in plan.troubles if trouble != "failover"]
        self.report = scenario.SimulationReport(seed)
        self.world = world = World(seed)
        self._chance = world.fork("fate")
        self.network = Network(world, scenario.draw_weather(self._chance))
        self._history = History(world.elapsed_ns)
        self._notes = Notes(self._history, world.clock.now_ns)
        self._outside = world.loop()
        self.postgres = Postgres(world, world.fork("database"), self._outside)
        settings = scenario.draw_settings(self._chance, plan.pace)
        self.machines_by_loop: dict[Loop, DatabaseMachine] = {}
        self.machines = [self._machine(number, settings) for number in (1, 2)]
        self._lives = self._process_ids = 0
        self._is_over = False
        self._rotten: frozenset[str] = frozenset()
        self._cast = Cast(
            self._outside,
            self.network,
            self._notes,
            plan.pace,
            life=lambda: self._lives,
            timetables=scenario.TIMETABLES,
            has_http=self.machines[0].configuration.settings.http.enabled,
        )

    def _machine(self, number: int, settings: dict[str, str]) -> DatabaseMachine:
        options = {**settings, "data.directory": ADDRESS, "access.allowed_hosts": '["localhost"]'}
        for section in ("controller", "workq", "kestrel", "http"):
            name = f"{section}.listen"
            port = scenario.PORTS[section]
            options[name] = f"10.0.0.{number}:{port}"
        return DatabaseMachine(self, number, scenario.load_settings(options), self._outside)

    def run(self) -> None:
        with simulated(self.world), self._doubles():
            self.world.run(self._outside, self._tell_story())
        self._check()
        report, world = self.report, self.world
        report.trace = world.trace
        report.operations = self._history.asked
        report.simulated_s = world.clock.monotonic_ns() / NS_PER_S
        report.runs = sum(len(machine.runs) for machine in self.machines)
        report.times_stuck = sum(machine.times_stuck for machine in self.machines)
        report.disk_operations = self.postgres.commits
        report.takeovers = self._lives

    @property
    def lines(self) -> list[str]:
        return [f"{each.name}: {line}" for each in self.machines for line in each.lines[-8:]]

    @contextmanager
    def _doubles(self) -> Iterator[None]:
        """What the code of the server finds in place of the world outside of its process."""

        def machine() -> DatabaseMachine:
            return self.machines_by_loop[current_strand().loop]

        def connect_to_database(**_: Any) -> Any:
            return machine().link.connect()

        def connect_to_server(address: tuple[str, int], timeout: float) -> Any:
            (other,) = [each for each in self.machines if each.host == address[0]]
            current_strand().pause(timeout if other.is_lost else 0.001)
            if other.is_lost:
                raise TimeoutError
            if not other.is_reachable:
                raise ConnectionRefusedError
            return ExitStack()

        def started(process_id: int) -> str:
            ids = [each.process_id for each in self.machines if each.is_running]
            return str(process_id) if process_id in ids else ""

        def exit_now(_: int) -> None:
            machine().exit_now()
            raise ProcessEnded

        with ExitStack() as stack:
            for module, name, double in (
                (psycopg, "connect", connect_to_database),
                (database, "hang_up", lambda connection: connection.hang_up()),
                (guard, "socket", replaced(socket, create_connection=connect_to_server)),
                (guard, "os", replaced(os, getpid=lambda: machine().process_id)),
                (guard, "_machine", lambda: machine().name),
                (guard, "_started", started),
                (standby, "os", replaced(os, _exit=exit_now)),
                (standby, "postgres_disk_of", PostgresDisk),
            ):
                stack.enter_context(patch.object(module, name, double))
            yield

    # -- for machines --

    def next_process_id(self) -> int:
        self._process_ids += 1
        return self._process_ids

    def next_life(self) -> int:
        self._lives += 1
        self._history.server_took_over()
        return self._lives

    def on_end(self, machine: DatabaseMachine, loop: Loop | None) -> None:
        self._history.server_died(loop)
        if not self._is_over:
            self._outside.call_later(RESTART_S, self._start_again, machine)

    def _start_again(self, machine: DatabaseMachine) -> None:
        if not machine.is_running and not self._is_over:
            machine.start()

    # -- the story --

    async def _tell_story(self) -> None:
        weather, self.network.weather = self.network.weather, Weather()
        for machine in self.machines:
            machine.start()
        await self._until_active()
        await self._cast.set_up()
        self.network.weather = weather
        self._cast.begin()
        self._probe()
        while self._history.asked < self.plan.operations and not self._is_wrong:
            await self._live()
        self.network.weather = Weather()
        for machine in self.machines:
            machine.link.when_renaming = None
        self._heal()
        await self._until_active()
        await self._cast.stop()
        await self._end()

    @property
    def _is_wrong(self) -> bool:
        return bool(self._notes.wrong) or any(machine.mistakes for machine in self.machines)

    def _probe(self) -> None:
        if self._is_over:
            return
        for machine in self.machines:
            machine.probe()
        ready = [each for each in self.machines if each.is_serving]
        if all(each.guard is not None and each.guard.is_valid for each in ready) and ready[1:]:
            self.machines[0].mistakes.append("two servers are ready at once")
        self._outside.call_later(PROBE_S, self._probe)

    async def _live(self) -> None:
        share = max(2, 2 * self.plan.operations // self.plan.lives)
        enough = self._history.asked + self._chance.randrange(1, share)
        end_s = self._outside.time() + NO_ANSWER_S
        while self._history.asked < enough and not self._is_wrong:
            await asyncio.sleep(0.2)
            assert self._outside.time() < end_s, "no server answers"
        for _ in range(self._chance.choice((1, 1, 1, 2, 3))):
            trouble = self._chance.choice(self._troubles)
            self.report.troubles[trouble] += 1
            for_s = self._chance.choice(OUTAGE_S) * (0.5 + self._chance.random())
            self._begin(trouble, for_s)
            await asyncio.sleep(self._chance.random() * for_s * 1.5)
        await self._until_active()
        if self._chance.random() < 0.7:
            self._heal()

    def _begin(self, trouble: str, for_s: float) -> None:
        self.world.note(trouble)
        active = next((each for each in self.machines if each.guard is not None), self.machines[0])
        (other,) = [each for each in self.machines if each is not active]
        match trouble:
            case "kill" | "lost":
                active.kill(is_lost=trouble == "lost")
            case "stop":
                active.stop()
            case "freeze":
                active.freeze(for_s)
            case "stall":
                active.link.stall(for_s)
            case "late":
                active.link.when_renaming = partial(self._end_early, active)
            case "reset" | "cut":
                active.link.reset(0.0 if trouble == "reset" else for_s)
            case "database":
                self.postgres.kill()
                self._outside.call_later(for_s, self.postgres.start)
            case "full":
                self.postgres.is_full = True
                self._outside.call_later(for_s, setattr, self.postgres, "is_full", False)
            case "slow":
                self.postgres.slow = 200.0
                self._outside.call_later(for_s, setattr, self.postgres, "slow", 1.0)
            case "both":
                active.kill()
                other.kill()
            case "standby":
                other.kill()

    def _end_early(self, machine: DatabaseMachine) -> None:
        """What it sends now arrives long after its end: the other server is active then."""
        machine.link.stall(LATE_S)
        self._outside.call_later(0.05, machine.kill)

    def _heal(self) -> None:
        self.postgres.start()
        self.postgres.is_full = False
        self.postgres.slow = 1.0
        for machine in self.machines:
            machine.link.heal()

    async def _until_active(self) -> None:
        """Until a server answers, troubles that last included."""
        end_s = self._outside.time() + NO_ANSWER_S
        while not any(each.is_serving for each in self.machines) and not self._is_wrong:
            await asyncio.sleep(0.1)
            if self._outside.time() > end_s - NO_ANSWER_S / 2:
                self._heal()
            assert self._outside.time() < end_s, "no server becomes active"

    async def _until_writable(self) -> None:
        """Until a server has written something for a client."""
        end_s = self._outside.time() + NO_ANSWER_S
        while not await self._cast.can_write():
            await asyncio.sleep(0.1)
            assert self._outside.time() < end_s, "no server can write"

    async def _end(self) -> None:
        if "failover" in self.plan.troubles and self._chance.random() < 0.2:
            self.report.troubles["failover"] += 1
            self._rotten = ALL_SERVICES
            self.postgres.fail_over()
        else:
            for machine in self.machines:
                machine.kill()
            await asyncio.sleep(RESTART_S + 0.1)
        await self._until_writable()
        await self._cast.finish()
        self._is_over = True
        for machine in self.machines:
            machine.stop()
        end_s = self._outside.time() + NO_ANSWER_S
        while any(machine.is_running for machine in self.machines):
            await asyncio.sleep(0.1)
            assert self._outside.time() < end_s, "a server does not stop"

    def _check(self) -> None:
        tell(mistake for machine in self.machines for mistake in machine.mistakes)
        runs = sorted(run for machine in self.machines for run in machine.runs)
        tally = self._cast.check(runs, (), self._rotten)
        self.report.checked, self.report.occurrences = tally


def plan_of_pair(
    operations: int, lives: int = 8, troubles: tuple[str, ...] = TROUBLES
) -> scenario.SimulationPlan:
    return scenario.SimulationPlan(operations, lives, troubles=troubles)


def simulate_pair(seed: int, plan: scenario.SimulationPlan) -> scenario.SimulationReport:
    """Run the story of a seed; SimulationFailed, if anything is not as promised."""
    return scenario.run_story(seed, lambda: PairStory(seed, plan))

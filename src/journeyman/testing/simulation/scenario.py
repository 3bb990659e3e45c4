"""A seed becomes a whole story: settings, weather, processes, and what happens to the server.

    setup     rules, timetables and readers are made; nothing goes wrong yet
    lives     the processes work; troubles come and go; the server ends and starts again
    the end   nothing goes wrong any more: all that is left is done, read and looked at
    checks    of everything that was seen (checks.py)

    ends      power is cut at an operation of the disk, by chance also while the server starts; the
              process is killed; it is stopped in order; a sync fails
    troubles  the disk is full, or slow; no file can be opened; the clock is set
    weather   of connections, for the whole story: cut, split, stalled

``simulate(seed)`` runs it and gives a Report; SimulationFailed names the seed, which runs the same
story again.
"""

from __future__ import annotations

import asyncio
import errno
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise

from journeyman.config import Configuration
from journeyman.config.loading import load
from journeyman.testing.simulated_files import Survival
from journeyman.testing.simulation.checks import (
    check_deliveries,
    check_occurrences,
    check_order,
    check_registers,
    tell,
)
from journeyman.testing.simulation.clients import (
    FAN_QUEUES,
    WORK_QUEUES,
    Notes,
    Operator,
    Pace,
    Planner,
    Process,
    Producer,
    Publisher,
    Reader,
    Starter,
    Worker,
)
from journeyman.testing.simulation.history import NEVER, UNKNOWN, History, Operation
from journeyman.testing.simulation.machine import Machine
from journeyman.testing.simulation.models import OK
from journeyman.testing.simulation.network import Network, Weather
from journeyman.testing.simulation.world import World
from journeyman.units import NS_PER_S

TIMETABLES = {"minutely": 60, "often": 20}  # by name: seconds
RULES = ('run run. shell "a program"', "queue queue. queue ruled", "journal journal. journal one")
ENDS = ("power", "power", "power", "start", "kill", "stop", "sync")
LOOK_S = 1.0  # between two looks whether something has come about
TROUBLES = ("full", "slow", "files", "clock", "nothing", "nothing")


class SimulationFailed(AssertionError):
    """What was seen is not what was promised. It names the seed."""


@dataclass(frozen=True)
class Plan:
    """How long, and how hard."""

    operations: int = 5_000  # at least so many are asked before the end
    lives: int = 8  # at most
    pace: Pace = field(default_factory=Pace)


@dataclass
class Report:
    """What a story came to."""

    seed: int
    trace: str = ""
    operations: int = 0
    checked: int = 0  # for linearizability
    simulated_s: float = 0.0
    cpu_s: float = 0.0
    runs: int = 0
    occurrences: int = 0
    disk_operations: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ends.items()))
        return (
            f"seed {self.seed}: {self.operations} operations, {self.checked} of registers, "
            f"{self.occurrences} occurrences, {self.runs} runs, {self.simulated_s / 3600:.1f} "
            f"simulated hours in {self.cpu_s:.1f} s; ends: {ends}; trace {self.trace}"
        )


def simulate(seed: int, plan: Plan | None = None) -> Report:
    """Run the story of a seed; SimulationFailed, if anything is not as promised."""
    state = random.getstate()
    random.seed(seed)  # engines draw their own seeds
    begun_s = time.process_time()
    story = Story(seed, plan or Plan())
    try:
        story.run()
    except Exception as error:
        last = "".join(story.machine.lines[-8:])
        raise SimulationFailed(
            f"seed {seed}, life {story.machine.life}, trace {story.world.trace}: "
            f"{type(error).__name__}: {error}\n{last}"
        ) from error
    finally:
        random.setstate(state)
    story.report.cpu_s = time.process_time() - begun_s
    return story.report


class Story:
    def __init__(self, seed: int, plan: Plan) -> None:
        self.plan = plan
        self.report = Report(seed)
        self.world = world = World(seed)
        self._chance = world.fork("fate")
        self._network = Network(world, _weather(self._chance))
        self._history = History(world.elapsed_ns)
        self._notes = Notes(self._history, world.clock.now_ns)
        self._outside = world.loop()
        self.machine = Machine(
            world, self._network, _configuration(self._chance), self._outside, self._survival
        )
        self.machine.ended = self._history.server_died
        self._processes: list[Process] = []
        self._set_ns = self._most_ns = 0  # by how much the clock was set: now, at most
        self._set_back: list[int] = []  # when it was set back

    def run(self) -> None:
        self.world.run(self._outside, self._tell_story())
        self._check()
        report, world = self.report, self.world
        report.trace = world.trace
        report.operations = len(self._history.operations)
        report.simulated_s = world.clock.monotonic_ns() / NS_PER_S
        report.runs = len(self.machine.runs)

    # -- the story --

    async def _tell_story(self) -> None:
        calm, self._network.weather = self._network.weather, Weather()
        await self._start()
        await self._set_up()
        self._network.weather = calm
        tasks = self._begin_processes()
        while len(self._history.operations) < self.plan.operations:
            if self.machine.life >= self.plan.lives:
                await self._until(lambda: len(self._history.operations) >= self.plan.operations)
                break
            await self._live()
        for process in self._processes:
            process.stop()
        self._network.weather = Weather()
        self._heal()
        await asyncio.gather(*tasks)
        await self._end()

    async def _live(self) -> None:
        """A part of the story with one end of the server."""
        trouble, end = self._chance.choice(TROUBLES), self._chance.choice(ENDS)
        self.report.troubles[trouble] += 1
        self.report.ends[end] += 1
        enough = len(self._history.operations) + self._chance.randrange(
            1, 2 * self.plan.operations // self.plan.lives
        )
        await self._until(lambda: len(self._history.operations) >= enough)
        self._begin_trouble(trouble)
        await asyncio.sleep(self._chance.random() * 3)
        await self._come_to(end)
        self._heal()
        await asyncio.sleep(self._chance.choice((0.0, 1.0, 300.0)) * self._chance.random())
        if end == "start" and not self.machine.is_running:
            self.machine.disk.cut_power_at(self._chance.randrange(1, 40), torn=0.5)
            self.machine.start()
            await self._until(lambda: self.machine.is_ready or not self.machine.is_running)
        await self._start()

    async def _come_to(self, end: str) -> None:
        machine, chance = self.machine, self._chance
        life = machine.life
        if end in ("power", "start"):
            machine.disk.cut_power_at(chance.randrange(1, 200), torn=chance.random())
        elif end == "kill":
            machine.kill()
        elif end == "stop":
            machine.stop()
        else:
            machine.disk.fail("sync", "sync_dir", skip=chance.randrange(20))
        await self._until(lambda: not machine.is_running or machine.life > life, limit_s=600)
        if machine.is_running:  # nothing was written, so nothing failed
            machine.kill()

    async def _start(self) -> None:
        """Until it runs; a start may fail, and is tried again, as a service manager does."""
        while not self.machine.is_ready:
            if not self.machine.is_running:
                self.machine.start()
            await asyncio.sleep(0.1)

    async def _until(self, is_over: Callable[[], bool], limit_s: float = 1e9) -> None:
        end_s = self._outside.time() + limit_s
        while not is_over() and self._outside.time() < end_s:
            if self.machine.mistakes or self._notes.wrong:
                return
            if not self.machine.is_running and limit_s > 1e8:
                await self._start()
            await asyncio.sleep(LOOK_S)

    def _begin_trouble(self, trouble: str) -> None:
        disk, chance = self.machine.disk, self._chance
        if trouble == "full":
            disk.capacity = disk.used + chance.randrange(2000)
        elif trouble == "slow":
            self.machine.slow = 50.0
        elif trouble == "files":
            disk.fail("create", "open", error=errno.EMFILE, times=chance.randrange(1, 20))
        elif trouble == "clock":
            by_ns = chance.choice((-3600, -5, 5, 3600)) * NS_PER_S
            self._set_ns += by_ns
            self._most_ns = max(self._most_ns, self._set_ns)
            self._set_back += [self._history.order] if by_ns < 0 else []
            self.world.set_clock(by_ns)

    def _heal(self) -> None:
        self.machine.disk.capacity = None
        self.machine.disk.heal()
        self.machine.slow = 1.0

    def _survival(self) -> Survival:
        """What a power cut leaves."""
        self.report.disk_operations += self.machine.disk.operations
        return self._chance.randrange(1 << 30)

    # -- processes --

    def _arguments(self, number: int) -> tuple[object, ...]:
        life = lambda: self.machine.life  # noqa: E731
        return number, self._outside, self._network, self._notes, self.plan.pace, life

    def _begin_processes(self) -> list[Awaitable[None]]:
        kinds: list[tuple[type[Process], int]] = [
            (Planner, 3),
            (Starter, 1),
            (Producer, 2),
            (Worker, 3),
            (Publisher, 2),
            (Operator, 1),
        ]
        for kind, count in kinds:
            self._processes += [kind(*self._arguments(n)) for n in range(count)]  # type: ignore[arg-type]
        self._processes += self._readers()
        return [self._outside.create_task(process.run()) for process in self._processes]

    def _readers(self) -> list[Process]:
        pairs = [(queue, reader) for queue, readers in FAN_QUEUES.items() for reader in readers]
        return [
            Reader(*self._arguments(number), queue=queue, reader=reader)
            for number, (queue, reader) in enumerate(pairs)
        ]

    async def _set_up(self) -> None:
        operator = Operator(*self._arguments(99))  # type: ignore[arg-type]
        operator.wire = self._network.connect(self._outside, operator.port)
        for rule in RULES:
            assert await operator.ask(f"RULE SET {rule}") == "OK"
        for name, every_s in TIMETABLES.items():
            options = "catch_up=all catch_up_limit=1000 overlap=allow run shell program"
            answer = await operator.ask(f"TIMETABLE SET {name} every {every_s}s {options}")
            assert answer == "OK", answer
        operator.wire.cut()
        for reader in self._readers():
            assert isinstance(reader, Reader)
            reader.wire = self._network.connect(self._outside, reader.port)
            assert not await reader.read(0)
            reader.wire.cut()

    async def _end(self) -> None:
        """Nothing goes wrong any more: one more start, then all that is left is done."""
        self.machine.kill()
        # What was due by the clock before it was set back is due again.
        self.world.set_clock(self._most_ns - self._set_ns)
        await self._start()
        await asyncio.sleep(3 * max(TIMETABLES.values()))
        for reader in self._readers():
            assert isinstance(reader, Reader)
            await reader.drain()
        worker = Worker(*self._arguments(99))  # type: ignore[arg-type]
        await worker.drain()
        self.machine.stop()
        await self._until(lambda: not self.machine.is_running, limit_s=600)

    # -- checks --

    def _check(self) -> None:
        machine, notes, history = self.machine, self._notes, self._history
        tell(machine.mistakes)
        tell(notes.wrong)
        self.report.checked = check_registers(history)
        self.report.occurrences = check_occurrences(machine.runs, TIMETABLES)
        self._check_due()
        self._check_work()
        for queue, readers in FAN_QUEUES.items():
            puts = notes.puts.get(queue, {})
            for reader in readers:
                key = f"{queue}+{reader}" if reader else queue
                came = [(i, o) for i, o in notes.came.get(key, []) if not _is_of_rule(i)]
                check_deliveries(puts, came, self._lost(f"read/{key}"))

    def _check_due(self) -> None:
        ran: dict[str, list[int]] = {}
        for life, job in self.machine.runs:
            ran.setdefault(job, []).append(life)
        wrong = []
        for name, operation in self._notes.due.items():
            lives = ran.get(name, [])
            if name.startswith("run.") and operation.answer == OK and not lives:
                wrong.append(f"{operation} was acknowledged and never ran")
            if lives and name in self._notes.executed and max(lives) > self._notes.executed[name]:
                wrong.append(f"{name} ran in life {max(lives)}, after it was shown as executed")
        known = self._notes.due
        wrong += [f"{job} ran, never set" for job in ran if "@" not in job and job not in known]
        tell(wrong)

    def _check_work(self) -> None:
        by_job = self._history.of_keys("work/")
        tell(
            f"{key[5:]} was added and never done"
            for key, operations in by_job.items()
            if operations[-1].ask[0] == "look" and operations[-1].answer is None
        )
        for queue in WORK_QUEUES:
            adds: dict[str, Operation] = {}
            first: dict[str, Operation] = {}
            again = set()
            for key, operations in by_job.items():
                if self._notes.queue_of[key[5:]] != queue:
                    continue
                for each in operations:
                    if each.ask[0] == "add" and each.answer in (OK, UNKNOWN):
                        again |= {key} if key in adds else set()
                        adds[key] = each
                    elif each.ask[0] == "lease":
                        first.setdefault(key, each)
            # A job that was deleted and added again has two places; one that was added after the
            # clock was set back may have its place before others.
            lost, back = self._lost("lease/", queue), [0, *self._set_back, NEVER]
            for begin, end in pairwise(back):
                its = {key for key, add in adds.items() if begin < add.invoked < end} - again
                check_order(adds, {key: first[key] for key in its if key in first}, lost)

    def _lost(self, prefix: str, queue: str = "") -> list[Operation]:
        return [
            each
            for key, operations in self._history.of_keys(prefix).items()
            if not queue or queue in key.removeprefix(prefix).split(",")
            for each in operations
            if each.answer is UNKNOWN
        ]


def _is_of_rule(item: str) -> bool:
    return not item.startswith(tuple(f"{queue}-" for queue in FAN_QUEUES))


def _weather(chance: random.Random) -> Weather:
    if chance.random() < 0.3:
        return Weather()
    return Weather(
        latency_s=chance.choice((0.0002, 0.002, 0.05)),
        split=chance.choice((0.0, 0.2)),
        stall=chance.choice((0.0, 0.01)),
        cut=chance.choice((0.0, 0.001, 0.01)),
    )


def _configuration(chance: random.Random) -> Configuration:
    options = {
        "data.directory": "/data",
        "http.enabled": "false",
        "history.enabled": "false",
        "schedule.retention": "1",
        "database.compression_interval": str(chance.choice((5, 60, 600))),
        "workq.cmdlog_seg_size": str(chance.choice((2_000, 20_000, 1_000_000))),
        "workq.cmdlog_clean_int": str(chance.choice((2_000, 60_000))),
        "kestrel.segment_bytes": str(chance.choice((1_024, 10_000, 1_000_000))),
        "kestrel.checkpoint_interval_ms": str(chance.choice((50, 1_000, 10_000))),
        "kestrel.window_items": str(chance.choice((5, 1_000))),
    }
    return load(environ={}, options=options)

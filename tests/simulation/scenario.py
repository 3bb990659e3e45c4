"""A seed becomes a whole story: settings, weather, processes, and what happens to the server.

    setup     rules, timetables and readers are made; nothing goes wrong yet
    lives     the processes work; troubles come and go; the server ends and starts again
    the end   nothing goes wrong any more: all that is left is done, read and looked at
    checks    of everything that was seen (checks.py)

    ends      power is cut at an operation of the disk, by chance also while the server starts; the
              process is killed; it is stopped in order; a sync fails
    troubles  the disk is full, slow, or stalled; no file can be opened; the clock is set; the
              process is frozen. A server that calls itself ready while a write is stuck fails
    rot       in some stories bits of one log are flipped before the last start: the server starts,
              all other services hold what they must, and the rotten one invents nothing
    index     in some stories a process follows the log of the work queue before each trouble
    weather   of connections, for the whole story: cut, split, stalled

``simulate(seed)`` runs it and gives a SimulationReport; SimulationFailed names the seed, which runs
the same story again.
"""

from __future__ import annotations

import asyncio
import errno
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from journeyman.config import Configuration
from journeyman.config.loading import load
from journeyman.units import NS_PER_S
from tests.simulation.cast import Cast
from tests.simulation.checks import tell
from tests.simulation.clients import (
    FAN_OUT_PORT,
    FEW,
    HTTP_PORT,
    SCHEDULE_PORT,
    WORK_PORT,
    ClientPace,
    Notes,
)
from tests.simulation.history import History
from tests.simulation.index import SimulatedIndex
from tests.simulation.machine import Machine
from tests.simulation.network import Network, Weather
from tests.simulation.world import World
from tests.support.simulated_files import Survival

TIMETABLES = {"minutely": 60, "often": 20}  # by name: seconds
ENDS = ("power", "power", "power", "start", "kill", "stop", "sync")
SLOW_S = 600.0  # between operations, at times
MOST_STARTS = 500  # that fail one after another; troubles are over sooner
ROT = {  # what may be read wrongly if these files are rotten
    "/data/schedule.log": frozenset({"schedule"}),
    "/data/workq/": frozenset({"work"}),
    "/data/kestrel/": frozenset({"fan-out"}),
    "/data/ledger/": frozenset({"timetables", "work"}),
}
INDEXED = 0.3  # of the stories have an index; cleaning waits for it
PROBE_S = 0.7  # between two questions whether the server is ready
LOOK_S = 1.0  # between two looks whether something has come about
TROUBLES = ("full", "slow", "files", "clock", "stall", "freeze", "nothing", "nothing")
HELD_UP_S = (0.5, 5.0, 15.0, 90.0)  # for how long a disk is stalled, or a process frozen


class SimulationFailed(AssertionError):
    """What was seen is not what was promised. It names the seed."""


@dataclass(frozen=True)
class SimulationPlan:
    """How long, and how hard."""

    operations: int = 5_000  # at least so many are asked before the end
    lives: int = 8  # at most
    pace: ClientPace = field(default_factory=ClientPace)
    troubles: tuple[str, ...] = TROUBLES  # one of them in each life


@dataclass
class SimulationReport:
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
    rotten_bits: int = 0
    takeovers: int = 0  # of two servers: how often one of them became active
    times_stuck: int = 0  # probes of a server whose write was older than the deadline
    ends: Counter[str] = field(default_factory=Counter)
    troubles: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ends.items()))
        return (
            f"seed {self.seed}: {self.operations} operations, {self.checked} of registers, "
            f"{self.occurrences} occurrences, {self.runs} runs, {self.simulated_s / 3600:.1f} "
            f"simulated hours in {self.cpu_s:.1f} s; ends: {ends}; trace {self.trace}"
        )


def simulate(seed: int, plan: SimulationPlan | None = None) -> SimulationReport:
    """Run the story of a seed; SimulationFailed, if anything is not as promised."""
    return run_story(seed, lambda: Story(seed, plan or SimulationPlan()))


class AnyStory(Protocol):
    """A story of one server or of several."""

    world: World
    report: SimulationReport

    @property
    def lines(self) -> list[str]:
        """What the servers said last."""
        ...

    def run(self) -> None: ...


def run_story(seed: int, make_story: Callable[[], AnyStory]) -> SimulationReport:
    """Run a story; SimulationFailed, if anything is not as promised."""
    state = random.getstate()
    random.seed(seed)  # engines draw their own seeds
    begun_s = time.process_time()
    story = make_story()
    try:
        story.run()
    except Exception as error:
        raise SimulationFailed(
            f"seed {seed}, trace {story.world.trace}: "
            f"{type(error).__name__}: {error}\n{''.join(story.lines)}"
        ) from error
    finally:
        random.setstate(state)
    story.report.cpu_s = time.process_time() - begun_s
    return story.report


class Story:
    def __init__(self, seed: int, plan: SimulationPlan) -> None:
        self.plan = plan
        self.report = SimulationReport(seed)
        self.world = world = World(seed)
        self._chance = world.fork("fate")
        self._network = Network(world, draw_weather(self._chance))
        self._history = History(world.elapsed_ns)
        self._notes = Notes(self._history, world.clock.now_ns)
        self._outside = world.loop()
        configuration = load_settings(draw_settings(self._chance, plan.pace))
        self.machine = Machine(world, self._network, configuration, self._outside, self._survival)
        self.machine.ended = self._history.server_died
        self._cast = Cast(
            self._outside,
            self._network,
            self._notes,
            plan.pace,
            life=lambda: self.machine.life,
            timetables=TIMETABLES,
            has_http=configuration.settings.http.enabled,
        )
        self._index = SimulatedIndex(configuration.settings, world.clock)
        self._has_index = world.fork("index").random() < INDEXED
        self._set_ns = self._most_ns = 0  # by how much the clock was set: now, at most
        self._set_back: list[int] = []  # when it was set back
        self._rotten: frozenset[str] = frozenset()

    @property
    def lines(self) -> list[str]:
        return [f"life {self.machine.life}: {line}" for line in self.machine.lines[-8:]]

    def run(self) -> None:
        self.world.run(self._outside, self._tell_story())
        self._check()
        report, world = self.report, self.world
        report.trace = world.trace
        report.operations = self._history.asked
        report.simulated_s = world.clock.monotonic_ns() / NS_PER_S
        report.runs = len(self.machine.runs)
        report.times_stuck = self.machine.times_stuck

    # -- the story --

    async def _tell_story(self) -> None:
        weather, self._network.weather = self._network.weather, Weather()
        await self._start()
        await self._cast.set_up()
        self._network.weather = weather
        self._cast.begin()
        self._probe()
        while self._history.asked < self.plan.operations:
            if self.machine.life >= self.plan.lives:
                await self._until(lambda: self._history.asked >= self.plan.operations)
                break
            await self._live()
        self._network.weather = Weather()
        self._heal()
        await self._cast.stop()
        await self._end()

    def _probe(self) -> None:
        self.machine.probe()
        self._outside.call_later(PROBE_S, self._probe)

    async def _live(self) -> None:
        """A part of the story with one end of the server."""
        trouble, end = self._chance.choice(self.plan.troubles), self._chance.choice(ENDS)
        self.report.troubles[trouble] += 1
        self.report.ends[end] += 1
        enough = self._history.asked + self._chance.randrange(
            1, 2 * self.plan.operations // self.plan.lives
        )
        await self._until(lambda: self._history.asked >= enough)
        if self._has_index:
            self._index.follow(self.machine.disk)
        for_s = self._begin_trouble(trouble)
        # The end comes in the middle of the trouble, or after it.
        await asyncio.sleep(self._chance.random() * max(3.0, 2 * for_s))
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
        starts = 0
        while not self.machine.is_ready:
            if not self.machine.is_running:
                self.machine.start()
                starts += 1
                assert starts <= MOST_STARTS, "the server does not start"
            await asyncio.sleep(0.1)

    async def _until(self, is_over: Callable[[], bool], limit_s: float = 1e9) -> None:
        end_s = self._outside.time() + limit_s
        while not is_over() and self._outside.time() < end_s:
            if self.machine.mistakes or self._notes.wrong:
                return
            if not self.machine.is_running and limit_s > 1e8:
                await self._start()
            await asyncio.sleep(LOOK_S)

    def _begin_trouble(self, trouble: str) -> float:
        """For how many seconds the server is held up."""
        disk, chance = self.machine.disk, self._chance
        if trouble in ("stall", "freeze"):
            for_s = chance.choice(HELD_UP_S)
            (self.machine.stall if trouble == "stall" else self.machine.freeze)(for_s)
            return for_s
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
        return 0.0

    def _heal(self) -> None:
        self.machine.disk.capacity = None
        self.machine.disk.heal()
        self.machine.slow = 1.0
        self.machine.stall(0)

    def _survival(self) -> Survival:
        """What a power cut leaves."""
        self.report.disk_operations += self.machine.disk.operations
        return self._chance.randrange(1 << 30)

    async def _end(self) -> None:
        """Nothing goes wrong any more: one more start, then all that is left is done."""
        self.machine.kill()
        # What was due by the clock before it was set back is due again.
        self.world.set_clock(self._most_ns - self._set_ns)
        if self._chance.random() < 0.3:
            self._rot()
        await self._start()
        await self._cast.finish()
        self.machine.stop()
        await self._until(lambda: not self.machine.is_running, limit_s=600)
        if self._has_index and "work" not in self._rotten:
            self._index.check(self.machine.disk)

    def _rot(self) -> None:
        disk, chance = self.machine.disk, self._chance
        place = chance.choice(list(ROT))
        files = {path: data for path, data in disk.files().items() if path.startswith(place)}
        for _ in range(chance.choice((1, 1, 2, 8))):
            path = chance.choice([path for path, data in files.items() if data] or [""])
            if path:
                data = bytearray(files[path])
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                files[path] = bytes(data)
                disk.plant(path, files[path])
                self._rotten = ROT[place]
                self.report.rotten_bits += 1

    def _check(self) -> None:
        tell(self.machine.mistakes)
        tally = self._cast.check(self.machine.runs, self._set_back, self._rotten)
        self.report.checked, self.report.occurrences = tally


def draw_weather(chance: random.Random) -> Weather:
    if chance.random() < 0.3:
        return Weather()
    return Weather(
        latency_s=chance.choice((0.0002, 0.002, 0.05)),
        split=chance.choice((0.0, 0.2)),
        stall=chance.choice((0.0, 0.01)),
        cut=chance.choice((0.0, 0.001, 0.01)),
    )


PORTS = {
    "controller": SCHEDULE_PORT,
    "workq": WORK_PORT,
    "kestrel": FAN_OUT_PORT,
    "http": HTTP_PORT,
}


def load_settings(options: dict[str, str]) -> Configuration:
    return load(environ={}, options=options)


def draw_settings(chance: random.Random, pace: ClientPace) -> dict[str, str]:
    """The settings of a server, by name."""
    # Upkeep every few seconds would be all that happens where hours pass; with bursts it would read
    # a log again for each few of its records.
    slower = 60 if pace.long_s > SLOW_S else pace.burst // FEW
    larger = pace.burst // FEW
    return {
        "data.directory": "/data",
        "http.enabled": chance.choice(("true", "false")),
        "http.listen": f"127.0.0.1:{HTTP_PORT}",
        "history.enabled": "false",
        "schedule.retention": "1",
        "database.compression_interval": str(chance.choice((5, 60, 600)) * slower),
        "workq.cmdlog_seg_size": str(chance.choice((2_000, 20_000, 1_000_000)) * larger),
        "workq.cmdlog_clean_int": str(chance.choice((2_000, 60_000)) * slower),
        "kestrel.segment_bytes": str(chance.choice((1_024, 10_000, 1_000_000)) * larger),
        "kestrel.checkpoint_interval_ms": str(chance.choice((50, 1_000, 10_000)) * slower),
        "kestrel.window_items": str(chance.choice((5, 1_000)) * (pace.burst if larger > 1 else 1)),
        "kestrel.default": f"{{max_open = {pace.burst}}}",
    }

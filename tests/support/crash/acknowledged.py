"""A list of commands for all services, sent one at a time, and what a server must hold after each.

    COMMANDS[n] --answered--> the server holds STATES[n + 1], or STATES[n + 2] if the next one was
                              under way when the power was cut

``Recovered`` starts a server on what a crash has left, in a simulation, and asks it for its state.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from journeyman.config.loading import load
from tests.simulation.machine import Machine
from tests.simulation.network import Network, Weather
from tests.simulation.world import World
from tests.support.simulated_disk import SimulatedDisk

FAR_NS = 4_000_000_000_000_000_000
PORTS = {"schedule": 5678, "work": 9922, "fan-out": 22133}
TTL_MS = 2_000_000_000
TTR_MS = 3_600_000  # a lease outlives the test, however slow the machine is


@dataclass(frozen=True)
class State:
    """What can be seen of a server."""

    jobs: tuple[tuple[str, int], ...] = ()
    rules: tuple[str, ...] = ()
    timetables: tuple[str, ...] = ()
    work: tuple[tuple[str, int], ...] = ()  # by id: its state
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    port: str
    text: str
    change: Callable[[State], State] = field(compare=False, repr=False)
    lines: int = 1  # of the answer


Pairs = tuple[tuple[str, int], ...]


def _with(pairs: Pairs, key: str, value: int | None) -> Pairs:
    left = {each: number for each, number in pairs if each != key}
    return tuple(sorted((left | ({} if value is None else {key: value})).items()))


def _plan(name: str, at_ns: int | None) -> Command:
    text = f"1 REMOVE {name}\n" if at_ns is None else f"1 SET {name} {at_ns}\n"
    return Command("schedule", text, lambda s: replace(s, jobs=_with(s.jobs, name, at_ns)))


def _rule(name: str) -> Command:
    text = f"1 RULE SET {name} {name}. shell true\n"
    return Command("schedule", text, lambda s: replace(s, rules=(*s.rules, name)))


def _timetable(name: str) -> Command:
    text = f"1 TIMETABLE SET {name} at 2090-01-01T00:00:00Z run shell true\n"
    return Command("schedule", text, lambda s: replace(s, timetables=(*s.timetables, name)))


def job_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def _work(number: int, text: str, state: int | None, lines: int = 1) -> Command:
    name = job_id(number)
    return Command("work", text, lambda s: replace(s, work=_with(s.work, name, state)), lines)


def _add(number: int) -> Command:
    body = f"payload {number:03d}"
    head = f"add {job_id(number)} q {TTR_MS} {TTL_MS} {len(body)} -max-fails=3"
    return _work(number, f"{head}\r\n{body}\r\n", 0)


def _end(number: int, verb: str, state: int) -> Command:
    return _work(number, f"{verb} {job_id(number)} 2\r\nok\r\n", state)


def _put(item: str) -> Command:
    text = f"set f 0 0 {len(item)}\r\n{item}\r\n"
    return Command("fan-out", text, lambda s: replace(s, items=(*s.items, item)))


def _commands(rounds: int) -> list[Command]:
    found = [_rule("r"), _timetable("t")]
    for n in range(rounds):
        a, b, c = 3 * n, 3 * n + 1, 3 * n + 2
        found += [
            _plan(f"j{n}", FAR_NS + n),
            _add(a),
            _put(f"item {n:03d}"),
            _add(b),
            _work(a, "lease q 0\r\n", 4, lines=3),
            _add(c),
            _end(a, "complete", 1),
            _put("x" * 300 + f"{n}"),
            _end(b, "fail", 3),
            _plan(f"j{n // 2}", FAR_NS + 1000 + n),
            _work(c, f"delete {job_id(c)}\r\n", None),
            _end(b, "complete", 1),
        ]
    return [*found, _plan("j0", None)]


COMMANDS = _commands(4)


def states(commands: list[Command]) -> list[State]:
    """Before the first one, and after each."""
    found = [State()]
    for command in commands:
        found.append(command.change(found[-1]))
    return found


class Sender:
    """Blocking: sends the commands to a real server, one at a time. ``answered``: how many were."""

    def __init__(self, ports: dict[str, int]) -> None:
        self._sockets = {
            name: socket.create_connection(("127.0.0.1", port), timeout=60.0)
            for name, port in ports.items()
        }
        self._files = {name: each.makefile("rb") for name, each in self._sockets.items()}
        self.answered = 0
        self.refused: list[int] = []  # commands that changed nothing, by number

    def send(self, commands: list[Command]) -> bool:
        """Whether all were answered."""
        for number, command in enumerate(commands):
            try:
                self._sockets[command.port].sendall(command.text.encode())
                first = last = self._files[command.port].readline()
                if b"ERROR" in first:
                    self.refused.append(number)
                    return False
                for _ in range(command.lines - 1):
                    last = self._files[command.port].readline()
            except OSError:
                return False
            if not last:
                return False
            self.answered += 1
        return True

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        for each in self._sockets.values():
            each.close()


# -- asking --


class Recovered:
    """A server in a simulation, on a disk that a crash has left."""

    def __init__(
        self,
        disk: SimulatedDisk,
        options: dict[str, str],
        now_ns: int,
    ) -> None:
        self._world = world = World(0)
        world.set_clock(now_ns - world.clock.now_ns())
        self._outside = world.loop()
        self._network = Network(world, Weather(latency_s=0.0))
        configuration = load(environ={}, options={**options, "http.enabled": "false"})
        self._machine = Machine(
            world, self._network, configuration, self._outside, lambda: "lose_all_unsynced"
        )
        self._machine.disk = disk

    def state(self, ids: list[str]) -> State:
        return self._world.run(self._outside, self._state(ids))

    async def _state(self, ids: list[str]) -> State:
        self._machine.start()
        while not self._machine.is_ready:
            assert self._machine.is_running, "".join(self._machine.lines)
            await asyncio.sleep(0.01)
        jobs = [line.split() for line in await self._list("QUERY")]
        state = State(
            tuple(sorted((name, int(at)) for name, _, at in jobs if "@" not in name)),
            tuple(sorted(line.split()[0] for line in await self._list("LISTRULES"))),
            tuple(sorted(line.split()[0] for line in await self._list("TIMETABLE LIST"))),
            await self._work(ids),
            await self._items(),
        )
        self._machine.stop()
        while self._machine.is_running:
            await asyncio.sleep(1.0)
        assert not self._machine.mistakes, self._machine.mistakes
        return state

    async def _list(self, words: str) -> list[str]:
        wire = self._network.connect(self._outside, PORTS["schedule"])
        wire.send(f"1 {words}\n".encode())
        lines = []
        while (line := (await wire.read_line()).decode()) != "1 OK":
            lines.append(line.removeprefix("1 "))
        return lines

    async def _work(self, ids: list[str]) -> tuple[tuple[str, int], ...]:
        wire = self._network.connect(self._outside, PORTS["work"])
        found = []
        for name in ids:
            wire.send(f"inspect job {name}\r\n".encode())
            if await wire.read_line() == b"-NOT-FOUND":
                continue
            keys = int((await wire.read_line()).split()[1])
            lines = [await wire.read_line() for _ in range(keys)]
            (state,) = (line[6:] for line in lines if line.startswith(b"state "))
            found.append((name, int(state)))
        return tuple(sorted(found))

    async def _items(self) -> tuple[str, ...]:
        wire = self._network.connect(self._outside, PORTS["fan-out"])
        found: list[str] = []
        while True:
            wire.send(b"get f\r\n")
            line = await wire.read_line()
            if line == b"END":
                return tuple(found)
            found.append((await wire.read_bytes(int(line.split()[3]) + 2))[:-2].decode())
            await wire.read_line()

"""Processes outside of the server: clients, workers, readers and an operator, who note everything.

    Planner      sets, gets and removes jobs that are never due: registers
    Starter      sets jobs that are due soon, under rules that run a program or feed the queues
    Producer     adds jobs to the work queue, deletes some, asks for results       work_clients.py
    QueueWorker  leases jobs; completes, fails or forgets them                     work_clients.py
    Task...      the same with all extensions: limits, delays, parents...          work_clients.py
    Waiter       parks jobs; emits events                                          waits.py
    Publisher    puts items on fan-out queues
    FanOutReader opens items and confirms them, sometimes only after it has lost its connection
    Operator     looks at everything
    HttpClient   some of what Planner, Producer and Publisher do, over HTTP

Each speaks its protocol in its own words, which share nothing with the server's parsers. A process
goes on until it is stopped, whatever happens to its connection or to the server.
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from journeyman.units import NS_PER_MS, NS_PER_S
from tests.simulation.history import NOT_FOUND, OK, REFUSED, History, Operation
from tests.simulation.network import ConnectionCut

SCHEDULE_PORT, WORK_PORT, FAN_OUT_PORT, HTTP_PORT = 5678, 9922, 22133, 8080
FAR_NS = 4_000_000_000 * NS_PER_S  # beyond all simulated time
TTL_MS = 30 * 24 * 3600 * 1000
WORK_QUEUES = {"work": (3_000, 0), "retry": (3_000, 3), "slow": (500, 0)}  # TTR in ms, max-fails
FAN_QUEUES = {"one": ("",), "fan": ("a", "b")}
FEW = 6
MAX_LEASED = 100  # by one command
_VERBS = ("set",) * 4 + ("get",) * 5 + ("remove",) * 2  # of scheduled jobs, as often as this
KEYS_A_BURST = 4  # scheduled jobs for each command that one client may send at once


@dataclass
class Notes:
    """What the processes know together."""

    history: History
    now_ns: Callable[[], int]
    jobs: list[str] = field(default_factory=list)  # of the work queue, that were sent
    tasks: list[str] = field(default_factory=list)  # the same, those with extensions
    parents: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of a task, if it has any
    key_of: dict[str, str] = field(default_factory=dict)  # of a task
    known_tasks: list[str] = field(default_factory=list)  # whose add was answered
    even_failed: set[str] = field(default_factory=set)  # tasks that a failed parent does not stop
    queue_of: dict[str, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)  # that some job was to wait for
    due: dict[str, Operation] = field(default_factory=dict)
    executed: dict[str, int] = field(default_factory=dict)  # since which life that was shown
    puts: dict[str, dict[str, Operation]] = field(default_factory=dict)  # by queue and item
    came: dict[str, list[tuple[str, Operation]]] = field(default_factory=dict)  # by reader
    wrong: list[str] = field(default_factory=list)
    over_http: int = 0  # changes that were answered
    number: int = 0

    def next_number(self) -> int:
        self.number += 1
        return self.number


@dataclass(frozen=True)
class ClientPace:
    """How long a process thinks: mostly little, sometimes much longer; and how many commands it
    sends at once, at most, before it reads the answers."""

    short_s: float = 0.01
    long_s: float = 60.0
    long: float = 0.1
    burst: int = FEW

    @property
    def keys(self) -> int:
        return KEYS_A_BURST * self.burst

    def draw_s(self, chance: random.Random) -> float:
        if chance.random() < self.long:
            return chance.expovariate(1 / self.long_s)
        return chance.random() * self.short_s


class AnyWire(Protocol):
    """A connection to a server; ConnectionCut when it is over."""

    def send(self, data: bytes) -> None: ...

    async def read_line(self) -> bytes: ...

    async def read_lines(self, most: int) -> list[str]:
        """Those that are there: one at least, and at most so many."""
        ...

    async def read_bytes(self, size: int) -> bytes: ...

    def cut(self) -> None: ...


class Ways(Protocol):
    """What a process needs of the world."""

    def fork(self, name: object) -> random.Random:
        """Chance of its own."""
        ...

    def connect(self, loop: Any, port: int) -> AnyWire: ...


class Process(ABC):
    """One of them. ``run`` ends after ``stop``, when what was asked has been answered."""

    port: ClassVar[int]

    def __init__(
        self,
        number: int,
        loop: asyncio.AbstractEventLoop,
        ways: Ways,
        notes: Notes,
        pace: ClientPace,
        life: Callable[[], int],
    ) -> None:
        self.number = number
        self.chance = ways.fork(f"{type(self).__name__} {number}")
        self.notes = notes
        self.history = notes.history.asked_of(None)
        self.life = life
        self._loop = loop
        self._ways = ways
        self.pace = pace
        self._is_stopping = False
        self._pause: asyncio.Future[None] | None = None
        self.wire: AnyWire

    def connect(self) -> None:
        self.wire = self._ways.connect(self._loop, self.port)
        self.history = self.notes.history.asked_of(getattr(self.wire, "server", None))

    @abstractmethod
    async def step(self) -> None:
        """Do something. ConnectionCut: begin again with another connection."""

    async def run(self) -> None:
        while not self._is_stopping:
            try:
                self.connect()
                while not self._is_stopping:
                    await self.step()
                    await self.pause(self.pace.draw_s(self.chance))
            except ConnectionCut:
                await self.pause(self.chance.random())

    def stop(self) -> None:
        self._is_stopping = True
        self._wake()

    async def pause(self, seconds: float) -> None:
        if not self._is_stopping:
            self._pause = self._loop.create_future()
            timer = self._loop.call_later(seconds, self._wake)
            await self._pause
            timer.cancel()

    def _wake(self) -> None:
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    async def end_all(
        self, asked: Sequence[Operation], answer: Callable[[Operation, str], object]
    ) -> None:
        """Each was asked, and is answered by a line."""
        ended = 0
        while ended < len(asked):
            lines = await self.wire.read_lines(len(asked) - ended)
            for operation, line in zip(asked[ended:], lines, strict=False):
                self.history.end(operation, answer(operation, line))
            ended += len(lines)

    def complain(self, text: str) -> None:
        self.notes.wrong.append(f"{type(self).__name__}: {text}")

    def draw_register(self) -> tuple[str, str, int]:
        """A scheduled job, what to do with it, and when it shall be due."""
        name = f"k{self.chance.randrange(self.pace.keys)}"
        verb = self.chance.choice(_VERBS)
        return name, verb, FAR_NS + self.notes.next_number()

    def begin_add(self, job_id: str) -> tuple[Operation, str, int, int, str]:
        """Of a job: its queue, TTR in ms, max-fails and payload."""
        name = self.notes.queue_of.get(job_id) or self.chance.choice(list(WORK_QUEUES))
        ttr_ms, max_fails = WORK_QUEUES[name]
        if job_id not in self.notes.queue_of:
            self.notes.queue_of[job_id] = name
            self.notes.jobs.append(job_id)
        operation = self.history.begin(f"work/{job_id}", "add", max_fails, ttr_ms * NS_PER_MS)
        return operation, name, ttr_ms, max_fails, f"of {job_id}"

    def new_job_id(self) -> str:
        return str(uuid.UUID(int=self.chance.getrandbits(128), version=4))

    def begin_put(self) -> tuple[Operation, str, str]:
        """With the queue and the item."""
        queue = self.chance.choice(list(FAN_QUEUES))
        item = f"{queue}-{self.notes.next_number()}"
        operation = self.history.begin(f"fan/{queue}", "put", item)
        self.notes.puts.setdefault(queue, {})[item] = operation
        return operation, queue, item


# -- the schedule ----------------------------------------------------------------------------------


class ScheduleProcess(Process):
    port = SCHEDULE_PORT

    async def ask(self, command: str) -> str:
        """The last line of the answer, without the request id."""
        self.wire.send(f"1 {command}\n".encode())
        return await self.read_answer()

    async def read_answer(self) -> str:
        return (await self.wire.read_line()).decode().removeprefix("1 ")


class Planner(ScheduleProcess):
    async def step(self) -> None:
        most = self.pace.burst if self.pace.burst == FEW else self.pace.keys  # they are cheap
        count = self.chance.randint(1, most)
        await self._ask_all([self.draw_register() for _ in range(count)])

    async def look_at_all(self) -> None:
        self.connect()
        await self._ask_all([(f"k{number}", "get", 0) for number in range(self.pace.keys)])

    async def _ask_all(self, wanted: list[tuple[str, str, int]]) -> None:
        asked, lines = [], []
        for name, verb, due_ns in wanted:
            if verb == "set":
                asked.append(self.history.begin(f"schedule/{name}", verb, due_ns))
                lines.append(f"1 SET {name} {due_ns}\n")
            else:
                asked.append(self.history.begin(f"schedule/{name}", verb))
                lines.append(f"1 {verb.upper()} {name}\n")
        self.wire.send("".join(lines).encode())
        await self.end_all(asked, self._answer)

    def _answer(self, operation: Operation, line: str) -> object:
        if line == "1 OK":
            return OK
        if line.startswith("1 ERROR not_found"):
            return NOT_FOUND
        if line.startswith("1 OK planned "):
            return int(line.split()[3])
        if line != "1 ERROR internal":
            self.complain(f"{operation}: {line}")
        return REFUSED


class Starter(ScheduleProcess):
    async def step(self) -> None:
        if self.notes.due and self.chance.random() < 0.3:
            await self._look(self.chance.choice(list(self.notes.due)))
            return
        name = f"{self.chance.choice(('run', 'queue', 'journal'))}.{self.notes.next_number()}"
        due_ns = self.notes.now_ns() + self.chance.randrange(5 * NS_PER_S)
        operation = self.history.begin(f"due/{name}", "set", due_ns)
        self.notes.due[name] = operation
        answer = await self.ask(f"SET {name} {due_ns}")
        self.history.end(operation, OK if answer == "OK" else REFUSED)

    async def _look(self, name: str) -> None:
        life = self.life()
        answer = await self.ask(f"GET {name}")
        if answer.startswith("OK executed "):
            self.notes.executed.setdefault(name, life)
        elif answer.startswith("ERROR not_found") and self.notes.due[name].answer == OK:
            self.complain(f"{name} was set, and does not exist")


class Operator(ScheduleProcess):
    async def order(self, command: str) -> None:
        answer = await self.ask(command)
        assert answer == "OK", f"{command}: {answer}"

    async def step(self) -> None:
        await self._read_list(
            self.chance.choice(("STAT", "TIMETABLE LIST", "QUERY k", "LISTRULES"))
        )

    async def _read_list(self, command: str) -> None:
        self.wire.send(f"1 {command}\n".encode())
        while (line := await self.read_answer()) != "OK":
            name = line.split(maxsplit=1)[0]
            if command == "QUERY k" and not (name[1:].isdigit() and int(name[1:]) < self.pace.keys):
                self.complain(f"a job that was never set: {line}")


# -- the fan-out queues ----------------------------------------------------------------------------


class Publisher(Process):
    port = FAN_OUT_PORT

    async def step(self) -> None:
        asked, commands = [], []
        for _ in range(self.chance.randint(1, self.pace.burst)):
            operation, queue, item = self.begin_put()
            commands.append(f"set {queue} 0 0 {len(item)}\r\n{item}\r\n")
            asked.append(operation)
        self.wire.send("".join(commands).encode())
        await self.end_all(asked, self._answer)

    def _answer(self, operation: Operation, line: str) -> object:
        if line == "STORED":
            return OK
        if not line.startswith("SERVER_ERROR"):
            self.complain(f"{operation}: {line}")
        return REFUSED


class FanOutReader(Process):
    port = FAN_OUT_PORT

    key = ""

    def read_from(self, queue: str, reader: str) -> None:
        self.key = f"{queue}+{reader}" if reader else queue

    async def step(self) -> None:
        if self.pace.burst == FEW:
            await self.read(self.chance.choice((0, 100, 5000)))
        else:
            await self.read_many(1)
        if self.chance.random() < 0.03:  # leaves with its item open: it comes again
            self.wire.cut()
            raise ConnectionCut

    async def read(self, wait_ms: int) -> int:
        """Confirm the last item, open the next one; how many there were."""
        return await self._read(f"get {self.key}/close/open/t={wait_ms}")

    async def read_many(self, wait_s: int) -> int:
        """Open those that are there or come, and confirm them."""
        count = await self._read(f"monitor {self.key} {wait_s} {self.pace.burst}")
        if count:
            self.wire.send(f"confirm {self.key} {count}\r\n".encode())
            answer = (await self.wire.read_line()).decode()
            if answer != "END" and not answer.startswith("SERVER_ERROR"):
                self.complain(f"confirm {self.key} {count}: {answer}")
        return count

    async def _read(self, command: str) -> int:
        operation = self.history.begin(f"read/{self.key}", "read")
        self.wire.send(f"{command}\r\n".encode())
        items = []
        while (line := (await self.wire.read_line()).decode()).startswith("VALUE "):
            data = await self.wire.read_bytes(int(line.split()[3]) + 2)
            items.append(data[:-2].decode())
            line = (await self.wire.read_line()).decode()  # each item has an END of its own
            if command.startswith("get"):
                break
        if line != "END" and not line.startswith("SERVER_ERROR"):
            self.complain(f"{command}: {line}")
        self.history.end(operation, tuple(items))
        self.notes.came.setdefault(self.key, []).extend((item, operation) for item in items)
        return len(items)

    async def drain(self, wait_ms: int) -> None:
        self.connect()
        is_many = self.pace.burst > FEW
        while await (self.read_many(wait_ms // 1000) if is_many else self.read(wait_ms)):
            pass


# -- HTTP ------------------------------------------------------------------------------------------


class HttpClient(Process):
    port = HTTP_PORT

    async def step(self) -> None:
        await self.chance.choice((self._register, self._register, self._add, self._put))()

    async def _register(self) -> None:
        name, verb, due_ns = self.draw_register()
        operation = self.history.begin(
            f"schedule/{name}", *((verb, due_ns) if verb == "set" else (verb,))
        )
        method = {"set": "PUT", "get": "GET", "remove": "DELETE"}[verb]
        body = {"execution": str(due_ns)} if verb == "set" else None
        status, answer = await self._ask(method, f"/v1/schedule/jobs/{name}", body)
        if status == 200 and verb == "get":
            self.history.end(operation, int(answer["execution_ns"]))
        else:
            self._end(operation, status, answer)

    async def _add(self) -> None:
        operation, name, ttr_ms, max_fails, payload = self.begin_add(self.new_job_id())
        body = {"id": operation.key.removeprefix("work/"), "queue": name, "payload": payload}
        limits = {"ttr_ms": ttr_ms, "ttl_ms": TTL_MS, "max_fails": max_fails}
        self._end(operation, *await self._ask("POST", "/v1/work/jobs", {**body, **limits}))

    async def _put(self) -> None:
        operation, queue, item = self.begin_put()
        path = f"/v1/fan-out/queues/{queue}/items"
        self._end(operation, *await self._ask("POST", path, {"data": item}))

    def _end(self, operation: Operation, status: int, answer: Any) -> None:
        self.notes.over_http += 1
        if status == 503 and (
            answer["code"] == "not_ready" or answer["detail"] == "the server is stopping"
        ):
            raise ConnectionCut  # it may have been done before the lease or the log ended
        if status // 100 != 2 and status not in (404, 503):
            self.complain(f"{operation}: {status} {answer}")
        self.history.end(operation, {2: OK, 4: NOT_FOUND}.get(status // 100, REFUSED))

    async def _ask(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost:{HTTP_PORT}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self.wire.send(head.encode() + data)
        status = int((await self.wire.read_line()).split()[1])
        size = 0
        while line := await self.wire.read_line():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        answer = await self.wire.read_bytes(size)
        return status, json.loads(answer) if answer else None

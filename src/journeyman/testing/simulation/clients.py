"""Processes outside of the server: clients, workers, readers and an operator, who note everything.

    Planner      sets, gets and removes jobs that are never due: registers
    Starter      sets jobs that are due soon, under rules that run a program or feed the queues
    Producer     adds jobs to the work queue, deletes some, asks for results
    QueueWorker  leases jobs; completes, fails or forgets them
    Publisher    puts items on fan-out queues
    FanOutReader opens items and confirms them, sometimes only after it has lost its connection
    Operator     looks at everything, pauses and resumes queues
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
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from journeyman.testing.simulation.history import History, Operation
from journeyman.testing.simulation.models import DUPLICATE, NOT_FOUND, OK, REFUSED
from journeyman.testing.simulation.network import ConnectionCut
from journeyman.units import NS_PER_MS, NS_PER_S

SCHEDULE_PORT, WORK_PORT, FAN_OUT_PORT, HTTP_PORT = 5678, 9922, 22133, 8080
FAR_NS = 4_000_000_000 * NS_PER_S  # beyond all simulated time
TTL_MS = 30 * 24 * 3600 * 1000
WORK_QUEUES = {"work": (3_000, 0), "retry": (3_000, 3), "slow": (500, 0)}  # TTR in ms, max-fails
FAN_QUEUES = {"one": ("",), "fan": ("a", "b")}
FEW = 6
KEYS_A_BURST = 4  # scheduled jobs for each command that one client may send at once


@dataclass
class Notes:
    """What the processes know together."""

    history: History
    now_ns: Callable[[], int]
    jobs: list[str] = field(default_factory=list)  # of the work queue, that were sent
    queue_of: dict[str, str] = field(default_factory=dict)
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
        self.chance = ways.fork(f"{type(self).__name__} {number}")
        self.notes = notes
        self.history = notes.history
        self.life = life
        self._loop = loop
        self._ways = ways
        self.pace = pace
        self._is_stopping = False
        self._pause: asyncio.Future[None] | None = None
        self.wire: AnyWire

    def connect(self) -> None:
        self.wire = self._ways.connect(self._loop, self.port)

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

    def complain(self, text: str) -> None:
        self.notes.wrong.append(f"{type(self).__name__}: {text}")

    def draw_register(self) -> tuple[str, str, int]:
        """A scheduled job, what to do with it, and when it shall be due."""
        name = f"k{self.chance.randrange(self.pace.keys)}"
        verb = self.chance.choices(("set", "get", "remove"), (4, 5, 2))[0]
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
        count = self.chance.randint(1, self.pace.burst)
        await self._ask_all([self.draw_register() for _ in range(count)])

    async def look_at_all(self) -> None:
        self.connect()
        await self._ask_all([(f"k{number}", "get", 0) for number in range(self.pace.keys)])

    async def _ask_all(self, wanted: list[tuple[str, str, int]]) -> None:
        for operation in [self._ask_one(*each) for each in wanted]:
            self.history.end(operation, self._answer(operation, await self.read_answer()))

    def _ask_one(self, name: str, verb: str, due_ns: int) -> Operation:
        ask = (verb, due_ns) if verb == "set" else (verb,)
        operation = self.history.begin(f"schedule/{name}", *ask)
        words = f"{verb.upper()} {name}" + (f" {due_ns}" if verb == "set" else "")
        self.wire.send(f"1 {words}\n".encode())
        return operation

    def _answer(self, operation: Operation, line: str) -> object:
        if line == "OK":
            return OK
        if line.startswith("ERROR not_found"):
            return NOT_FOUND
        if line.startswith("OK planned "):
            return int(line.split()[2])
        if line != "ERROR internal":
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


# -- the work queue --------------------------------------------------------------------------------


class WorkProcess(Process):
    port = WORK_PORT

    async def ask(self, line: str, payload: bytes | None = None) -> str:
        body = b"" if payload is None else payload + b"\r\n"
        self.wire.send(line.encode() + b"\r\n" + body)
        return (await self.wire.read_line()).decode()

    async def ask_all(self, asked: list[tuple[Operation, str, bytes]]) -> None:
        """Many changes at once."""
        self.wire.send(
            b"".join(line.encode() + b"\r\n" + data + b"\r\n" for _, line, data in asked)
        )
        for operation, _, _ in asked:
            answer = (await self.wire.read_line()).decode()
            self.history.end(operation, self.word(operation, answer))

    def word(self, operation: Operation, answer: str) -> object:
        """The answer to a change."""
        if answer == "+OK":
            return OK
        if answer == "-NOT-FOUND":
            return NOT_FOUND
        if answer.startswith("-CLIENT-ERROR Duplicate"):
            return DUPLICATE
        if not answer.startswith("-SERVER-ERROR Read-only"):
            self.complain(f"{operation}: {answer}")
        return REFUSED

    async def finish(self, *jobs: tuple[str, str]) -> None:
        """Jobs, and whether each is to complete or to fail."""
        asked = []
        for job_id, verb in jobs:
            result = b"r%d" % self.notes.next_number()
            kind = "work" if job_id in self.notes.queue_of else "ruled"  # added by a rule
            operation = self.history.begin(f"{kind}/{job_id}", verb, result)
            asked.append((operation, f"{verb} {job_id} {len(result)}", result))
        await self.ask_all(asked)

    async def look(self, job_id: str) -> None:
        operation = self.history.begin(f"work/{job_id}", "look")
        answer = await self.ask(f"result {job_id} 0")
        found: object = NOT_FOUND if answer == "-NOT-FOUND" else None
        if answer == "+OK 1":
            _, success, size = (await self.wire.read_line()).split()
            result = await self.wire.read_bytes(int(size) + 2)
            found = success == b"1", result[:-2]
        elif answer not in ("-NOT-FOUND", "-TIMEOUT"):
            self.complain(f"{operation}: {answer}")
        self.history.end(operation, found)

    async def lease(self, names: tuple[str, ...], wait_ms: int) -> list[str]:
        """The ids of the jobs that it got."""
        operation = self.history.begin("lease/" + ",".join(names), "lease")
        most = self.chance.choice(("", f" -max={max(3, self.pace.burst // 4)}"))
        answer = await self.ask(f"lease {' '.join(names)} {wait_ms}{most}")
        jobs = []
        if answer.startswith("+OK "):
            for _ in range(int(answer[4:])):
                job_id, name, _, size, *_ = (await self.wire.read_line()).decode().split()
                payload = await self.wire.read_bytes(int(size) + 2)
                jobs.append(job_id)
                if self.notes.queue_of.get(job_id, name) != name:
                    self.complain(f"{job_id} is of another queue than {name}")
                if job_id in self.notes.queue_of and payload != f"of {job_id}\r\n".encode():
                    self.complain(f"{job_id} has another payload: {payload!r}")
        elif answer != "-TIMEOUT" and not answer.startswith("-SERVER-ERROR Read-only"):
            self.complain(f"lease: {answer}")
        self.history.end(operation, tuple(jobs))
        for job_id in jobs:
            if job_id in self.notes.queue_of:
                self.history.put(f"work/{job_id}", "lease", like=operation)
        return jobs


class Producer(WorkProcess):
    async def step(self) -> None:
        jobs = self.notes.jobs
        what = self.chance.random()
        if jobs and what < 0.25:
            await self.look(self.chance.choice(jobs[-200:]))
        elif jobs and what < 0.3:
            job_id = self.chance.choice(jobs[-200:])
            operation = self.history.begin(f"work/{job_id}", "delete")
            self.history.end(operation, self.word(operation, await self.ask(f"delete {job_id}")))
        elif jobs and what < 0.33:
            await self._add(self.chance.choice(jobs[-50:]))
        else:
            count = self.chance.randint(1, max(1, self.pace.burst // FEW))
            await self._add(*(self.new_job_id() for _ in range(count)))

    async def _add(self, *job_ids: str) -> None:
        asked = []
        for job_id in job_ids:
            operation, name, ttr_ms, max_fails, payload = self.begin_add(job_id)
            line = f"add {job_id} {name} {ttr_ms} {TTL_MS} {len(payload)} -max-fails={max_fails}"
            asked.append((operation, line, payload.encode()))
        await self.ask_all(asked)


class QueueWorker(WorkProcess):
    async def step(self) -> None:
        names = self.chance.sample(list(WORK_QUEUES), self.chance.randint(1, len(WORK_QUEUES)))
        names += ["ruled"] if self.chance.random() < 0.2 else []
        jobs = await self.lease(tuple(names), self.chance.choice((0, 0, 50, 2000)))
        done = []
        for job_id in jobs:
            if self.chance.random() < 0.1:
                continue  # forgotten: it is leased again when its lease has ended
            done.append((job_id, "fail" if self.chance.random() < 0.2 else "complete"))
            if self.pace.burst == FEW or job_id == jobs[-1]:
                if self.chance.random() < 0.3:
                    await self.pause(self.chance.random())
                await self.finish(*done)
                done.clear()

    async def drain(self, wait_ms: int) -> None:
        """Until nothing is left that any worker could do; then look at every job."""
        self.connect()
        names = (*WORK_QUEUES, "ruled")
        while jobs := await self.lease(names, wait_ms):
            await self.finish(*((job_id, "complete") for job_id in jobs))
        for job_id in self.notes.jobs:
            await self.look(job_id)


# -- the fan-out queues ----------------------------------------------------------------------------


class Publisher(Process):
    port = FAN_OUT_PORT

    async def step(self) -> None:
        asked = []
        for _ in range(self.chance.randint(1, self.pace.burst)):
            operation, queue, item = self.begin_put()
            self.wire.send(f"set {queue} 0 0 {len(item)}\r\n{item}\r\n".encode())
            asked.append(operation)
        for operation in asked:
            answer = (await self.wire.read_line()).decode()
            if answer != "STORED" and not answer.startswith("SERVER_ERROR"):
                self.complain(f"{operation}: {answer}")
            self.history.end(operation, OK if answer == "STORED" else REFUSED)


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

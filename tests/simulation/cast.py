"""The processes around a server, from their first word to the check of all that they noted.

    set_up    rules, timetables and readers are made; nothing goes wrong yet
    begin     all processes work, until ``stop``
    finish    nothing goes wrong any more: what is left is done, read and looked at
    check     everything that was noted: see checks.py

The same for a simulated server and for a real one, which tests/kills/server.py kills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise

from tests.simulation.checks import (
    REGISTERS,
    check_deliveries,
    check_not_invented,
    check_occurrences,
    check_order,
    check_registers,
    check_tasks,
    tell,
)
from tests.simulation.clients import (
    FAN_QUEUES,
    WORK_QUEUES,
    ClientPace,
    FanOutReader,
    HttpClient,
    Notes,
    Operator,
    Planner,
    Process,
    Publisher,
    Starter,
    Ways,
)
from tests.simulation.history import NEVER, OK, UNKNOWN, Operation
from tests.simulation.network import ConnectionCut
from tests.simulation.waits import Waiter
from tests.simulation.work_clients import (
    TASK_QUEUES,
    Foreman,
    OrderTaker,
    Producer,
    QueueWorker,
    TaskProducer,
    TaskWorker,
)

COUNTS: Mapping[type[Process], int] = {
    Planner: 3,
    Starter: 1,
    Producer: 2,
    QueueWorker: 3,
    TaskProducer: 1,
    TaskWorker: 2,
    Waiter: 2,
    OrderTaker: 2,
    Foreman: 1,
    Publisher: 2,
    Operator: 1,
    HttpClient: 1,
}
_ONE_MORE = 99  # the number of a process beside these


class Cast:
    """See the module."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ways: Ways,
        notes: Notes,
        pace: ClientPace,
        *,
        life: Callable[[], int],
        timetables: Mapping[str, int],
        program: str = "a program",
        settle_ms: int = 60_000,
        has_http: bool = False,
    ) -> None:
        """``timetables``: by name, how many seconds are between two occurrences. ``program``: what
        their jobs run, in the words of a shell. ``settle_ms``: after so long all leases and
        troubles have ended."""
        self._loop = loop
        self._ways = ways
        self._notes = notes
        self._pace = pace
        self._life = life
        self._timetables = timetables
        self._program = program
        self._settle_ms = settle_ms
        self._has_http = has_http
        self._processes: list[Process] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def set_up(self) -> None:
        operator = Operator(*self._around(_ONE_MORE))
        operator.connect()
        shell = f'shell "{self._program}"'
        rules = (f"run run. {shell}", "queue queue. queue ruled", "journal journal. journal one")
        for rule in rules:
            await operator.order(f"RULE SET {rule}")
        for name, every_s in self._timetables.items():
            options = f"catch_up=all catch_up_limit=1000 overlap=allow run {shell}"
            await operator.order(f"TIMETABLE SET {name} every {every_s}s {options}")
        operator.wire.cut()
        foreman = Foreman(*self._around(_ONE_MORE))
        foreman.connect()
        await foreman.set_limits()
        foreman.wire.cut()
        for reader in self._readers():
            reader.connect()
            assert not await reader.read(0)
            reader.wire.cut()

    async def can_write(self) -> bool:
        """True if a server does as it is told now, in the schedule and in the work queue: after a
        failover of the database each finds out by itself that its logs have changed."""
        operator, producer = Operator(*self._around(_ONE_MORE)), Producer(*self._around(_ONE_MORE))
        try:
            operator.connect()
            await operator.order('RULE SET any any. shell "a program"')
            producer.connect()
            job_id = producer.new_job_id()
            await producer.add(job_id)
        except (AssertionError, ConnectionCut):
            return False
        operator.wire.cut()
        producer.wire.cut()
        return bool(self._notes.history.of_key(f"work/{job_id}")[-1].answer == OK)

    def begin(self) -> None:
        for kind, count in COUNTS.items():
            if kind is HttpClient and not self._has_http:
                continue
            self._processes += [kind(*self._around(number)) for number in range(count)]
        self._processes += self._readers()
        self._tasks = [self._loop.create_task(process.run()) for process in self._processes]

    async def stop(self) -> None:
        for process in self._processes:
            process.stop()
        await asyncio.gather(*self._tasks)

    async def finish(self) -> None:
        await asyncio.sleep(3 * max(self._timetables.values()))
        for reader in self._readers():
            await reader.drain(self._settle_ms)
        await Foreman(*self._around(_ONE_MORE)).resume_all()
        await Waiter(*self._around(_ONE_MORE)).emit_all()
        await QueueWorker(*self._around(_ONE_MORE)).drain(self._settle_ms, *TASK_QUEUES)
        await Planner(*self._around(_ONE_MORE)).look_at_all()

    def _around(
        self, number: int
    ) -> tuple[int, asyncio.AbstractEventLoop, Ways, Notes, ClientPace, Callable[[], int]]:
        return number, self._loop, self._ways, self._notes, self._pace, self._life

    def _readers(self) -> list[FanOutReader]:
        keys = [(queue, reader) for queue, readers in FAN_QUEUES.items() for reader in readers]
        made = [FanOutReader(*self._around(number)) for number in range(len(keys))]
        for reader, (queue, name) in zip(made, keys, strict=True):
            reader.read_from(queue, name)
        return made

    # -- checks --

    def check(
        self,
        runs: Sequence[tuple[int, str]],
        set_back: Sequence[int] = (),
        rotten: Collection[str] = (),
    ) -> tuple[int, int]:
        """``runs``: in which life which job ran. ``set_back``: when, in orders of the history, the
        clock was set back. ``rotten``: services that may have forgotten something; they must not
        have invented anything. How many operations of registers and occurrences were checked."""
        notes = self._notes
        tell(notes.wrong)
        kept = REGISTERS - set(rotten) - ({"event"} if "work" in rotten else set())
        registers = sum(check_registers(notes.history, each) for each in sorted(kept))
        occurrences = 0
        if not {"schedule", "timetables"} & set(rotten):
            occurrences = check_occurrences(runs, self._timetables)
            self._check_due(runs)
        if "schedule" in rotten:
            check_not_invented(notes.history)
        if "work" not in rotten:
            self._check_work(set_back)
            check_tasks(notes, set_back)
        for queue, readers in FAN_QUEUES.items():
            puts = notes.puts.get(queue, {})
            for reader in readers:
                key = f"{queue}+{reader}" if reader else queue
                came = [(i, o) for i, o in notes.came.get(key, []) if not _is_of_rule(i)]
                if "fan-out" in rotten:
                    tell(f"{item} was never put" for item, _ in came if item not in puts)
                else:
                    check_deliveries(puts, came, self._lost(f"read/{key}"))
        return registers, occurrences

    def _check_due(self, runs: Sequence[tuple[int, str]]) -> None:
        ran: dict[str, list[int]] = {}
        for life, job in runs:
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

    def _check_work(self, set_back: Sequence[int]) -> None:
        by_job = self._notes.history.of_keys("work/")
        tell(
            f"{key[5:]} was added and never done"
            for key, operations in by_job.items()
            if operations[-1].ask[0] == "look" and operations[-1].answer is None
        )
        for queue in WORK_QUEUES:
            adds: dict[str, Operation] = {}
            seen: dict[str, list[Operation]] = {}
            again = set()
            for key, operations in by_job.items():
                if self._notes.queue_of[key[5:]] != queue:
                    continue
                for each in operations:
                    if each.ask[0] == "add" and each.answer in (OK, UNKNOWN):
                        again |= {key} if key in adds else set()
                        adds[key] = each
                    elif each.ask[0] == "lease":
                        seen.setdefault(key, []).append(each)
            # A job that was deleted and added again has two places; one that was added after the
            # clock was set back may have its place before others.
            lost = self._lost("lease/", queue)
            for begin, end in pairwise([0, *set_back, NEVER]):
                its = {key for key, add in adds.items() if begin < add.invoked < end} - again
                check_order(adds, {key: seen[key] for key in its if key in seen}, lost)

    def _lost(self, prefix: str, queue: str = "") -> list[Operation]:
        return [
            each
            for key, operations in self._notes.history.of_keys(prefix).items()
            if not queue or queue in key.removeprefix(prefix).split(",")
            for each in operations
            if each.answer is UNKNOWN
        ]


def _is_of_rule(item: str) -> bool:
    return not item.startswith(tuple(f"{queue}-" for queue in FAN_QUEUES))

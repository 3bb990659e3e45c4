"""Steps of a task: what it has done is recorded, so it is not done again, and it waits unleased.

    receipt = jm.step(charge_card, order)    calls charge_card, records what it returns, and returns
                                             that when it is durable; a later attempt gets what was
                                             recorded
    jm.sleep(hours=24)                       the job is parked: no worker is held
    jm.wait_for("approval:42")               the same, until ``app.emit("approval:42", value)``
    jm.gather(pack.send(i) for i in items)   the same, until these jobs have ended; their results
    jm.now(), jm.random(), jm.uuid()         recorded like steps

A job that was parked is run from the top of its function, so what stands between the steps runs
again. A step is known by its name and by how many steps of this name the job had before it. The
steps of earlier attempts are fetched with the first step of an attempt, so a task without steps
costs nothing. A value goes through the app's codec, the first time too: a tuple is always a list.

Each of these functions has a form for asyncio, with an ``a`` before its name. Both forms perform
the same plan: a generator that asks for what has to be waited for.
"""

from __future__ import annotations

import asyncio
import inspect
import random as chance
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Protocol,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    cast,
    overload,
)
from uuid import UUID, uuid4

from journeyman.errors import JourneymanError, UsageError
from journeyman.protocols.workq.commands import (
    MAX_NAME_BYTES,
    MAX_PARENTS,
    MAX_STEP_BYTES,
    JobWait,
)
from journeyman.protocols.workq.readers import read_step_name
from journeyman.protocols.workq.salts import stable_id
from journeyman.tasks.current import current_job
from journeyman.tasks.durations import Backoff, Seconds, as_backoff, seconds
from journeyman.tasks.envelope import Failure, written
from journeyman.tasks.errors import GiveUp, JobCancelled, JobFailed, JobTimeout, LeaseLost
from journeyman.tasks.jobs import Job, ended_value
from journeyman.tasks.task import NEW_ID
from journeyman.units import MS_PER_S, NS_PER_S

if TYPE_CHECKING:
    from journeyman.tasks.app import App
    from journeyman.tasks.broker import JobEnding

A = TypeVarTuple("A")
T = TypeVar("T")
U = TypeVar("U")

Place: TypeAlias = tuple[str, int]  # name of a step, and its number among those of this name
Recorded: TypeAlias = Mapping[Place, bytes]
Plan: TypeAlias = Generator[tuple[str, tuple[Any, ...]], Any, T]

LATE: Final = "!timeout"  # behind the name of a step whose event did not come in time
_REQUIRED: Final[Any] = object()
_DEFAULT_BACKOFF: Final = Backoff(1.0)


class Parked(BaseException):
    """The job waits without a lease: the attempt ends here, and a later one goes on."""


# These are raised by functions of tasks, as outcomes of their attempts. A group of asyncio tasks
# raises the Parked of one of them in a group of exceptions.
RAISED: Final = (Exception, SystemExit, Parked, BaseExceptionGroup)


class Journal(Protocol):
    """Where the steps of one job are kept. Raises LeaseLost, JobCancelled or JourneymanError.

    The a-methods are the same for asyncio; the others block, outside of any event loop.
    """

    def read(self) -> Recorded: ...

    async def aread(self) -> Recorded: ...

    def record(self, place: Place, value: bytes) -> None:
        """Returns when it is durable."""
        ...

    async def arecord(self, place: Place, value: bytes) -> None: ...

    def park(self, wait: JobWait) -> Recorded:
        """Returns when it is durable: nothing, or the step that the wait has come to already."""
        ...

    async def apark(self, wait: JobWait) -> Recorded: ...


class StepBook:
    """The steps of one attempt at a job."""

    def __init__(self, app: App, journal: Journal, job_id: str) -> None:
        self._app = app
        self._journal = journal
        self._job_id = job_id
        self._recorded: dict[Place, bytes] | None = None
        self._counts: Counter[str] = Counter()
        self.is_parked = False

    def not_asked_for(self) -> list[str]:
        """Return the recorded steps that an attempt which has ended well did not need: its code has
        changed. Of waits for jobs only the values count; an attempt without steps reads none."""
        places = [(name.removesuffix(LATE), number) for name, number in self._recorded or ()]
        return [
            name if number == 1 else f"{name}#{number}"
            for name, number in places
            if number > self._counts[name] and name != "gather" and not name.startswith("!")
        ]

    # -- performing plans --------------------------------------------------------------------------

    def perform(self, plan: Plan[T]) -> T:
        if _is_on_event_loop():
            raise UsageError("a step would block the event loop: use the form with an a, as astep")
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                what, arguments = plan.send(answer) if error is None else plan.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            answer = error = None
            try:
                answer = self._act(what, arguments)
            except Exception as raised:  # noqa: BLE001 - the plan decides
                error = raised

    async def aperform(self, plan: Plan[T]) -> T:
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                what, arguments = plan.send(answer) if error is None else plan.throw(error)
            except StopIteration as end:
                value: T = end.value
                return value
            answer = error = None
            try:
                answer = await self._aact(what, arguments)
            except Exception as raised:  # noqa: BLE001 - the plan decides
                error = raised

    def _act(self, what: str, arguments: tuple[Any, ...]) -> Any:
        if what == "call":
            return arguments[0]()
        if what == "pause":
            return time.sleep(*arguments)
        if what == "endings":
            return self._app.broker.endings(*arguments)
        return getattr(self._journal, what)(*arguments)

    async def _aact(self, what: str, arguments: tuple[Any, ...]) -> Any:
        if what == "call":
            value = arguments[0]()
            return await value if inspect.isawaitable(value) else value
        if what == "pause":
            return await asyncio.sleep(*arguments)
        if what == "endings":
            return await self._app.broker.aendings(*arguments)
        return await getattr(self._journal, f"a{what}")(*arguments)

    # -- plans -------------------------------------------------------------------------------------

    def step(self, name: str, call: Callable[[], Any], retries: int, backoff: Backoff) -> Plan[Any]:
        place = self._next_place(name)
        recorded = yield from self._read()
        if place not in recorded:
            self.before_call(place)
            value = yield from self._call(call, retries, backoff)
            yield from self._record(place, value)
        return self._loaded(recorded[place])

    def before_call(self, place: Place) -> None:
        """A step that is not recorded is about to be called: a replay may have it otherwise."""

    def wait(self, name: str, wait: JobWait) -> Plan[bytes | None]:
        """The value of an event, or nothing; None: it did not come in time."""
        place = self._next_place(name)
        recorded = yield from self._read()
        late = (name + LATE, place[1])
        if place not in recorded and late not in recorded:
            yield from self._park(_with_place(wait, place))
        return recorded.get(place)

    def _park(self, wait: JobWait) -> Plan[None]:
        """Returns if the wait is over already."""
        found = yield "park", (wait,)
        if not found:
            self.is_parked = True
            raise Parked
        assert self._recorded is not None
        self._recorded.update(found)

    def gather(self, send: Callable[[], Any]) -> Plan[list[Any]]:
        sent, values = self._next_place("gather.jobs"), self._next_place("gather.values")
        recorded = yield from self._read()
        if values in recorded:
            return [self._value_of(each) for each in self._loaded(recorded[values])]
        if sent not in recorded:
            self.before_call(sent)
            jobs = yield "call", (lambda: self._sent(sent[1], send),)
            yield from self._record(sent, [[job.task, *map(str, job.ids)] for job in jobs])
        chains = self._loaded(recorded[sent])
        ids = [job_id for _, *chain in chains for job_id in chain]
        if len(ids) > MAX_PARENTS:
            raise UsageError(f"gather takes at most {MAX_PARENTS} jobs, not {len(ids)}")
        wait = JobWait("gather", jobs=tuple(ids))
        place = ("gather", self._counts["gather"] + 1)
        if ids:
            yield from self.wait("gather", wait)
        found = yield "endings", ([*map(UUID, ids)],)
        if None in found:  # gone, or a crash has kept the end of the wait and not that of the job
            yield from self._park(_with_place(wait, place))
            found = yield "endings", ([*map(UUID, ids)],)
        endings = dict(zip(ids, found, strict=True))
        packed = [self._packed(task, [endings[each] for each in chain]) for task, *chain in chains]
        # Larger ones are fetched again by each attempt, while the server keeps them.
        if len(written(self._app.codec, packed, "the results of gather")) <= MAX_STEP_BYTES:
            yield from self._record(values, packed)
        return [self._value_of(each) for each in packed]

    def _read(self) -> Plan[dict[Place, bytes]]:
        if self.is_parked:
            raise Parked
        if self._recorded is None:
            recorded = dict((yield "read", ()))
            if self._recorded is None:  # another step of this attempt may have read them meanwhile
                self._recorded = recorded
        return self._recorded

    def _record(self, place: Place, value: Any) -> Plan[None]:
        data = self._written(place[0], value)
        yield "record", (place, data)
        assert self._recorded is not None
        self._recorded[place] = data

    def _call(self, call: Callable[[], Any], retries: int, backoff: Backoff) -> Plan[Any]:
        for failures in count(1):
            try:
                return (yield "call", (call,))
            except Exception as error:
                if failures > retries or not _is_worth_a_retry(error):
                    raise
            yield "pause", (backoff.delay_s(failures, chance.random()),)
        raise AssertionError

    def _sent(self, number: int, send: Callable[[], Any]) -> Any:
        """Jobs that are sent meanwhile have ids made of this one's, so none is added twice."""
        with _ids_of(self._job_id, number):
            return send()

    def _packed(self, task: str, endings: list[JobEnding | None]) -> list[Any]:
        """How a job ended, with its task; a chain as its last job, or the first that failed."""
        last = next((each for each in endings if each is None or not each.succeeded), endings[-1])
        value, failure = ended_value(self._app.codec, last)
        if failure is not None:
            return [task, None, failure.encode().decode()]
        return [task, value, None]

    def _value_of(self, packed: list[Any]) -> Any:
        task, value, failure = packed
        if failure is not None:
            raise JobFailed(f"of {task} in gather", Failure.decode(failure.encode()))
        known = self._app.tasks.get(task)
        return value if known is None else known.arguments.unpack_result(value)

    def _next_place(self, name: str) -> Place:
        if read_step_name(name.encode(errors="replace")) is None:
            raise UsageError(
                f"not a name of a step: {name!r}; give it a key= of letters, digits and"
                " _ . - : / @ (at most 255)"
            )
        self._counts[name] += 1
        return name, self._counts[name]

    def _written(self, name: str, value: Any) -> bytes:
        what = f"the value of step {name!r}"
        data = b"" if value is None else written(self._app.codec, value, what)
        if len(data) > MAX_STEP_BYTES:
            raise JourneymanError(
                f"{what} takes {len(data)} bytes, at most {MAX_STEP_BYTES} fit;"
                " store it elsewhere and return a reference"
            )
        return data

    def _loaded(self, data: bytes) -> Any:
        return self._app.codec.loads(data) if data else None

    def event_value(self, data: bytes | None, name: str, default: Any) -> Any:
        if data is not None:
            return self._loaded(data)
        if default is _REQUIRED:
            raise TimeoutError(f"the event {name!r} did not come in time")
        return default


# -- the public functions --------------------------------------------------------------------------


def step(
    function: Callable[[*A], T],
    *args: *A,
    key: str | None = None,
    retries: int = 0,
    backoff: Backoff | Seconds = _DEFAULT_BACKOFF,
) -> T:
    """Call the function once for all attempts of this job. The value is durable when this returns.
    ``key`` is the name of the step, by default that of the function. If it raises, it is called
    again ``retries`` times; what it raises then is not recorded. Outside a worker this only calls
    the function."""
    book = _book()
    if book is None:
        return function(*args)
    name = _name_of(function, key)
    value: T = book.perform(
        book.step(name, lambda: function(*args), retries, as_backoff("backoff", backoff))
    )
    return value


@overload
async def astep(
    function: Callable[[*A], Awaitable[T]],
    *args: *A,
    key: str | None = ...,
    retries: int = ...,
    backoff: Backoff | Seconds = ...,
) -> T: ...


@overload
async def astep(
    function: Callable[[*A], T],
    *args: *A,
    key: str | None = ...,
    retries: int = ...,
    backoff: Backoff | Seconds = ...,
) -> T: ...


async def astep(  # type: ignore[misc]  # mypy cannot compare variadic parameters
    function: Any,
    *args: Any,
    key: str | None = None,
    retries: int = 0,
    backoff: Backoff | Seconds = _DEFAULT_BACKOFF,
) -> Any:
    """``step`` for asyncio; the function may be async."""
    book = _book()
    if book is None:
        value = function(*args)
        return await value if inspect.isawaitable(value) else value
    name = _name_of(function, key)
    plan = book.step(name, lambda: function(*args), retries, as_backoff("backoff", backoff))
    return await book.aperform(plan)


def sleep(time: timedelta | None = None, **parts: float) -> None:
    """Park the job for this long: ``sleep(hours=24)``, or a timedelta. No worker is held."""
    book, wait = _needed_book("sleep"), _for(time, parts)
    book.perform(book.wait("sleep", wait))


async def asleep(time: timedelta | None = None, **parts: float) -> None:
    """``sleep`` for asyncio."""
    book, wait = _needed_book("sleep"), _for(time, parts)
    await book.aperform(book.wait("sleep", wait))


def sleep_until(moment: datetime) -> None:
    """Park the job until this moment, which has a time zone."""
    book, wait = _needed_book("sleep_until"), _until(moment)
    book.perform(book.wait("sleep", wait))


async def asleep_until(moment: datetime) -> None:
    """``sleep_until`` for asyncio."""
    book, wait = _needed_book("sleep_until"), _until(moment)
    await book.aperform(book.wait("sleep", wait))


def wait_for(event: str, timeout: Seconds | None = None, default: Any = _REQUIRED) -> Any:
    """Park the job until this event happens (``app.emit``), before or after; return its value. If
    it does not come in time, return ``default``; without one, raise TimeoutError."""
    book = _needed_book("wait_for")
    value = book.perform(book.wait(_name_of_wait(event), _for_event(event, timeout)))
    return book.event_value(value, event, default)


async def await_for(event: str, timeout: Seconds | None = None, default: Any = _REQUIRED) -> Any:
    """``wait_for`` for asyncio."""
    book = _needed_book("wait_for")
    value = await book.aperform(book.wait(_name_of_wait(event), _for_event(event, timeout)))
    return book.event_value(value, event, default)


def gather(jobs: Iterable[Job[T]]) -> list[T]:
    """Park the job until these jobs have ended; return their results, in order. Raises JobFailed
    for the first that failed. Give it a generator that sends them: they are sent once, whatever
    dies meanwhile."""
    book = _book()
    if book is None:
        return [job.result() for job in list(jobs)]
    return book.perform(book.gather(lambda: list(jobs)))


async def agather(jobs: Iterable[Awaitable[Job[T]]]) -> list[T]:
    """``gather`` for asyncio: ``await jm.agather(pack.asend(item) for item in items)``."""

    async def send() -> list[Job[T]]:
        return [await job for job in jobs]

    book = _book()
    if book is None:
        return [await job for job in await send()]
    plan = book.gather(lambda: asyncio.create_task(send()))
    return await book.aperform(plan)


def now() -> datetime:
    """Return the present moment in UTC, the same in every attempt."""
    return datetime.fromisoformat(step(_now, key="now"))


async def anow() -> datetime:
    """``now`` for asyncio."""
    return datetime.fromisoformat(await astep(_now, key="now"))


def random() -> float:
    """Return a random number from 0 to 1, the same in every attempt."""
    return step(chance.random, key="random")


async def arandom() -> float:
    """``random`` for asyncio."""
    return await astep(chance.random, key="random")


def uuid() -> UUID:
    """Return a random UUID, the same in every attempt."""
    return UUID(step(_uuid, key="uuid"))


async def auuid() -> UUID:
    """``uuid`` for asyncio."""
    return UUID(await astep(_uuid, key="uuid"))


# -- details ---------------------------------------------------------------------------------------


def _book() -> StepBook | None:
    """None outside of a worker."""
    current = current_job()
    if current is not None and current.steps is None and current.id:
        raise UsageError("a batch task has no steps: its jobs end together")
    return None if current is None else cast("StepBook | None", current.steps)


def _needed_book(name: str) -> StepBook:
    book = _book()
    if book is None:
        raise UsageError(f"jm.{name}() parks a job, so it works only inside of a task on a worker")
    return book


def _name_of(function: Callable[..., Any], key: str | None) -> str:
    return key if key is not None else str(getattr(function, "__name__", "?"))


def _for(time: timedelta | None, parts: Mapping[str, float]) -> JobWait:
    length = timedelta(**parts) if time is None else time
    return JobWait("sleep", within_ms=max(1, round(length.total_seconds() * MS_PER_S)))


def _until(moment: datetime) -> JobWait:
    if moment.tzinfo is None:
        raise UsageError(f"sleep_until({moment}): the time has no time zone; say which")
    return JobWait("sleep", until_ns=max(1, round(moment.timestamp() * NS_PER_S)))


def _for_event(event: str, timeout: Seconds | None) -> JobWait:
    within_ms = 0 if timeout is None else max(1, round(seconds("timeout", timeout) * MS_PER_S))
    return JobWait(event, event=event, within_ms=within_ms)


def _name_of_wait(event: str) -> str:
    """The name of the step. Waits for long names that begin alike have different numbers."""
    if read_step_name(event.encode(errors="replace")) is None:
        raise UsageError(
            f"not a name of an event: {event!r}; it has letters, digits and _ . - : / @ (at most"
            f" {MAX_NAME_BYTES})"
        )
    return f"wait_for:{event}"[:MAX_NAME_BYTES]


def _with_place(wait: JobWait, place: Place) -> JobWait:
    name, number = place
    return JobWait(name, number, wait.until_ns, wait.event, wait.jobs, wait.within_ms)


def _is_worth_a_retry(error: Exception) -> bool:
    return not isinstance(error, GiveUp | JobTimeout | LeaseLost | JobCancelled)


@contextmanager
def _ids_of(job_id: str, number: int) -> Iterator[None]:
    numbers = count()
    token = NEW_ID.set(lambda: stable_id(UUID(job_id).bytes, f"gather {number} {next(numbers)}"))
    try:
        yield
    finally:
        NEW_ID.reset(token)


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _uuid() -> str:
    return str(uuid4())


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

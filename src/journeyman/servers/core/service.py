"""A service: what the schedule, the work queue and the fan-out queues have in common.

    settings, disk, clock ... --ServiceContext--> Service --PortContext--> its connections
                                                 | ^
                                     its writer <+ +-- on_batch, on_answered, on_trouble, on_failure

    start    each loads its log, then opens its port
    batch    after each one the ticker looks when something is due next
    trouble  the log has no room: reported once, changes are refused, what is due waits a little
    failure  a sync failed: the process stops
    stop     no new connections; what was received is answered, connections are closed
    close    what is left is written, the log is closed

Idle connections send nothing, wait for nothing and are owed nothing: they are closed after a while.
A client that waits for a job, an item or a result is not idle, and neither is one that has not
read its replies: the budget handles that (shared.py).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from journeyman.clock import Clock
from journeyman.config import Address, Settings
from journeyman.disk import Disk
from journeyman.errors import JourneymanError
from journeyman.logs.holders import Holders
from journeyman.servers.core.access import Access
from journeyman.servers.core.connection import PortContext
from journeyman.servers.core.contract import AnswerLease, Dialect, Recorder, Requests
from journeyman.servers.core.group_commit import RETRY_S, GroupCommit
from journeyman.servers.core.ledger import Ledger
from journeyman.servers.core.listener import Listener, listen
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import Shared, delay_to_second
from journeyman.servers.core.writes import WriteWatch
from journeyman.units import NS_PER_S

RECHECK_S = 1.0
SPARE_PART = 32  # timers end earlier by this part of the interval
ROUNDING_S = 0.0005  # by which uvloop is late or early: it knows whole milliseconds
SET_BACK_S = 60  # clocks are set back by a little all the time
ANSWER_LIMIT_S = 5.0  # for the answers that are on their way when the server stops
FRAMERATE = 1000  # how often a second, at most, it is looked at what the time has brought
LOOKS = 8  # at an idle connection within its timeout: it is closed at most one part of LOOKS late
_CLOSING_LOOK_S = 0.005
_Context = TypeVar("_Context", bound=PortContext)


class Ticker:
    """Calls ``fire`` when ``next_due_ns()`` has come, at most ``framerate`` times a second. A few
    times that were not used may be used later, so that what is due shortly after need not wait.

    the writer finished a batch --look()--> is the next due time another one? --> set the timer
    the timer --> fire(): "due now" goes to the writer --> its batch --> look() ...

    Due times are wall time, waiting is monotonic time, and the wall clock may be set in either
    direction meanwhile. So no wait is longer than RECHECK_S: then the wall clock is read again. Set
    forward, jobs fire at most that much late; set back, they wait for their time. Set back by more
    than SET_BACK_S it fires once, so that the engine notices. Which jobs are due is decided by the
    engine, with the time as data.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        next_due_ns: Callable[[], int | None],
        fire: Callable[[], None],
        *,
        framerate: int,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._next_due_ns = next_due_ns
        self._fire = fire
        self._frame_ns = NS_PER_S // framerate
        self._spare_ns = framerate // SPARE_PART * self._frame_ns
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0  # monotonic time the timer is set to
        self._not_before_ns = clock.monotonic_ns()
        self._wall_ns = clock.now_ns()  # when it last rang
        self._stopped = False

    def set_timer(self) -> None:
        """Set the timer by what is due next; cheap when nothing changed."""
        if self._stopped:
            return
        due_ns = self._next_due_ns()
        if due_ns is None:
            self._cancel()
            return
        now_ns = self._clock.monotonic_ns()
        wait_ns = min(due_ns - self._clock.now_ns(), int(RECHECK_S * NS_PER_S))
        wake_ns = max(now_ns + wait_ns, self._not_before_ns, now_ns)
        # A timer that rings a little early only looks again; moving it for every command costs.
        if self._timer is not None and now_ns <= self._timer_ns <= wake_ns:
            return
        self._cancel()
        self._timer_ns = wake_ns
        delay_s = (wake_ns - now_ns) / NS_PER_S
        if delay_s >= RECHECK_S:  # nothing is due yet
            delay_s = delay_to_second(self._loop, RECHECK_S)
            self._timer_ns = now_ns + int(delay_s * NS_PER_S)
        elif delay_s > ROUNDING_S:  # rather early: for the rest uvloop looks turn by turn
            delay_s -= ROUNDING_S
        self._timer = self._loop.call_later(delay_s, self._ring)

    def hold_off(self, seconds: float) -> None:
        """Do not fire for a while: what is due could not be written."""
        self._not_before_ns = self._clock.monotonic_ns() + int(seconds * NS_PER_S)
        self._cancel()
        self.set_timer()

    def stop(self) -> None:
        self._stopped = True
        self._cancel()

    def _ring(self) -> None:
        self._timer = None
        due_ns = self._next_due_ns()
        now_ns, wall_ns = self._clock.monotonic_ns(), self._clock.now_ns()
        if due_ns is not None and wall_ns < self._wall_ns - SET_BACK_S * NS_PER_S:
            due_ns = wall_ns
        self._wall_ns = wall_ns
        if due_ns is None or due_ns > wall_ns or now_ns < self._not_before_ns:
            self.set_timer()
            return
        self._not_before_ns = max(self._not_before_ns, now_ns - self._spare_ns) + self._frame_ns
        self._fire()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class DelayedErrand:
    """Has the writer's thread do something between two batches, at most a while after it is wanted.

    For what a batch leaves to be done and no answer waits for: a sync by the clock, say.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: GroupCommit,
        is_wanted: Callable[[], bool],
        errand: Callable[[], None],
        delay_s: float,
    ) -> None:
        self._loop = loop
        self._writer = writer
        self._is_wanted = is_wanted
        self._errand = errand
        self._delay_s = delay_s
        self._timer: asyncio.TimerHandle | None = None

    def set_timer(self) -> None:
        """Set the timer, after every batch; cheap while nothing is wanted, or the timer runs."""
        if self._timer is None and self._is_wanted():
            self._timer = self._loop.call_later(self._delay_s, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._timer = None
        self._writer.run_between(self._errand)


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The context that the process gives to each of its services."""

    settings: Settings
    disk: Disk
    clock: Clock
    messages: ServerLog
    shared: Shared
    access: Access
    failed: Callable[[BaseException], None]  # called once, when a service cannot go on
    writes: WriteWatch  # watches the writes of all services and the ledger
    stop_server: Callable[[], None] = lambda: None  # because a client asked for it
    ledger: Ledger | None = None  # shared by all of them
    # Where each setting comes from, by name.
    origins: Mapping[str, str] = field(default_factory=dict)
    holders: Holders | None = None  # holders of the logs of all services
    lease: AnswerLease | None = None  # if another server may take over


class Service(ABC):
    """See the module's docstring."""

    name: ClassVar[str]  # in messages
    log_name: ClassVar[str]  # in figures
    listens: ClassVar[str]  # the same with a verb
    refusal: str  # the message when the log cannot be written
    recovery: str  # the message when it can again

    writer: GroupCommit
    port_context: PortContext
    _ticker: Ticker

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._settings = context.settings
        self._disk = context.disk
        self._clock = context.clock
        self._messages = context.messages
        self._loop = asyncio.get_running_loop()
        self._in_trouble = False
        self._listener: Listener | None = None
        self._idle: IdleWatch | None = None
        self._errands: list[DelayedErrand] = []

    @property
    def is_listening(self) -> bool:
        return self._listener is not None

    @property
    def address(self) -> Address:
        assert self._listener is not None
        return self._listener.address

    @property
    def state(self) -> str:
        """``ok``, or why it takes no commands or does not answer them."""
        if self.writer.failure is not None:
            return "stopped"
        lease = self._context.lease
        if lease is not None and not lease.is_valid:
            return "another server may be active"
        if reason := self._context.writes.reason(self.writer.in_flight):
            return reason
        return "cannot write its log" if self._in_trouble else "ok"

    # -- start --

    def _open_writer(
        self,
        dialect: Dialect,
        recorder: Recorder | None,
        next_due_ns: Callable[[], int | None],
        framerate: int,
    ) -> None:
        """Make the writer, and follow it: what is due next, and how long its writes take."""
        self.writer = GroupCommit(
            self,
            self._loop,
            self._clock,
            dialect,
            recorder,
            max_waiting=self._settings.limits.waiting_commands,
            ledger=self._context.ledger,
        )
        self._context.writes.add(self.log_name, self.writer.in_flight)
        self.writer.lease = self._context.lease
        self._ticker = Ticker(
            self._loop, self._clock, next_due_ns, self.writer.submit_due, framerate=framerate
        )

    def _make_port_context(self, kind: type[_Context], **more: Any) -> _Context:
        limits = self._settings.limits
        return kind(
            self._loop,
            self.writer,
            self._messages,
            self._context.shared,
            self._context.access,
            unsent_bytes=limits.unsent_bytes,
            max_connections=limits.connections,
            **more,
        )

    async def _open_port(
        self, address: Address, session: Callable[[Any], asyncio.Protocol], idle_ms: int
    ) -> None:
        self._listener = await listen(
            self.port_context,
            address,
            make_session=lambda: session(self.port_context),
            tls=self._context.access.tls,
            handshake_timeout_s=self._settings.limits.handshake_timeout_ms / 1000,
            socket_mode=int(self._settings.access.socket_mode, 8),
            proxies=self._context.access.proxies if self._settings.access.proxy_protocol else None,
        )
        self._idle = IdleWatch(self._loop, self.port_context.sessions, idle_ms / 1000)
        self._messages.info(f"{self.listens} on {self._listener.address}")

    def _do_later(
        self, is_wanted: Callable[[], bool], errand: Callable[[], None], delay_s: float
    ) -> None:
        """Have the writer's thread do this at most so long after a batch has made it necessary."""
        delayed = DelayedErrand(self._loop, self.writer, is_wanted, errand, delay_s)
        self._errands.append(delayed)

    # -- from the writer --

    def on_batch(self) -> None:
        self._ticker.set_timer()
        for errand in self._errands:
            errand.set_timer()

    @abstractmethod
    def on_answered(self, requests: Requests, outcomes: Sequence[object], begun_ns: int) -> None:
        """A batch was answered."""

    def on_trouble(self, error: JourneymanError | None) -> None:
        if error is None:
            self._messages.info(self.recovery)
            self._in_trouble = False
            return
        if not self._in_trouble:  # once, not for every command
            self._messages.error(self.refusal, reason=error)
        self._in_trouble = True
        self._ticker.hold_off(RETRY_S)

    def on_failure(self, error: BaseException) -> None:
        self._ticker.stop()
        self._messages.error(f"{self.name} cannot go on", reason=str(error) or repr(error))
        self._context.failed(error)

    # -- stop --

    async def stop(self) -> None:
        """Take no more connections and commands; answer what was received."""
        if self._listener is not None:
            self._listener.close()
        if self._idle is not None:
            self._idle.stop()
        await close_sessions(self.port_context.sessions)

    async def _close_writer(self) -> None:
        """When all that was submitted is durable, or after as long as a stop may take."""
        for errand in self._errands:
            errand.stop()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.writer.idle(), ANSWER_LIMIT_S)
        self.writer.close()


class Idler(Protocol):
    def close_if_idle(self, looks: int) -> bool:
        """Close it if it was idle in so many looks in a row, this one counted. Return whether."""
        ...


class IdleWatch:
    """``sessions`` are the open ones of a port. A timeout of 0 watches nothing."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sessions: Collection[Idler], timeout_s: float
    ) -> None:
        self._loop = loop
        self._sessions = sessions
        self._look_s = timeout_s / LOOKS
        self._timer: asyncio.TimerHandle | None = None
        if timeout_s > 0:
            self._timer = loop.call_later(self._look_s, self._close_idle)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close_idle(self) -> None:
        for session in list(self._sessions):
            session.close_if_idle(LOOKS + 1)
        self._timer = self._loop.call_later(self._look_s, self._close_idle)


class Closable(Protocol):
    def finish(self) -> None:
        """Take no more input; answer what was received, then close."""
        ...

    def drop(self) -> None: ...


async def close_sessions(sessions: Collection[Closable]) -> None:
    """``sessions`` are the open ones: they take themselves out of it when they close.

    Those that have not closed within ANSWER_LIMIT_S are dropped.
    """
    for session in list(sessions):
        session.finish()
    with suppress(TimeoutError):
        await asyncio.wait_for(_all_closed(sessions), ANSWER_LIMIT_S)
    for session in list(sessions):
        session.drop()


async def _all_closed(sessions: Collection[Closable]) -> None:
    while sessions:
        await asyncio.sleep(_CLOSING_LOOK_S)

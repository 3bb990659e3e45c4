"""The partners of a writer: engine, dialect and recorder of its service, its owner, its clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Protocol, TypeAlias

from journeyman.errors import JourneymanError
from journeyman.formats.framing import Codec
from journeyman.formats.ledger import Record as LedgerRecord

Requests: TypeAlias = Sequence[tuple[Any, Any]]  # (client, request); no client: the server itself


class Engine(Protocol):
    """An engine that decides; a batch of decisions can be taken back."""

    def begin_batch(self) -> None: ...

    def commit_batch(self) -> None: ...

    def undo_batch(self) -> None: ...

    def take_ledger(self) -> list[LedgerRecord]:
        """The part of the decisions since the last call that belongs in the ledger."""
        ...


@dataclass(slots=True)
class Batch:
    """Requests that are decided, written and answered together."""

    requests: list[tuple[Any, Any]]  # (client, request); no client: from the server itself
    records: list[Any] = field(default_factory=list)
    ledger: list[LedgerRecord] = field(default_factory=list)
    answers: defaultdict[Any, list[Any]] = field(default_factory=partial(defaultdict, list))
    effects: list[Any] = field(default_factory=list)
    replies: list[Any] = field(default_factory=list)  # to the server itself
    outcomes: list[Any] = field(default_factory=list)  # one for each request, in order
    begun_ns: int = 0
    error: JourneymanError | None = None  # why it could not be written


class DialectWriter(Protocol):
    """The writer that uses a dialect, as far as the dialect needs it."""

    due_waits: bool  # cleared when the due events have been decided

    def put_back(self, batch: Batch, index: int) -> None:
        """Leave the requests of a batch from this one on to the next."""
        ...

    def repeat_later(self, command: Any) -> None:
        """Submit what the server itself had to record once there may be room again."""
        ...

    def submit_own(self, command: Any) -> None:
        """Decide a command of the server itself."""
        ...

    def submit_first(self, client: Any, command: Any) -> None:
        """Decide this before everything else that waits. No client: it is the server's own."""
        ...

    def leave(self, client: Any) -> None:
        """The client waits for nothing any more; it gets nothing from now on."""
        ...

    def fail(self, error: BaseException) -> None:
        """Note that nothing can be written any more."""
        ...


class Dialect(ABC):
    """How the commands of a service are decided, and what becomes of a batch.

    All methods are called on the event loop.
    """

    writer: DialectWriter  # the one that uses this dialect
    due: Any  # the command that says: see to what the time has brought
    codec: Codec[Any] | None = None  # decodes records that were encoded by the engine
    max_waiting_bytes = 64 * 1024 * 1024  # the limit of waiting requests; beyond it none is taken
    has_stopped = "the server is stopping"  # the answer to calls from inside then

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @abstractmethod
    def decide(self, batch: Batch) -> None:
        """Decide the requests of the batch, and fill in the rest of it."""

    @abstractmethod
    def decide_again(self, batch: Batch, error: JourneymanError) -> tuple[Batch, list[Any]]:
        """The batch was taken back: the answers to it, and what each request came to."""

    def carry_out(self, batch: Batch) -> None:  # noqa: B027 - some have no effects
        """The batch is durable: do its effects, then pass on the server's own replies."""

    def weigh(self, requests: Sequence[Any]) -> int:  # noqa: ARG002 - some are all light
        """How much memory these take, beyond a little."""
        return 0

    def departure(self, client: Any) -> Any | None:  # noqa: ARG002 - some never wait
        """The command that says: this client has left. None: clients cannot wait here."""
        return None


class WriteWait(Enum):
    """The reason why writing a batch has to wait."""

    NOTHING = "nothing"  # the operating system takes it
    SYNC = "sync"  # appended bytes are synced
    MORE = "more"  # files that are made or left, another thread at the log


class Recorder(ABC):
    """The log of a service, as its writer sees it. Only one method is called at a time, in the
    writer's thread, or on the event loop where ``wait_of`` allows it."""

    @abstractmethod
    def write(self, records: Sequence[Any]) -> None:
        """Returns when they are durable. JourneymanError: none was written, or LogPoisoned."""

    def wait_of(self, records: Sequence[Any]) -> WriteWait:  # noqa: ARG002 - some look
        """Return what writing these now would wait for."""
        return WriteWait.MORE

    def is_urgent(self, ledger: Sequence[LedgerRecord]) -> bool:  # noqa: ARG002 - some look
        """Return whether these have to be durable before the log is written; else they are synced
        with it. A log that is synced by the clock asks so only of what says more than its batch."""
        return True

    def sync(self) -> None:  # noqa: B027 - most sync what they write
        """Make durable what was written and is not yet. LogPoisoned: it never will be; any other
        LogError: it may be later."""


class WriterOwner(Protocol):
    """The service that a writer belongs to, as far as the writer needs it."""

    def on_batch(self) -> None:
        """A batch has been decided, written or answered: look what is next."""
        ...

    def on_answered(self, requests: Requests, outcomes: Sequence[object], begun_ns: int) -> None:
        """A batch was answered: what each request came to (a JourneymanError: not recorded)."""
        ...

    def on_trouble(self, error: JourneymanError | None) -> None:
        """A batch was taken back, because of this; None: that is over."""
        ...

    def on_failure(self, error: BaseException) -> None:
        """Note that nothing can be written any more."""
        ...


class AnswerLease(Protocol):
    """The lease that lets this process still answer: see journeyman.disk.guard."""

    @property
    def is_valid(self) -> bool: ...


class Submitter(Protocol):
    """A source of commands: a session, or a call from inside the process."""

    def answered(self, answers: list[Any]) -> None:
        """Take the answers to the oldest requests that are in flight, in order."""
        ...

    def room(self) -> None:
        """Commands are taken again; see ``notify_when_room``."""
        ...

    def drop(self) -> None:
        """Commands in flight are never answered."""
        ...

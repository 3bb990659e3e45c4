"""The messages to a KestrelEngine besides the commands of clients, and those that it returns.

    a client's command, or KestrelDue, KestrelGone, StopWaiting, Fetched, Checkpoint
        -->  KestrelOutcome(records, reply, effects)

    records   to be written, in order, before anything of this leaves: items to append, readers to
              register or forget, queues to erase
    reply     what to answer the client; None: it waits, and a ``KestrelAnswer`` will come for it
    effects   once the records are durable: answers to clients that have waited, items to read from
              the journal, checkpoints to save

The values of the protocol are in protocols/kestrel/commands.py and protocols/kestrel/replies.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from journeyman.folds.kestrel import Reader
from journeyman.formats.kestrel import ItemPut
from journeyman.protocols.kestrel.replies import Reply

Client: TypeAlias = Hashable  # the server's handle of a connection

# A few milliseconds of work, whatever is due.
DUE_LIMIT = 500


# -- in ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KestrelDue:
    """See to what the time has brought: waits that are over, items and queues that are too old.

    At most ``limit`` of all of these; if there is more, ``next_due_ns`` says so.
    """

    limit: int = DUE_LIMIT


@dataclass(frozen=True, slots=True)
class KestrelGone:
    """The client is away: what it had open goes back, and it waits no more."""

    client: Client


@dataclass(frozen=True, slots=True)
class StopWaiting:
    """The client will say no more: its time to wait is over now."""

    client: Client


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a Fetch: the next items after ``after``, in order; maybe none."""

    fetch: Fetch
    items: tuple[ItemPut, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Report the positions of readers that have moved since the last time."""


# -- out -----------------------------------------------------------------------------------------


class Append(NamedTuple):
    queue: str
    item: ItemPut


class AddReader(NamedTuple):
    """Register a reader; the default one's place is handed over if ``takes_over``.

    ``serial`` is its own: a reader of the same name that is made later has another one.
    """

    queue: str
    reader: str
    head: int
    takes_over: bool
    serial: int


class RemoveReader(NamedTuple):
    queue: str
    reader: str


class EraseQueue(NamedTuple):
    queue: str


class KestrelAnswer(NamedTuple):
    """An answer to a client that has waited; more will come for it if not ``final``."""

    client: Client
    reply: Reply
    final: bool = True


class Fetch(NamedTuple):
    """Read items with ids above ``after`` and hand them in as Fetched.

    ``serial`` is the reader's: another of its name may be there when the answer comes.
    """

    queue: str
    reader: str
    after: int
    serial: int = 0


class SaveCheckpoint(NamedTuple):
    """A checkpoint to be written unless the reader with this serial was removed; 0: it
    was loaded."""

    queue: str
    reader: str
    serial: int
    state: Reader


class StopServer(NamedTuple):
    pass


Write: TypeAlias = Append | AddReader | RemoveReader | EraseQueue
Effect: TypeAlias = KestrelAnswer | Fetch | SaveCheckpoint | StopServer


@dataclass(slots=True)
class Counts:
    """Counters since the start."""

    puts: int = 0  # counted in all queues, also in deleted ones
    hits: int = 0  # gets that were given an item
    misses: int = 0
    queues_made: int = 0
    queues_deleted: int = 0
    queues_expired: int = 0


@dataclass(slots=True)
class ReaderTally:
    """The tally of one reader."""

    expired: int = 0
    discarded: int = 0
    opened: int = 0  # reads that were left open
    given_back: int = 0
    age_ms: int = 0  # how long the last item that was given out had waited


class KestrelStats(NamedTuple):
    queues: int
    readers: int
    items: int  # items that readers must still be given, all readers together
    data_bytes: int
    open_reads: int
    waiting: int  # clients


class KestrelOutcome(NamedTuple):
    """A named tuple because one is made for every command."""

    records: tuple[Write, ...]
    reply: Reply | None
    effects: tuple[Effect, ...]

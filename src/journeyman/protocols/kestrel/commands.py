"""The commands of the kestrel protocol as values, one type per command.

    set QUEUE FLAGS EXPIRY SIZE  + item                     Put
    get KEY[/OPTION...]                                     GetItem
    monitor KEY SECONDS [MAX]                               Monitor
    confirm KEY COUNT                                       Confirm
    delete KEY | flush KEY | flush_expired KEY              DeleteQueue, Flush, FlushExpired
    flush_all | flush_all_expired                           FlushAll, FlushAllExpired
    stats | dump_stats [QUEUE...]                           ShowStats, DumpStats
    version | status [WORD] | reload | shutdown             Version, ServerStatus, Reload, Shutdown
    quit                                                    HangUp

A KEY is a queue, or ``queue+reader``. OPTIONs of get: ``t=MS`` waits so long, ``open`` leaves the
item unconfirmed, ``close`` confirms the oldest item that this connection has open, ``abort`` gives
it back, ``peek`` only looks.

Three more things can come out of a connection: ``RefusedRequest`` (it only has to be answered; some
refusals end the connection), ``HangUp`` (close; what was asked before is still answered) and
``Foreign`` (the same, because the client speaks HTTP). Where tokens are asked for, the first
command is ``Auth``: a ``set`` of any key whose item is a user name, a space and the secret, as
memcached has it. Anything else is ``AuthRequired``.

Names have been checked, numbers read. What depends on settings, the state or the time is left to
the engine. Named tuples, because one is made for every command.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from journeyman.protocols import Auth, AuthRequired, Foreign

STATUSES = ("UP", "READONLY", "QUIESCENT", "WRITEAVOID")  # states of the server
MAX_WAIT_MS = 2**31 - 1  # almost 25 days; a longer wait is cut to this


class Key(NamedTuple):
    """A queue, and which of its readers: "" is the default one."""

    queue: str
    reader: str = ""

    def __str__(self) -> str:
        return f"{self.queue}+{self.reader}" if self.reader else self.queue


class Put(NamedTuple):
    """``expiry`` as sent: 0 never, below 1,000,000 seconds from now, else seconds since 1970."""

    queue: str
    expiry: int
    data: bytes


class PutTooLarge(NamedTuple):
    """An item beyond what a journal can hold. It has been passed over, not kept."""

    queue: str
    size: int


class GetItem(NamedTuple):
    key: Key
    wait_ms: int = 0
    open: bool = False
    close: bool = False
    abort: bool = False
    peek: bool = False


class Monitor(NamedTuple):
    """Items as they come, each an open read, for so long or so many."""

    key: Key
    wait_ms: int
    max_items: int | None  # None: as many as may be open


class Confirm(NamedTuple):
    key: Key
    items: int


class DeleteQueue(NamedTuple):
    key: Key


class Flush(NamedTuple):
    key: Key


class FlushExpired(NamedTuple):
    key: Key


class FlushAll(NamedTuple):
    """All queues. ``is_memcached``: written as clients of memcached do, who expect OK."""

    is_memcached: bool = False


class FlushAllExpired(NamedTuple):
    pass


class ShowStats(NamedTuple):
    """A request for figures of the server and of queues whose names begin with ``prefix``."""

    prefix: str = ""


class DumpStats(NamedTuple):
    """A request for figures of the named queues, or of all; ``prefix`` limits which are visible."""

    queues: tuple[str, ...]
    prefix: str = ""


class Version(NamedTuple):
    pass


class ServerStatus(NamedTuple):
    """Asked for, or set to ``word``."""

    word: str | None


class Reload(NamedTuple):
    pass


class Shutdown(NamedTuple):
    pass


class RefusedRequest(NamedTuple):
    """Answer ``CLIENT_ERROR`` with these words, and close if ``hangup``."""

    reason: str
    hangup: bool = False


class HangUp(NamedTuple):
    """Close without an answer of its own."""


Command: TypeAlias = (
    Put
    | PutTooLarge
    | GetItem
    | Monitor
    | Confirm
    | DeleteQueue
    | Flush
    | FlushExpired
    | FlushAll
    | FlushAllExpired
    | ShowStats
    | DumpStats
    | Version
    | ServerStatus
    | Reload
    | Shutdown
)
Event: TypeAlias = Command | RefusedRequest | HangUp | Foreign | Auth | AuthRequired

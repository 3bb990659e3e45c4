"""What a token with a namespace may ask of the fan-out queues: only its own are there for it.

a queue by its name            outside the namespace: refused
stats, dump_stats              show the queues of the namespace
all queues, or the server      flush_all, status WORD, reload, shutdown: refused
"""

from __future__ import annotations

from journeyman.protocols.foreign import Foreign
from journeyman.protocols.kestrel.commands import (
    Confirm,
    DeleteQueue,
    DumpStats,
    Event,
    Flush,
    FlushExpired,
    GetItem,
    HangUp,
    Monitor,
    Put,
    PutTooLarge,
    RefusedRequest,
    ServerStatus,
    ShowStats,
    Version,
)

_OUTSIDE = RefusedRequest("the queue is outside the namespace of the token")
_FOR_ALL = RefusedRequest("this is for tokens of all namespaces")


def in_scope(event: Event, prefix: str) -> Event:
    """The event, or what is left of it for a token whose queues begin with ``prefix``."""
    if isinstance(event, Put | PutTooLarge):
        return event if event.queue.startswith(prefix) else _OUTSIDE
    if isinstance(event, ShowStats | DumpStats):
        return event._replace(prefix=prefix)
    if isinstance(event, GetItem | Monitor | Confirm | DeleteQueue | Flush | FlushExpired):
        return event if event.key.queue.startswith(prefix) else _OUTSIDE
    if isinstance(event, Version | RefusedRequest | HangUp | Foreign):
        return event
    return event if event == ServerStatus(None) else _FOR_ALL

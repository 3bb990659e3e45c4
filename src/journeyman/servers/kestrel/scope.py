"""What a token with a namespace may ask of the fan-out queues: only its own are there for it.

a queue by its name            outside the namespace: refused
stats, dump_stats              show the queues of the namespace
all queues, or the server      flush_all, status WORD, reload, shutdown: refused
"""

from __future__ import annotations

from journeyman.protocols.foreign import Foreign
from journeyman.protocols.kestrel.commands import (
    Confirm,
    Delete,
    DumpStats,
    Event,
    Flush,
    FlushExpired,
    Get,
    Hangup,
    Monitor,
    Put,
    PutTooLarge,
    Refused,
    Stats,
    Status,
    Version,
)

_OUTSIDE = Refused("the queue is outside the namespace of the token")
_FOR_ALL = Refused("this is for tokens of all namespaces")


def in_scope(event: Event, prefix: str) -> Event:
    """The event, or what is left of it for a token whose queues begin with ``prefix``."""
    if isinstance(event, Put | PutTooLarge):
        return event if event.queue.startswith(prefix) else _OUTSIDE
    if isinstance(event, Stats | DumpStats):
        return event._replace(prefix=prefix)
    if isinstance(event, Get | Monitor | Confirm | Delete | Flush | FlushExpired):
        return event if event.key.queue.startswith(prefix) else _OUTSIDE
    if isinstance(event, Version | Refused | Hangup | Foreign):
        return event
    return event if event == Status(None) else _FOR_ALL

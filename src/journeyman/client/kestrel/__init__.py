"""Clients of the fan-out queues, over the kestrel protocol, blocking and for asyncio.

    with KestrelClient("queue.internal") as queues:
        queues.put("orders", b"...")

    with KestrelClient("queue.internal") as queues:
        while (item := queues.open("orders", reader="billing", wait_ms=30_000)) is not None:
            do(item)
            queues.confirm("orders", reader="billing")

Open reads belong to a connection. So a client has one connection unless it is given more; then one
is kept for open reads, and the others serve all other calls. ``calls.py`` says what every call
does.
"""

from __future__ import annotations

from journeyman.client.blocking import BlockingClient, blocking
from journeyman.client.kestrel import calls
from journeyman.client.kestrel.calls import DEFAULT_PORT, SERVICE

__all__ = ["DEFAULT_PORT", "KestrelClient"]


class KestrelClient(BlockingClient):
    """A blocking client of the fan-out queues."""

    service = SERVICE

    put = blocking(calls.put)
    get = blocking(calls.get)
    open = blocking(calls.open, kept=True)
    confirm_and_open = blocking(calls.confirm_and_open, kept=True)
    monitor = blocking(calls.monitor, kept=True)
    confirm = blocking(calls.confirm, kept=True)
    abort = blocking(calls.abort, kept=True)
    peek = blocking(calls.peek)
    flush = blocking(calls.flush)
    flush_all = blocking(calls.flush_all)
    flush_expired = blocking(calls.flush_expired)
    flush_all_expired = blocking(calls.flush_all_expired)
    delete = blocking(calls.delete)
    stats = blocking(calls.stats)
    dump_stats = blocking(calls.dump_stats)
    version = blocking(calls.version)
    status = blocking(calls.status)
    set_status = blocking(calls.set_status)
    shutdown = blocking(calls.shutdown)

"""The exchange of a worker with the server: facts about itself for jobs that clients cancelled.

    worker NAME WAIT + facts  -->  jobs of this worker that others have ended, or nothing in time

It is asked again and again on a connection of its own, which costs an idle worker two short lines
in ``WAIT_MS``. A server that does not know the command tells of a cancelled job when its lease is
renewed.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from journeyman import __version__
from journeyman.client import BadAnswer
from journeyman.tasks.worker.link import LinkRefused, NothingReady, WorkerLink

WAIT_MS = 30_000
_PAUSE_S = 1.0  # so that a server that does not wait is not asked without end
_REFUSED_S = 60.0  # before the question is asked again
_SHOWN_QUEUES = 20
_STATM = Path("/proc/self/statm")


async def follow_orders(
    connect: Callable[[], Awaitable[WorkerLink | None]],
    name: str,
    facts: Callable[[], dict[str, object]],
    cancel: Callable[[str], None],
) -> None:
    """Follow orders until cancelled, or until ``connect`` gives None: no connection is wanted any
    more."""
    while (link := await connect()) is not None:
        try:
            while True:
                said = json.dumps(facts()).encode()
                request = b"worker %b %d %d\r\n%b\r\n" % (name.encode(), WAIT_MS, len(said), said)
                try:
                    ended = await link.ask(request, 2)
                except NothingReady:
                    await asyncio.sleep(_PAUSE_S)
                    continue
                for row in ended:
                    cancel(row.words[0])
        except LinkRefused:
            await asyncio.sleep(_REFUSED_S)
        except (ConnectionError, BadAnswer):
            await asyncio.sleep(1.0)
        finally:
            link.close()


def facts_of(queues: Sequence[str], slots: int) -> dict[str, object]:
    """Return what people who look at workers want to know, in at most two kilobytes."""
    found: dict[str, object] = {
        "host": socket.gethostname()[:100],
        "pid": os.getpid(),
        "version": __version__,
        "queues": [queue[:50] for queue in queues[:_SHOWN_QUEUES]],
        "slots": slots,
    }
    if hasattr(os, "getloadavg"):
        found["load"] = round(os.getloadavg()[0], 2)
    if (memory := memory_bytes()) is not None:
        found["memory"] = memory
    return found


def memory_bytes() -> int | None:
    """The resident memory of this process, where the system says it."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None

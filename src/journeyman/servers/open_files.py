"""How many files the process may have open, and so how many connections it takes.

    needed   connections of every port + runs + queues + our own
    allowed  the soft limit, raised as far as the hard limit lets us

Where less is allowed than the settings may need, each port takes fewer connections, so that logs,
runs and queues always find a file to open. That is a warning only if limits.connections was set.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Mapping
from dataclasses import replace

from journeyman.config import Configuration, Settings
from journeyman.config.loading import DEFAULT_ORIGIN
from journeyman.servers.core.server_log import ServerLog

FILES_OF_OUR_OWN = 64  # logs, listeners, pipes
FILES_OF_A_RUN = 4
FILES_OF_A_QUEUE = 2  # its lock and the segment that is written
FEWEST_CONNECTIONS = 16

WATCH_S = 5.0
NEAR, WELL_BELOW = 0.9, 0.8  # of the connections a port takes: say so; may be said again


def fit_to_open_files(configuration: Configuration, messages: ServerLog) -> Configuration:
    """Raise the limit on open files; the settings with as many connections as it leaves room for.

    A part of what is allowed is for connections even if the other settings could use up all of it.
    """
    settings = configuration.settings
    wanted = settings.limits.connections
    ports, others = _ports(settings), _files_of_others(settings)
    allowed = _raise_limit(ports * wanted + others)
    if allowed is None:
        return configuration
    fitting = max((allowed - others) // ports, allowed // (4 * ports), FEWEST_CONNECTIONS)
    if fitting >= wanted:
        return configuration
    origin = configuration.origins["limits.connections"]
    say = messages.info if origin == DEFAULT_ORIGIN else messages.warn
    say(
        f"each port takes {fitting} connections, not {wanted}: only {allowed} files may be open; "
        "raise the limit (ulimit -n) for more"
    )
    limits = replace(settings.limits, connections=fitting)
    return replace(configuration, settings=replace(settings, limits=limits))


async def watch_connections(
    open_now: Callable[[], Mapping[str, int]], most: int, messages: ServerLog
) -> None:
    """Warn, once, when a port is near its limit; again only after it was well below it."""
    near: set[str] = set()
    while True:
        await asyncio.sleep(WATCH_S)
        look_at_connections(open_now(), most, near, messages)


def look_at_connections(
    counts: Mapping[str, int], most: int, near: set[str], messages: ServerLog
) -> None:
    """``near`` holds the services that were warned of."""
    for service, count in counts.items():
        if count >= NEAR * most and service not in near:
            near.add(service)
            messages.warn(
                f"{service} has {count} of {most} connections open; more than that are refused "
                "(limits.connections, ulimit -n)"
            )
        elif count < WELL_BELOW * most:
            near.discard(service)


def files_for_connections(settings: Settings) -> int:
    """From which number on descriptors are kept for programs and logs, whatever took the others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**31
    others = FILES_OF_OUR_OWN + FILES_OF_A_RUN * settings.schedule.max_runs
    return soft - min(others, soft // 4)


def _ports(settings: Settings) -> int:
    return 1 + settings.workq.enabled + settings.kestrel.enabled + bool(settings.http.listen)


def _files_of_others(settings: Settings) -> int:
    queues = FILES_OF_A_QUEUE * settings.kestrel.max_queues if settings.kestrel.enabled else 0
    return FILES_OF_A_RUN * settings.schedule.max_runs + queues + FILES_OF_OUR_OWN


def _raise_limit(needed: int) -> int | None:
    """How many files may be open now; None: as many as are needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed

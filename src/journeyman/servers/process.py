"""The server's process: event loop, signals, exit code.

    READY=1           to systemd, when every port is open (see core/service_manager.py)
    SIGHUP            read tokens, certificate and log level again (see access.py)
    SIGTERM, SIGINT   stop in order (see core/service.py), exit 0
    a second one      stop at once: what still runs is killed, the log is synced, exit 1
    the log failed    no more answers, exit 1 with the reason

Errors at the start are raised, for the command line to word.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TextIO

from journeyman.clock import SystemClock
from journeyman.config import Configuration
from journeyman.errors import JourneymanError
from journeyman.runners import RunnerSet
from journeyman.servers.assembly import Assembly
from journeyman.servers.core.access import Access
from journeyman.servers.core.bulk_child import dismiss
from journeyman.servers.core.holding import LogHolders
from journeyman.servers.core.ledger import Ledger, open_ledger
from journeyman.servers.core.server_log import LineThread, ServerLog
from journeyman.servers.core.service import ServiceContext
from journeyman.servers.core.service_manager import ServiceManager
from journeyman.servers.core.shared import Shared
from journeyman.servers.core.store import is_store_used
from journeyman.servers.preflight import (
    check,
    files_for_connections,
    fit_to_open_files,
    notes,
    prepare_data_directory,
    watch_connections,
)
from journeyman.servers.standby import take_store, watch_store
from journeyman.servers.telemetry.metrics import MeasuredDisk, places_of
from journeyman.storage import Storage

CLEAN, FORCED = 0, 1
FILES_IN_RESERVE = 16  # for the logs alone: rotation, compaction, checkpoints

# The writer's thread waits for the interpreter at the end of each sync; the default lets a busy
# event loop keep it waiting for longer than the sync itself.
SWITCH_INTERVAL_S = 0.0001

# Small steps: a look at half a million new objects, good for bulk work, would be a pause here.
GC_THRESHOLDS = (10_000, 20, 100)


def run(
    configuration: Configuration,
    *,
    stderr: TextIO,
    read_again: Callable[[], Configuration] | None = None,
) -> int:
    """Serve until stopped; the exit code. ``read_again`` gives the settings on SIGHUP."""
    clock = SystemClock()

    def write(line: str) -> None:
        stderr.write(line)
        stderr.flush()

    lines = LineThread(write)
    messages = ServerLog(
        clock,
        lines.write,
        level=configuration.settings.log.level,
        format_=configuration.settings.messages.format,
    )
    for note in configuration.notes:
        messages.warn(note)
    configuration = fit_to_open_files(configuration, messages)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            reading = read_again or (lambda: configuration)
            return runner.run(_serve(configuration, clock, messages, reading))
    finally:
        lines.close()


async def _serve(
    configuration: Configuration,
    clock: SystemClock,
    messages: ServerLog,
    read_again: Callable[[], Configuration],
) -> int:
    settings = configuration.settings
    disk = MeasuredDisk(clock, places_of(settings))
    disk.keep_in_reserve(FILES_IN_RESERVE)
    messages.info(f"log level: {settings.log.level}", process=os.getpid())
    access = check(configuration)  # before anything listens
    for note in notes(settings, access):
        messages.warn(note)
    prepare_data_directory(configuration, disk, messages)
    holders = LogHolders(settings.lake, disk, clock, messages)
    manager = ServiceManager.of(os.environ)
    with ExitStack() as closing:
        store = None
        if is_store_used(settings):
            store = await take_store(settings, access, clock, messages, manager)
            if store is None:
                return CLEAN
            closing.callback(store.close)
        ledger = open_ledger(settings, disk, clock, messages, holders.of_logs, store)
        if ledger is not None:
            closing.callback(ledger.close)
        return await _serve_on(
            *(disk, holders, store, ledger, manager),
            *(configuration, access, clock, messages, read_again),
        )


async def _serve_on(
    disk: MeasuredDisk,
    holders: LogHolders,
    store: Storage | None,
    ledger: Ledger | None,
    manager: ServiceManager,
    configuration: Configuration,
    access: Access,
    clock: SystemClock,
    messages: ServerLog,
    read_again: Callable[[], Configuration],
) -> int:
    loop, settings = asyncio.get_running_loop(), configuration.settings
    stopping, hurry = asyncio.Event(), asyncio.Event()
    failures: list[BaseException] = []

    def failed(error: BaseException) -> None:
        failures.append(error)
        stopping.set()

    def lost(error: BaseException) -> None:
        messages.error("this server is no longer the active one", reason=error)
        failed(error)

    def on_signal(name: str) -> None:
        if stopping.is_set():
            messages.warn(f"{name} again: stopping at once")
            hurry.set()
        else:
            messages.info(f"{name}: stopping")
            manager.stopping()
            stopping.set()

    def on_mistake(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        messages.error(f"unexpected: {context.get('message')}", trace=trace)

    loop.set_exception_handler(on_mistake)
    shared = Shared.of(
        loop, messages, settings.limits.total_unsent_bytes, files_for_connections(settings)
    )
    context = ServiceContext(
        settings,
        disk,
        clock,
        messages,
        shared,
        access,
        failed,
        stopping.set,
        ledger,
        configuration.origins,
        holders.of_logs,
        store,
    )
    server = Assembly(
        context,
        lambda add_work, put_item: RunnerSet(settings, add_work=add_work, put_item=put_item),
        more_figures=lambda: [*disk.families(), *holders.families()],
    )

    def on_hangup() -> None:
        manager.reloading()
        reload()
        manager.ready()

    def reload() -> None:
        connections = [each for port in server.services.values() for each in port.around.sessions]
        try:
            fresh = read_again().settings
            done = access.reload(fresh, connections)
        except JourneymanError as error:
            messages.error("SIGHUP: nothing was reloaded", reason=error)
            return
        messages.level = fresh.log.level
        done.append(f"log level {fresh.log.level}")
        for note in access.notes:
            messages.warn(note)
        messages.info(f"SIGHUP: reloaded {', '.join(done)}; other settings need a restart")

    # Before the ports open: a stop may come as soon as the server listens.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    gc.disable()  # loading makes millions of objects, and none of them is garbage
    await server.start()
    dismiss()
    gc.freeze()  # what was loaded stays: the collector need not look at it again and again
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    watching = loop.create_task(
        watch_connections(
            lambda: {name: len(each.around.sessions) for name, each in server.services.items()},
            settings.limits.connections,
            messages,
        )
    )
    sampling = loop.create_task(disk.watch())
    guarding = None
    if store is not None and settings.storage.standby:
        guarding = loop.create_task(watch_store(store, lost))
    living = loop.create_task(manager.show_life())
    manager.ready()
    await stopping.wait()
    watching.cancel()
    sampling.cancel()
    if guarding is not None:
        guarding.cancel()
    if failures:
        hurry.set()
    cut_off = await server.stop(hurry)
    living.cancel()  # a stop may take longer than the watchdog waits
    if failures:
        raise failures[0]
    if cut_off:
        messages.warn(f"{cut_off} runs were cut off; the next start handles their jobs")
    messages.info("stopped")
    has_failed = server.work is not None and server.work.has_failed
    return FORCED if hurry.is_set() or has_failed else CLEAN


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed; else what Python brings."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

"""The server's process: what its services need, event loop, signals, exit code.

    READY=1           to systemd, when every port is open (see core/server_log.py)
    SIGHUP            read tokens, certificate and log level again (see core/access.py)
    SIGTERM, SIGINT   stop in order (see core/service.py), exit 0
    a second one      stop at once: what still runs is killed, the log is synced, exit 1
    the log failed    no more answers, exit 1 with the reason

Errors at the start are raised, for the command line to word.

The services know neither signals nor the machine: tests.simulation runs the same Assembly on a
simulated one.
"""

from __future__ import annotations

import asyncio
import gc
import os
import posixpath
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TextIO

from journeyman import __version__
from journeyman.clock import Clock, SystemClock
from journeyman.config import Configuration, Settings, WorkqPersistence
from journeyman.config.settings import LakeSettings
from journeyman.disk import Disk, RealDisk, absolute, is_database
from journeyman.errors import JourneymanError
from journeyman.logs.holders import Holders, LetGo
from journeyman.runners import RunnerSet
from journeyman.servers import preflight
from journeyman.servers.assembly import Assembly
from journeyman.servers.core import metrics
from journeyman.servers.core.access import Access
from journeyman.servers.core.bulk_loading import dismiss
from journeyman.servers.core.ledger import Ledger, open_ledger
from journeyman.servers.core.server_log import LineThread, ServerLog, ServiceManager
from journeyman.servers.core.service import ServiceContext
from journeyman.servers.core.shared import Shared
from journeyman.servers.core.stand_in import stand_in
from journeyman.servers.core.standby import end_when_lost, take_directory
from journeyman.servers.core.writes import WatchThread, WriteWatch
from journeyman.units import DAY_MS, NS_PER_MS

if TYPE_CHECKING:
    from journeyman.disk.guard import Guard
    from journeyman.servers.core.follower_process import FollowerProcess
    from journeyman.servers.series.process import SeriesProcess

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
    for remark in configuration.remarks:
        messages.info(remark)
    configuration = preflight.fit_to_open_files(configuration, messages)
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
    level = settings.log.level
    messages.info(f"journeyman {__version__} starts", process=os.getpid(), log_level=level)
    access = preflight.check_settings(configuration, to_serve=True)  # before anything listens
    for note in preflight.notes(settings, access):
        messages.warn(note)
    if warning := preflight.open_to_users(settings, access):
        messages.warn(warning)
    for warning in preflight.open_directories(settings):
        messages.warn(warning)
    manager = ServiceManager.from_environment(os.environ)
    writes = WriteWatch(clock, messages, settings.limits)
    with ExitStack() as closing:
        plain: Disk
        guard: Guard | None = None
        if is_database(settings.data.directory):
            taken = await take_directory(settings, access, clock, messages, manager)
            if taken is None:
                return CLEAN
            plain, guard = taken, taken.guard
            closing.callback(taken.close)
        else:
            plain = RealDisk()
            plain.keep_in_reserve(FILES_IN_RESERVE)
            plain.refuse_links_below(*preflight.directories_of(settings))
        disk = metrics.measured(plain, clock, metrics.places_of(settings))
        preflight.prepare_data_directory(configuration, disk, messages)
        holders = LogHolders(settings.lake, disk, clock, messages)
        ledger = open_ledger(settings, disk, clock, messages, holders.of_logs, writes)
        if ledger is not None:
            closing.callback(ledger.close)
        preflight.prepare_salts(settings, access, disk, messages)
        index, series = _index_of(settings, messages), _series_of(settings, messages)
        try:
            if index is not None:
                await index.open()  # before any port is
            return await _serve_on(
                *(disk, guard, holders, ledger, manager, writes, index, series),
                *(configuration, access, clock, messages, read_again),
            )
        finally:
            for follower in (index, series):
                if follower is not None:
                    await follower.stop()


def _index_of(settings: Settings, messages: ServerLog) -> FollowerProcess | None:
    """The process that keeps the store, if there is one; few servers need its modules."""
    workq = settings.workq
    if settings.storage.engine is None:
        return None
    if not workq.enabled or workq.persistence is not WorkqPersistence.LOG:
        messages.warn("storage.engine has no effect: the work queue has no log here")
        return None
    from journeyman.servers.index.process import index_process

    return index_process(settings, messages)


def _series_of(settings: Settings, messages: ServerLog) -> SeriesProcess | None:
    """The process that counts figures over time, if there is one."""
    if not settings.series.enabled or not settings.http.enabled:
        return None
    from journeyman.servers.series.process import SeriesProcess

    return SeriesProcess(settings, messages)


async def _serve_on(
    disk: metrics.MeasuredDisk,
    guard: Guard | None,
    holders: LogHolders,
    ledger: Ledger | None,
    manager: ServiceManager,
    writes: WriteWatch,
    index: FollowerProcess | None,
    series: SeriesProcess | None,
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
    if guard is not None:
        end_when_lost(guard, messages, failed)
    shared = Shared.create(
        loop,
        messages,
        settings.limits.total_unsent_bytes,
        preflight.files_for_connections(settings),
    )
    context = ServiceContext(
        settings,
        disk,
        clock,
        messages,
        shared,
        access,
        failed,
        writes,
        stopping.set,
        ledger,
        configuration.origins,
        holders.of_logs,
        guard,
    )
    server = Assembly(
        context,
        lambda add_work, put_item: RunnerSet(settings, add_work, put_item, access),
        more_figures=lambda: [*disk.families(), *holders.families(), *writes.families()],
        index=index,
        series=series,
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
        preflight.prepare_salts(settings, access, disk, messages)
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
    if guard is not None:
        await loop.run_in_executor(None, guard.advertise)
    for follower in (index, series):
        if follower is not None:
            follower.follow()  # the logs are recovered
    dismiss()
    gc.freeze()  # loaded objects stay: the collector need not visit them
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    watching = loop.create_task(
        preflight.watch_connections(
            lambda: {name: len(each.around.sessions) for name, each in server.services.items()},
            settings.limits.connections,
            messages,
        )
    )
    sampling = loop.create_task(disk.watch())
    living = loop.create_task(manager.show_life(writes.is_alive))
    looking = WatchThread(
        writes, manager, lambda: stand_in(writes, server.http_sockets, access.tls)
    )
    manager.ready()
    # All that a person who has just started it wants to know, in the last line on the screen.
    messages.info("ready", **server.addresses(), data=absolute(settings.data.directory))
    await stopping.wait()
    watching.cancel()
    sampling.cancel()
    if failures:
        hurry.set()
    cut_off = await server.stop(hurry)
    living.cancel()  # a stop may take longer than the watchdog waits
    looking.close()
    if failures:
        raise failures[0]
    if cut_off:
        messages.warn(f"{cut_off} runs were cut off; the next start handles their jobs")
    messages.info("stopped")
    return FORCED if hurry.is_set() else CLEAN


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop if it is installed, else None for the loop of Python."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class LogHolders:
    """The holders of a server's logs, streams and lakes (logs/holders.py), as messages and figures.

    ``of_logs`` goes to every log of the process.
    """

    def __init__(
        self, settings: LakeSettings, disk: Disk, clock: Clock, messages: ServerLog
    ) -> None:
        self._messages = messages
        self._let_go: Counter[str] = Counter()  # files, by log
        self.of_logs = Holders(
            disk,
            clock,
            max_bytes=settings.hold_bytes,
            max_idle_ns=settings.hold_days * DAY_MS * NS_PER_MS,
            tell=self._tell,
        )

    def families(self) -> list[metrics.Family]:
        held: Counter[str] = Counter()
        for (directory, _), size in self.of_logs.held_bytes.copy().items():
            held[posixpath.basename(directory)] += size
        return [
            metrics.gauge(
                "lake.held_bytes",
                "Bytes of logs kept for streams and lakes that have not read them, by directory.",
                [metrics.Point({"log": log}, size) for log, size in sorted(held.items())],
            ),
            metrics.counter(
                "lake.let_go",
                "Files of logs that changed or went before a stream or a lake had read them.",
                [metrics.Point({"log": log}, n) for log, n in sorted(self._let_go.copy().items())],
            ),
        ]

    def _tell(self, let_go: LetGo) -> None:
        """In the thread that compacts or cleans; messages may come from any."""
        self._let_go[posixpath.basename(let_go.directory)] += len(let_go.files)
        self._messages.warn(
            f"{let_go.who} had not read all that was dropped: {let_go.reason}; "
            "ingest more often, or raise lake.hold_bytes",
            directory=let_go.directory,
            files=", ".join(posixpath.basename(path) for path in let_go.files),
        )

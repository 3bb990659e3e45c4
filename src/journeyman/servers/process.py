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
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
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
from journeyman.servers.core.bulk_loading import end_idle_helpers
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
                messages.info(f"opening the store: {settings.storage.engine}")
                await index.open()  # before any port is
            resources = _Resources(disk, guard, holders, ledger, manager, writes, index, series)
            serving = _Serving(resources, configuration, access, clock, messages, read_again)
            return await serving.run()
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


@dataclass(frozen=True, slots=True)
class _Resources:
    """The parts of a server that are open before its ports, and closed after them."""

    disk: metrics.MeasuredDisk
    guard: Guard | None
    holders: LogHolders
    ledger: Ledger | None
    manager: ServiceManager
    writes: WriteWatch
    index: FollowerProcess | None
    series: SeriesProcess | None

    @property
    def followers(self) -> list[FollowerProcess | SeriesProcess]:
        """The processes that follow the logs."""
        return [each for each in (self.index, self.series) if each is not None]


class _Serving:
    """A server from its first port to its exit code. Made on the event loop that runs it."""

    def __init__(
        self,
        resources: _Resources,
        configuration: Configuration,
        access: Access,
        clock: SystemClock,
        messages: ServerLog,
        read_again: Callable[[], Configuration],
    ) -> None:
        self._loop, settings = asyncio.get_running_loop(), configuration.settings
        self._resources = resources
        self._settings = settings
        self._access = access
        self._messages = messages
        self._read_again = read_again
        self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
        self._failures: list[BaseException] = []
        shared = Shared.create(
            self._loop,
            messages,
            settings.limits.total_unsent_bytes,
            preflight.files_for_connections(settings),
        )
        context = ServiceContext(
            settings,
            resources.disk,
            clock,
            messages,
            shared,
            access,
            self._failed,
            resources.writes,
            self._stopping.set,
            resources.ledger,
            configuration.origins,
            resources.holders.of_logs,
            resources.guard,
        )
        self._server = Assembly(
            context,
            lambda add_work, put_item: RunnerSet(settings, add_work, put_item, access),
            more_figures=self._more_figures,
            index=resources.index,
            series=resources.series,
        )

    async def run(self) -> int:
        """Serve until a signal or a failure; the exit code."""
        self._loop.set_exception_handler(self._report_mistake)
        if self._resources.guard is not None:
            end_when_lost(self._resources.guard, self._messages, self._failed)
        # Before the ports open: a stop may come as soon as the server listens.
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_stop_signal, number.name)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        await self._start()
        watches = [
            self._loop.create_task(self._watch_connections()),
            self._loop.create_task(self._resources.disk.watch()),
        ]
        manager, writes = self._resources.manager, self._resources.writes
        signs_of_life = self._loop.create_task(manager.show_life(writes.is_alive))
        write_watch = WatchThread(writes, manager, self._stand_in)
        manager.ready()
        # All that a person who has just started it wants to know, in the last line on the screen.
        directory = absolute(self._settings.data.directory)
        self._messages.info("ready", **self._server.addresses(), data=directory)
        await self._stopping.wait()
        for watch in watches:
            watch.cancel()
        if self._failures:
            self._hurry.set()
        cut_off = await self._server.stop(self._hurry)
        signs_of_life.cancel()  # a stop may take longer than the watchdog waits
        write_watch.close()
        if self._failures:
            raise self._failures[0]
        if cut_off:
            text = f"{cut_off} runs were cut off; the next start handles their jobs"
            self._messages.warn(text)
        self._messages.info("stopped")
        return FORCED if self._hurry.is_set() else CLEAN

    async def _start(self) -> None:
        """Load the logs and open the ports."""
        gc.disable()  # loading makes millions of objects, and none of them is garbage
        await self._server.start()
        if self._resources.guard is not None:
            await self._loop.run_in_executor(None, self._resources.guard.advertise)
        for follower in self._resources.followers:
            follower.follow()  # the logs are recovered
        end_idle_helpers()
        gc.freeze()  # loaded objects stay: the collector need not visit them
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()

    # -- signals and failures --

    def _failed(self, error: BaseException) -> None:
        """Stop: nothing can be written any more."""
        self._failures.append(error)
        self._stopping.set()

    def _on_stop_signal(self, name: str) -> None:
        if self._stopping.is_set():
            self._messages.warn(f"{name} again: stopping at once")
            self._hurry.set()
        else:
            self._messages.info(f"{name}: stopping")
            self._resources.manager.stopping()
            self._stopping.set()

    def _report_mistake(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception that no code has caught; the server goes on."""
        error = context.get("exception")
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        self._messages.error(f"unexpected: {context.get('message')}", trace=trace)

    def _on_hangup(self) -> None:
        self._resources.manager.reloading()
        self._reload()
        self._resources.manager.ready()

    def _reload(self) -> None:
        """Read tokens, certificate and log level again; what is wrong leaves the old ones."""
        ports = self._server.services.values()
        connections = [each for port in ports for each in port.port_context.sessions]
        messages = self._messages
        try:
            fresh = self._read_again().settings
            done = self._access.reload(fresh, connections)
        except JourneymanError as error:
            messages.error("SIGHUP: nothing was reloaded", reason=error)
            return
        preflight.prepare_salts(self._settings, self._access, self._resources.disk, messages)
        messages.level = fresh.log.level
        done.append(f"log level {fresh.log.level}")
        for note in self._access.notes:
            messages.warn(note)
        messages.info(f"SIGHUP: reloaded {', '.join(done)}; other settings need a restart")

    # -- while it serves --

    def _watch_connections(self) -> Coroutine[Any, Any, None]:
        """Warn when a port is nearly full."""
        services = self._server.services
        return preflight.watch_connections(
            lambda: {name: len(each.port_context.sessions) for name, each in services.items()},
            self._settings.limits.connections,
            self._messages,
        )

    def _stand_in(self) -> None:
        """Answer HTTP in place of an event loop that waits for a disk."""
        sockets, tls = self._server.http_sockets, self._access.tls
        stand_in(self._resources.writes, sockets, tls)

    def _more_figures(self) -> list[metrics.Family]:
        resources = self._resources
        families = [resources.disk.families(), resources.holders.families()]
        return [family for part in (*families, resources.writes.families()) for family in part]


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
        """Report dropped files, in the thread that compacts or cleans; messages may
        come from any."""
        self._let_go[posixpath.basename(let_go.directory)] += len(let_go.files)
        self._messages.warn(
            f"{let_go.who} had not read all that was dropped: {let_go.reason}; "
            "ingest more often, or raise lake.hold_bytes",
            directory=let_go.directory,
            files=", ".join(posixpath.basename(path) for path in let_go.files),
        )

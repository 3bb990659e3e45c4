"""``journeyman doctor``: would a server do well here, and does the one that runs?

    ok     as it should be
    note   works, but you may want to know
    bad    a server would not start, would lose its data, or its logs are damaged

It asks the settings, the machine, the data directory and the ports, and changes nothing but one
small file in the data directory, on which it measures a sync and which it removes.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import NamedTuple

import click

from journeyman import __version__
from journeyman.cli.config import load_settings, settings_options
from journeyman.cli.errors import DAMAGED, warn
from journeyman.cli.output import Output, json_line
from journeyman.cli.reading import map_log
from journeyman.cli.serve import SERVER_LIBRARIES
from journeyman.cli.verify import inspect_log
from journeyman.clock import SystemClock
from journeyman.config import Address, Configuration, Settings
from journeyman.disk import disk_of, is_database
from journeyman.errors import JourneymanError, UsageError
from journeyman.logs.detection import LogFinder
from journeyman.units import MIB, MS_PER_S

OK, NOTE, BAD = "ok", "note", "bad"
ENOUGH_FREE_BYTES = 1024 * MIB
SLOW_SYNC_MS = 50.0
NO_SYNC_MS = 0.02  # no disk is so fast: it does not sync
SYNCS = 9
VERIFIED_BYTES = 256 * MIB  # larger data directories are verified if that is asked for
AHEAD_S = 60.0
# Kinds of file systems that are no place for a data directory, and why.
WRONG_FILE_SYSTEMS = {
    "tmpfs": "it is in memory: everything is lost with the machine",
    "ramfs": "it is in memory: everything is lost with the machine",
    "nfs": "locks and syncs of NFS depend on the server's settings; use a local disk",
    "nfs4": "locks and syncs of NFS depend on the server's settings; use a local disk",
    "9p": "it does not keep the promises of fsync",
}
EXTRAS = {
    "fast": (("uvloop",), "a faster event loop"),
    "columnar": (("numpy", "pyarrow", "numba"), "large logs load several times faster"),
    "spark": (("pyspark",), "journeyman pipeline"),
}


class CheckResult(NamedTuple):
    level: str
    about: str
    said: str


@click.command()
@settings_options
@click.option("--data", type=click.Path(), metavar="DIR",
              help="Data directory. [default: data.directory]")  # fmt: skip
@click.option("--verify", "verify_all", is_flag=True,
              help="Verify logs of any size. [default: up to 256 MiB]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="JSON lines instead of text.")
@click.pass_context
def doctor(
    ctx: click.Context,
    path: str | None,
    settings: tuple[str, ...],
    data: str | None,
    verify_all: bool,
    as_json: bool,
) -> None:
    """Check settings, machine and data directory. Exit code 1 if something is bad."""
    found = [*_look_at_install(), *_check_all(path, settings, data, verify_all)]
    with Output() as output:
        for finding in found:
            level, about, said = finding
            output.line(
                json_line(finding._asdict()) if as_json else f"{level:4}  {about:14}  {said}"
            )
    ctx.exit(DAMAGED if any(finding.level == BAD for finding in found) else 0)


def _check_all(
    path: str | None, pairs: tuple[str, ...], data: str | None, verify_all: bool
) -> Iterator[CheckResult]:
    try:
        more = {} if data is None else {"data.directory": data}
        configuration = load_settings(path, pairs, more)
    except UsageError as error:
        yield CheckResult(BAD, "settings", str(error))
        return
    settings = configuration.settings
    yield from _look_at_settings(configuration)
    yield from _look_at_limits(settings)
    yield from _look_at_ports(settings)
    yield from _look_at_directory(settings.data.directory, verify_all)


def _look_at_install() -> Iterator[CheckResult]:
    yield CheckResult(OK, "version", f"journeyman {__version__}, Python {sys.version.split()[0]}")
    missing = [name for name in SERVER_LIBRARIES if find_spec(name) is None]
    if missing:
        said = f"{', '.join(missing)} missing: pip install 'journeyman[server]' to run a server"
        yield CheckResult(NOTE, "libraries", said)
    for extra, (names, gain) in EXTRAS.items():
        if any(find_spec(name) is None for name in names):
            said = f"without journeyman[{extra}]: {gain}"
            yield CheckResult(NOTE, "libraries", said)


def _look_at_settings(configuration: Configuration) -> Iterator[CheckResult]:
    from journeyman.servers.preflight import check_settings, notes

    try:
        access = check_settings(configuration)
    except JourneymanError as error:
        yield CheckResult(BAD, "settings", str(error))
        return
    said = [*configuration.notes, *notes(configuration.settings, access)]
    yield from (CheckResult(NOTE, "settings", each) for each in said)
    if not said:
        yield CheckResult(OK, "settings", "a server would accept them")


def _look_at_limits(settings: Settings) -> Iterator[CheckResult]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.limits.connections
    if hard != resource.RLIM_INFINITY and hard < needed:
        said = f"{hard} may be open, fewer than limits.connections ({needed}): raise `ulimit -Hn`"
        yield CheckResult(NOTE, "open files", said)
    else:
        yield CheckResult(OK, "open files", f"up to {hard if hard > 0 else 'any number'}")


def _look_at_ports(settings: Settings) -> Iterator[CheckResult]:
    ports: dict[str, Address | None] = {
        "schedule": settings.controller.listen if settings.controller.enabled else None,
        "work queue": settings.workq.listen if settings.workq.enabled else None,
        "fan-out queues": settings.kestrel.listen if settings.kestrel.enabled else None,
        "HTTP": settings.http.listen,
    }
    for service, address in ports.items():
        if address is None or not (address.port or address.path):
            continue
        try:
            _connect(address)
            yield CheckResult(OK, service, f"something listens on {address}")
        except OSError:
            yield CheckResult(NOTE, service, f"nothing listens on {address}")


def _connect(address: Address) -> None:
    if address.path:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(address.path)
    else:
        socket.create_connection((address.host, address.port), timeout=1.0).close()


# -- the data directory --


def _look_at_directory(directory: str, verify_all: bool) -> Iterator[CheckResult]:
    about = "data"
    if is_database(directory):
        yield from _look_at_database(directory, verify_all)
        return
    if not os.path.isdir(directory):
        yield CheckResult(NOTE, about, f"{directory} does not exist; a server would create it")
        return
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        yield CheckResult(BAD, about, f"{directory} cannot be written by this user")
        return
    kind = _file_system_of(directory)
    if kind in WRONG_FILE_SYSTEMS:
        yield CheckResult(BAD, about, f"{directory} is on {kind}: {WRONG_FILE_SYSTEMS[kind]}")
    free = shutil.disk_usage(directory).free
    level = OK if free >= ENOUGH_FREE_BYTES else NOTE
    yield CheckResult(level, about, f"{directory} has {free // MIB} MiB of free space")
    yield _measure_sync(directory)
    yield from _look_at_times(directory)
    yield from _look_at_logs(directory, verify_all)


def _look_at_database(address: str, verify_all: bool) -> Iterator[CheckResult]:
    from journeyman.disk.examination import OLDEST_VERSION, examine

    about = "database"
    try:
        facts = examine(address)
    except OSError as error:
        yield CheckResult(BAD, about, f"it does not answer: {error.strerror}")
        return
    active = "a server is active" if facts.is_taken else "no server is active"
    yield CheckResult(OK, about, f"PostgreSQL {facts.version}; {active}, epoch {facts.epoch}")
    if facts.version_number < OLDEST_VERSION:
        said = f"PostgreSQL 14 or later is needed, not {facts.version}: earlier ones keep the lock "
        yield CheckResult(BAD, about, said + "of a server that is cut off")
    if not facts.syncs:
        said = "fsync or full_page_writes is off in PostgreSQL: a power cut loses data"
        yield CheckResult(BAD, about, said)
    if not facts.has_replica:
        said = "no synchronous replica (synchronous_standby_names): acknowledged work is lost with "
        yield CheckResult(NOTE, about, said + "this database")
    if facts.is_replica_away:
        said = "commits wait for a replica (synchronous_standby_names), and none is connected"
        yield CheckResult(BAD, about, f"{said}: a server would end")
    if not facts.keeps_sessions:
        said = "a pooler changes sessions between statements: connect directly, or in session mode"
        yield CheckResult(BAD, about, said)
    yield from _look_at_logs(address, verify_all)


def _file_system_of(directory: str) -> str:
    """Return the file system of the longest mount point above a directory; empty where the system
    does not tell."""
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as mounts:
            rows = [line.split() for line in mounts]
    except OSError:
        return ""
    place = os.path.realpath(directory)
    above = [(len(row[1]), row[2]) for row in rows if _is_above(row[1], place)]
    return max(above, default=(0, ""))[1]


def _is_above(mount: str, place: str) -> bool:
    return os.path.commonpath([mount, place]) == mount


def _measure_sync(directory: str) -> CheckResult:
    took_ms = []
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-") as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            file.flush()
            began_s = time.perf_counter()
            os.fsync(file.fileno())
            took_ms.append((time.perf_counter() - began_s) * MS_PER_S)
    median_ms = statistics.median(took_ms)
    if median_ms < NO_SYNC_MS:
        said = f"a sync takes {median_ms:.3f} ms: this disk does not sync, a power cut loses data"
        return CheckResult(BAD, "disk", said)
    level = NOTE if median_ms > SLOW_SYNC_MS else OK
    return CheckResult(level, "disk", f"a sync takes {median_ms:.2f} ms; each durable change waits")


def _look_at_times(directory: str) -> Iterator[CheckResult]:
    """Files from the future: the clock was set back, and jobs would wait for it."""
    paths = (os.path.join(parent, name) for parent, _, ns in os.walk(directory) for name in ns)
    newest_s = max((os.lstat(path).st_mtime for path in paths), default=0.0)
    if newest_s > time.time() + AHEAD_S:
        ahead_s = newest_s - time.time()
        yield CheckResult(BAD, "clock", f"{ahead_s:.0f} s behind the newest file: set the clock")


def _look_at_logs(directory: str, verify_all: bool) -> Iterator[CheckResult]:
    disk, as_of_ns = disk_of(directory), SystemClock().now_ns()
    try:
        logs = list(LogFinder(disk, warn).find([directory]))
    except UsageError:
        yield CheckResult(OK, "logs", "none yet")
        return
    for log in logs:
        mapped = map_log(disk, log, compacted=True)
        if mapped.size > VERIFIED_BYTES and not verify_all:
            said = f"{log.title} has {mapped.size // MIB} MiB: not verified (--verify)"
            yield CheckResult(NOTE, "logs", said)
            continue
        report = inspect_log(mapped, as_of_ns, lambda _: None)
        if report.clean:
            yield CheckResult(OK, "logs", f"{log.title}: clean, {report.records} records")
        else:
            said = f"{log.title}: damaged; `journeyman verify {directory}` says where"
            yield CheckResult(BAD, "logs", said)

"""The checks before a server opens anything, the raised limits, and the directories it needs.

    check                    refuses what cannot be served; ``journeyman config`` does the same
      addresses   one of its own for each port; other networks only with tokens, or insecure = true
      access      the auth file and the certificate can be read and used
      storage     the engine has these options and this kind of path, and its library is installed
      telemetry   the endpoint is a URL, and the exporter is installed
    fit_to_open_files        how many connections the limit on open files leaves room for
    prepare_data_directory   made only if an open service keeps something below it

Whether a port is free, a log is locked or a collector answers is seen when the server starts.

Files: connections of every port + runs + queues + the server's own. The soft limit is raised as far
as the hard limit allows. Where that is less than the settings may need, each port takes fewer
connections, so that logs, runs and queues always find a file to open. That is a warning only if
limits.connections was set.
"""

from __future__ import annotations

import asyncio
import os
import resource
import stat
from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from journeyman.config import (
    Address,
    Configuration,
    Persistence,
    Settings,
    WorkqPersistence,
)
from journeyman.config.loading import DEFAULT_ORIGIN
from journeyman.disk import Disk, absolute, is_database
from journeyman.errors import LogError, UsageError
from journeyman.local_access import AUTO, is_local, make_token
from journeyman.servers.core.access import Access
from journeyman.servers.core.ledger import is_used
from journeyman.servers.core.namespace_secret import load_namespaces
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.shared import delay_to_second
from journeyman.servers.ztick.telemetry import check_telemetry
from journeyman.storage.contract import EngineOptions, expanded
from journeyman.storage.opening import check_engine, check_path

# Where earlier versions kept things by default, by the setting that says where they are now.
_FORMER_PLACES = {
    "database.logfile_path": ("logfile", "--log logfile"),
    "kestrel.queue_path": ("queues", "--queue-path queues"),
}
FILES_OF_OUR_OWN = 64  # logs, listeners, pipes
FILES_OF_A_RUN = 4
FILES_OF_A_QUEUE = 2  # its lock and the segment that is written
HTTP_CONNECTIONS = 512  # at most, and no more than another port takes
FEWEST_CONNECTIONS = 16
WATCH_S = 5.0
NEAR, WELL_BELOW = (
    0.9,
    0.8,
)  # shares of a port's connections: warn from NEAR on, once


def check_settings(configuration: Configuration, *, to_serve: bool = False) -> Access:
    """The facts that the ports need; UsageError, in one line, for what cannot be served.

    ``to_serve``: the user's token is made if it is asked for and not there.
    """
    settings = configuration.settings
    _check_addresses(configuration)
    if to_serve and settings.controller.auth_file == AUTO:
        make_token()
    access = Access.load(settings)
    _check_places(settings)
    if settings.storage.engine is not None:
        storage = settings.storage
        options = EngineOptions(storage.cache_capacity_bytes, storage.mode)
        check_path(check_engine(settings.storage.engine, options), expanded(storage.path))
    if settings.workq.events_to and not settings.kestrel.enabled:
        raise UsageError("workq.events_to needs the fan-out queues: set kestrel.enabled = true")
    if settings.telemetry.enabled:
        check_telemetry(settings.telemetry)
    return access


def _check_places(settings: Settings) -> None:
    """A server that takes over must find all of the state in the database. UsageError."""
    directory = settings.data.directory
    others = {
        "history.path": settings.history.path,
        "kestrel.archive_path": settings.kestrel.archive_path,
    }
    named = [(name, path) for name, path in others.items() if path is not None]
    for name, path in (*places_kept(settings), *named):
        if name == "storage.path":
            continue  # an index, which is made from the log
        is_elsewhere = not is_below(path, directory)
        if is_elsewhere and any(map(is_database, (path, directory))):
            raise UsageError(
                f"{name}: with logs in PostgreSQL, all of them are in the database that "
                "data.directory names; leave the paths of single logs out"
            )


def notes(settings: Settings, access: Access) -> Iterator[str]:
    """Yield what is allowed, and should be known all the same."""
    yield from access.notes
    if (settings.runners.allow or settings.runners.deny) and not access.names_runners:
        yield "runners.allow and runners.deny have no effect: no token names runners"
    for name, address in _listening(settings):
        if is_loopback(address):
            continue
        if access.tokens is None:
            yield f"{name} = {address} without tokens: everyone who can connect may run programs"
        elif access.tls is None:
            yield f"{name} = {address} without TLS: tokens can be read on the network"


def open_to_users(settings: Settings, access: Access) -> str:
    """A warning if every user of this machine has the rights of the server; else nothing."""
    by_network = [name for name, address in _listening(settings) if not address.path]
    if access.tokens is not None or not by_network:
        return ""
    return (
        "no tokens: every user of this machine can run programs with the rights of this server; "
        "start it with --token-file auto, or with --socket DIR"
    )


def open_directories(settings: Settings) -> Iterator[str]:
    """A warning for each directory of data that other users can change."""
    for path in directories_of(settings):
        try:
            found = os.stat(path)
        except OSError:
            continue
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o022:
            yield f"{path}: other users can change the data (mode {mode:04o}); chmod go-w {path}"
        elif found.st_uid not in (os.geteuid(), 0):
            yield f"{path}: belongs to another user (uid {found.st_uid}), who can change the data"


def is_loopback(address: Address) -> bool:
    return bool(address.path) or is_local(address.host)


def _listening(settings: Settings) -> Iterator[tuple[str, Address]]:
    if settings.controller.enabled:
        yield "controller.listen", settings.controller.listen
    if settings.http.enabled:
        yield "http.listen", settings.http.listen
    if settings.workq.enabled:
        yield "workq.listen", settings.workq.listen
    if settings.kestrel.enabled:
        yield "kestrel.listen", settings.kestrel.listen


def _check_addresses(configuration: Configuration) -> None:
    settings, taken = configuration.settings, dict[Address, str]()
    is_open = settings.controller.auth_file is None and not settings.access.insecure
    for name, address in _listening(settings):
        place = f"{configuration.origins[name]}: {name} = {str(address)!r}"
        if is_open and not is_loopback(address):
            raise UsageError(
                f"{place}: everyone who can connect could run programs; ask for tokens with "
                "controller.auth_file, or set access.insecure = true"
            )
        if (address.port or address.path) and address in taken:
            raise UsageError(f"{place}: {taken[address]} has the same address; give each its own")
        taken[address] = name


def prepare_data_directory(configuration: Configuration, disk: Disk, messages: ServerLog) -> None:
    """Make it if it is needed; warn of data that an earlier version kept elsewhere. LogError."""
    settings = configuration.settings
    directory = settings.data.directory
    for section, service in (("workq", "the work queue"), ("kestrel", "the fan-out queues")):
        origin = configuration.origins[f"{section}.enabled"]
        if not getattr(settings, section).enabled:
            messages.info(f"{service}: off", because=f"{section}.enabled = false ({origin})")
    kept = dict(places_kept(settings))
    if not any(is_below(path, directory) for path in kept.values()):
        return
    for name, path in kept.items():
        if configuration.origins[name] == DEFAULT_ORIGIN:
            _name_the_former_place(name, path, disk, messages)
    try:
        disk.make_dirs(directory)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise LogError(
            directory,
            f"cannot make the data directory: {reason}; name another one with --data DIR",
        ) from None
    messages.info("data directory", path=absolute(directory))


def places_kept(settings: Settings) -> Iterator[tuple[str, str]]:
    """The settings that name what the open services write to, and the paths."""
    if settings.database.persistence is Persistence.LOGFILE:
        yield "database.logfile_path", settings.database.logfile_path
    if settings.workq.enabled and settings.workq.persistence is WorkqPersistence.LOG:
        yield "workq.cmdlog_path", settings.workq.cmdlog_path
    if settings.storage.engine is not None:
        yield "storage.path", settings.storage.path
    if settings.kestrel.enabled:
        yield "kestrel.queue_path", settings.kestrel.queue_path
    if is_used(settings):
        yield "ledger.path", settings.ledger.path


def directories_of(settings: Settings) -> list[str]:
    """The data directory, and those that settings put elsewhere."""
    named = (path for name, path in places_kept(settings) if name != "database.logfile_path")
    return [path for path in (settings.data.directory, *named) if "://" not in path]


def prepare_salts(settings: Settings, access: Access, disk: Disk, messages: ServerLog) -> None:
    """Load what is kept about namespaces, once a token has one; add those that are new."""
    if not access.has_new_namespaces:
        return
    places = dict(places_kept(settings))
    directory = None
    if places:
        # The ledger is in the data directory, unless it has a place of its own.
        place = places.pop("ledger.path", "") or next(iter(places.values()))
        directory = os.path.dirname(absolute(place))
    has_records = any(_has_content(disk, path) for path in places.values())
    access.know(
        load_namespaces(disk, directory, messages, access.namespaces, has_records=has_records)
    )


def _has_content(disk: Disk, path: str) -> bool:
    if not disk.exists(path):
        return False
    return bool(disk.list_dir(path) if disk.is_dir(path) else disk.size(path))


def is_below(path: str, directory: str) -> bool:
    above, below = absolute(directory), absolute(path)
    return below == above or below.startswith(above.rstrip("/") + "/")


def _name_the_former_place(name: str, path: str, disk: Disk, messages: ServerLog) -> None:
    former, option = _FORMER_PLACES.get(name, ("", ""))
    if former and not is_database(path) and disk.exists(former) and not disk.exists(path):
        messages.warn(
            f"./{former} is there and is not read: an earlier version kept its data there; "
            f"start with {option} to use it, or move it to {path}"
        )


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
    say = messages.debug if origin == DEFAULT_ORIGIN else messages.warn
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
    loop = asyncio.get_running_loop()
    near: set[str] = set()
    while True:
        await asyncio.sleep(delay_to_second(loop, WATCH_S))
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
    """Return the number from which on descriptors are kept for programs and logs, whatever took the
    others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 2**31
    others = FILES_OF_OUR_OWN + FILES_OF_A_RUN * settings.schedule.max_runs
    return soft - min(others, soft // 4)


def _ports(settings: Settings) -> int:
    """Return the number of ports whose clients stay connected. HTTP has a limit of its own,
    HTTP_CONNECTIONS."""
    return 1 + settings.workq.enabled + settings.kestrel.enabled


def _files_of_others(settings: Settings) -> int:
    queues = FILES_OF_A_QUEUE * settings.kestrel.max_queues if settings.kestrel.enabled else 0
    http = HTTP_CONNECTIONS if settings.http.enabled else 0
    return FILES_OF_A_RUN * settings.schedule.max_runs + queues + http + FILES_OF_OUR_OWN


def _raise_limit(needed: int) -> int | None:
    """How many files may be open now; None: as many as are needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return None
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed

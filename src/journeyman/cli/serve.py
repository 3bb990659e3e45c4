"""``journeyman serve``: the schedule (ztick), the work queue (workq), the fan-out queues (kestrel).

    settings --> logs, listeners, tickers, runners --> until SIGTERM or SIGINT

What happens while it runs is logged to stderr; docs/operations.md says how to run it. Exit codes: 0
after a clean stop, 1 when it could not start or the log failed, 2 when the settings are wrong.

``journeyman workq-server`` is the work queue alone, started as the original is started, with its
flags, with one dash or two. Without -cmdlog-path the command log is in the data directory: nothing
is kept in memory only.

    workq-server -listen HOST:PORT -cmdlog-path DIR -cmdlog-sync always -cmdlog-sync-int 0
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import click

from journeyman.cli.config import load_settings, settings_options
from journeyman.config import Configuration, Persistence, Settings, WorkqPersistence
from journeyman.errors import UsageError
from journeyman.local_access import socket_in
from journeyman.servers.core.bulk_loading import WORKQ_READER, ZTICK_READER, prepare_reader

# The extra `server` installs these.
SERVER_LIBRARIES = ("aiohttp", "aiormq", "jinja2", "prometheus_client", "redis")

# Settings with which `serve` runs the work queue only.
_WORK_QUEUE_ONLY = {
    "controller.enabled": "false",
    "database.persistence": "memory",
    "http.enabled": "false",
    "kestrel.enabled": "false",
    "workq.enabled": "true",
}
FLAGS = (
    ("listen", "HOST:PORT", "Address of the work queue. [default: 127.0.0.1:9922]"),
    ("cmdlog-path", "DIR", "Its command log. [default: in the data directory]"),
    ("cmdlog-sync", "POLICY", "interval, os or always."),
    ("cmdlog-sync-int", "MS", "Time between syncs."),
    ("cmdlog-clean-int", "MS", "Time between cleanings."),
    ("cmdlog-seg-size", "BYTES", "Size of its segments."),
)


def _check_libraries() -> None:
    """Now, not when the first rule or scrape needs one of them."""
    if any(find_spec(name) is None for name in SERVER_LIBRARIES):
        raise UsageError("the server needs: pip install 'journeyman[server]'")


def _serve(read: Callable[[], Configuration]) -> int:
    configuration = read()
    _check_libraries()
    _prepare_reading(configuration.settings)
    from journeyman.servers.process import run

    return run(configuration, stderr=sys.stderr, read_again=read)


def _prepare_reading(settings: Settings) -> None:
    """Start the helpers that read large logs before the imports of the server, which take as long
    as theirs."""
    database, workq = settings.database, settings.workq
    if database.persistence is Persistence.LOGFILE:
        prepare_reader(ZTICK_READER, database.logfile_path)
    if workq.enabled and workq.persistence is WorkqPersistence.LOG:
        prepare_reader(WORKQ_READER, workq.cmdlog_path)


def _original_flags(command: Any) -> Any:
    for name, metavar, text in reversed(FLAGS):
        command = click.option(f"-{name}", f"--{name}", metavar=metavar, help=text)(command)
    return command


@click.command("workq-server")
@settings_options
@click.option("--data", type=click.Path(), metavar="DIR", help="Data directory: data.directory.")
@_original_flags
def workq_server(
    path: str | None, settings: tuple[str, ...], data: str | None, **flags: str | None
) -> int:
    """Run only the work queue, with the flags of the original workq-server."""
    if flags["cmdlog_sync"] in ("os", "always") and flags["cmdlog_sync_int"] == "0":
        flags["cmdlog_sync_int"] = None  # the original wants to hear so
    given = {"data.directory": data, **{f"workq.{name}": value for name, value in flags.items()}}
    more = _WORK_QUEUE_ONLY | {name: value for name, value in given.items() if value is not None}
    if data is None and path is None and flags["cmdlog_path"] is not None:
        more["ledger.enabled"] = "false"  # like the original, it writes only to the given directory
    return _serve(lambda: load_settings(path, settings, more))


OFF = "off"
_FLAGS_OF_WORKQ = tuple(f"-{name}" for name, _, _ in FLAGS)


class _Serve(click.Command):
    """Knows the flags of workq's server: -cmdlog-path would be read as -c mdlog-path."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for word in args:
            flag = word.partition("=")[0]
            if flag in _FLAGS_OF_WORKQ:
                said = (
                    f"No such option '{flag}': `journeyman workq-server` takes the flags of workq"
                )
                raise click.UsageError(said, ctx)
        return super().parse_args(ctx, args)


@click.command(cls=_Serve)
@settings_options
@click.option(
    "--data",
    type=click.Path(),
    metavar="DIR",
    help="Data directory: data.directory. [default: ./journeyman-data]",
)
@click.option("--listen", metavar="HOST:PORT", help="Address of the schedule: controller.listen.")
@click.option("--log", "log_path", type=click.Path(), help="Its log: database.logfile_path.")
@click.option(
    "--workq-listen",
    metavar="HOST:PORT|off",
    help="Address of the work queue: workq.listen; or off.",
)
@click.option("--cmdlog-path", type=click.Path(), help="Its log, a directory: workq.cmdlog_path.")
@click.option("--cmdlog-sync", metavar="POLICY", help="interval, os or always: workq.cmdlog_sync.")
@click.option("--cmdlog-sync-int", metavar="MS", help="Time between syncs: workq.cmdlog_sync_int.")
@click.option(
    "--cmdlog-clean-int", metavar="MS", help="Time between cleanings: workq.cmdlog_clean_int."
)
@click.option(
    "--cmdlog-seg-size", metavar="BYTES", help="Size of its segments: workq.cmdlog_seg_size."
)
@click.option(
    "--kestrel-listen",
    metavar="HOST:PORT|off",
    help="Address of the fan-out queues: kestrel.listen; or off.",
)
@click.option("--queue-path", type=click.Path(), help="Their journals: kestrel.queue_path.")
@click.option("--queue-sync", metavar="POLICY", help="always, interval or os: kestrel.sync.")
@click.option(
    "--queue-sync-int", metavar="MS", help="Time between syncs: kestrel.sync_interval_ms."
)
@click.option(
    "--http-listen",
    metavar="HOST:PORT|off",
    help="Address of the HTTP API and the console: http.listen; or off.",
)
@click.option(
    "--socket",
    "socket_directory",
    type=click.Path(),
    metavar="DIR",
    help="Listen on Unix sockets in this directory, and on no port.",
)
@click.option(
    "--token-file",
    metavar="FILE|auto",
    help="Ask for tokens: controller.auth_file; auto makes one for this user.",
)
@click.option("--level", metavar="LEVEL", help="Level of the messages on stderr: log.level.")
def serve(
    path: str | None,
    settings: tuple[str, ...],
    data: str | None,
    listen: str | None,
    log_path: str | None,
    workq_listen: str | None,
    kestrel_listen: str | None,
    queue_path: str | None,
    queue_sync: str | None,
    queue_sync_int: str | None,
    http_listen: str | None,
    socket_directory: str | None,
    token_file: str | None,
    level: str | None,
    **cmdlog: str | None,
) -> int:
    """Run the schedule, the work queue and the fan-out queues, each on its own port.

    All data is in one data directory, ./journeyman-data unless --data names another. With a
    configuration file, HTTP, the work queue and the fan-out queues are served only if it has a
    section [http], [workq] or [kestrel], or an option here asks for them.
    """
    listens = {
        "schedule": listen,
        "work_queue": workq_listen,
        "fan_out": kestrel_listen,
        "http": http_listen,
    }
    if socket_directory is not None:
        listens = {
            name: address or socket_in(socket_directory, name) for name, address in listens.items()
        }
    listen, workq_listen, kestrel_listen, http_listen = listens.values()
    given = {
        "data.directory": data,
        "controller.listen": listen,
        "controller.auth_file": token_file,
        "database.logfile_path": log_path,
        "workq.listen": None if workq_listen == OFF else workq_listen,
        "workq.enabled": "false" if workq_listen == OFF else None,
        **{f"workq.{name}": value for name, value in cmdlog.items()},
        "kestrel.listen": None if kestrel_listen == OFF else kestrel_listen,
        "kestrel.enabled": "false" if kestrel_listen == OFF else None,
        "kestrel.queue_path": queue_path,
        "kestrel.sync": queue_sync,
        "kestrel.sync_interval_ms": queue_sync_int,
        "http.listen": None if http_listen == OFF else http_listen,
        "http.enabled": "false" if http_listen == OFF else None,
        "log.level": level,
    }
    more = {name: value for name, value in given.items() if value is not None}
    return _serve(lambda: load_settings(path, settings, more))

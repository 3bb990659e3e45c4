"""``journeyman worker MODULE:APP``: run the jobs of an app. See docs/tasks.md."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from journeyman.cli.output import FiniteRange
from journeyman.cli.server.connection import server_option
from journeyman.errors import UsageError
from journeyman.tasks import App

_LEVELS = ["debug", "info", "warning", "error"]


class LikeTheServer(logging.Formatter):
    """Lines like those of `journeyman serve`: time in UTC, level, message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno == logging.WARNING:
            record.levelname = "WARN"
        return super().format(record)


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME[:WEIGHT]",
    help="Queue to serve; may be repeated. [default: those of the app's tasks]",
)
@click.option(
    "-c", "--concurrency", type=click.IntRange(1, 10_000), default=8, show_default=True,
    help="Jobs at a time, per process.",
)  # fmt: skip
@click.option("--threads", "kind", flag_value="threads", default=True,
              help="Run sync functions in threads. [default]")  # fmt: skip
@click.option("--asyncio", "kind", flag_value="asyncio",
              help="Run sync functions on the event loop too: they must not block.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1, 1_000), default=1, show_default=True,
              help="Worker processes; one that dies is restarted.")  # fmt: skip
@click.option("--burst", is_flag=True,
              help="Stop when no job is ready, or no server answers for 10 s.")  # fmt: skip
@click.option("--reload", "reload_", is_flag=True, help="Restart when a source file changes.")
@click.option("--grace", type=FiniteRange(0, 86_400), default=60.0, show_default=True,
              metavar="SECONDS", help="How long running jobs may take after SIGTERM.")  # fmt: skip
@click.option("--max-jobs", type=click.IntRange(0), default=0, metavar="N",
              help="Replace a process after N jobs; its running jobs are finished.")  # fmt: skip
@click.option("--max-memory", type=click.IntRange(0), default=0, metavar="MB",
              help="Replace a process that uses more memory.")  # fmt: skip
@click.option("--name", default="", help="Name of this worker. [default: HOST-PID]")
@click.option("--metrics", metavar="[HOST:]PORT", help="Serve Prometheus metrics here.")
@server_option
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True,
              help="Least level of messages; debug adds tracebacks.")  # fmt: skip
def worker(
    app: str | App,
    queues: tuple[str, ...],
    concurrency: int,
    kind: Any,
    processes: int,
    burst: bool,
    reload_: bool,
    grace: float,
    max_jobs: int,
    max_memory: int,
    name: str,
    metrics: str | None,
    server: str | None,
    log_level: str,
) -> int:
    """Run the jobs of an app until SIGTERM.

    MODULE:APP says where the App is, for example shop.tasks:app. SIGTERM and SIGINT stop it
    gracefully: running jobs are finished. A second signal stops it at once; its jobs are run again
    after their lease.
    """
    log = logging.StreamHandler(sys.stderr)
    log.setFormatter(LikeTheServer())
    logging.basicConfig(level=log_level.upper(), handlers=[log])
    from journeyman.tasks.worker import QueueShare, Worker
    from journeyman.tasks.worker.program import SUPERVISED, load_app, run_worker, supervise

    if processes > 1 and metrics:
        raise UsageError(
            "--metrics works with one process: start several workers, each with its own port"
        )
    is_replaced = bool(max_jobs or max_memory) and not os.environ.get(SUPERVISED)
    if processes > 1 or reload_ or is_replaced:
        command = one_process(sys.argv[0], sys.argv[1:])
        where = Path.cwd() if reload_ else None
        return supervise(command, processes, reload=where, burst=burst)
    found = app if isinstance(app, App) else load_app(app)
    if server:
        found.use_server(server)
    on_outcome = None
    if metrics:
        from journeyman.tasks.worker.program import serve_metrics

        on_outcome = serve_metrics(metrics)
    shares = [QueueShare.parse(text) for text in queues]
    running = Worker(
        found, shares, concurrency=concurrency, kind=kind, burst=burst, name=name,
        on_outcome=on_outcome, max_jobs=max_jobs, max_memory=max_memory << 20,
    )  # fmt: skip
    return run_worker(running, grace_s=grace)


def worker_of(app: App, name: str) -> click.Command:
    """``journeyman worker`` for one app, inside of a framework's program."""
    return click.Command(
        name,
        params=[option for option in worker.params if option.name != "app"],
        callback=lambda **options: worker.callback(app=app, **options),  # type: ignore[misc]
        help="Run the jobs of this application until SIGTERM.",
    )


def one_process(program: str, arguments: list[str]) -> list[str]:
    """This command line, for one process that does not reload; also of manage.py and flask."""
    kept: list[str] = []
    skip = False
    for word in arguments:
        if skip or word == "--reload" or word.startswith("--processes"):
            skip = word == "--processes"
            continue
        kept.append(word)
    start = ["-m", "journeyman"] if program.endswith("__main__.py") else [program]
    return [sys.executable, *start, *kept]

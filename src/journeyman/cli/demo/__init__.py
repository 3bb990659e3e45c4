"""``journeyman demo``: a shop with two days of history, and a server and workers to look at.

    history.py     the logs of a new data directory
    workloads.py   which jobs there are, how long they run, how they fail
    shop.py        the tasks, for the workers

The same seed makes the same past. What runs while the demo is up comes from real workers.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import click

from journeyman.cli.demo.history import TIMETABLE, ZONE, write_history
from journeyman.cli.demo.workloads import WORKLOADS
from journeyman.clock import SystemClock
from journeyman.disk import disk_of
from journeyman.errors import JourneymanError, UsageError

DIRECTORY: Final = "journeyman-demo"
MARK: Final = ".made-by-the-demo"
PATIENCE_S: Final = 60.0
SPEED: Final = 2.0  # calls come so many times as often as in the history
BATCH_EVERY_S: Final = 20.0
USUAL_HTTP_PORT: Final = 5679
# Name, queues and jobs at a time of each worker.
WORKERS: Final = (
    ("mail-1", ("mail", "search"), 4),
    ("billing-1", ("billing",), 3),
    ("images-1", ("images",), 1),
    ("reports-1", ("reports",), 2),
)
RULES: Final[dict[str, Any]] = {
    "web-hooks": {"pattern": "hook.", "runner": "shell", "args": ["true"]},
}
TIMETABLES: Final[dict[str, Any]] = {
    TIMETABLE: {
        "cron": "0 2 * * *", "tz": ZONE, "exclude": ["12-25", "12-26"], "timeout": "30m",
        "overlap": "skip", "retries": 1,
        "runner": ["shell", "echo pg_dump: no space left on device; exit 3"],
    },
    "rates": {"every": "5m", "runner": ["shell", "sleep 1"], "catch_up": "none"},
    "stock": {"cron": "0 * * * *", "tz": ZONE, "runner": ["shell", "sleep 2"]},
}  # fmt: skip


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), default=DIRECTORY)
@click.option("--hours", type=click.IntRange(1, 24 * 90), default=48, show_default=True,
              help="How long the history is.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Another seed, another past.")
@click.option("--http-port", type=click.IntRange(0, 65_535), default=USUAL_HTTP_PORT,
              show_default=True,
              help="Port of the console; another one if it is taken.")  # fmt: skip
@click.option("--no-serve", is_flag=True, help="Write the data directory and stop.")
def demo(directory: Path, hours: int, seed: int, http_port: int, no_serve: bool) -> int:
    """Make a data directory with the history of a shop, and serve it until Ctrl-C.

    A DIRECTORY that an earlier demo made is served again as it is.
    """
    if not (directory / MARK).exists():
        if directory.exists():
            raise UsageError(f"{directory} was not made by the demo: name another directory")
        directory.mkdir(parents=True)
        jobs = write_history(disk_of(str(directory)), SystemClock(), str(directory), hours, seed)
        (directory / MARK).touch()
        click.echo(f"{jobs} jobs of {hours} h in {directory}")
    if no_serve:
        return 0
    running = _Running(directory, http_port)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        running.start()
        click.echo(f"The console: {running.console}   (Ctrl-C stops the demo)")
        running.call_tasks(Random(seed), ended)
    finally:
        running.stop()
    return 0


class _Running:
    """A server and its workers, which end together."""

    def __init__(self, directory: Path, http_port: int) -> None:
        self._directory = directory
        self._http = http_port if http_port and not _answers(http_port) else _free_port()
        self._ports = [_free_port() for _ in range(3)]
        self._processes: list[subprocess.Popen[bytes]] = []
        self.console = f"http://127.0.0.1:{self._http}"

    def start(self) -> None:
        work, schedule, fan_out = (f"127.0.0.1:{port}" for port in self._ports)
        url = f"journeyman://{work}?schedule={schedule.rpartition(':')[2]}"
        os.environ["JOURNEYMAN_URL"] = url
        self._run(
            "server", "serve", "--data", str(self._directory), "--workq-listen", work,
            "--listen", schedule, "--kestrel-listen", fan_out,
            "--http-listen", f"127.0.0.1:{self._http}",
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            if time.monotonic() > deadline:
                raise UsageError(f"the server did not start; see {self._directory}/server.out")
            time.sleep(0.1)
        for name, queues, slots in WORKERS:
            words = [word for queue in queues for word in ("--queue", queue)]
            self._run(
                name, "worker", "journeyman.cli.demo.shop:app", "--name", name,
                "-c", str(slots), *words,
            )  # fmt: skip
        for kind, things in (("schedule/rules", RULES), ("timetables", TIMETABLES)):
            for name, body in things.items():
                self._ask("PUT", f"/v1/{kind}/{name}", body)
        limits = {"rate": 120, "per_ms": 60_000, "concurrency": 12}
        self._ask("PUT", "/v1/work/queues/billing/limits", limits)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()

    def call_tasks(self, random: Random, ended: threading.Event) -> None:
        """Call tasks as customers would, until the end."""
        from journeyman.cli.demo import shop

        weights = [each.per_minute for each in WORKLOADS]
        next_batch = time.monotonic()
        while not ended.wait(random.expovariate(SPEED * sum(weights) / 60)):
            [workload] = random.choices(WORKLOADS, weights)
            args, kwargs = workload.make_call(random)
            with suppress(JourneymanError):
                shop.tasks[workload.task].send(*args, **kwargs)
                if time.monotonic() >= next_batch:
                    next_batch = time.monotonic() + BATCH_EVERY_S
                    batch = f"{time.strftime('%Y-%m-%d')}/{random.randint(1, 99)}"
                    chain = shop.collect_orders.call(batch).then(shop.charge_batch, batch=batch)
                    chain.then(shop.send_receipt, batch=batch).send()
            with suppress(urllib.error.URLError):
                item = {"data": json.dumps({"task": workload.task})}
                self._ask("POST", "/v1/fan-out/queues/orders/items", item)
                self._ask("POST", "/v1/fan-out/queues/orders/read", {"reader": "audit"})

    def _run(self, name: str, *words: str) -> None:
        with (self._directory / f"{name}.out").open("ab") as output:
            command = [sys.executable, "-m", "journeyman", *words]
            self._processes.append(subprocess.Popen(command, stdout=output, stderr=output))

    def _is_ready(self) -> bool:
        try:
            self._ask("GET", "/v1/ready")
        except OSError:  # refused, or 503
            return False
        return True

    def _ask(self, method: str, path: str, body: Any = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.console}{path}", data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

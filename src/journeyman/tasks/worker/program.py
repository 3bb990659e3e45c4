"""The program around a Worker: finding the app, signals, several processes, reloading, metrics.

load_app("shop.tasks:app")        the module is imported from the current directory
run_worker(worker)                until SIGTERM or SIGINT; a second one ends it at once
supervise(command, 4)             four processes of it; one that ends is started again
supervise(command, 1, reload=...) started again when a source file changes
supervise(command, 4, burst=True) each runs once
serve_metrics("9100")             for Prometheus:

journeyman_worker_jobs_total{task, queue, outcome}     outcome: done, retry, given_back, failed
journeyman_worker_job_duration_seconds{task}           how long attempts took
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from journeyman.errors import UsageError
from journeyman.tasks.app import App
from journeyman.tasks.outcomes import Again, GivenBack, Outcome, TaskDone
from journeyman.tasks.running import Prepared
from journeyman.tasks.worker.worker import Worker

logger = logging.getLogger("journeyman.worker")

RESTART_S = 1.0  # a process that dies at once is not started more often
LOOK_S = 0.5  # between two looks at the source files
SUPERVISED = "JOURNEYMAN_SUPERVISED"  # in the environment of processes that are started again
_SKIPPED = {"node_modules", "__pycache__", "site-packages"}


def load_app(where: str) -> App:
    """Import ``MODULE:APP`` (``:app`` may be left out). Raises UsageError."""
    module_name, _, attribute = where.partition(":")
    if sys.path[0] != "" and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and module_name.startswith(error.name or " "):
            place = f"in {os.getcwd()} or on PYTHONPATH"
            hint = ""
            if (stem := module_name.removesuffix(".py")) != module_name:
                hint = f"; write {stem}:{attribute or 'app'}"
            elif _is_module(parent := module_name.rpartition(".")[0]):
                hint = f"; write {parent}:{module_name.rpartition('.')[2]}"
            raise UsageError(f"no module {module_name!r} {place}{hint}") from None
        raise UsageError(f"cannot import {module_name}: {_described(error)}") from error
    app = getattr(module, attribute or "app", None)
    if not isinstance(app, App):
        found = [name for name, value in vars(module).items() if isinstance(value, App)]
        hint = f"; did you mean {module_name}:{found[0]}?" if found else "; add `app = jm.App()`"
        raise UsageError(f"{module_name} has no App called {attribute or 'app'!r}{hint}")
    return app


def _is_module(name: str) -> bool:
    try:
        return bool(name) and find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _described(error: Exception) -> str:
    """Describe an error in one line, with the line of the source."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # says itself where
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({last.filename}, line {last.lineno})"


def run_worker(worker: Worker, *, grace_s: float) -> int:
    """The exit code: 0, or 1 if jobs were still running ``grace_s`` after the signal."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_until_stopped(worker, grace_s))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_until_stopped(worker, grace_s))


async def _until_stopped(worker: Worker, grace_s: float) -> int:
    loop = asyncio.get_running_loop()
    running = loop.create_task(worker.run())
    signals = 0

    def heard() -> None:
        nonlocal signals
        signals += 1
        worker.stop()
        if signals == 1:
            loop.call_later(grace_s, running.cancel)
        else:
            running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, heard)
    try:
        await running
    except asyncio.CancelledError:
        if not worker.in_hand:
            return 0
        logger.warning("%d jobs were running; they come again after their lease", worker.in_hand)
        return 1
    return 0


def supervise(
    command: Sequence[str], processes: int, *, reload: Path | None = None, burst: bool = False
) -> int:
    """Run copies of a command until SIGTERM or SIGINT, or each until it ends; the exit code."""
    stopping = False

    def heard(_number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heard)
    children: dict[int, subprocess.Popen[bytes]] = {}
    started = dict.fromkeys(range(processes), 0.0)
    seen = dict(_sources(reload)) if reload else {}
    failed_at_once = False
    is_once = burst and reload is None
    while not stopping:
        if reload and (now := dict(_sources(reload))) != seen:
            seen = now
            failed_at_once = False
            logger.info("a source file changed: starting again")
            _stop(children)
            children.clear()
        for place in range(processes):
            child = children.get(place)
            if child is not None and (child.poll() is None or is_once):
                continue
            if child is not None:
                level = logging.WARNING if child.returncode else logging.INFO
                logger.log(
                    level, "worker process %d ended with code %d", child.pid, child.returncode
                )
                failed_at_once = reload is not None
                del children[place]
            if not failed_at_once and time.monotonic() - started[place] > RESTART_S:
                started[place] = time.monotonic()
                environment = {**os.environ, SUPERVISED: "1"}
                children[place] = subprocess.Popen(command, env=environment)
        if is_once and all(child.poll() is not None for child in children.values()):
            break
        time.sleep(LOOK_S)
    _stop(children)
    codes = [child.returncode for child in children.values()]
    return max((1 if code < 0 else code for code in codes), default=0)  # below 0: by a signal


def _stop(children: dict[int, subprocess.Popen[bytes]]) -> None:
    for child in children.values():
        child.terminate()
    for child in children.values():
        child.wait()


def _sources(root: Path) -> Iterator[tuple[str, int]]:
    """Python files and when they were changed."""
    for folder, names, files in os.walk(root):
        names[:] = [n for n in names if not n.startswith(".") and n not in _SKIPPED]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                try:
                    yield path, os.stat(path).st_mtime_ns
                except FileNotFoundError:
                    continue


MAX_PORT = 65535
UNKNOWN = "?"  # names that no task has: anyone can send one, and each label is kept for ever


def serve_metrics(where: str) -> Callable[[Prepared, Outcome, float], None]:
    """Listen on ``[HOST:]PORT``; what to call for every outcome."""
    try:
        from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
    except ModuleNotFoundError:
        raise UsageError("--metrics needs: pip install prometheus-client") from None
    host, _, port = where.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= MAX_PORT):
        raise UsageError(f"not a port: {where!r}; write for example 9100 or 0.0.0.0:9100")
    registry = CollectorRegistry()
    jobs = Counter(
        "journeyman_worker_jobs", "Attempts by outcome", ["task", "queue", "outcome"],
        registry=registry,
    )  # fmt: skip
    took = Histogram(
        "journeyman_worker_job_duration_seconds", "Time of an attempt", ["task"], registry=registry
    )
    try:
        start_http_server(int(port), host or "127.0.0.1", registry=registry)
    except OSError as error:
        raise UsageError(f"cannot serve metrics on {where}: {error.strerror or error}") from None

    def count(prepared: Prepared, outcome: Outcome, took_s: float) -> None:
        kind = "retry" if isinstance(outcome, Again) else "failed"
        if isinstance(outcome, GivenBack):
            kind = "given_back"
        if isinstance(outcome, TaskDone):
            kind = "done"
        name = UNKNOWN if prepared.task is None else prepared.name
        jobs.labels(name, prepared.delivery.queue, kind).inc()
        took.labels(name).observe(took_s)

    return count

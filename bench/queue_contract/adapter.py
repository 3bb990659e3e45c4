"""A producer, a worker and a server whose logs are in PostgreSQL, in one process of the contract.

    DATABASE_URL=postgres://bench@127.0.0.1:15555/journeyman_bench SCENARIO=long_horizon \
        PRODUCER_RATE=600 WORKER_COUNT=32 python -m bench.queue_contract.adapter

The contract is CONTRIBUTING_ADAPTERS.md of github.com/hardbyte/postgresql-job-queue-benchmarking:
variables of the environment say what to do, stdout has a line of JSON for each figure, stderr is a
log, SIGTERM ends it. Everything here uses the public API of tasks and clients.

Replicas have the same port (JOURNEYMAN_PORT) and the same database: the first server is active, the
others stand by, and the workers of all replicas take their jobs from the active one. A server that
ends, as it does when its database is away for long, is started again, as a service manager would.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import journeyman as jm
from journeyman.client import AsyncWorkQueue
from journeyman.tasks.worker import Worker

HERE = Path(__file__).parent
QUEUE = "bench"
LEASE_S = 15.0  # jobs of a killed replica come back after so long
WINDOW_S = 30.0
KEPT_LATENCIES = 32_768
PERCENTILES = (50, 95, 99)
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


class Adapter:
    """See the module."""

    def __init__(self) -> None:
        self.instance = number("BENCH_INSTANCE_ID", 0)
        self.rate = number("PRODUCER_RATE", 800)
        self.batch_max = number("PRODUCER_BATCH_MAX", 128)
        self.batch_s = number("PRODUCER_BATCH_MS", 25) / 1000
        self.sample_s = number("SAMPLE_EVERY_S", 5)
        self.port = number("JOURNEYMAN_PORT", 15556)
        self.padding = "x" * number("JOB_PAYLOAD_BYTES", 256)
        self.work_s = number("JOB_WORK_MS", 1) / 1000
        notes = os.environ.get("JOURNEYMAN_BENCH_NOTES")
        self.notes = open(notes, "a", buffering=1) if notes else None  # noqa: SIM115 - until the end
        self.tried = self.sent = self.completed = self.depth = 0
        self.latencies: deque[tuple[float, float]] = deque(maxlen=KEPT_LATENCIES)
        self.stopping = asyncio.Event()
        self.app = jm.App(f"journeyman://127.0.0.1?work_queue={self.port}", queue=QUEUE)
        self.job = self.app.task(name="job", lease=LEASE_S)(self._work)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self.stopping.set)
        manifest = json.loads((HERE / "adapter.json").read_text())
        self._say(
            {"kind": "descriptor", "version": jm.__version__, "schema_version": "1"}
            | {"started_at": _now(), **manifest}
        )
        worker = Worker(self.app, concurrency=number("WORKER_COUNT", 32), kind="asyncio")
        parts = [self._serve(), worker.run(), self._produce(), self._watch_depth(), self._sample()]
        running = [loop.create_task(part) for part in parts]
        stopped = loop.create_task(self.stopping.wait())
        await asyncio.wait([*running, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in running:
            task.cancel()
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _work(self, name: str, created_ns: int, padding: str) -> None:
        del padding
        self.latencies.append((time.monotonic(), (time.time_ns() - created_ns) / 1e6))
        await asyncio.sleep(self.work_s)
        self.completed += 1
        self._note("done", [name])

    # -- the server --------------------------------------------------------------------------------

    async def _serve(self) -> None:
        parts = urlsplit(os.environ["DATABASE_URL"])
        environment = dict(os.environ) | ({"PGPASSWORD": parts.password} if parts.password else {})
        user = f"{parts.username}@" if parts.username else ""
        database = f"postgresql://{user}{parts.hostname}:{parts.port or 5432}{parts.path}"
        command = [sys.executable, "-m", "journeyman", "serve", "--data", database]
        command += ["--workq-listen", f"127.0.0.1:{self.port}", "--cmdlog-sync", "always"]
        for service in ("controller", "kestrel", "http"):
            command += ["--set", f"{service}.enabled=false"]
        while True:
            server = await asyncio.create_subprocess_exec(
                *command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                preexec_fn=_die_with_the_adapter,
            )
            try:
                await server.wait()
                await asyncio.sleep(1)
            finally:
                if server.returncode is None:
                    server.terminate()
                    await server.wait()

    # -- the producer ------------------------------------------------------------------------------

    async def _produce(self) -> None:
        if os.environ.get("PRODUCER_MODE") == "depth-target":
            await self._keep_depth(number("TARGET_DEPTH", 1000))
        elif os.environ.get("PRODUCER_PACING") == "harness":
            await self._send_what_stdin_says()
        else:
            await self._keep_rate()

    async def _keep_depth(self, target: int) -> None:
        while True:
            waiting = max(self.depth, self.sent - self.completed)
            if waiting >= target:
                await asyncio.sleep(0.002)
            else:
                await self._send(min(self.batch_max, target - waiting))

    async def _send_what_stdin_says(self) -> None:
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        while line := await lines.readline():
            verb, _, count = line.decode().partition(" ")
            if verb == "ENQUEUE":
                await self._send(int(count))
        await self.stopping.wait()

    async def _keep_rate(self) -> None:
        credit, last_s = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(self.batch_s)
            now_s = time.monotonic()
            credit += self._rate_now() * (now_s - last_s)
            last_s = now_s
            # As many as time has earned, also after a pause: the offered rate is what was asked.
            while credit >= 1:
                count = min(self.batch_max, int(credit))
                credit -= count
                await self._send(count)

    def _rate_now(self) -> float:
        """The other benchmark changes the rate, for its phases of high load, in a file."""
        control = os.environ.get("PRODUCER_RATE_CONTROL_FILE")
        try:
            return float(Path(control).read_text()) if control else self.rate
        except (OSError, ValueError):
            return self.rate

    async def _send(self, count: int) -> None:
        now_ns = time.time_ns()
        # No other life of a replica has a job of the same name.
        names = [f"{os.getpid()}-{self.tried + number}" for number in range(count)]
        self.tried += count
        try:
            await jm.group(self.job.call(name, now_ns, self.padding) for name in names).asend()
        except (jm.JourneymanError, OSError) as error:
            print(f"not sent: {error}", file=sys.stderr)
            await asyncio.sleep(0.1)
            return
        self.sent += count
        self._note("sent", names)

    # -- figures -----------------------------------------------------------------------------------

    async def _watch_depth(self) -> None:
        while self.instance == 0:
            try:
                async with AsyncWorkQueue(port=self.port) as queue:
                    while True:
                        info = await queue.inspect_queue(QUEUE)
                        self.depth = info.ready if info else 0
                        await asyncio.sleep(0.5)
            except (jm.JourneymanError, OSError):
                await asyncio.sleep(1)
        await self.stopping.wait()

    async def _sample(self) -> None:
        sent, completed, last_s = self.sent, self.completed, time.monotonic()
        while True:
            await asyncio.sleep(self.sample_s - time.time() % self.sample_s)
            now_s = time.monotonic()
            passed_s, last_s = now_s - last_s, now_s
            recent = sorted(ms for at_s, ms in self.latencies if at_s > now_s - WINDOW_S)
            for percent in PERCENTILES if recent else ():
                value = recent[min(len(recent) - 1, len(recent) * percent // 100)]
                self._show(f"claim_p{percent}_ms", value, WINDOW_S)
            self._show("enqueue_rate", (self.sent - sent) / passed_s, self.sample_s)
            self._show("completion_rate", (self.completed - completed) / passed_s, self.sample_s)
            sent, completed = self.sent, self.completed
            if self.instance == 0:  # it belongs to all replicas
                self._show("queue_depth", self.depth, 0)

    def _show(self, metric: str, value: float, window_s: float) -> None:
        subject = {"kind": "adapter", "subject_kind": "adapter", "subject": ""}
        figure = {"metric": metric, "value": round(value, 3), "window_s": window_s}
        self._say({"t": _now(), "system": "journeyman", **subject, **figure})

    def _say(self, line: dict[str, object]) -> None:
        print(json.dumps(line), flush=True)

    def _note(self, what: str, names: list[str]) -> None:
        """For who counts what was lost: what was acknowledged, and what was done."""
        if self.notes:
            self.notes.write("".join(f"{what} {name}\n" for name in names))


def _die_with_the_adapter() -> None:
    """Called in the new process: a replica that is killed takes its server with it."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


if __name__ == "__main__":
    if os.environ.get("SCENARIO", "long_horizon") != "long_horizon":
        raise SystemExit("only SCENARIO=long_horizon is there")
    asyncio.run(Adapter().run())

"""``journeyman soak``: hours of mixed load with kills, to be run before a server is trusted.

A server of its own, in a directory of its own, gets jobs on all three ports. Meanwhile it is killed
with SIGKILL and started again, compacted and backed up. With its data in PostgreSQL there are two
servers, and each kill is a takeover. Every number that was acknowledged is one bit in memory, so
that hours of load need little of it:

    work queue   add, lease, complete      an acknowledged job reaches a worker
    schedule     set a job again and again its time is the last one acknowledged, or the one after
    fan-out      put, get                  an acknowledged item is read in the end

Memory, open files and the time of an add are sampled every minute. They must not drift: the last
quarter of the samples is compared with the first.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click

from journeyman import client
from journeyman.cli.output import FiniteRange, counted
from journeyman.errors import JourneymanError

_QUEUE = "soak"
_TTL_MS = 120_000  # ended jobs are forgotten, so memory can be flat
_TTR_MS = 5_000
_FAR_NS = 4_000_000_000_000_000_000  # a job of the schedule that never becomes due
_SCHEDULED = 1000
_PATIENCE_S = 120.0
_SAMPLE_S = 60.0
_UPKEEP_S = 300.0
_START_S = 120.0


class NumberSet:
    """A set of numbers that are given out in order: one bit for each."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._lock = threading.Lock()
        self.count = 0

    def add(self, number: int) -> None:
        byte, bit = divmod(number, 8)
        with self._lock:
            if byte >= len(self._bits):
                self._bits.extend(bytes(max(1024, byte - len(self._bits) + 1)))
            if not self._bits[byte] >> bit & 1:
                self._bits[byte] |= 1 << bit
                self.count += 1

    def missing_from(self, other: NumberSet) -> list[int]:
        """Return the numbers of this set that another set lacks."""
        theirs = other._bits + bytes(max(0, len(self._bits) - len(other._bits)))
        return [
            byte * 8 + bit
            for byte, (here, there) in enumerate(zip(self._bits, theirs, strict=False))
            if here & ~there
            for bit in range(8)
            if (here & ~there) >> bit & 1
        ]


@dataclass(frozen=True, slots=True)
class ServerSample:
    """The server at one moment; ``add_s`` is the median time of the adds since the last sample."""

    memory_mb: float
    open_files: int
    add_s: float


@dataclass
class Record:
    """The answers that clients received: what the server must still have after a kill."""

    added: NumberSet = field(default_factory=NumberSet)
    completed: NumberSet = field(default_factory=NumberSet)
    put: NumberSet = field(default_factory=NumberSet)
    read: NumberSet = field(default_factory=NumberSet)
    add_s: deque[float] = field(default_factory=lambda: deque(maxlen=10_000))
    scheduled: dict[int, tuple[int, int]] = field(default_factory=dict)  # acknowledged, tried
    problems: list[str] = field(default_factory=list)
    kills: int = 0


class Site:
    """One place where a server runs: its ports and its process."""

    def __init__(self, data: str, messages: Path) -> None:
        self.schedule, self.work, self.fan_out, self.http = _free_ports(4)
        self.messages = messages
        self._command = [sys.executable, "-m", "journeyman", "serve", "--data", data]
        for option, port in (
            ("--listen", self.schedule),
            ("--workq-listen", self.work),
            ("--kestrel-listen", self.fan_out),
            ("--http-listen", self.http),
        ):
            self._command += [option, f"127.0.0.1:{port}"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.messages.open("ab") as messages:
            self._process = subprocess.Popen(self._command, stdout=messages, stderr=messages)

    def end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def wait_until_it_answers(self) -> None:
        """Wait until the server is active; a standby answers only that it is one."""
        deadline = time.monotonic() + _START_S
        while True:
            try:
                with client.Schedule("127.0.0.1", self.schedule) as schedule:
                    schedule.stat()
                return
            except client.ClientError as error:
                has_ended = self._process is None or self._process.poll() is not None
                if has_ended or time.monotonic() > deadline:
                    raise JourneymanError(
                        f"the server does not start: {error}; {self.messages} has its messages"
                    ) from error
                time.sleep(0.1)

    def measure(self, add_s: float) -> ServerSample:
        """Sample memory and open files, from /proc."""
        assert self._process is not None
        process = Path(f"/proc/{self._process.pid}")
        status = (process / "status").read_text().splitlines()
        resident = next(line for line in status if line.startswith("VmRSS"))
        return ServerSample(
            int(resident.split()[1]) / 1024, len(list((process / "fd").iterdir())), add_s
        )


class Servers:
    """The server under load, and its standby if the data is in a database."""

    def __init__(self, place: Path, data: str) -> None:
        self.data = data
        count = 2 if "://" in data else 1
        self._sites = [Site(data, place / f"server-{n}.log") for n in range(count)]
        self.active = self._sites[0]

    def start(self) -> None:
        for site in self._sites:
            site.start()
            self.active.wait_until_it_answers()

    def kill(self) -> None:
        """Kill the active server; the standby takes over, or the same one starts again."""
        killed = self.active
        killed.end(signal.SIGKILL)
        self.active = self._sites[self._sites.index(killed) - 1]
        killed.start()
        self.active.wait_until_it_answers()

    def stop(self) -> None:
        for site in self._sites:
            site.end(signal.SIGTERM)


class Load:
    """Threads that send and receive until they are stopped; each connects again after a kill."""

    def __init__(self, servers: Servers, record: Record, rate: float) -> None:
        self._servers = servers
        self._record = record
        self._pause_s = 1.0 / rate
        self._stops_sending = threading.Event()
        self._stops = threading.Event()
        self._senders = self._threads(self._stops_sending, self._add, self._set, self._put)
        self._receivers = self._threads(self._stops, self._work, self._work, self._read)
        self._next = {"add": 0, "put": 0, "set": 0}

    def _threads(
        self, stop: threading.Event, *turns: Callable[[threading.Event], None]
    ) -> list[threading.Thread]:
        return [
            threading.Thread(target=self._repeat, args=(turn, stop), daemon=True) for turn in turns
        ]

    def start(self) -> None:
        for thread in (*self._senders, *self._receivers):
            thread.start()

    def end_sending(self) -> None:
        """Return once nothing more is acknowledged: what was sent last is to be received, too."""
        self._stops_sending.set()
        for thread in self._senders:
            thread.join(_PATIENCE_S)

    def end(self) -> None:
        self._stops.set()
        for thread in self._receivers:
            thread.join(_PATIENCE_S)

    def _repeat(self, turns: Callable[[threading.Event], None], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                turns(stop)
            except client.ClientError:  # killed just now: what was not acknowledged may be lost
                stop.wait(0.2)
            except Exception as error:  # noqa: BLE001 - a thread that ends in silence proves nothing
                self._record.problems.append(f"{turns.__name__}: {error!r}")
                return

    def _number(self, kind: str) -> int:
        self._next[kind] += 1
        return self._next[kind]

    def _add(self, stop: threading.Event) -> None:
        with client.WorkQueue("127.0.0.1", self._servers.active.work) as queue:
            while not stop.is_set():
                number = self._number("add")
                began_s = time.monotonic()
                queue.add(_QUEUE, b"%d" % number, ttr_ms=_TTR_MS, ttl_ms=_TTL_MS)
                self._record.add_s.append(time.monotonic() - began_s)
                self._record.added.add(number)
                stop.wait(self._pause_s)

    def _work(self, stop: threading.Event) -> None:
        with client.WorkQueue("127.0.0.1", self._servers.active.work) as queue:
            while not stop.is_set():
                for job in queue.lease_many(_QUEUE, wait_ms=500, max_jobs=20):
                    # Before the answer: a completion whose answer a kill takes away may count.
                    self._record.completed.add(int(job.payload))
                    queue.complete(job.job_id, attempt=job.attempt)

    def _set(self, stop: threading.Event) -> None:
        with client.Schedule("127.0.0.1", self._servers.active.schedule) as schedule:
            while not stop.is_set():
                number = self._number("set")
                which = number % _SCHEDULED
                acknowledged, _ = self._record.scheduled.get(which, (0, 0))
                self._record.scheduled[which] = acknowledged, number
                schedule.set(f"soak.{which}", _FAR_NS + number)
                self._record.scheduled[which] = number, number
                stop.wait(self._pause_s)

    def _put(self, stop: threading.Event) -> None:
        with client.KestrelClient("127.0.0.1", self._servers.active.fan_out) as queues:
            while not stop.is_set():
                number = self._number("put")
                if queues.put(_QUEUE, b"%d" % number):
                    self._record.put.add(number)
                stop.wait(self._pause_s)

    def _read(self, stop: threading.Event) -> None:
        with client.KestrelClient("127.0.0.1", self._servers.active.fan_out) as queues:
            while not stop.is_set():
                item = queues.open(_QUEUE, wait_ms=500)
                if item is not None:
                    self._record.read.add(int(item))
                    queues.confirm(_QUEUE)


@click.command()
@click.option("--hours", type=FiniteRange(0.001, 10_000), default=1.0, show_default=True,
              help="How long.")  # fmt: skip
@click.option("--data", metavar="DIR|URL", help="Where the server keeps its data: an empty "
              "directory or database. [default: a temporary directory]")  # fmt: skip
@click.option("--kill-every", type=FiniteRange(1, 86_400), default=60.0, show_default=True,
              metavar="SECONDS", help="Time between two kills, on average.")  # fmt: skip
@click.option("--rate", type=FiniteRange(1, 100_000), default=200.0, show_default=True,
              help="Jobs per second and port, at most.")  # fmt: skip
def soak(hours: float, data: str | None, kill_every: float, rate: float) -> int:
    """Load a server of its own for hours, kill it, and check every answer.

    Exits with 1 if something acknowledged is lost, or if memory, open files or the time of an add
    grow. The server runs on free ports of this machine, beside whatever else runs here.
    """
    place = Path(tempfile.mkdtemp(prefix="journeyman-soak-"))
    record = Record()
    servers = Servers(place, data or str(place / "data"))
    servers.start()
    load = Load(servers, record, rate)
    load.start()
    samples = _disturb(servers, record, place, time.monotonic() + hours * 3600, kill_every)
    load.end_sending()
    _drain(record)
    load.end()
    problems = [*record.problems, *_losses(servers.active, record), *_drifts(samples)]
    servers.stop()
    for problem in problems:
        click.echo(problem)
    click.echo(
        f"{record.added.count} jobs, {record.put.count} items and {len(record.scheduled)} plans "
        f"acknowledged, {counted(record.kills, 'kill')}: "
        + ("nothing lost, no drift" if not problems else f"failed; the files are in {place}")
    )
    if not problems:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if problems else 0


def _disturb(
    servers: Servers, record: Record, place: Path, until_s: float, kill_every_s: float
) -> list[ServerSample]:
    """Kill, compact, back up and sample until the time is over."""
    chance = random.Random()
    samples: list[ServerSample] = []
    began_s = now_s = time.monotonic()
    kill_s = now_s + kill_every_s * chance.uniform(0.5, 1.5)
    sample_s, upkeep_s = now_s + _SAMPLE_S, now_s + _UPKEEP_S
    while (now_s := time.monotonic()) < until_s:
        if now_s >= kill_s:
            servers.kill()
            record.kills += 1
            kill_s = time.monotonic() + kill_every_s * chance.uniform(0.5, 1.5)
        elif now_s >= sample_s:
            times = sorted(record.add_s)
            record.add_s.clear()
            samples.append(servers.active.measure(median(times) if times else 0.0))
            latest = samples[-1]
            click.echo(
                f"{(now_s - began_s) / 60:.0f} min: {record.completed.count} jobs done, "
                f"{record.kills} kills, {latest.memory_mb:.0f} MB, "
                f"{latest.open_files} open files, add {latest.add_s * 1000:.2f} ms",
                err=True,
            )
            sample_s = now_s + _SAMPLE_S
        elif now_s >= upkeep_s:
            _keep_up(servers, record, place)
            upkeep_s = time.monotonic() + _UPKEEP_S
        time.sleep(0.1)
    return samples


def _keep_up(servers: Servers, record: Record, place: Path) -> None:
    """Compact and back up while the load goes on, as an operator would."""
    command = [sys.executable, "-m", "journeyman", "backup", str(place / "vault"), "--keep", "2"]
    command += ["--data", servers.data]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        record.problems.append(f"the backup failed: {done.stderr.strip()}")
    for service in ("schedule", "work"):
        request = urllib.request.Request(
            f"http://127.0.0.1:{servers.active.http}/v1/log/compact",
            json.dumps({"service": service}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            urllib.request.urlopen(request, timeout=_START_S).close()
        except OSError as error:
            record.problems.append(f"compacting the log of the {service} failed: {error}")


def _drain(record: Record) -> None:
    """Wait until all that was acknowledged has been worked on, or nothing happens for too long."""
    done, since_s = -1, time.monotonic()
    while record.added.missing_from(record.completed) or record.put.missing_from(record.read):
        now_done = record.completed.count + record.read.count
        if now_done != done:
            done, since_s = now_done, time.monotonic()
        if time.monotonic() - since_s > _PATIENCE_S:
            return
        time.sleep(0.5)


def _losses(server: Site, record: Record) -> list[str]:
    """Return a sentence for each kind of acknowledged work that is not there."""
    problems = []
    for name, here, there in (
        ("jobs of the work queue", record.added, record.completed),
        ("items of the fan-out queue", record.put, record.read),
    ):
        lost = here.missing_from(there)
        if lost:
            problems.append(f"lost {len(lost)} {name}, the first of them number {lost[0]}")
    with client.Schedule("127.0.0.1", server.schedule) as schedule:
        for which, expected in sorted(record.scheduled.items()):
            job = schedule.get(f"soak.{which}")
            number = 0 if job is None else job.execution_ns - _FAR_NS
            if number not in expected and expected[0]:
                problems.append(f"job soak.{which} of the schedule is at {number}: not {expected}")
    return problems


def _free_ports(count: int) -> list[int]:
    """Return ports of this machine that nothing listens on now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _drifts(samples: list[ServerSample]) -> list[str]:
    """Return a sentence for each figure whose last quarter is far above its first."""
    quarter = len(samples) // 4
    if not quarter:
        return []
    problems = []
    limits = (("memory_mb", 1.3, 20.0), ("open_files", 1.2, 20.0), ("add_s", 3.0, 0.01))
    for name, limit, slack in limits:
        first = median(getattr(sample, name) for sample in samples[:quarter])
        last = median(getattr(sample, name) for sample in samples[-quarter:])
        if last > first * limit + slack:
            problems.append(f"{name} grew from {first:g} to {last:g}")
    return problems

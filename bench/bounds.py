"""What clients and jobs can do to a server: memory of replies nobody reads, and pauses of others.

python -m bench.bounds                    every question
python -m bench.bounds unread programs    some of them
python -m bench.bounds --source DIR/src   of another source tree, to compare

unread      one client asks 4,000 times for a job of 1 MiB and reads nothing
unread_500  500 such clients; meanwhile another one that reads is asked how long it waits
lists       50 clients ask for a list of 60 jobs of 1 MiB, over HTTP and over workq
programs    1,000 programs are due at once; how long STAT takes meanwhile
queries     40 clients QUERY 200,000 jobs and read slowly; how long GET takes meanwhile
rules       3,900 rules with patterns of different lengths, 1,000 jobs due; how long GET takes
names       200,000 leases of queues that nobody adds to
restart     resident memory and time of a restart on 60,000 jobs, and on a million
every       what is printed: memory in MB, times in milliseconds
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from journeyman.units import MIB

JOB_BYTES = 1_000_000
SOURCE = ""
_LISTENS = re.compile(r"listen(?:s|ing) on \S+:(\d+)")


def _port_of(line: str) -> str:
    return "HTTP" if "HTTP" in line else "work" if "work queue" in line else "listening"


class Server:
    """A `journeyman serve` of its own on ports that the system chooses."""

    def __init__(self, directory: Path, settings: Mapping[str, object]) -> None:
        chosen: dict[str, object] = {
            "controller.listen": "127.0.0.1:0",
            "http.listen": "127.0.0.1:0",
            "workq.enabled": "true",
            "workq.listen": "127.0.0.1:0",
            "kestrel.enabled": "false",
            "database.persistence": "memory",
            "history.enabled": "false",
            "log.level": "info",
            **settings,
        }
        command = [sys.executable, "-m", "journeyman", "serve"]
        for name, value in chosen.items():
            command += ["--set", f"{name}={value}"]
        env = dict(os.environ, **({"PYTHONPATH": SOURCE} if SOURCE else {}))
        begin = time.monotonic()
        self.process = subprocess.Popen(
            command, cwd=directory, env=env, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.ports: dict[str, int] = {}
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if found := _LISTENS.search(line):
                self.ports[_port_of(line)] = int(found[1])
            if "HTTP" in self.ports:
                break
        assert self.process.poll() is None, self.lines
        self.start_s = time.monotonic() - begin
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    def connect(self, port: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports[port]), timeout=60)

    def status(self, key: str) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{key}:\s+(\d+)", text)
        assert found is not None
        return int(found[1]) / 1024

    @property
    def resident_mb(self) -> float:
        return self.status("VmRSS")

    @property
    def peak_mb(self) -> float:
        return self.status("VmHWM")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(**settings: object) -> Iterator[Server]:
    directory = Path(tempfile.mkdtemp(prefix="bounds"))
    server = Server(directory, {name.replace("__", "."): value for name, value in settings.items()})
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)


class Pulse:
    """Asks again and again, and keeps how long each answer took."""

    def __init__(self, server: Server, port: str, question: bytes, end: bytes) -> None:
        self._socket = server.connect(port)
        self._question, self._end = question, end
        self._stopping = threading.Event()
        self.took_ms: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            begin = time.monotonic()
            self._socket.sendall(self._question)
            answer = b""
            while self._end not in answer:
                answer += self._socket.recv(65536)
            self.took_ms.append((time.monotonic() - begin) * 1000)
            time.sleep(0.002)

    def __str__(self) -> str:
        took = sorted(self.took_ms)
        median, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
        return f"{len(took)} answers, median {median:.1f}, p99 {p99:.1f}, longest {took[-1]:.1f} ms"


def read_lines(connection: socket.socket, count: int) -> None:
    seen = 0
    while seen < count:
        data = connection.recv(MIB)
        assert data
        seen += data.count(b"\n")


def add_large(server: Server, queue: str, jobs: int) -> str:
    with server.connect("work") as client:
        for _ in range(jobs):
            job_id = str(uuid.uuid4())
            head = f"add {job_id} {queue} 60000 86400000 {JOB_BYTES}\r\n".encode()
            client.sendall(head + b"x" * JOB_BYTES + b"\r\n")
            read_lines(client, 1)
    return job_id


def ask_unread(server: Server, port: str, question: bytes, clients: int) -> list[socket.socket]:
    """Connections that send all of it, or as much as is taken, and read nothing."""
    connections = []
    for _ in range(clients):
        connection = server.connect(port)
        connection.setblocking(False)
        with suppress(BlockingIOError):
            connection.send(question)
        connections.append(connection)
    return connections


def watch_memory(server: Server, seconds: float) -> float:
    highest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        highest = max(highest, server.resident_mb)
        time.sleep(0.05)
    return highest


def unread(clients: int = 1) -> None:
    with serving() as server:
        job_id = add_large(server, "q", 1)
        before = server.resident_mb
        with Pulse(server, "work", b"inspect server\r\n", b"started") as pulse:
            kept = ask_unread(server, "work", f"inspect job {job_id}\r\n".encode() * 4000, clients)
            highest = watch_memory(server, 10)
        print(f"unread x{clients}: {before:.0f} -> {highest:.0f} MB; others: {pulse}")
        print(f"    {sum('do not read' in line for line in server.lines)} warnings")
        for each in kept:
            each.close()


def lists() -> None:
    for port, question in (
        ("HTTP", b"GET /queues/q/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ("work", b"inspect jobs q 0 100\r\n" * 10),
    ):
        with serving() as server:
            add_large(server, "q", 60)
            before = server.resident_mb
            kept = ask_unread(server, port, question, 50)
            highest = watch_memory(server, 10)
            print(f"lists over {port}, 50 clients: {before:.0f} -> {highest:.0f} MB")
            for each in kept:
                each.close()


def programs() -> None:
    with serving(schedule__max_runs=1000) as server, server.connect("listening") as client:
        client.sendall(b"r RULE SET rule job. shell true\n")
        client.sendall(b"".join(b"s SET job.%d 4102444800\n" % n for n in range(1000)))
        read_lines(client, 1001)
        with Pulse(server, "listening", b"p STAT\n", b"p OK") as pulse:
            time.sleep(0.5)
            begin = time.monotonic()
            client.sendall(b"".join(b"s SET job.%d 0\n" % n for n in range(1000)))
            read_lines(client, 1000)
            wait_for_no_jobs(server, b"planned")
            wait_for_no_jobs(server, b"triggered")
            took_s = time.monotonic() - begin
        print(f"programs: 1,000 ended in {took_s:.1f} s; STAT: {pulse}")


def wait_for_no_jobs(server: Server, status: bytes) -> None:
    with server.connect("listening") as client:
        while True:
            client.sendall(b"w STAT\n")
            answer = b""
            while b"w OK" not in answer:
                answer += client.recv(65536)
            if re.search(rb"jobs_%b 0\b" % status, answer):
                return
            time.sleep(0.05)


def queries() -> None:
    with serving() as server, server.connect("listening") as client:
        for begin in range(0, 200_000, 1000):
            names = range(begin, begin + 1000)
            client.sendall(b"".join(b"s SET job.%d 4102444800000000000\n" % n for n in names))
            read_lines(client, 1000)
        readers = [server.connect("listening") for _ in range(40)]
        stopping = threading.Event()

        def read_slowly() -> None:
            while not stopping.is_set():
                for reader in readers:
                    reader.setblocking(False)
                    try:
                        reader.recv(256 * 1024)
                    except BlockingIOError:
                        continue
                time.sleep(0.01)

        slow = threading.Thread(target=read_slowly)
        with Pulse(server, "listening", b"p GET job.7\n", b"\n") as pulse:
            time.sleep(0.5)
            for reader in readers:
                reader.sendall(b"q QUERY\n" * 3)
            slow.start()
            end = time.monotonic() + 10
            number = 0
            while time.monotonic() < end:  # changes, so that lists need copies
                names = range(number, number + 100)
                client.sendall(b"".join(b"s SET job.%d 4102444800000000000\n" % n for n in names))
                read_lines(client, 100)
                number = (number + 977) % 199_000
            stopping.set()
            slow.join()
        print(f"queries: GET: {pulse}; {server.resident_mb:.0f} MB")


def rules() -> None:
    with serving() as server, server.connect("listening") as client:
        for length in range(1, 3901):
            client.sendall(b"r RULE SET r%d %b shell true\n" % (length, b"a" * (length - 1) + b"z"))
        read_lines(client, 3900)
        jobs = [b"s SET %b.%d 0\n" % (b"a" * 3900, n) for n in range(1000)]
        with Pulse(server, "listening", b"p GET x\n", b"\n") as pulse:
            time.sleep(0.5)
            for job in jobs:
                client.sendall(job)
            read_lines(client, 1000)
            wait_for_no_jobs(server, b"planned")
        print(f"rules: GET: {pulse}")


def names() -> None:
    with serving() as server, server.connect("work") as client:
        before = server.resident_mb
        for begin in range(0, 200_000, 1000):
            client.sendall(b"".join(b"lease name-%d 0\r\n" % n for n in range(begin, begin + 1000)))
            read_lines(client, 1000)
        print(f"names: {before:.0f} -> {server.resident_mb:.0f} MB after 200,000 leases")


def restart() -> None:
    for jobs in (60_000, 1_000_000):
        directory = Path(tempfile.mkdtemp(prefix="bounds"))
        settings = {"workq.cmdlog_path": "cmdlog", "workq.cmdlog_sync": "os"}
        server = Server(directory, settings)
        with server.connect("work") as client:
            for begin in range(0, jobs, 1000):
                adds = (
                    f"add {uuid.UUID(int=n, version=4)} q{n % 7} 60000 86400000 100\r\n"
                    f"{'x' * 100}\r\n"
                    for n in range(begin, begin + 1000)
                )
                client.sendall("".join(adds).encode())
                read_lines(client, 1000)
        at_work = server.resident_mb
        server.process.terminate()
        server.process.wait()
        server = Server(directory, settings)
        time.sleep(1)
        print(
            f"restart on {jobs:,} jobs of 100 bytes: {at_work:.0f} MB before, "
            f"{server.resident_mb:.0f} MB after, peak {server.peak_mb:.0f} MB, "
            f"ready in {server.start_s:.2f} s"
        )
        server.close()
        shutil.rmtree(directory)


QUESTIONS: dict[str, Callable[[], None]] = {
    "unread": unread,
    "unread_500": lambda: unread(500),
    "lists": lists,
    "programs": programs,
    "queries": queries,
    "rules": rules,
    "names": names,
    "restart": restart,
}


def main() -> None:
    global SOURCE
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("questions", nargs="*", metavar="QUESTION")
    parser.add_argument("--source", default="", help="the src directory of another tree")
    arguments = parser.parse_args()
    SOURCE = arguments.source
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    for name in arguments.questions or QUESTIONS:
        QUESTIONS[name]()


if __name__ == "__main__":
    main()

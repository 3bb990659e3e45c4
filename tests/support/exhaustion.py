"""Servers that run out of something: each function uses it up, and checks that the rest goes on.

    memory        1,000 clients ask for megabytes and read nothing, below a hard limit on memory
    descriptors   more connections than files may be open; logs are still rotated and compacted
    queues        more fan-out queues than are allowed
    names         very many rules and timetables
    children      very many jobs are due at once; then no program can be started at all
    disk          a small file system is full; room comes back; the server is killed

Each returns a line that says what it did. NotPossible: this machine does not allow it.
"""

from __future__ import annotations

import resource
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from journeyman.units import MIB
from tests.support.crash.acknowledged import COMMANDS, Sender, job_id
from tests.support.servers.schedule_process import LineClient
from tests.support.servers.whole_process import WholeProcess
from tests.support.servers.workq_process import WorkqClient

ROOM_BYTES = 512 * MIB  # beyond what an idle server has
PAYLOAD = bytes(MIB - 1)


class NotPossible(Exception):
    """This machine has no right or program for it."""


def memory(directory: Path, clients: int = 1_000) -> str:
    settings = {"workq.cmdlog_sync": "os"}
    with WholeProcess(directory, settings=settings) as server, ExitStack() as deaf:
        pid = server.process.pid
        limit = _status_bytes(pid, "VmSize") + ROOM_BYTES
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
        with WorkqClient(server.ports["work"]) as client:
            ids = [client.add("q", PAYLOAD) for _ in range(5)]
            questions = b"".join(f"inspect job {each}\r\n".encode() for each in ids) * 20
            for _ in range(clients):
                deaf.enter_context(_ask(server.ports["work"], questions))
            server.wait_for_line("clients that do not read their replies were closed")
            assert client.ask(f"delete {ids[0]}") == "+OK"
        assert server.ask("1 SET fine 4000000000000000000") == "1 OK"
        peak = _status_bytes(pid, "VmHWM")
        assert server.process.poll() is None
        return f"{clients} clients that read nothing: at most {peak // MIB} MiB in memory"


def descriptors(directory: Path, files: int = 256) -> str:
    settings = {
        "database.compression_interval": "1",
        "workq.cmdlog_seg_size": "700",
        "kestrel.segment_bytes": "1024",
    }
    prefix = ["prlimit", f"--nofile={files}:{files}"]
    with WholeProcess(directory, settings=settings, prefix=prefix) as server, ExitStack() as idle:
        sender = Sender(server.ports)
        for number in range(2 * files):
            port = list(server.ports.values())[number % 3]
            idle.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        assert sender.send(COMMANDS), sender.refused
        sender.close()
        server.wait_for_line("the log was compacted")
        return f"{2 * files} connections with {files} files: {len(COMMANDS)} commands answered"


def queues(directory: Path, most: int = 1_000) -> str:
    with WholeProcess(directory, settings={"kestrel.max_queues": str(most)}) as server:
        with WorkqClient(server.ports["fan-out"]) as client:
            client.send("".join(f"set q{n} 0 0 1\r\nx\r\n" for n in range(most + 10)))
            answers = [client.read_line() for _ in range(most + 10)]
        assert answers[:most] == ["STORED"] * most
        assert all(answer.startswith("SERVER_ERROR") for answer in answers[most:])
        assert server.ask("1 SET fine 4000000000000000000") == "1 OK"
        return f"{most} fan-out queues made, 10 more refused"


def names(directory: Path, count: int = 5_000) -> str:
    with WholeProcess(directory) as server, server.client() as client:
        _all_ok(client, [f"1 RULE SET r{n} p{n}. shell true" for n in range(count)])
        _all_ok(client, [f"1 TIMETABLE SET t{n} every 1h run shell true" for n in range(count)])
        assert client.ask("1 SET p1.fine 4000000000000000000") == "1 OK"
        size = _status_bytes(server.process.pid, "VmRSS")
        return f"{count} rules and {count} timetables: {size // MIB} MiB in memory"


def children(directory: Path, jobs: int = 300, most: int = 20) -> str:
    if shutil.which("strace") is None:
        raise NotPossible("there is no strace")
    with WholeProcess(directory, settings={"schedule.max_runs": str(most)}) as server:
        with server.client() as client:
            _all_ok(client, ['1 RULE SET r job. shell "until [ -e go ]; do sleep 0.1; done"'])
            _all_ok(client, [f"1 SET job.{n} 1700000000000000000" for n in range(jobs)])
        server.wait_until(lambda: _children(server.process.pid) >= most, "all that may run")
        seen = _children(server.process.pid)
        assert seen <= most + 1, seen  # and the one that ends them with a killed server
        (directory / "go").touch()
        server.wait_until(lambda: int(server.stat()["jobs_executed"]) == jobs, "all have run")
    calls = "vfork,fork,clone"  # threads come from clone3
    fault = ["-e", f"trace={calls}", "-e", f"inject={calls}:error=EAGAIN:when=1+"]
    second = directory / "second"
    second.mkdir()
    prefix = ["strace", "-f", "-o", "/dev/null", *fault]
    with WholeProcess(second, prefix=prefix) as server:
        with server.client() as client:
            _all_ok(client, ["1 RULE SET r job. shell true"])
            _all_ok(client, [f"1 SET job.{n} 1700000000000000000" for n in range(jobs)])
        server.wait_until(lambda: int(server.stat()["jobs_failed"]) == jobs, "all have failed")
        assert server.ask("1 SET fine 4000000000000000000") == "1 OK"
        server.kill()
    return f"{jobs} jobs due at once: {seen} processes; without any, {jobs} jobs failed"


def disk(directory: Path, size: int = 4 * MIB) -> str:
    data = directory / "data"
    data.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(data)]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    if mounted.returncode:
        raise NotPossible(mounted.stderr.strip())
    try:
        return _fill(directory, data, size)
    finally:
        subprocess.run(["umount", data], check=True)


def _fill(directory: Path, data: Path, size: int) -> str:
    ballast = data / "ballast"
    ballast.write_bytes(bytes(size // 4))
    added: list[str] = []
    with WholeProcess(directory) as server:
        with WorkqClient(server.ports["work"]) as client:
            while (answer := client.ask(_large_job(len(added)), bytes(10_000))) == "+OK":
                added.append(answer)
            assert answer.startswith("-SERVER-ERROR"), answer
            assert client.ask(f"delete {job_id(len(added))}") == "-NOT-FOUND"
            assert server.ask("1 GET none").startswith("1 ERROR not_found")
            ballast.unlink()
            again = _large_job(len(added) + 1)
            server.wait_until(lambda: client.ask(again, bytes(10_000)) == "+OK", "there is room")
        assert server.ask("1 SET fine 4000000000000000000") == "1 OK"
        server.kill()
    with WholeProcess(directory) as server, WorkqClient(server.ports["work"]) as client:
        found = [client.ask(f"delete {job_id(n)}") for n in range(len(added) + 2)]
        assert found == [*added, "-NOT-FOUND", "+OK"]
        assert server.ask("1 GET fine").startswith("1 OK")
    return f"a full disk refused the {len(added) + 1}th job; with room again, and a kill, all hold"


def _large_job(number: int) -> str:
    return f"add {job_id(number)} q 60000 60000000 10000"


LANES: Mapping[str, Callable[[Path], str]] = {
    "memory": memory,
    "descriptors": descriptors,
    "queues": queues,
    "names": names,
    "children": children,
    "disk": disk,
}


def _children(pid: int) -> int:
    """Programs that run now, with those that they have started counted as one."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sum(len(each.read_text().split()) for each in tasks)


def _ask(port: int, questions: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.sendall(questions)
    return client


def _all_ok(client: LineClient, lines: list[str]) -> None:
    for first in range(0, len(lines), 100):
        client.send(*lines[first : first + 100])
        for line in lines[first : first + 100]:
            assert client.read_line() == "1 OK", line


def _status_bytes(pid: int, name: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) * 1024

"""Clients that ask and do not read: what they can make the server hold is bounded, in bytes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from journeyman.units import MIB
from tests.support.servers.fanout_process import FanOutProcess
from tests.support.servers.http_client import ask
from tests.support.servers.schedule_process import ScheduleProcess
from tests.support.servers.workq_process import WorkqProcess

BUDGET = 8 * MIB
CLIENTS = 40
# What the clients may cost beyond the budget: what each of them has sent and is not yet executed
# (up to 256 KiB that were received at once), and what the allocator keeps of freed blocks.
ALLOWED = BUDGET + CLIENTS * 512 * 1024 + 40 * MIB


def peak_bytes(server: ScheduleProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.fixture
def work(tmp_path: Path) -> Iterator[WorkqProcess]:
    settings = {"limits.total_unsent_bytes": BUDGET, "http.listen": "127.0.0.1:0"}
    with WorkqProcess(tmp_path, memory=True, settings=settings) as server:
        yield server


def ask_without_reading(port: int, question: bytes, clients: int = CLIENTS) -> list[socket.socket]:
    deaf = []
    for _ in range(clients):
        each = socket.create_connection(("127.0.0.1", port), timeout=30)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        each.setblocking(False)
        each.send(question)
        deaf.append(each)
    return deaf


def close_all(deaf: list[socket.socket]) -> None:
    for each in deaf:
        each.close()


@pytest.mark.parametrize("what", ["job {id}", "jobs q 0 100"])
def test_large_jobs_that_nobody_reads(work: WorkqProcess, what: str):
    payload = bytes(MIB - 1)
    with work.worker() as client:
        ids = [client.add("q", payload) for _ in range(20)]
        begin = peak_bytes(work)
        question = f"inspect {what.format(id=ids[0])}\r\n".encode() * 1000
        deaf = ask_without_reading(work.workq_port, question)
        work.wait_for_line("clients that do not read their replies were closed")
        # Whoever reads is served all the while, also with something large.
        job = client.lease("q")
        assert job is not None
        assert job.payload == payload
        assert client.job(job.job_id)["payload"] == payload.decode()
        assert peak_bytes(work) - begin < ALLOWED
        close_all(deaf)


def test_lists_over_http_that_nobody_reads(work: WorkqProcess):
    with work.worker() as client:
        for _ in range(60):
            client.add("q", b"x" * (MIB - 1))
        begin = peak_bytes(work)
        # More pages than the buffers of the system take from the server.
        question = b"GET /v1/work/jobs?queue=q&limit=100 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20
        clients = 4 * CLIENTS  # each has at least 64 KiB unsent when it is paused
        deaf = ask_without_reading(work.http_port, question, clients)
        work.wait_for_line("clients that do not read their replies were closed")
        assert client.inspect("queue q") != "-NOT-FOUND"
        assert peak_bytes(work) - begin < ALLOWED + clients * 256 * 1024
        close_all(deaf)


def test_a_list_of_large_jobs_over_http_comes_in_pages_of_bounded_size(work: WorkqProcess):
    with work.worker() as client:
        ids = [client.add("q", b"x" * (MIB // 2)) for _ in range(5)]
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        status, page = ask(work, "GET", f"/v1/work/jobs?queue=q&limit=100&cursor={cursor}")
        assert status == 200
        assert len(page["jobs"]) <= 2
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
    assert seen == ids[::-1]


def test_small_replies_that_nobody_reads(tmp_path: Path):
    with ScheduleProcess(tmp_path, limits__total_unsent_bytes=MIB) as server:
        begin = peak_bytes(server)
        deaf = ask_without_reading(server.port, b"s STAT\n" * 20_000, 8)
        server.wait_for_line("clients that do not read their replies were closed")
        assert server.ask("g GET x").startswith("g ERROR")
        assert peak_bytes(server) - begin < ALLOWED
        close_all(deaf)


def test_items_that_nobody_reads(tmp_path: Path):
    with (
        FanOutProcess(tmp_path, limits__total_unsent_bytes=BUDGET) as server,
        server.reader() as client,
    ):
        for reader in range(CLIENTS):
            assert client.get(f"q+{reader}") is None
        for _ in range(8):
            assert client.put("q", bytes(MIB)) == "STORED"
        begin = peak_bytes(server)
        deaf = []
        for reader in range(CLIENTS):
            question = f"get q+{reader}\r\n".encode() * 8
            deaf += ask_without_reading(server.fanout_port, question, 1)
        server.wait_for_line("clients that do not read their replies were closed")
        assert client.put("other", b"x") == "STORED"
        assert client.get("other") == b"x"
        # Each reader has one item that waits to be sent, and has read the next from the disk.
        assert peak_bytes(server) - begin < ALLOWED + 2 * CLIENTS * MIB
        close_all(deaf)

"""Connections of the work queue: who waits, who leaves, who misbehaves."""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from collections.abc import Iterator

import pytest

from tests.support.servers.workq_process import WorkqClient, WorkqProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkqProcess]:
    with WorkqProcess(tmp_path_factory.mktemp("workq"), memory=True) as running:
        yield running


@pytest.fixture
def name() -> str:
    return f"q{uuid.uuid4().hex}"


def active(client: WorkqClient) -> int:
    (found,) = client.blocks("server")
    return int(found["active-clients"])


def reset(client: WorkqClient) -> None:
    """Close so that the other side sees a reset."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("leave", ["close", "reset", "half_close"])
@pytest.mark.parametrize("ahead", ["", "inspect server\r\n" * 50])
def test_worker_that_leaves_while_it_waits_gets_no_job(
    server: WorkqProcess, name: str, leave: str, ahead: str
):
    with server.worker() as client:
        server.wait_until(lambda: active(client) == 1, "those of other tests are gone")
        worker = server.worker()
        worker.send(f"lease {name} 60000\r\n{ahead}")
        server.wait_until(lambda: client.inspect(f"queue {name}") != "-NOT-FOUND", "it waits")
        if leave == "reset":
            reset(worker)
        else:
            getattr(worker, leave)()
        server.wait_until(lambda: active(client) == 1, "it is gone")
        job_id = client.add(name)
        job = client.lease(name)
        assert job is not None
        assert job.job_id == job_id
        assert client.job(job_id)["attempts"] == "1"
        worker.close()


def test_client_that_leaves_takes_its_foreground_job_with_it(server: WorkqProcess, name: str):
    job_id = str(uuid.uuid4())
    with server.worker() as client:
        other = server.worker()
        other.send(f"run {job_id} {name} 1000 60000 0\r\n\r\n")
        server.wait_until(lambda: client.inspect(f"job {job_id}") != "-NOT-FOUND", "it is there")
        other.close()
        server.wait_until(lambda: client.inspect(f"job {job_id}") == "-NOT-FOUND", "it is gone")
        assert client.lease(name) is None


def test_commands_before_the_end_of_input_are_answered(server: WorkqProcess, name: str):
    job_id = uuid.uuid4()
    added = f"add {job_id} {name} 1000 60000 2\r\nhi\r\n"
    with server.worker() as client:
        client.send(f"{added}lease {name} 5\r\nlease {name} 60000\r\n")
        client.half_close()
        answer = f"+OK\r\n+OK 1\r\n{job_id} {name} 1000 2\r\nhi\r\n-TIMEOUT\r\n"
        assert client.read_to_the_end() == answer.encode()


@pytest.mark.parametrize("waiting", ["result {id} 300", "lease {other} 60000", "run"])
def test_replies_are_in_step_after_a_half_close(server: WorkqProcess, name: str, waiting: str):
    """The command that waits is answered, and so is the one behind it."""
    if waiting == "run":
        waiting = f"run {uuid.uuid4()} {name}-other 1000 60000 2\r\nhi"
    with server.worker() as client:
        job_id = client.add(name)
        waiting = waiting.format(id=job_id, other=f"{name}-other")
        client.send(f"{waiting}\r\ndelete {job_id}\r\n")
        client.half_close()
        assert client.read_to_the_end() == b"-TIMEOUT\r\n+OK\r\n"


def test_result_that_comes_after_a_half_close_is_delivered(server: WorkqProcess, name: str):
    with server.worker() as client, server.worker() as waiter:
        job_id = client.add(name)
        assert client.lease(name) is not None
        waiter.send(f"result {job_id} 60000\r\n")
        waiter.half_close()
        assert client.ask(f"complete {job_id} 2", b"ok") == "+OK"
        assert waiter.read_to_the_end() == f"+OK 1\r\n{job_id} 1 2\r\nok\r\n".encode()


def test_queue_that_only_a_lease_has_named_is_gone_with_it(server: WorkqProcess, name: str):
    with server.worker() as client:
        assert client.ask(f"lease {name} 1") == "-TIMEOUT"
        assert client.inspect(f"queue {name}") == "-NOT-FOUND"


def test_waiting_command_holds_up_only_its_own_connection(server: WorkqProcess, name: str):
    with server.worker() as waiter, server.worker() as client:
        waiter.send(f"lease {name} 60000\r\ninspect queue {name}\r\n")
        assert client.inspect("server") != []
        client.add(name, b"x")
        assert waiter.read_leased() is not None
        assert waiter.read_line() == "+OK 1"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"\n",
        b"x" * 1_100_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",
    ],
)
def test_what_is_no_workq_is_closed_without_an_answer(server: WorkqProcess, sent: bytes):
    with server.worker() as client:
        sender = threading.Thread(target=_send, args=(client, sent))
        sender.start()
        assert client.read_to_the_end() == b""
        sender.join()


def _send(client: WorkqClient, data: bytes) -> None:
    try:
        client.send(data)
    except OSError:
        return  # closed in the middle of it: that is what is tested


def test_payload_over_the_limit_is_passed_over(server: WorkqProcess, name: str):
    with server.worker() as client:
        size = 3_000_000
        client.send(f"add {uuid.uuid4()} {name} 1000 60000 {size}\r\n")
        assert client.read_line() == "-CLIENT-ERROR Invalid payload size"
        client.send(b"delete x\r\n" * (size // 10) + b"\r\n")
        assert client.inspect(f"queue {name}") == "-NOT-FOUND"


def test_client_that_fetches_nothing_does_not_fill_the_memory(server: WorkqProcess, name: str):
    """It asks for more than the system keeps for it; the others are served."""
    with server.worker() as client:
        client.add(name, b"x" * 1_000_000)
    begin = resident_bytes(server)
    lazy = server.worker()
    lazy.socket.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, 65536
    )  # else the system may keep all
    lazy.socket.settimeout(2)
    try:
        for _ in range(2000):
            lazy.send(f"inspect jobs {name} 0 1\r\n" * 100)
    except TimeoutError:
        pass  # nothing more is taken from it
    else:
        raise AssertionError("everything was taken from a client that fetches nothing")
    with server.worker() as client:
        assert client.inspect(f"queue {name}") != "-NOT-FOUND"
    assert resident_bytes(server) - begin < 300 * 1024 * 1024
    reset(lazy)


def resident_bytes(server: WorkqProcess) -> int:
    with open(f"/proc/{server.process.pid}/status") as status:
        (line,) = (line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_hundreds_of_workers_wait_at_once(server: WorkqProcess, name: str):
    workers = [server.worker() for _ in range(300)]
    for worker in workers:
        worker.send_lease(name, wait=60_000)
    with server.worker() as client:
        for _ in workers:
            client.add(name)
        leased = [worker.read_leased() for worker in workers]
        assert len({job.job_id for job in leased if job}) == len(workers)
    for worker in workers:
        worker.close()

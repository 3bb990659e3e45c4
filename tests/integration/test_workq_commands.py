"""The work queue through a real server: what workers and clients see."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.workq_process import WorkqClient, WorkqProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkqProcess]:
    with WorkqProcess(tmp_path_factory.mktemp("workq"), ledger__path="ledger") as running:
        yield running


@pytest.fixture
def client(server: WorkqProcess) -> Iterator[WorkqClient]:
    with server.worker() as connected:
        yield connected


@pytest.fixture
def name() -> str:
    """A queue that nobody else uses."""
    return f"q{uuid.uuid4().hex}"


def test_job_goes_from_add_to_result(client: WorkqClient, name: str):
    job_id = client.add(name, b"\r\nany\x00bytes\xff", ttr=1234)
    job = client.lease(name)
    assert job is not None
    assert job == (job_id, name, 1234, b"\r\nany\x00bytes\xff")
    assert client.result(job_id) == "-TIMEOUT"
    assert client.finish(job_id, b"done") == "+OK"
    assert client.result(job_id) == client.result(job_id) == (True, b"done")
    assert client.finish(job_id) == "-CLIENT-ERROR Duplicate result"


def test_wait_of_zero_returns_a_ready_job_every_time(client: WorkqClient, name: str):
    ids = [client.add(name) for _ in range(50)]
    found = [client.lease(name) for _ in range(51)]
    assert [job.job_id if job else None for job in found] == [*ids, None]


def test_queues_of_one_lease_are_chosen_alike(client: WorkqClient, name: str):
    names = [f"{name}.{part}" for part in "abc"]
    for each in names:
        client.send("".join(f"add {uuid.uuid4()} {each} 1000 60000 0\r\n\r\n" for _ in range(200)))
        assert [client.read_line() for _ in range(200)] == ["+OK"] * 200
    found = [client.lease(*names) for _ in range(300)]
    counts = Counter(job.name for job in found if job)
    assert sum(counts.values()) == 300
    assert all(60 <= counts[each] <= 140 for each in names), counts


def test_every_worker_that_waits_gets_one_of_as_many_jobs(server: WorkqProcess, name: str):
    workers = [server.worker() for _ in range(20)]
    for worker in workers:
        worker.send_lease(name, f"{name}.other", wait=20_000)
    with server.worker() as client:
        server.wait_until(lambda: client.inspect(f"queue {name}") != "-NOT-FOUND", "leases arrived")
        ids = {client.add(name) for _ in range(20)}
    found = [worker.read_leased() for worker in workers]
    assert {job.job_id for job in found if job} == ids
    for worker in workers:
        worker.close()


def test_fail_is_retried_until_max_fails_and_the_job_is_dead(client: WorkqClient, name: str):
    job_id = client.add(name, flags="-max-fails=2")
    assert client.lease(name) is not None
    assert client.finish(job_id, b"first", command="fail") == "+OK"
    assert client.result(job_id) == "-TIMEOUT"
    assert client.job(job_id)["state"] == "3"
    assert client.lease(name) is not None
    assert client.finish(job_id, b"second", command="fail") == "+OK"
    assert client.result(job_id) == (False, b"second")
    dead = client.blocks(f"dead-jobs {name} 0 10")
    assert [block["id"] for block in dead] == [job_id]
    assert client.lease(name) is None


def test_dead_job_is_requeued_and_begins_anew(client: WorkqClient, name: str):
    job_id = client.add(name, b"again")
    assert client.ask(f"requeue {job_id}") == "-CLIENT-ERROR Job is not dead"
    assert client.finish(job_id, command="fail") == "+OK"
    assert client.ask(f"requeue {job_id}") == "+OK"
    job = client.lease(name)
    assert job is not None
    assert (job.job_id, job.payload) == (job_id, b"again")
    shown = client.job(job_id)
    assert (shown["attempts"], shown["fails"], shown["state"]) == ("1", "0", "4")
    assert client.inspect(f"dead-jobs {name} 0 10") == []
    assert client.ask(f"requeue {uuid.uuid4()}") == "-NOT-FOUND"


def test_retry_waits_for_its_delay(client: WorkqClient, name: str):
    for delay_s in (0.4, 4.0, 40.0):  # a busy machine needs a longer one
        queue = f"{name}.{delay_s}"
        job_id = client.add(queue, flags=f"-max-fails=3 -retry-delay={delay_s * 1000:.0f}")
        assert client.lease(queue) is not None
        failed = time.monotonic()
        assert client.finish(job_id, command="fail") == "+OK"
        early = client.lease(queue)
        waiting = client.blocks(f"scheduled-jobs {queue} 0 1")
        if time.monotonic() - failed < delay_s:
            break
    assert early is None
    assert [block["id"] for block in waiting] == [job_id]
    assert client.lease(queue, wait=50_000) is not None
    assert time.monotonic() - failed >= delay_s - 0.01


def test_paused_queue_gives_nothing_until_it_is_resumed(server: WorkqProcess, name: str):
    with server.worker() as client, server.worker() as worker:
        assert client.ask(f"pause {name}") == "+OK"
        job_id = client.add(name)
        assert client.lease(name) is None
        paused = client.blocks("paused-queues 0 100")
        assert name in [block["id"] for block in paused]
        worker.send_lease(name, wait=20_000)
        server.wait_until(lambda: waiting(client) > 0, "the worker waits")
        assert client.ask(f"resume {name}") == "+OK"
        job = worker.read_leased()
        assert job is not None
        assert job.job_id == job_id


def waiting(client: WorkqClient) -> int:
    """How many clients are connected, besides this one."""
    (found,) = client.blocks("server")
    return int(found["active-clients"]) - 1


def test_scheduled_job_comes_at_its_time(client: WorkqClient, name: str):
    for ahead_s in (2, 20):  # a busy machine needs more
        queue, due_s = f"{name}.{ahead_s}", int(time.time()) + ahead_s
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(due_s))
        answer = client.ask(f"schedule {uuid.uuid4()} {queue} 1000 60000 {moment} 3", b"due")
        early = client.lease(queue)
        if time.time() < due_s:
            break
    assert answer == "+OK"
    assert early is None
    job = client.lease(queue, wait=50_000)
    assert job is not None
    assert job.payload == b"due"
    assert time.time() >= due_s


def test_lease_that_runs_out_is_given_to_the_next(client: WorkqClient, name: str):
    job_id = client.add(name, ttr=200, flags="-max-attempts=2")
    first, second = client.lease(name), client.lease(name, wait=20_000)
    assert first == second
    assert client.result(job_id, wait=20_000) == (False, b"")
    assert client.job(job_id)["attempts"] == "2"


def test_foreground_job_is_answered_by_its_worker(server: WorkqProcess, name: str):
    job_id = str(uuid.uuid4())
    with server.worker() as client, server.worker() as worker:
        client.send(f"run {job_id} {name} 60000 60000 4\r\nping\r\n")
        job = worker.lease(name, wait=20_000)
        assert job is not None
        assert worker.finish(job_id, b"pong") == "+OK"
        assert client.read_result() == (True, b"pong")
        assert worker.inspect(f"job {job_id}") == "-NOT-FOUND"


def test_who_waits_for_the_result_of_a_deleted_job_is_told(server: WorkqProcess, name: str):
    with server.worker() as client, server.worker() as waiter:
        job_id = client.add(name)
        waiter.send(f"result {job_id} 20000\r\n")
        assert client.ask(f"delete {job_id}") == "+OK"
        assert waiter.read_line() == "-NOT-FOUND"


def test_many_commands_sent_ahead_in_small_pieces_are_all_taken(client: WorkqClient, name: str):
    ids = [str(uuid.uuid4()) for _ in range(2000)]
    sent = b"".join(
        b"add %b %b 1000 60000 %d\r\n%b\r\n" % (each.encode(), name.encode(), n % 300, b"\r" * n)
        for n, each in ((n % 300, each) for n, each in enumerate(ids))
    )
    for at in range(0, len(sent), 4093):
        client.send(sent[at : at + 4093])
    assert [client.read_line() for _ in ids] == ["+OK"] * len(ids)
    (queue,) = client.blocks(f"queue {name}")
    assert queue["ready-len"] == "2000"


def test_largest_payloads_come_back_whole(client: WorkqClient, name: str):
    payload = bytes(range(256)) * 4096
    for _ in range(12):
        client.add(name, payload)
    for _ in range(12):
        job = client.lease(name)
        assert job is not None
        assert job.payload == payload


def test_long_list_of_large_jobs_is_shown_whole(client: WorkqClient, name: str):
    payload = b"x" * 500_000
    ids = [client.add(name, payload) for _ in range(20)]
    found = client.blocks(f"jobs {name} 0 100")
    assert [block["id"] for block in found] == ids
    assert all(len(block["payload"]) == len(payload) for block in found)


def test_ids_that_killed_the_original_are_refused(client: WorkqClient):
    assert client.ask("inspect job urn:uuid:00000000-0000-4000-8000") == "-CLIENT-ERROR Invalid ID"
    assert client.ask("inspect server") == "+OK 1"


def test_memory_is_for_those_who_ask_for_it(tmp_path: Path, name: str):
    with WorkqProcess(tmp_path, memory=True) as server, server.worker() as client:
        server.wait_for_line("WARN the work queue is in memory only")
        client.add(name)
        assert client.ask(f"pause {name}.x") == "+OK"
        assert server.stop() == 0
        assert list(tmp_path.iterdir()) == []

"""What the work queue has beyond the original, over the wire and across restarts: with a log, and
in a store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from journeyman.client import (
    InvalidRequest,
    KestrelClient,
    NotFound,
    Refused,
    WorkJobState,
    WorkQueue,
)
from tests.support.servers.fanout_process import FanOutProcess
from tests.support.servers.workq_process import WorkqProcess


def begin(directory: Path) -> WorkqProcess:
    return WorkqProcess(directory, data__directory=directory / "data")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkqProcess]:
    with begin(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def queue(server: WorkqProcess) -> Iterator[WorkQueue]:
    with WorkQueue(port=server.workq_port, timeout_s=30.0) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a queue for this test alone."""
    return str(request.node.originalname)


def leased_ids(queue: WorkQueue, name: str, count: int = 100) -> list[UUID]:
    return [job.job_id for job in queue.lease_many(name, wait_ms=0, max_jobs=count)]


def test_several_jobs_are_leased_at_once_by_a_worker_with_a_name(queue: WorkQueue, name: str):
    ids = [queue.add(name, b"%d" % n, max_fails=3) for n in range(5)]
    first = queue.lease_many(name, wait_ms=0, max_jobs=3, worker="host-1")
    assert [job.job_id for job in first] == ids[:3]
    assert (first[0].attempt, first[0].fails, first[0].max_fails) == (1, 0, 3)
    found = queue.inspect_job(ids[0])
    assert found is not None
    assert found.worker == "host-1"
    queue.fail(ids[0])
    again = queue.lease_many(name, wait_ms=0, max_jobs=100)
    assert [job.job_id for job in again] == [ids[0], *ids[3:]]
    assert (again[0].attempt, again[0].fails) == (2, 1)
    assert queue.lease_many(name, wait_ms=1, max_jobs=100) == []


def test_lease_of_several_ends_with_a_megabyte(queue: WorkQueue, name: str):
    for _ in range(4):
        queue.add(name, bytes(600_000))
    assert len(queue.lease_many(name, wait_ms=0, max_jobs=100)) == 1
    assert len(queue.lease_many(name, wait_ms=0, max_jobs=100)) == 1


def touched_in_time(queue: WorkQueue, name: str) -> tuple[UUID, int]:
    """A job with a lease for a day, and the TTR it had; a busy machine needs a longer one."""
    for ttr_ms in (300, 3_000, 30_000):
        job = queue.add(name, ttr_ms=ttr_ms, max_attempts=1)
        assert leased_ids(queue, name) == [job]
        with suppress(Refused):
            queue.touch(job, ttr_ms=86_400_000)
            return job, ttr_ms
    raise AssertionError("no lease was touched in time")


def test_touched_lease_ends_later(queue: WorkQueue, name: str):
    with pytest.raises(Refused, match="Job is not leased"):
        queue.touch(queue.add(f"{name}.waiting"))
    job, ttr_ms = touched_in_time(queue, name)
    time.sleep(1.5 * ttr_ms / 1000)
    found = queue.inspect_job(job)
    assert found is not None
    assert found.state is WorkJobState.LEASED
    queue.touch(job, ttr_ms=1)
    ended = queue.result(job, wait_ms=30_000)
    assert ended is not None
    assert not ended.succeeded
    with pytest.raises(NotFound):
        queue.touch(uuid4())


def test_failure_may_choose_its_own_delay(queue: WorkQueue, name: str):
    job = queue.add(name, max_fails=5, retry_delay_ms=86_400_000)
    leased_ids(queue, name)
    queue.fail(job, b"soon", delay_ms=0)
    assert leased_ids(queue, name) == [job]
    queue.fail(job, b"later", delay_ms=86_400_000)
    assert leased_ids(queue, name) == []
    assert [each.job_id for each in queue.inspect_scheduled_jobs(name)] == [job]


def test_finished_job_can_be_replaced_and_an_unfinished_one_cannot(queue: WorkQueue, name: str):
    job = queue.add(name, b"1")
    for _ in range(2):
        with pytest.raises(Refused, match="Duplicate job"):
            queue.add(name, b"2", job_id=job, replace_finished=True)
        leased_ids(queue, name)
    queue.complete(job, b"done")
    with pytest.raises(Refused, match="Duplicate job"):
        queue.add(name, b"2", job_id=job)
    assert queue.add(name, b"2", job_id=job, replace_finished=True) == job
    assert [each.payload for each in queue.inspect_jobs(name)] == [b"2"]


def test_dead_jobs_are_requeued_in_slices(queue: WorkQueue, name: str):
    ids = [queue.add(name, b"x") for _ in range(5)]
    for job in ids:
        queue.fail(job)
    assert queue.requeue_all(name, limit=3) == 3
    assert queue.requeue_all(name, limit=3) == 2
    assert queue.requeue_all(name) == 0
    assert leased_ids(queue, name) == ids
    with pytest.raises(NotFound):
        queue.requeue_all("no-such-queue")


def test_results_of_many_jobs_come_in_one_request(queue: WorkQueue, name: str):
    jobs = [queue.add(name) for _ in range(250)]
    for number, each in enumerate(jobs[:200]):
        (queue.complete if number % 2 else queue.fail)(each, b"%d" % number)
    found = queue.results([*jobs, uuid4()])
    assert found[200:] == [None] * 51
    assert [each and each.result for each in found[:200]] == [b"%d" % n for n in range(200)]
    assert [each and each.succeeded for each in found[:4]] == [False, True, False, True]
    assert queue.results([]) == []


def test_concurrency_of_a_queue_is_limited(queue: WorkQueue, name: str):
    queue.limit(name, concurrency=2)
    ids = [queue.add(name) for _ in range(4)]
    assert leased_ids(queue, name) == ids[:2]
    assert leased_ids(queue, name) == []
    queue.complete(ids[0])
    assert leased_ids(queue, name) == [ids[2]]
    found = queue.inspect_queue(name)
    assert found is not None
    assert (found.ready, found.leased, found.concurrency) == (1, 2, 2)
    queue.limit(name)
    assert leased_ids(queue, name) == [ids[3]]


def test_concurrency_of_each_key_is_limited(queue: WorkQueue, name: str):
    queue.limit(name, key_concurrency=1)
    ids = [queue.add(name, key=key) for key in ("a", "a", "b", "a")]
    plain = queue.add(name)
    assert leased_ids(queue, name) == [ids[0], ids[2], plain]
    assert {job.job_id for job in queue.inspect_jobs(name)} == {ids[1], ids[3]}
    queue.complete(ids[0])
    assert leased_ids(queue, name) == [ids[1]]
    found = queue.inspect_job(ids[1])
    assert found is not None
    assert found.key == "a"


def test_keys_of_a_fair_queue_take_turns(queue: WorkQueue, name: str):
    queue.limit(name, fair=True, weights={"gold": 2})
    keys = ("a", "a", "a", "gold", "gold", "gold", "b")
    ids = [queue.add(name, key=key) for key in keys]
    turns = [ids[place] for place in (0, 3, 4, 6, 1, 5, 2)]
    assert leased_ids(queue, name) == turns
    found = queue.inspect_queue(name)
    assert found is not None
    assert (found.fair, found.weights) == (True, {"gold": 2})
    with pytest.raises(InvalidRequest, match="weight must be a whole number from 1 to 1000"):
        queue.limit(name, fair=True, weights={"gold": 0})
    with pytest.raises(Refused, match="Invalid Fair or Weights"):
        queue.limit(name, weights={"gold": 2})


def test_rate_of_a_queue_is_limited_and_who_waits_is_served(queue: WorkQueue, name: str):
    queue.limit(name, rate="2/1000ms")
    ids = [queue.add(name) for _ in range(3)]
    begun = time.monotonic()
    assert leased_ids(queue, name) == ids[:2]
    waited = queue.lease(name, wait_ms=30_000)
    assert waited is not None
    assert waited.job_id == ids[2]
    assert time.monotonic() - begun >= 0.9


def test_job_waits_for_others(queue: WorkQueue, name: str):
    first, second = queue.add(name), queue.add(name)
    child = queue.add(name, b"child", after=[first, second])
    last = queue.add(name, b"last", after=[child])
    found = queue.inspect_job(child)
    assert found is not None
    assert found.after == 2
    with pytest.raises(Refused, match="Duplicate job"):
        queue.add(name, job_id=child)
    assert leased_ids(queue, name) == [first, second]
    queue.complete(second)
    assert leased_ids(queue, name) == []
    queue.complete(first)
    assert leased_ids(queue, name) == [child]
    queue.complete(child)
    assert leased_ids(queue, name) == [last]
    with pytest.raises(Refused, match="Unknown parent"):
        queue.add(name, after=[uuid4()])


def test_children_of_a_failed_job_fail_unless_they_run_anyway(queue: WorkQueue, name: str):
    parent = queue.add(name)
    child = queue.add(name, after=[parent])
    grandchild = queue.add(name, after=[child])
    anyway = queue.add(name, after=[parent], even_failed=True)
    queue.fail(parent)
    for each in (child, grandchild):
        ended = queue.result(each)
        assert ended is not None
        assert not ended.succeeded
        assert b"failed or is gone" in ended.result
    assert leased_ids(queue, name) == [anyway]
    assert queue.requeue_all(name) == 3


def test_everything_survives_a_restart(tmp_path: Path):
    def start() -> WorkqProcess:
        return begin(tmp_path)

    with start() as server, WorkQueue(port=server.workq_port, timeout_s=30.0) as queue:
        queue.limit("rated", rate="1/d")
        queue.limit("keyed", key_concurrency=1, concurrency=5)
        queue.limit("paced", key_rate="1/d")
        queue.limit("fair", fair=True, weights={"b": 2})
        fair = [queue.add("fair", key=key) for key in "aaabbb"]
        paced = [queue.add("paced", key=key) for key in "aabb"]
        assert leased_ids(queue, "paced") == [paced[0], paced[2]]
        queue.complete(paced[0])  # these starts count all the same
        queue.delete(paced[2])
        rated = [queue.add("rated") for _ in range(2)]
        assert leased_ids(queue, "rated") == rated[:1]
        queue.delete(rated[0])  # its start counts all the same
        keyed = [queue.add("keyed", key="a") for _ in range(2)]
        assert leased_ids(queue, "keyed") == keyed[:1]
        delayed = queue.add("q", max_fails=3)
        soon = queue.add("q", max_fails=3, retry_delay_ms=86_400_000)
        touched = queue.add("q", ttr_ms=86_400_000)
        parent, over = queue.add("q"), queue.add("done")
        queue.complete(over)
        assert len(leased_ids(queue, "q")) == 4
        child = queue.add("q", b"child", after=[over, parent], key="k")
        queue.fail(delayed, delay_ms=86_400_000)
        queue.fail(soon, delay_ms=0)
        queue.touch(touched)
        server.kill()
    with start() as server, WorkQueue(port=server.workq_port, timeout_s=30.0) as queue:
        assert leased_ids(queue, "rated") == []
        assert leased_ids(queue, "keyed") == []
        assert leased_ids(queue, "paced") == []
        assert leased_ids(queue, "fair") == [fair[0], fair[3], fair[4], fair[1], fair[5], fair[2]]
        limited = queue.inspect_queue("paced")
        assert limited is not None
        assert (limited.key_rate, limited.ready) == ("1/86400000ms", 2)
        assert leased_ids(queue, "paced") == []
        queue.complete(keyed[0])
        assert leased_ids(queue, "keyed") == keyed[1:]
        assert [each.job_id for each in queue.inspect_scheduled_jobs("q")] == [delayed]
        assert leased_ids(queue, "q") == [soon]
        waiting = queue.inspect_job(child)
        assert waiting is not None
        assert (waiting.after, waiting.key, waiting.payload) == (1, "k", b"child")
        queue.complete(parent)
        assert leased_ids(queue, "q") == [child]
        server.kill()
    with start() as server, WorkQueue(port=server.workq_port, timeout_s=30.0) as queue:
        added = queue.inspect_job(child)
        assert added is not None
        assert (added.state, added.key, added.after) == (WorkJobState.LEASED, "k", 0)
        assert server.stop() == 0


def test_without_a_ledger_what_needs_one_is_refused(tmp_path: Path):
    with (
        WorkqProcess(tmp_path, ledger__enabled="false") as server,
        WorkQueue(port=server.workq_port, timeout_s=30.0) as queue,
    ):
        job = queue.add("q", max_fails=2)
        refused = "Not available without a ledger"
        for call in (
            lambda: queue.limit("q", concurrency=1),
            lambda: queue.add("q", key="a"),
            lambda: queue.add("q", after=[job]),
            lambda: queue.fail(job, delay_ms=5),
        ):
            with pytest.raises(Refused, match=refused):
                call()
        assert leased_ids(queue, "q") == [job]
        queue.touch(job)


def test_ends_of_jobs_are_put_on_a_fan_out_queue(tmp_path: Path):
    with FanOutProcess(
        tmp_path,
        settings={
            "workq.enabled": "true",
            "workq.listen": "127.0.0.1:0",
            "workq.cmdlog_path": str(tmp_path / "cmdlog"),
            "workq.events_to": "ends",
        },
    ) as server:
        port = int(server.wait_for_line(r"the work queue listens on [^\s\"]+?:(\d+)")[1])
        with (
            WorkQueue(port=port, timeout_s=30.0) as queue,
            KestrelClient(port=server.fanout_port, timeout_s=30.0) as items,
        ):
            job = queue.add("mail")
            queue.complete(job)
            item = items.get("ends", wait_ms=30_000)
    assert item is not None
    event = json.loads(item)
    assert (event["event"], event["job"], event["queue"]) == ("completed", str(job), "mail")

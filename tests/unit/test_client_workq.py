"""The client of the work queue, against exchanges recorded with the original."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from journeyman.client import AsyncWorkQueue, errors
from journeyman.client.workq import (
    JobInfo,
    LeasedJob,
    NewJob,
    QueueInfo,
    Result,
    WorkJobState,
    WorkQueue,
)
from tests.support.client_kinds import KINDS, kind_of
from tests.support.scripted_peer import Cut, Exchange, ScriptedPeer

ID = UUID("00000000-0000-4000-8000-000000000001")
OTHER = UUID("00000000-0000-4000-8000-000000000002")
ADD = b"add %s ping 1000 60000 4\r\nping\r\n"
OK = b"+OK\r\n"
DUPLICATE = b"-CLIENT-ERROR Duplicate job\r\n"


def add(job_id: UUID = ID) -> bytes:
    return ADD % str(job_id).encode()


def job(job_id: UUID = ID) -> NewJob:
    return NewJob(job_id, "ping", b"ping", 1000, 60_000)


@pytest.fixture(params=KINDS)
def queue_of(request: pytest.FixtureRequest) -> Any:
    return kind_of(request.param, WorkQueue, AsyncWorkQueue)


JOB_BLOCK = (
    b"00000000-0000-4000-8000-000000000012 12\r\nname q.add\r\nttr 1000\r\nttl 60000\r\n"
    b"payload-size 6\r\npayload a\r\nb\x00\xff\r\nmax-attempts 0\r\nattempts 0\r\nmax-fails 0\r\n"
    b"fails 0\r\npriority 0\r\nstate 4\r\ncreated 2026-11-15T18:56:51Z\r\n"
)
SCHEDULED_BLOCK = (
    b"00000000-0000-4000-8000-000000000115 13\r\nname sch\r\nttr 1000\r\nttl 60000\r\n"
    b"payload-size 4\r\npayload ping\r\nmax-attempts 2\r\nattempts 0\r\nmax-fails 1\r\n"
    b"fails 0\r\npriority 3\r\nstate 0\r\ncreated 2026-11-15T18:57:20Z\r\n"
    b"time 2026-11-15T18:57:22Z\r\n"
)


def test_jobs_are_added_with_their_flags_and_refusals_are_told(queue_of: Any):
    flags = b" -priority=-5 -max-attempts=3 -max-fails=1"
    script: list[Exchange] = [
        (add(), OK),
        (add(), DUPLICATE),
        (add().replace(b" 4\r\n", b" 4" + flags + b"\r\n"), OK),
        (b"add 00000000-0000-4000-8000-000000000001 ping 1000 60000 0\r\n\r\n", OK),
    ]
    with ScriptedPeer(script) as peer, queue_of(peer) as queue:
        assert queue.add("ping", b"ping", job_id=ID, ttr_ms=1000, ttl_ms=60_000) == ID
        with pytest.raises(errors.Refused, match="CLIENT-ERROR: Duplicate job"):
            queue.add("ping", b"ping", job_id=str(ID), ttr_ms=1000, ttl_ms=60_000)
        queue.add(
            "ping",
            b"ping",
            job_id=ID,
            ttr_ms=1000,
            ttl_ms=60_000,
            priority=-5,
            max_attempts=3,
            max_fails=1,
        )
        queue.add("ping", job_id=ID, ttr_ms=1000, ttl_ms=60_000)


def test_a_job_is_scheduled_in_utc_to_the_microsecond(queue_of: Any):
    head = b"schedule 00000000-0000-4000-8000-000000000001 ping 1000 60000 "
    script: list[Exchange] = [
        (head + b"2026-11-15T18:57:22Z 4\r\nping\r\n", OK),
        (head + b"2026-11-15T18:57:22.000005Z 4\r\nping\r\n", OK),
    ]
    when = datetime(2026, 11, 15, 20, 57, 22, tzinfo=timezone(timedelta(hours=2)))
    with ScriptedPeer(script) as peer, queue_of(peer) as queue:
        queue.schedule("ping", when, b"ping", job_id=ID, ttr_ms=1000, ttl_ms=60_000)
        later = when + timedelta(microseconds=5)
        queue.schedule("ping", later, b"ping", job_id=ID, ttr_ms=1000, ttl_ms=60_000)


def test_a_worker_leases_and_finishes(queue_of: Any):
    name = str(ID).encode()
    script: list[Exchange] = [
        (b"lease l1 1000\r\n", b"+OK 1\r\n" + name + b" l1 1500 6\r\na\r\nb\x00\xff\r\n"),
        (b"complete " + name + b" 4\r\npong\r\n", OK),
        (b"fail " + name + b" 0\r\n\r\n", b"-CLIENT-ERROR Duplicate result\r\n"),
        (b"complete " + name + b" 0\r\n\r\n", b"-NOT-FOUND\r\n"),
        (b"lease a b 0\r\n", b"-TIMEOUT\r\n"),
    ]
    with ScriptedPeer(script) as peer, queue_of(peer) as queue:
        assert queue.lease("l1", wait_ms=1000) == LeasedJob(ID, "l1", 1500, b"a\r\nb\x00\xff")
        queue.complete(ID, b"pong")
        with pytest.raises(errors.Refused, match="Duplicate result"):
            queue.fail(ID)
        with pytest.raises(errors.NotFound):
            queue.complete(ID)
        assert queue.lease("a", "b", wait_ms=0) is None


def test_results_are_waited_for(queue_of: Any):
    name = str(ID).encode()
    answer = b"+OK 1\r\n" + name + b" %d 4\r\npong\r\n"
    script: list[Exchange] = [
        (b"result " + name + b" 0\r\n", answer % 1),
        (b"result " + name + b" 5000\r\n", answer % 0),
        (b"result " + name + b" 100\r\n", b"-TIMEOUT\r\n"),
        (b"result " + name + b" 0\r\n", b"-NOT-FOUND\r\n"),
        (b"run " + name + b" rn 1000 5000 4\r\nping\r\n", answer % 1),
        (b"run " + name + b" rn 1000 200 0 -priority=7\r\n\r\n", b"-TIMEOUT\r\n"),
        (b"delete " + name + b"\r\n", OK),
        (b"delete " + name + b"\r\n", b"-NOT-FOUND\r\n"),
    ]
    with ScriptedPeer(script) as peer, queue_of(peer) as queue:
        assert queue.result(ID) == Result(ID, True, b"pong")
        assert queue.result(ID, wait_ms=5000) == Result(ID, False, b"pong")
        assert queue.result(ID, wait_ms=100) is None
        with pytest.raises(errors.NotFound):
            queue.result(ID)
        done = queue.run("rn", b"ping", wait_ms=5000, job_id=ID, ttr_ms=1000)
        assert done == Result(ID, True, b"pong")
        assert queue.run("rn", wait_ms=200, job_id=ID, ttr_ms=1000, priority=7) is None
        assert queue.delete(ID)
        assert not queue.delete(ID)


def test_inspection_tells_everything(queue_of: Any):
    server = b"+OK 1\r\nserver %d\r\nactive-clients 3\r\nevicted-jobs 1\r\n"
    server += b"started 2026-11-15T18:56:50Z\r\n"
    queues = b"+OK 2\r\natt 2\r\nready-len 0\r\nscheduled-len 4\r\n"
    queues += b"big 3\r\nready-len 1\r\nscheduled-len 0\r\nof-a-later-version yes\r\n"
    script: list[Exchange] = [
        (b"inspect job 00000000-0000-4000-8000-000000000012\r\n", b"+OK 1\r\n" + JOB_BLOCK),
        (b"inspect job 00000000-0000-4000-8000-000000000012\r\n", b"-NOT-FOUND\r\n"),
        (b"inspect scheduled-jobs sch 0 10\r\n", b"+OK 2\r\n" + SCHEDULED_BLOCK + JOB_BLOCK),
        (b"inspect jobs sch 0 100\r\n", b"+OK 0\r\n"),
        (b"inspect queues 0 100\r\n", queues),
        (b"inspect queue att\r\n", b"-NOT-FOUND\r\n"),
        (b"inspect server\r\n", server % 2),  # the original: one more than it says
        (b"inspect server\r\n", server % 3),
    ]
    number = UUID("00000000-0000-4000-8000-000000000012")
    created = datetime(2026, 11, 15, 18, 56, 51, tzinfo=UTC)
    leased = JobInfo(
        number,
        "q.add",
        1000,
        60_000,
        b"a\r\nb\x00\xff",
        0,
        0,
        0,
        0,
        0,
        WorkJobState.LEASED,
        created,
        None,
    )
    with ScriptedPeer(script) as peer, queue_of(peer) as queue:
        assert queue.inspect_job(number) == leased
        assert queue.inspect_job(number) is None
        scheduled, second = queue.inspect_scheduled_jobs("sch", limit=10)
        assert second == leased
        assert scheduled.time == datetime(2026, 11, 15, 18, 57, 22, tzinfo=UTC)
        assert (scheduled.max_attempts, scheduled.max_fails, scheduled.priority) == (2, 1, 3)
        assert queue.inspect_jobs("sch") == []
        assert queue.inspect_queues() == [QueueInfo("att", 0, 4), QueueInfo("big", 1, 0)]
        assert queue.inspect_queue("att") is None
        for _ in range(2):
            assert queue.inspect_server() == {
                "active-clients": "3",
                "evicted-jobs": "1",
                "started": "2026-11-15T18:56:50Z",
            }


def test_many_jobs_are_added_in_one_exchange_each_with_its_answer(queue_of: Any):
    script: list[Exchange] = [(add() + add(OTHER), OK + DUPLICATE)]
    bad = NewJob(OTHER, "no spaces", b"")
    with ScriptedPeer(script) as peer, queue_of(peer) as queue:
        (_, first), (_, second), (_, third) = queue.add_many([job(), bad, job(OTHER)])
    assert first is None
    assert second is not None
    assert "a name is 1 to 255" in str(second)
    assert third is not None
    assert third.reason == "Duplicate job"


def test_a_job_that_was_sent_before_the_connection_broke_is_not_added_twice(queue_of: Any):
    script: list[Exchange] = [
        (add() + add(OTHER), Cut),
        (add(), DUPLICATE),  # it had arrived
        (add(OTHER), OK),  # this one had not
    ]
    with ScriptedPeer(script) as peer, queue_of(peer) as queue:
        assert [refused for _, refused in queue.add_many([job(), job(OTHER)])] == [None, None]


def test_one_job_is_sent_again_once(queue_of: Any):
    script: list[Exchange] = [(add(), Cut), (add(), DUPLICATE)]
    with ScriptedPeer(script) as peer, queue_of(peer) as queue:
        assert queue.add("ping", b"ping", job_id=ID, ttr_ms=1000, ttl_ms=60_000) == ID
    broken = ScriptedPeer([(add(), Cut), (add(), Cut)])
    with broken as peer, queue_of(peer) as queue, pytest.raises(errors.ConnectionFailed):
        queue.add("ping", b"ping", job_id=ID, ttr_ms=1000, ttl_ms=60_000)


def test_what_must_not_be_done_twice_is_not_sent_twice(queue_of: Any):
    name = str(ID).encode()
    script: list[Exchange] = [
        (b"lease l1 1000\r\n", Cut),
        (b"complete " + name + b" 0\r\n\r\n", Cut),
        (b"inspect queues 0 100\r\n", Cut),
        (b"inspect queues 0 100\r\n", b"+OK 0\r\n"),
    ]
    with ScriptedPeer(script) as peer, queue_of(peer) as queue:
        with pytest.raises(errors.AnswerLost, match="lease l1 1000 may have happened, or not"):
            queue.lease("l1", wait_ms=1000)
        with pytest.raises(errors.AnswerLost, match="complete"):
            queue.complete(ID)
        assert queue.inspect_queues() == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda q: q.add("a b"), "a name is"),
        (lambda q: q.add("a\r\ndelete x"), "a name is"),
        (lambda q: q.add("q", bytes(1_048_577)), "at most 1048576"),
        (lambda q: q.add("q", job_id="x"), "must be a UUID"),
        (lambda q: q.add("q", job_id="6ba7b810-9dad-11d1-80b4-00c04fd430c4"), "of version 4"),
        (lambda q: q.add("q", ttr_ms=0), "ttr_ms must be a whole number from 1 to 86400000"),
        (lambda q: q.add("q", ttl_ms=2_592_000_001), "ttl_ms must be a whole number from 1 to"),
        (lambda q: q.add("q", priority=2**31), "priority must be a whole number"),
        (
            lambda q: q.add("q", max_attempts=256),
            "max_attempts must be a whole",
        ),
        (lambda q: q.schedule("q", datetime(2030, 1, 1)), "no time zone"),  # noqa: DTZ001
        (lambda q: q.lease(wait_ms=1), "needs the name of a queue"),
        (lambda q: q.lease("q", wait_ms=-1), "wait_ms must be a whole number from 0 to"),
        (lambda q: q.inspect_jobs("q", limit=101), "limit must be a whole number from 1 to 100"),
    ],
)
def test_what_would_be_misread_or_refused_is_not_sent(call, words):
    queue = WorkQueue(port=1)
    with pytest.raises((errors.InvalidRequest, errors.Refused), match=words):
        call(queue)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"+OK x\r\n",
        b"+OK 1\r\nid l1 1500\r\n",
        b"+OK 1\r\na b c d\r\n",
        b"+OK 1\r\na b 1 0\r\n\r\n",
    ],
)
def test_an_answer_of_another_program_is_said_to_be_one(answer, queue_of: Any):
    with (
        ScriptedPeer([(b"lease l1 1000\r\n", answer)]) as peer,
        queue_of(peer) as queue,
        pytest.raises(errors.BadAnswer),
    ):
        queue.lease("l1", wait_ms=1000)


def test_administration_and_retry_delays(queue_of: Any):
    name = str(ID).encode()
    queues = b"+OK 1\r\natt 2\r\nready-len 0\r\nscheduled-len 4\r\n"
    script: list[Exchange] = [
        (add().replace(b" 4\r\n", b" 4 -retry-delay=500\r\n"), OK),
        (b"pause ping\r\n", Cut),
        (b"pause ping\r\n", OK),
        (b"resume ping\r\n", OK),
        (b"inspect paused-queues 0 100\r\n", queues),
        (b"inspect dead-jobs ping 0 5\r\n", b"+OK 1\r\n" + JOB_BLOCK),
        (b"requeue " + name + b"\r\n", OK),
        (b"requeue " + name + b"\r\n", b"-CLIENT-ERROR Job is not dead\r\n"),
        (b"requeue " + name + b"\r\n", Cut),
    ]
    with ScriptedPeer(script) as peer, queue_of(peer) as queue:
        queue.add("ping", b"ping", job_id=ID, ttr_ms=1000, ttl_ms=60_000, retry_delay_ms=500)
        queue.pause("ping")
        queue.resume("ping")
        assert queue.inspect_paused_queues() == [QueueInfo("att", 0, 4)]
        assert [dead.name for dead in queue.inspect_dead_jobs("ping", limit=5)] == ["q.add"]
        queue.requeue(ID)
        with pytest.raises(errors.Refused, match="Job is not dead"):
            queue.requeue(ID)
        with pytest.raises(errors.AnswerLost):
            queue.requeue(ID)

"""The queue runner: the grammar of its rule, the job that a due job becomes, how a run ends."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID

import pytest

from journeyman.formats.ztick import WorkQueueRunner
from journeyman.protocols.workq.commands import Add
from journeyman.protocols.workq.readers import is_version_4
from journeyman.protocols.workq.salts import salted_id
from journeyman.protocols.ztick.grammar import queue_job, read_runner, runner_words, work_id
from journeyman.runners.contract import RunRequest, RunResult
from journeyman.runners.runner_set import QueueRunner

NS = 1_711_612_800_000_000_000


def job(*flags: str, name: str = "mail", job_id: str = "mail.1") -> Add:
    found = queue_job(WorkQueueRunner(name, flags), job_id, NS)
    assert isinstance(found, Add), found
    return found


def test_job_has_the_defaults_of_the_runner():
    found = job()
    assert (found.name, found.ttr_ms, found.ttl_ms) == ("mail", 60_000, 86_400_000)
    assert (found.priority, found.max_attempts, found.max_fails, found.retry_delay_ms) == (0,) * 4
    assert json.loads(found.payload) == {"job_id": "mail.1", "execution": NS}


def test_flags_are_those_of_add():
    found = job(
        *("-ttr=5", "-ttl=6", "-priority=-7", "-max-attempts=8", "-max-fails=9"),
        *("-retry-delay=10", "-payload=a=b c"),
    )
    assert found[1:-1] == ("mail", 5, 6, b"a=b c", -7, 8, 9, 10)


def test_any_job_id_goes_into_the_payload():
    assert json.loads(job(job_id='é "\n\0').payload)["job_id"] == 'é "\n\0'


def test_empty_payload_is_allowed():
    assert job("-payload=").payload == b""


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        ([], "missing required argument: name"),
        (["bad!name"], "the work queue would refuse the job: Invalid Name"),
        (["q", "-ttr=0"], "the work queue would refuse the job: Invalid TTR"),
        (["q", "-ttl=2592000001"], "the work queue would refuse the job: Invalid TTL"),
        (["q", "-priority=x"], "the work queue would refuse the job: Invalid Priority"),
        (["q", "-max-fails=256"], "the work queue would refuse the job: Invalid Max Fails"),
        (["q", "-ttr=1", "-ttr=2"], "-ttr is given twice"),
        (["q", "ttr=1"], "unknown queue flag: expected -ttr=, -ttl="),
        (["q", "-ttr"], "unknown queue flag: expected -ttr=, -ttl="),
        (["q", "-foo=1"], "unknown queue flag: expected -ttr=, -ttl="),
    ],
)
def test_rule_that_could_never_run_is_refused(words: list[str], phrase: str):
    found = read_runner(["queue", *words])
    assert isinstance(found, str)
    assert found.startswith(phrase)


def test_words_of_a_rule_make_the_same_rule():
    runner = read_runner(["queue", "mail", "-ttr=5", "-payload=two words"])
    assert runner == WorkQueueRunner("mail", ("-ttr=5", "-payload=two words"))
    assert read_runner(runner_words(runner)) == runner


def test_id_is_made_of_job_and_time_alone():
    assert job("-ttr=5", name="a").job_id == job(name="b").job_id == work_id("mail.1", NS)
    ids = {work_id(name, ns) for name in ("a", "b", "1 a") for ns in (0, 1, -1)}
    assert len(ids) == 9
    assert all(is_version_4(each) for each in ids)
    assert work_id("backup.daily", NS).hex() == work_id("backup.daily", NS).hex()


# -- runs -----------------------------------------------------------------------------------------


def run(runner: QueueRunner, record: WorkQueueRunner) -> RunResult:
    return asyncio.run(runner.run(RunRequest("mail.1", NS, record)))


def test_run_succeeds_when_the_job_is_there():
    added: list[Add] = []

    async def add(found: Add, namespace: str) -> str:
        assert namespace == ""
        added.append(found)
        return ""

    assert run(QueueRunner(add), WorkQueueRunner("mail", ())) == RunResult(True)
    assert added == [job()]


def test_the_id_of_a_run_in_a_namespace_is_salted():
    class Team:
        names_runners = False

        def namespace_of(self, *identifiers: str) -> str:
            return "team." if all(each.startswith("team.") for each in identifiers) else ""

        def salt_of(self, namespace: str) -> bytes:
            return namespace.encode()

    added: list[tuple[bytes, str]] = []

    async def add(found: Add, namespace: str) -> str:
        added.append((found.job_id, namespace))
        return ""

    async def scenario() -> None:
        for rule, queue in (("team.r", "team.q"), ("team.r", "team.q"), ("team.r", "q")):
            request = RunRequest("team.j", NS, WorkQueueRunner(queue, ()), rule)
            assert await QueueRunner(add, Team()).run(request) == RunResult(True)

    asyncio.run(scenario())
    plain = work_id("team.j", NS)
    salted = (salted_id(plain, b"team."), "team.")
    assert added == [salted, salted, (plain, "")]
    assert salted[0] != plain
    assert UUID(bytes=salted[0]).version == 4


def test_run_fails_with_the_reason_of_the_work_queue():
    async def add(_: Add, namespace: str) -> str:
        return "the change could not be recorded"

    result = run(QueueRunner(add), WorkQueueRunner("mail", ()))
    assert result == RunResult(False, "the change could not be recorded")


def test_run_fails_without_a_work_queue():
    result = run(QueueRunner(None), WorkQueueRunner("mail", ()))
    assert result.reason == "no work queue is served: workq.enabled is false"


def test_rule_out_of_a_log_that_nobody_checked_fails_its_runs():
    async def add(_: Add, namespace: str) -> str:
        raise AssertionError("nothing can be added")

    result = run(QueueRunner(add), WorkQueueRunner("bad name", ("nonsense",)))
    assert not result.success
    assert result.reason.startswith("unknown queue flag")

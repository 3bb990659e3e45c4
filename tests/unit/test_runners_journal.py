"""The journal runner: the grammar of its rule, its bytes in the log, how a run ends."""

from __future__ import annotations

import asyncio

import pytest

from journeyman.cli.reading import ztick_json, ztick_text
from journeyman.formats.ztick import CODEC, FanOutRunner, RuleSet
from journeyman.protocols.ztick.grammar import read_runner, runner_words
from journeyman.runners.contract import RunRequest, RunResult
from journeyman.runners.runner_set import JournalRunner

RULE = RuleSet("mail.rule", "mail.", FanOutRunner("due:mail"))


def test_words_of_a_rule_make_the_same_rule():
    runner = read_runner(["journal", "due:mail"])
    assert runner == FanOutRunner("due:mail")
    assert runner_words(runner) == ["journal", "due:mail"]


@pytest.mark.parametrize(
    ("words", "phrase"),
    [
        ([], "missing required argument: queue"),
        (["a", "b"], "journal takes exactly one argument: queue"),
        (["a+b"], "the queue must be a name of A-Z"),
        (["../x"], "the queue must be a name of A-Z"),
        ([""], "the queue must be a name of A-Z"),
    ],
)
def test_rule_that_could_never_run_is_refused(words: list[str], phrase: str):
    found = read_runner(["journal", *words])
    assert isinstance(found, str)
    assert found.startswith(phrase)


def test_its_byte_in_the_log_is_seven():
    data = CODEC.encode(RULE)
    assert data.endswith(b"mail.\x07\x00\x08due:mail")
    entry = CODEC.decode(data, 0)
    assert entry is not None
    assert entry.record == RULE


def test_dump_shows_it():
    assert ztick_text(RULE) == "RULE SET mail.rule mail. journal due:mail"
    assert ztick_json(RULE).endswith('"runner":{"type":"journal","queue":"due:mail"}}')


def run(runner: JournalRunner, queue: str = "due") -> RunResult:
    return asyncio.run(runner.run(RunRequest("mail.\u00e9", 5, FanOutRunner(queue))))


def test_run_puts_the_job_id():
    put: list[tuple[str, bytes]] = []

    async def put_item(queue: str, data: bytes) -> str:
        put.append((queue, data))
        return ""

    assert run(JournalRunner(put_item)) == RunResult(True)
    assert put == [("due", "mail.\u00e9".encode())]


def test_run_fails_with_the_reason_of_the_queue():
    async def put_item(queue: str, _: bytes) -> str:
        return f"queue {queue} is full"

    assert run(JournalRunner(put_item)) == RunResult(False, "queue due is full")


def test_run_fails_without_fan_out_queues():
    result = run(JournalRunner(None))
    assert result.reason == "no fan-out queues are served: kestrel.enabled is false"


def test_rule_out_of_a_log_that_nobody_checked_fails_its_runs():
    async def put_item(*_: object) -> str:
        raise AssertionError("nothing can be put")

    result = run(JournalRunner(put_item), "../escape")
    assert result.reason == "the rule names no queue that could exist"

"""The set of runners: the right one for each record, and a net below all of them."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

import journeyman.runners
from journeyman.config import Settings
from journeyman.formats.ztick import (
    Amqp,
    Awf,
    Direct,
    FanOutRunner,
    Http,
    Mail,
    Redis,
    Runner,
    Shell,
    WorkQueueRunner,
)
from journeyman.runners import RunnerSet, RunRequest, RunResult
from journeyman.runners.http import HttpRunner
from journeyman.runners.programs import ShellRunner
from tests.support.runner_world import in_loop, settings

RECORDS: list[Runner] = [
    Shell("exit 1"),
    Direct("no-such-program", ()),
    Awf("no-such-workflow", ()),
    Http("GET", "http://127.0.0.1:1/"),
    Amqp("amqp://127.0.0.1:1", "", "k"),
    Redis("redis://127.0.0.1:1", "SET", "k"),
    WorkQueueRunner("mail", ()),
    FanOutRunner("due"),
    Mail(("ops@example.com",)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_every_kind_of_record_has_its_runner(record):
    async def scenario() -> RunResult:
        async with RunnerSet() as runners:
            return await runners.run(RunRequest("job", 5, record))

    result = asyncio.run(scenario())
    assert not result.success
    assert "runner broke" not in result.reason


def test_no_record_is_forgotten():
    assert {type(record) for record in RECORDS} == set(Runner.__args__)


@in_loop
async def test_runs_that_begin_at_once_share_a_runner(monkeypatch):
    """A network runner is made at its first run, while others wait for the same."""
    made = []
    monkeypatch.setattr(HttpRunner, "__init__", lambda self, *of_the_set: made.append(self))
    monkeypatch.setattr(HttpRunner, "run", AsyncMock(return_value=RunResult(True)))
    monkeypatch.setattr(HttpRunner, "close", AsyncMock())
    async with RunnerSet() as runners:
        requests = [RunRequest(f"job.{n}", 5, Http("GET", "http://127.0.0.1:1/")) for n in range(5)]
        results = await asyncio.gather(*map(runners.run, requests))
    assert len(made) == 1
    assert results == [RunResult(True)] * 5


@in_loop
async def test_runner_that_a_rule_names_is_there_before_its_first_run(monkeypatch):
    made = []
    monkeypatch.setattr(HttpRunner, "__init__", lambda self, *of_the_set: made.append(self))
    monkeypatch.setattr(HttpRunner, "close", AsyncMock())
    async with RunnerSet() as runners:
        runners.prepare([Http, Shell])
    assert len(made) == 1


@in_loop
async def test_import_that_fails_is_for_the_first_run_to_say(monkeypatch):
    monkeypatch.setattr(HttpRunner, "__init__", lambda self, *of_the_set: 1 / 0)
    async with RunnerSet() as runners:
        runners.prepare([Http])
        result = await runners.run(RunRequest("job", 5, Http("GET", "http://127.0.0.1:1/")))
    assert "ZeroDivisionError" in result.reason


def test_a_server_starts_without_the_libraries_of_network_runners():
    program = "import journeyman.servers.process, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"aiohttp", "aiormq", "redis", "opentelemetry"} & set(done.stdout.split())


@in_loop
async def test_a_defect_becomes_a_failed_run_with_its_traceback(monkeypatch):
    async def broken(self: ShellRunner, request: RunRequest[Shell]) -> RunResult:
        raise ZeroDivisionError("http://u:secret@host\nsecond line")

    monkeypatch.setattr(ShellRunner, "run", broken)
    async with RunnerSet(settings(output_bytes=10_000)) as runners:
        result = await runners.run(RunRequest("job", 5, Shell("true")))
    assert result.reason == (
        r"the shell runner broke: ZeroDivisionError: http://***@host\nsecond line"
    )
    assert b"in broken" in result.output
    assert b"secret" not in result.output


@in_loop
async def test_a_set_that_did_nothing_closes():
    async with RunnerSet(Settings()):
        pass


@in_loop
async def test_closing_twice_does_no_harm():
    runners = RunnerSet()
    await runners.run(RunRequest("job", 5, Shell("true")))
    await runners.close()
    await runners.close()


def test_runners_ask_nobody_what_time_it_is():
    """When a run started, and how long it took, is for the caller to know."""
    for path in Path(journeyman.runners.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            assert "time" not in [*names, module], path.name

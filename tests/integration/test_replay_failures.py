"""``journeyman replay-failures``: failed jobs against the code of today, and nothing else."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from journeyman.client import WorkQueue
from journeyman.tasks.worker import Worker
from tests.support.cli_commands import assert_one_line_error, rows, run
from tests.support.servers.workq_process import WorkqProcess

SHOP = """
import journeyman as jm

app = jm.App()
calls = []

def charge(order):
    calls.append(("charge", order))
    return f"receipt {order}"

def ship(order):
    calls.append(("ship", order))
    if FAILS:
        raise RuntimeError(f"no lorry for {order}")

@app.task(queue="shop", name="fulfil")
def fulfil(order):
    receipt = jm.step(charge, order)
    if FAILS and order == "between":
        raise ValueError(receipt)
    log.send(order)
    jm.step(ship, order)

@app.task(queue="shop", name="log")
def log(order):
    calls.append(("log", order))

@app.task(queue="shop", name="plain")
def plain(order):
    calls.append(("plain", order))
    if FAILS:
        raise KeyError(order)

"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    where: Path = tmp_path_factory.mktemp("server")
    own = {"data.directory": str(where / "data"), "http.listen": "127.0.0.1:0"}
    with WorkqProcess(where, settings=own) as server:
        live = server.wait_for_line(re.compile(r"HTTP listens on [^\s\"]+?:(\d+)"))
        yield f"journeyman://127.0.0.1:{server.workq_port}?schedule=1&fan_out=1&http={live[1]}"


def write_shop(directory: Path, name: str, *, fails: bool) -> Any:
    (directory / f"{name}.py").write_text(f"FAILS = {fails}\n{SHOP}")
    return importlib.import_module(name)


@pytest.fixture
def shops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda name, **options: write_shop(tmp_path, name, **options)
    for name in ("shop_then", "shop_same", "shop_now"):
        sys.modules.pop(name, None)


def test_failed_jobs_are_replayed_with_what_they_recorded_and_nothing_else(url, shops):
    then = shops("shop_then", fails=True)
    then.app.use_server(url)
    jobs = [then.fulfil.send("late"), then.fulfil.send("between"), then.plain.send("x")]
    asyncio.run(Worker(then.app, burst=True).run())
    assert [job.state() for job in jobs] == ["dead"] * 3
    then.app.broker.close()
    with WorkQueue.from_url(url) as client:
        before = [client.inspect_job(job.id) for job in jobs]

        def replayed(module: str, *words: str) -> Any:
            env = {"JOURNEYMAN_URL": url}
            return run("replay-failures", "--module", module, "--json", *words, env=env)

        shops("shop_same", fails=True)
        result = replayed("shop_same:app")
        assert result.exit_code == 1, result.stderr
        told = map(json.loads, result.stdout.splitlines())
        found = {row["id"]: (row["outcome"], row["detail"]) for row in told}
        assert found == {
            jobs[0].id: ("stops", "before ship, which is not recorded"),
            jobs[1].id: ("fails", "ValueError: receipt between"),
            jobs[2].id: ("skipped", "recorded no step: --run-steps runs it"),
        }
        assert "3 failed jobs: " in result.stderr
        assert sys.modules["shop_same"].calls == []

        now = shops("shop_now", fails=False)
        result = replayed("shop_now:app")
        assert result.exit_code == 0, result.stderr
        assert now.calls == []
        result = replayed("shop_now:app", "--run-steps")
        assert result.exit_code == 0, result.stderr
        assert {row["outcome"] for row in rows(result)} == {"passes"}
        assert sorted(now.calls) == [("plain", "x"), ("ship", "between"), ("ship", "late")]
        assert rows(replayed("shop_now:app", "--queue", "other")) == []
        assert len(rows(replayed("shop_now:app", "--limit", "1"))) == 1
        assert_one_line_error(replayed("shop_now:app", "--since", "x"), 2, "not a length of time")
        assert_one_line_error(replayed("no_such:app"), 2, "no module")

        assert [client.inspect_job(job.id) for job in jobs] == before
        assert client.inspect_jobs("shop") == []  # what they send is sent nowhere

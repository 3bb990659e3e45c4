"""Figures over time of a real server: over HTTP, for tokens, through kills, off by a setting."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.http_client import ask
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess

TOKENS = """
[token.admin]
secret = "sk_admin"
namespace = "*"
[token.team]
secret = "sk_team"
namespace = "team."
"""
SETTINGS = ALL_SERVICES | {"series.enabled": "true", "controller.auth_file": "tokens.toml"}


def prepared(directory: Path) -> Path:
    (directory / "tokens.toml").write_text(TOKENS)
    (directory / "tokens.toml").chmod(0o600)
    return directory


def get(server: ScheduleProcess, path: str, secret: str = "sk_admin") -> Any:
    status, answer = ask(server, "GET", path, secret=secret)
    assert status == 200, answer
    return answer


def refusal(server: ScheduleProcess, path: str, secret: str = "sk_admin") -> tuple[int, str]:
    status, text = ask(server, "GET", path, secret=secret)
    problem = json.loads(text)
    return status, problem["detail"]


def post(server: ScheduleProcess, path: str, body: Any) -> Any:
    status, answer = ask(server, "POST", path, body, secret="sk_admin")
    assert status < 300, answer
    return answer


def work(server: ScheduleProcess, queue: str, task: str, *, fails: bool = False) -> str:
    """A job that is added, leased and ended."""
    payload = json.dumps({"v": 1, "task": task, "args": []})
    post(server, "/v1/work/jobs", {"queue": queue, "payload": payload})
    job = post(server, "/v1/work/lease", {"queues": [queue]})["job"]
    word = "fail" if fails else "complete"
    result = '{"error": "ValueError", "message": "no"}' if fails else "1"
    status, _ = ask(
        server, "POST", f"/v1/work/jobs/{job['id']}/{word}", {"result": result}, secret="sk_admin"
    )
    assert status == 204
    return str(job["id"])


def total(server: ScheduleProcess, of: str, figure: str, secret: str = "sk_admin") -> int:
    found = get(server, f"/v1/series?of={of}&figure={figure}", secret)
    return sum(value or 0 for value in found["figures"][figure])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScheduleProcess]:
    directory = prepared(tmp_path_factory.mktemp("series"))
    with ScheduleProcess(directory, settings=SETTINGS) as running:
        for number in range(6):
            work(running, "team.mail", "shop.send", fails=number % 3 == 0)
        work(running, "other", "shop.send")
        work(running, "other", "shop.print")
        running.wait_until(lambda: total(running, "work", "completed") == 6, "the figures")
        yield running


def test_several_figures_come_at_once(server: ScheduleProcess):
    found = get(server, "/v1/series?of=task:shop.send&figure=added,run_p99,failure_rate,errors")
    assert set(found["figures"]) == {"added", "run_p99", "failure_rate"}
    assert sum(found["figures"]["added"]) == 7
    assert sum(found["errors"]["ValueError"]) == 2
    assert {len(values) for values in found["figures"].values()} == {len(found["times_s"])}
    rates = [value for value in found["figures"]["failure_rate"] if value is not None]
    assert rates
    assert found["step_s"] == 60


def test_a_token_sees_the_figures_of_its_queues(server: ScheduleProcess):
    assert total(server, "task:shop.send", "added", "sk_team") == 6
    assert total(server, "queue:other", "added", "sk_team") == 0
    rows = get(server, "/v1/tasks", "sk_team")["rows"]
    assert [(row["name"], row["others"]) for row in rows] == [("shop.send", ["team.mail"])]
    rows = get(server, "/v1/summaries?by=queue", "sk_team")["rows"]
    assert [row["name"] for row in rows] == ["team.mail"]
    assert refusal(server, "/v1/tasks/shop.print", "sk_team")[0] == 404


def test_tasks_are_sorted_and_paged(server: ScheduleProcess):
    page = get(server, "/v1/tasks?sort=-failure_rate&limit=1")
    assert [row["name"] for row in page["rows"]] == ["shop.send"]
    assert page["total"] == 2
    page = get(server, f"/v1/tasks?sort=-failure_rate&limit=1&cursor={page['next']}")
    assert ([row["name"] for row in page["rows"]], page["next"]) == (["shop.print"], None)
    (row,) = get(server, "/v1/tasks?prefix=shop.s")["rows"]
    assert (row["completed"], row["failures"], row["errors"]) == (5, 2, {"ValueError": 2})
    assert sum(row["trend"]) == 7


def test_a_task_has_its_slowest_and_its_last_failed_jobs(server: ScheduleProcess):
    found = get(server, "/v1/tasks/shop.send")
    assert found == get(server, "/v1/summaries/task/shop.send")
    assert len(found["slowest"]) == 3
    assert [each["error"] for each in found["latest_failed"]] == ["ValueError"] * 2
    status, job = ask(
        server, "GET", f"/v1/work/jobs/{found['slowest'][0]['id']}", secret="sk_admin"
    )
    assert (status, job["state"]) == (200, "completed")


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("of=job:x", "of: 'job:x' is not one of work, schedule, queue:NAME"),
        ("of=work&figure=speed", "figure: 'speed' is not known; these are: added, started"),
        ("of=work&from=2026-01-01&to=2025-01-01", "from: give a time before"),
        ("of=work&from=2024-01-01", "from: give a time before"),
        ("of=work&from=yesterday", "from: not a time"),
        ("of=work&from=2026-11-01&to=2026-11-02&step=1", "step: more than 5000 points"),
    ],
)
def test_what_cannot_be_asked_is_refused(server: ScheduleProcess, query: str, detail: str):
    status, text = refusal(server, f"/v1/series?{query}")
    fits_the_document = detail.startswith(("from: give", "step:"))
    assert (status, text[: len(detail)]) == (422 if fits_the_document else 400, detail)


def test_a_search_has_facets_and_says_how_far_it_looked(server: ScheduleProcess):
    found = get(server, "/v1/work/facets")
    assert found["queues"] == {"team.mail": 6, "other": 2}
    assert (found["states"]["completed"], found["states"]["dead"]) == (6, 2)
    assert found["tasks"] == {"shop.send": 7, "shop.print": 1}
    assert found["errors"] == {"ValueError": 2}
    found = get(server, "/v1/work/facets?state=dead")
    assert (found["queues"], found["states"]["completed"]) == ({"team.mail": 2, "other": 0}, 6)
    found = get(server, "/v1/work/facets?queue=other", "sk_team")
    assert (found["queues"], found["tasks"], found["errors"]) == ({}, {}, {})
    page = get(server, "/v1/work/jobs?task=shop.send&limit=2")
    assert (len(page["jobs"]), page["looked"]) == (2, 3)
    assert page["looked_until"] == page["jobs"][-1]["created"]
    page = get(server, "/v1/work/jobs?task=shop.send&sort=-run&limit=3")
    runs = [int(job["finished_ns"]) - int(job["started_ns"]) for job in page["jobs"]]
    assert (runs, page["looked"], page["next"]) == (sorted(runs, reverse=True), 8, None)


def test_a_word_that_is_not_known_is_refused_with_those_that_are(server: ScheduleProcess):
    status, text = refusal(server, "/v1/work/jobs?state=sleeping")
    assert status == 400
    assert text.endswith(
        "; known are ready, scheduled, waiting, leased, running, completed, done, dead, cancelled"
    )


def test_figures_outlive_the_process_that_counts_them_and_the_server(tmp_path: Path):
    server = ScheduleProcess(prepared(tmp_path), settings=SETTINGS | {"log.level": "info"})
    with server:
        work(server, "mail", "shop.send")
        server.wait_until(lambda: total(server, "work", "completed") == 1, "the figures")
        os.kill(counting_process(server), signal.SIGKILL)
        server.wait_for_line("the process that keeps the figures over time has ended")
        work(server, "mail", "shop.send")
        server.wait_until(lambda: is_counted(server, 2), "the figures after the process was killed")
        server.kill()
        server.lines.clear()
        server.start()
        work(server, "mail", "shop.send")
        server.wait_until(lambda: is_counted(server, 3), "the figures after the server was killed")
        assert server.stop() == 0
        server.lines.clear()
        server.start()
        server.wait_until(lambda: is_counted(server, 3), "the figures after a stop")
    assert (tmp_path / "series" / "work" / "place.cells").exists()


def is_counted(server: ScheduleProcess, jobs: int) -> bool:
    status, answer = ask(server, "GET", "/v1/series?of=work&figure=completed", secret="sk_admin")
    return status == 200 and sum(answer["figures"]["completed"]) == jobs


def counting_process(server: ScheduleProcess) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if b"journeyman.servers.series.child" in words and parent == server.process.pid:
                return int(entry.name)
    raise AssertionError("no process counts figures")


def test_without_the_setting_there_are_no_figures(tmp_path: Path):
    settings = SETTINGS | {"series.enabled": "false"}
    with ScheduleProcess(prepared(tmp_path), settings=settings) as server:
        status, text = refusal(server, "/v1/series?of=work")
    assert (status, text) == (404, "figures over time are off: see series.enabled")
    assert not (tmp_path / "series").exists()

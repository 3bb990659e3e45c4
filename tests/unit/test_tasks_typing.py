"""mypy --strict accepts right uses of tasks and rejects wrong ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

DECLARATIONS = """
from datetime import timedelta
import journeyman as jm

app = jm.App("journeyman://127.0.0.1")

@app.task(queue="mail", retries=5, backoff=jm.Backoff(10, factor=2), timeout=timedelta(minutes=1))
def send_mail(to: str, subject: str) -> str:
    return f"sent to {to}"

@app.task(unique="args", rate="10/m")
async def build_report(customer: int, *, day: str = "today") -> dict[str, int]:
    jm.job().heartbeat()
    return {"rows": 3}

@app.task
def plain(number: int) -> int:
    return number

@app.task
def describe(number: int, what: str) -> str:
    return f"{what} {number}"

@app.cron("0 2 * * *", tz="Europe/Berlin", catch_up="once", overlap="skip", queue="nightly")
def nightly() -> None:
    build_report.send(customer=1, day="today")

@app.every(timedelta(hours=1))
async def hourly() -> None: ...

@app.on_failure
def alert(failed: jm.FailedJob) -> None: ...
"""
GOOD = """
def view(to: str) -> str:
    job = send_mail.at(timedelta(minutes=5)).send(to, subject="hi")
    return job.result(timeout=10)

async def endpoint(customer: int) -> dict[str, int]:
    sent: jm.Job[dict[str, int]] = await build_report.asend(customer, day="2026-11-16")
    called: dict[str, int] = await build_report(customer)
    return await sent

number: int = plain(1) + plain.send(2).result()
nightly()
nightly.send()
urgent: jm.Job[str] = send_mail.options(priority=9, retries=0).send("a", "b")
line: jm.Job[str] = plain.call(1).then(plain).then(describe, "number").send()
"""
# Each line is wrong in one way; what mypy says about it.
BAD = [
    ('send_mail.send("a")', "call-arg"),
    ('send_mail.send("a", 1)', "arg-type"),
    ('send_mail.send("a", subjekt="b")', "call-arg"),
    ('send_mail.at(timedelta(1)).send(1, "b")', "arg-type"),
    ('send_mail.options(priority="high")', "arg-type"),
    ('send_mail.options(colour="red")', "call-arg"),
    ("send_mail.at(5)", "arg-type"),
    ('result: int = send_mail.send("a", "b").result()', "assignment"),
    ('text: str = plain(1)', "assignment"),
    ('build_report.send("one")', "arg-type"),
    ('app.task(retries="many")', "call-overload"),
    ('app.cron("* * * * *", overlap="sometimes")', "arg-type"),
    ('app.cron("* * * * *")(plain)', "arg-type"),
    ("nightly.send(1)", "call-arg"),
    ('send_mail.call("a", "b").then(plain)', "call-overload"),
    ("plain.call(1).then(describe)", "call-overload"),
    ("app.on_failure(lambda: None)", "type-var"),
]  # fmt: skip


@pytest.fixture(scope="module")
def complaints(tmp_path_factory) -> dict[int, str]:
    """Of mypy about the GOOD lines and the bad ones, by line; one run for all."""
    where: Path = tmp_path_factory.mktemp("typing")
    text = DECLARATIONS + GOOD + "\n".join(line for line, _ in BAD) + "\n"
    (where / "uses.py").write_text(text)
    flags = ["--strict", "--no-incremental", "--no-error-summary", "--hide-error-context"]
    said, trouble, _ = api.run([*flags, str(where / "uses.py")])
    assert trouble == ""
    found = re.findall(r"^.*uses\.py:(\d+): error: (.*)$", said, re.MULTILINE)
    first_bad = len((DECLARATIONS + GOOD).splitlines()) + 1
    return {int(line) - first_bad: text for line, text in found}


def test_right_uses_are_accepted(complaints):
    assert {line: text for line, text in complaints.items() if line < 0} == {}


@pytest.mark.parametrize("number", range(len(BAD)), ids=[line for line, _ in BAD])
def test_a_wrong_use_is_rejected(complaints, number):
    assert f"[{BAD[number][1]}]" in complaints.get(number, "accepted")

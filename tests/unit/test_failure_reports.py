"""``on_failure`` of a task: the failure of a job becomes a job of its own."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

import journeyman as jm
from journeyman.errors import UsageError
from journeyman.tasks.current import FailedJob
from journeyman.tasks.envelope import Failure
from journeyman.tasks.failure_reports import NOTICE, order_of_report
from journeyman.tasks.options import Options
from journeyman.testing import InMemory
from tests.support.servers.mail_server import mail_server


def test_another_task_gets_the_facts_after_the_last_retry():
    app, told = jm.App(), list[dict[str, Any]]()

    @app.task(name="escalate", queue="alerts")
    def escalate(facts: dict[str, Any]) -> None:
        told.append(facts)

    @app.task(name="charge", retries=1, backoff=1, on_failure=escalate)
    def charge(order: int, *, currency: str) -> None:
        raise ValueError(f"no money for {order}")

    with InMemory(app) as memory:
        job = charge.send(7, currency="EUR")
        memory.run_all(check=False)
        assert told == []
        memory.advance(seconds=10, check=False)
        (facts,) = told
    assert facts.pop("output").endswith("ValueError: no money for 7\n")
    assert facts == {
        "event": "failed",
        "owner": "charge",
        "job": job.id,
        "queue": "default",
        "attempt": 2,
        "reason": "ValueError: no money for 7",
        "args": [7],
        "kwargs": {"currency": "EUR"},
    }


def test_a_worker_that_dies_after_the_report_makes_no_second_one():
    """The job that reports a failure has an id of its own, the same for each who reports it."""
    app = jm.App()

    @app.task(name="escalate")
    def escalate(facts: dict[str, Any]) -> None:
        """Do nothing."""

    options = Options(on_failure=escalate)
    failed = [
        FailedJob(str(UUID(int=7)), "charge", "default", attempt, (7,), {}, Failure("a", "b", "c"))
        for attempt in (2, 3)
    ]
    first, second = (order_of_report(app, options, each) for each in failed)
    assert first is not None
    assert second is not None
    assert first.job_id == second.job_id != UUID(int=7)


def test_a_job_that_succeeds_is_not_reported():
    app, told = jm.App(), list[Any]()

    @app.task(name="escalate")
    def escalate(facts: dict[str, Any]) -> None:
        told.append(facts)

    @app.task(name="fine", on_failure=escalate)
    def fine() -> None:
        """Do nothing."""

    with InMemory(app) as memory:
        fine.send()
        memory.run_all()
    assert told == []


def test_a_mail_is_sent_by_a_worker_of_the_same_queue(monkeypatch):
    app = jm.App()

    @app.task(name="export", queue="night", on_failure="mail ops@example.com")
    def export() -> None:
        raise ValueError("disk full")

    with mail_server() as mailbox, InMemory(app) as memory:
        monkeypatch.setenv("JOURNEYMAN_NOTICES_SMTP_HOST", "127.0.0.1")
        monkeypatch.setenv("JOURNEYMAN_NOTICES_SMTP_PORT", str(mailbox.port))
        monkeypatch.setenv("JOURNEYMAN_NOTICES_SMTP_SECURITY", "none")
        export.send()
        memory.run_all(check=False)
        (mail,) = mailbox.wait_for(1)
    assert mail["Subject"] == "export failed: ValueError: disk full"
    assert app.tasks[NOTICE].defaults.retries == 12


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("mail", "on_failure: missing required argument: address"),
        ("queue alerts", "on_failure: queue is not possible here; name a task instead"),
        ("mail 'a@b", "on_failure: no closing quotation"),
        (print, "on_failure must be a task or text such as 'mail ops@example.com'"),
    ],
)
def test_what_cannot_report_is_refused(value, message):
    with pytest.raises(UsageError) as refused:
        jm.App().task(on_failure=value)
    assert str(refused.value).startswith(message)


def test_workers_serve_no_other_queue_for_reports():
    """The default queue may be that of another app on the same server."""
    app = jm.App(queue="shop")

    @app.task(name="nightly", on_failure="mail ops@example.com")
    def nightly() -> None:
        """Do nothing."""

    assert {task.defaults.queue for task in app.tasks.values()} == {"shop"}

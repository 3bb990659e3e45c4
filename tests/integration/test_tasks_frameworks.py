"""Tasks inside of the real Flask, FastAPI, Django and OpenTelemetry."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask, current_app
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import journeyman as jm
from journeyman.integrations.fastapi import lifespan
from journeyman.integrations.flask import Journeyman
from journeyman.integrations.opentelemetry import OpenTelemetry
from journeyman.testing import InMemory
from tests.support.servers.workq_process import WorkqProcess


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    with WorkqProcess(tmp_path_factory.mktemp("server"), memory=True) as server:
        yield f"journeyman://127.0.0.1:{server.workq_port}"


# -- Flask ---------------------------------------------------------------------------------------


def flask_shop(app: jm.App, **config: str) -> Flask:
    flask = Flask("shop")
    flask.config.update(config, GREETING="hello")
    Journeyman(app, flask)

    @app.task(name="greet")
    def greet(name: str) -> str:
        return f"{current_app.config['GREETING']} {name}"

    @flask.post("/greet/<name>")
    def view(name: str) -> str:
        return greet.send(name).result(timeout=30)

    return flask


def test_a_flask_view_sends_a_job_that_runs_in_the_application_context():
    app = jm.App()
    client = flask_shop(app).test_client()
    with InMemory(app) as queue:
        assert client.post("/greet/ann").text == "hello ann"
        queue.assert_sent("greet", "ann")


def test_flask_has_a_worker_command_and_the_url_of_its_configuration(url):
    app = jm.App()
    flask = flask_shop(app, JOURNEYMAN_URL=url)
    job = app.tasks["greet"].send("bob")

    done = flask.test_cli_runner().invoke(args=["journeyman-worker", "--burst"])
    assert done.exit_code == 0, done.output
    assert job.result(timeout=30) == "hello bob"
    app.close()
    said = flask.test_cli_runner().invoke(args=["journeyman-worker", "--help"]).output
    assert "--reload" in said
    assert "MODULE:APP" not in said


# -- FastAPI -------------------------------------------------------------------------------------


def test_a_fastapi_endpoint_sends_and_awaits_a_job_of_its_own_worker(url):
    app = jm.App(url, queue="fast")
    api = FastAPI(lifespan=lifespan(app, worker=True))

    @app.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    @api.post("/double/{number}")
    async def endpoint(number: int) -> int:
        return await (await double.asend(number))

    with TestClient(api) as client:
        assert client.post("/double/21").json() == 42


def test_a_fastapi_endpoint_is_tested_without_a_server():
    app = jm.App()
    api = FastAPI(lifespan=lifespan(app))

    @app.task(name="note")
    def note(text: str) -> None:
        """Nothing to do."""

    @api.post("/notes")
    async def endpoint() -> str:
        return (await note.asend("hi")).id

    with InMemory(app) as queue, TestClient(api) as client:
        job_id = client.post("/notes").json()
        assert queue.assert_sent(note, "hi").id == job_id


# -- Django --------------------------------------------------------------------------------------

DJANGO_PROJECT = """
import os, sys
from django.conf import settings
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}},
    INSTALLED_APPS=["journeyman.integrations.django", "orders"],
    JOURNEYMAN={"APP": "orders.tasks:app"},
    USE_TZ=True,
)
import django
django.setup()
"""
DJANGO_TASKS = """
import journeyman as jm
from django.db import connection

app = jm.App(queue="django")

@app.task(name="count_tables")
def count_tables(extra: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        return cursor.fetchone()[0] + extra
"""
DJANGO_PROGRAM = """
from django.core.management import execute_from_command_line
from django.db import transaction
from journeyman.integrations.django import on_commit
from orders.tasks import app, count_tables

class Undo(Exception): ...

try:
    with transaction.atomic():
        lost = on_commit(count_tables).send(1)
        raise Undo
except Undo:
    pass
with transaction.atomic():
    sent = on_commit(count_tables.options(priority=5)).send(41)
    assert not app.broker.delete(__import__("uuid").UUID(sent.id)), "sent before the commit"
execute_from_command_line(["manage.py", "journeyman_worker", "--burst", "-c", "2"])
print(sent.result(timeout=30), lost.delete())
app.close()
"""


DJANGO_MODELS = """
from django.db import models

class Order(models.Model):
    total = models.IntegerField()
    class Meta:
        app_label = "orders"
"""
DJANGO_ORDER_TASKS = """
import journeyman as jm
from orders.models import Order

app = jm.App(queue="django")

@app.task(name="double")
def double(order: int) -> int:
    found = Order.objects.get(pk=order)
    found.total *= 2
    found.save()
    return found.total

@app.task(name="triple")
async def triple(order: int) -> None:
    found = await Order.objects.aget(pk=order)
    found.total *= 3
    await found.asave()
"""
DJANGO_TEST_CASES = """
import unittest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import transaction
from django.test import TestCase, TransactionTestCase
from django.test.utils import get_runner, setup_test_environment
from journeyman.integrations.django import on_commit
from journeyman.integrations.django.models import OutboxRow
from journeyman.integrations.django.outbox import DjangoOutbox
from journeyman.testing import InMemory
from orders.models import Order
from orders.tasks import app, double, triple

class InATransaction(TestCase):
    def test_a_task_sees_the_rows_of_the_test(self):
        order = Order.objects.create(total=21)
        with InMemory(app) as queue:
            double.send(order.pk)
            queue.run_all()
        order.refresh_from_db()
        assert order.total == 42

    def test_jobs_in_the_outbox_are_rows_of_the_transaction(self):
        outbox = DjangoOutbox()
        with InMemory(app) as queue:
            order = Order.objects.create(total=3)
            try:
                with transaction.atomic():
                    outbox.send(double.call(order.pk))
                    raise ValueError
            except ValueError:
                pass
            assert outbox.relay(queue).sent == 0
            with transaction.atomic():
                job = outbox.send(double.call(order.pk))
            assert OutboxRow.objects.count() == 1
            assert outbox.relay(queue).sent == 1
            assert OutboxRow.objects.count() == 0
            queue.run_all()
            assert job.result(timeout=1) == 6

    def test_jobs_that_wait_for_the_commit(self):
        order = Order.objects.create(total=1)
        with InMemory(app) as queue:
            with self.captureOnCommitCallbacks(execute=True):
                with transaction.atomic():
                    on_commit(double).send(order.pk)
                    queue.assert_nothing_sent()
            queue.assert_sent(double, order.pk)
            queue.run_all()
        order.refresh_from_db()
        assert order.total == 2

    async def test_an_async_test(self):
        order = await Order.objects.acreate(total=4)
        with InMemory(app) as queue:
            await double.asend(order.pk)
            await sync_to_async(queue.run_all)()
            await triple.asend(order.pk)
            await queue.arun_all()
        await order.arefresh_from_db()
        assert order.total == 24

class Committed(TransactionTestCase):
    def test_async_tasks_see_committed_rows(self):
        order = Order.objects.create(total=5)
        with InMemory(app) as queue:
            triple.send(order.pk)
            queue.run_all()
        order.refresh_from_db()
        assert order.total == 15

setup_test_environment()
suite = unittest.TestSuite()
runner = get_runner(settings)(verbosity=0, interactive=False)
names = runner.setup_databases()
call_command("migrate", run_syncdb=True, verbosity=0)
for case in (InATransaction, Committed):
    suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(case))
result = unittest.TextTestRunner().run(suite)
runner.teardown_databases(names)
assert result.wasSuccessful() and result.testsRun == 5
call_command("makemigrations", "journeyman", "--check", "--dry-run", verbosity=0)
"""


def test_tasks_run_in_the_tests_of_django(tmp_path):
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "__init__.py").touch()
    (tmp_path / "orders" / "models.py").write_text(DJANGO_MODELS)
    (tmp_path / "orders" / "tasks.py").write_text(DJANGO_ORDER_TASKS)
    done = subprocess.run(
        [sys.executable, "-c", DJANGO_PROJECT + DJANGO_TEST_CASES],
        cwd=tmp_path,
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_django_sends_on_commit_and_has_a_worker_command(tmp_path, url):
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "__init__.py").touch()
    (tmp_path / "orders" / "tasks.py").write_text(DJANGO_TASKS)
    program = textwrap.dedent(DJANGO_PROJECT + DJANGO_PROGRAM)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"JOURNEYMAN_URL": url, "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "42 False\n"


# -- OpenTelemetry -------------------------------------------------------------------------------


def traced() -> tuple[InMemorySpanExporter, TracerProvider]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter, provider


def test_a_send_is_a_span_and_a_group_is_one_send():
    exporter, provider = traced()
    app = jm.App()
    app.use(OpenTelemetry(provider))

    @app.task(name="work", queue="mail")
    def work(number: int) -> int:
        return number

    with InMemory(app) as queue:
        job = work.send(1)
        jm.group([work.call(2), work.call(3)]).send()
        with pytest.raises(TypeError):
            work.send(1, 2, 3)  # type: ignore[call-arg]
        queue.run_all()
    sends = [span for span in exporter.get_finished_spans() if span.name == "send mail"]
    runs = [span for span in exporter.get_finished_spans() if span.name == "process mail"]
    assert all(span.kind is SpanKind.PRODUCER for span in sends)
    plain = {
        "messaging.system": "journeyman",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "journeyman.task": "work",
    }
    assert [dict(span.attributes or {}) for span in sends] == [
        {**plain, "messaging.message.id": job.id},
        {**plain, "messaging.batch.message_count": 2},
        {**plain, "error.type": "TypeError"},
    ]
    parents = [span.parent and span.parent.span_id for span in runs]
    first, group = sends[0].context.span_id, sends[1].context.span_id
    assert parents == [first, group, group]


def test_a_send_with_asyncio_is_a_span_too():
    exporter, provider = traced()
    app = jm.App()
    app.use(OpenTelemetry(provider))

    @app.task(name="work")
    def work() -> None: ...

    async def main() -> None:
        await work.asend()
        await jm.group([work.call(), work.call()]).asend()

    with InMemory(app):
        asyncio.run(main())
    assert [span.name for span in exporter.get_finished_spans()] == ["send default"] * 2


def test_the_span_of_a_job_is_below_that_of_its_sender():
    exporter, provider = traced()
    tracer = provider.get_tracer("test")
    app = jm.App()
    app.use(OpenTelemetry(provider))

    @app.task(name="work")
    def work(fails: bool) -> None:
        with tracer.start_as_current_span("inside"):
            if fails:
                raise ValueError("broken")

    with InMemory(app) as queue:
        with tracer.start_as_current_span("request") as request:
            work.send(False)
            work.send(True)
        queue.run_all(check=False)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    jobs = [span for span in exporter.get_finished_spans() if span.name == "process default"]
    assert {span.context.trace_id for span in exporter.get_finished_spans()} == {
        request.get_span_context().trace_id
    }
    sends = [span for span in exporter.get_finished_spans() if span.name == "send default"]
    sender = request.get_span_context().span_id
    assert [span.parent and span.parent.span_id for span in sends] == [sender, sender]
    assert [span.parent and span.parent.span_id for span in jobs] == [
        span.context.span_id for span in sends
    ]
    assert all(span.kind is SpanKind.CONSUMER for span in jobs)
    attributes = [dict(span.attributes or {}) for span in jobs]
    assert [each.pop("messaging.message.id", None) for each in attributes] != [None, None]
    plain = {
        "messaging.system": "journeyman",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "journeyman.task": "work",
        "journeyman.attempt": 1,
    }
    assert attributes == [plain, {**plain, "error.type": "ValueError"}]
    assert [span.status.status_code for span in jobs] == [StatusCode.UNSET, StatusCode.ERROR]
    assert spans["inside"].parent is not None
    assert spans["inside"].parent.span_id == jobs[1].context.span_id

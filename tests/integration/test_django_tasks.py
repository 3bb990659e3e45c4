"""The backend of ``django.tasks``, with the real interface: Django 6, or django-tasks before it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.servers.workq_process import WorkqProcess

if find_spec("django.tasks") is None:
    pytest.importorskip("django_tasks")

JOBS = """
import journeyman as jm
app = jm.App()
"""
TASKS = """
try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task

class Broken(Exception): ...

@task
def add(first, second):
    return {"sum": first + second}

@task(queue_name="mail", priority=5, takes_context=True)
def greet(context, name):
    return f"{context.attempt} {name}"

@task
async def wait(number):
    return number

@task
def fail():
    raise Broken("on purpose")

def plain():
    raise AssertionError("not a task")
"""
PROJECT = """
import datetime, sys, uuid
from django.conf import settings
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}},
    INSTALLED_APPS=["journeyman.integrations.django", "shop"],
    JOURNEYMAN={"APP": "shop.jobs:app"},
    TASKS={"default": {
        "BACKEND": "journeyman.integrations.django.task_backend.JourneymanBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"retries": 1, "backoff": 0},
    }},
    USE_TZ=True,
)
import django
django.setup()
from django.core.management import call_command, execute_from_command_line
try:
    from django.tasks import default_task_backend as backend
    from django.tasks import exceptions, signals
except ModuleNotFoundError:
    from django_tasks import default_task_backend as backend
    from django_tasks import exceptions, signals
from journeyman.testing import InMemory
from shop.jobs import app
from shop.tasks import add, fail, greet, wait

heard = []
for name in ("task_enqueued", "task_started", "task_finished"):
    def receive(sender, task_result, name=name, **_):
        heard.append((name, task_result.task.name, str(task_result.status)))
    getattr(signals, name).connect(receive, weak=False)
"""
IN_MEMORY = """
call_command("check")
with InMemory(app) as queue:
    result = add.enqueue(1, second=2)
    assert result.status == "READY" and not result.is_finished and result.enqueued_at
    other = greet.enqueue("ann")
    third = wait.enqueue(3)
    later = add.using(run_after=queue.now() + datetime.timedelta(hours=1)).enqueue(3, 4)
    broken = fail.enqueue()
    assert [job.queue for job in queue.jobs] == ["default", "mail", "default", "default", "default"]
    queue.run_all(check=False)
    for each in (result, other, third, later, broken):
        each.refresh()
    assert result.return_value == {"sum": 3} and result.attempts == 1
    assert result.enqueued_at and result.started_at <= result.finished_at
    assert other.return_value == "1 ann" and add.get_result(result.id).args == [1]
    assert third.return_value == 3
    assert later.status == "READY" and later.attempts == 0
    assert broken.status == "FAILED" and broken.attempts == 2
    (error,) = broken.errors
    assert error.exception_class.__name__ == "Broken" and "on purpose" in error.traceback
    queue.advance(hours=1)
    later.refresh()
    assert later.return_value == {"sum": 7}
    for unknown in (str(uuid.uuid4()), "no id"):
        try:
            backend.get_result(unknown)
        except exceptions.TaskResultDoesNotExist:
            continue
        raise AssertionError(unknown)
    try:
        add.enqueue(object(), 1)
    except TypeError:
        pass
    else:
        raise AssertionError("not JSON")
    for path in ("shop.tasks.plain", "os.system", "shop.tasks.missing", "antigravity.fly"):
        app.tasks["django.default.default"].send(path, ["ls"], {})
        queue.run_all(check=False)
        assert queue.jobs[-1].failure.error == "GiveUp", queue.jobs[-1]
    assert "antigravity" not in sys.modules
ends = [(name, status) for kind, name, status in heard if kind == "task_finished"]
assert sorted(ends[:4]) == [
    ("add", "SUCCESSFUL"), ("fail", "FAILED"), ("greet", "SUCCESSFUL"), ("wait", "SUCCESSFUL"),
], ends
assert [kind for kind, name, _ in heard if name == "fail"] == [
    "task_enqueued", "task_started", "task_started", "task_finished",
]
"""
ON_A_SERVER = """
result, other = add.enqueue(20, 22), greet.enqueue("bob")
execute_from_command_line(["manage.py", "journeyman_worker", "--burst"])
result.refresh()
print(result.return_value, backend.get_result(other.id).return_value, result.worker_ids != [""])
app.close()
"""


def run(folder: Path, program: str, **environment: str) -> str:
    shop = folder / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "jobs.py").write_text(JOBS)
    (shop / "tasks.py").write_text(TASKS)
    done = subprocess.run(
        [sys.executable, "-c", PROJECT + program],
        cwd=folder,
        env={"PATH": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tasks_of_django_run_in_memory(tmp_path: Path):
    run(tmp_path, IN_MEMORY)


def test_tasks_of_django_run_on_a_worker(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    with WorkqProcess(data, memory=True) as server:
        url = f"journeyman://127.0.0.1:{server.workq_port}"
        assert run(tmp_path, ON_A_SERVER, JOURNEYMAN_URL=url) == "{'sum': 42} 1 bob True\n"

"""A backend for ``django.tasks``: tasks of Django and of reusable apps run on Journeyman's workers.

    JOURNEYMAN = {"APP": "shop.jobs:app"}
    TASKS = {
        "default": {
            "BACKEND": "journeyman.integrations.django.task_backend.JourneymanBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"retries": 3},
        }
    }

    @task(queue_name="mail")
    def send_receipt(order): ...

    send_receipt.enqueue(7)  --job (path, args, kwargs)--> manage.py journeyman_worker

Each queue has one task of Journeyman, the *carrier*, which finds the task of Django by its path and
calls it. A path leads only to a task in a module of an installed app: a payload imports nothing
else. The result of a job has the times of its attempt beside the value.

Before Django 6 this is the package ``django-tasks``, with the same interface.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from django.utils.module_loading import import_string

from journeyman.client.errors import InvalidRequest
from journeyman.client.workq.lines import as_id
from journeyman.errors import JourneymanError, UsageError
from journeyman.tasks import App, FailedJob, Failure, GiveUp, job
from journeyman.tasks.envelope import Envelope, UnreadableJob
from journeyman.tasks.task import AnyTask
from journeyman.tasks.worker.program import load_app

try:
    from django.tasks import base, signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.exceptions import TaskResultDoesNotExist
except ModuleNotFoundError:  # before Django 6
    from django_tasks import base, signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.exceptions import TaskResultDoesNotExist

_STATUS = base.TaskResultStatus
_STATUS_OF = {
    "done": _STATUS.SUCCESSFUL,
    "dead": _STATUS.FAILED,
    "cancelled": _STATUS.FAILED,
    "running": _STATUS.RUNNING,
}


class JourneymanBackend(BaseTaskBackend):  # type: ignore[misc]
    """See the module. OPTIONS are the options of a task of Journeyman, and ``app`` if it is not the
    one in ``settings.JOURNEYMAN``."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._task_options = dict(self.options)
        self._where = self._task_options.pop("app", "")

    @cached_property
    def app(self) -> App:
        """Imported at the first use: its module may define tasks of Django. Raises
        ImproperlyConfigured."""
        where = self._where or getattr(settings, "JOURNEYMAN", {}).get("APP")
        if not where:
            raise ImproperlyConfigured('set JOURNEYMAN = {"APP": "module:app"} in the settings')
        try:
            return load_app(where)
        except UsageError as error:
            raise ImproperlyConfigured(f"the App of TASKS[{self.alias!r}]: {error}") from error

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        yield from super().check(**kwargs)
        try:
            self.add_carriers()
        except (ImproperlyConfigured, JourneymanError) as error:
            yield checks.Error(str(error), id="journeyman.E001")

    def add_carriers(self) -> None:
        """Make the app know the tasks that carry those of Django, one for each queue."""
        for queue in self.queues:
            self._carrier(queue)

    def _carrier(self, queue: str) -> AnyTask:
        name = f"django.{self.alias}.{queue}"
        full_name = f"{self.app.name}.{name}" if self.app.name else name
        carrier = self.app.tasks.get(full_name)
        if carrier is None:
            options: dict[str, Any] = {**self._task_options, "queue": queue}
            carrier = self.app.task(name=name, **options)(self._run)
            carrier.on_failure(self._report_failure)
        return carrier

    # -- where tasks are sent ----------------------------------------------------------------------

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Add a job. Raises what ``Task.send`` raises, and InvalidTask."""
        self.validate_task(task)
        result = self._result(task, "", args, kwargs)  # refuses arguments that JSON lacks
        sender = self._carrier(task.queue_name).options(priority=task.priority)
        when = task.run_after
        if when is not None:
            sender = sender.at(timezone.make_aware(when) if timezone.is_naive(when) else when)
        sent = sender.send(task.module_path, result.args, result.kwargs)
        _set(result, id=sent.id, enqueued_at=timezone.now())
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Raises TaskResultDoesNotExist: it never was, was deleted, or its TTL is over."""
        try:
            job_id = as_id(result_id)
        except InvalidRequest:
            raise TaskResultDoesNotExist(result_id) from None
        facts = self.app.broker.facts(job_id)
        if facts is None:
            raise TaskResultDoesNotExist(result_id)
        try:
            path, args, kwargs = Envelope.decode(facts.payload, self.app.codec).args
            task = _task_at(path)
        except (UnreadableJob, GiveUp, ValueError, TypeError):
            raise TaskResultDoesNotExist(result_id) from None
        task = task.using(queue_name=facts.queue, priority=facts.priority, run_after=facts.due)
        result = self._result(task, result_id, args, kwargs)
        _set(
            result,
            status=_STATUS_OF.get(facts.state, _STATUS.READY),
            enqueued_at=facts.created,
            worker_ids=[facts.worker] * facts.attempts,
        )
        self._add_ending(result, job_id)
        return result

    def _add_ending(self, result: Any, job_id: UUID) -> None:
        ending = self.app.broker.endings([job_id])[0]
        if ending is None or not result.is_finished:
            return
        if not ending.succeeded:
            _set(result, errors=[_error_of(Failure.decode(ending.result))])
            return
        outcome = self.app.codec.loads(ending.result)
        started = datetime.fromisoformat(outcome["started"])
        finished = datetime.fromisoformat(outcome["finished"])
        _set(
            result,
            started_at=started,
            last_attempted_at=started,
            finished_at=finished,
            _return_value=outcome["value"],
        )

    # -- where tasks run ---------------------------------------------------------------------------

    def _run(self, path: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The function of a carrier."""
        task, current, started = _task_at(path), job(), timezone.now()
        result = self._result(task, current.id, args, kwargs)
        _set(
            result,
            status=_STATUS.RUNNING,
            started_at=started,
            last_attempted_at=started,
            worker_ids=[_worker_name()] * current.attempt,
        )
        signals.task_started.send(type(self), task_result=result)
        context = (base.TaskContext(task_result=result),) if task.takes_context else ()
        value = task.call(*context, *args, **kwargs)
        finished = timezone.now()
        _set(result, status=_STATUS.SUCCESSFUL, finished_at=finished, _return_value=value)
        signals.task_finished.send(type(self), task_result=result)
        return {"value": value, "started": started.isoformat(), "finished": finished.isoformat()}

    def _report_failure(self, failed: FailedJob) -> None:
        """Send the signal of a task that has failed for good."""
        path, args, kwargs = failed.args
        result = self._result(_task_at(path), failed.id, args, kwargs)
        _set(
            result,
            status=_STATUS.FAILED,
            finished_at=timezone.now(),
            errors=[_error_of(failed.failure)],
            worker_ids=[_worker_name()] * failed.attempt,
        )
        signals.task_finished.send(type(self), task_result=result)

    def _result(
        self, task: Any, job_id: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        return base.TaskResult(
            task=task,
            id=job_id,
            status=_STATUS.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )


def add_carriers() -> None:
    """Add the carriers of every alias in ``settings.TASKS`` whose backend is this one, for a
    worker."""
    try:
        from django.tasks import task_backends
    except ModuleNotFoundError:  # before Django 6
        from django_tasks import task_backends
    for alias in getattr(settings, "TASKS", {}):
        backend = task_backends[alias]
        if isinstance(backend, JourneymanBackend):
            backend.add_carriers()


def _task_at(path: str) -> Any:
    """The task of Django at this path. Raises GiveUp: it is none, or not of an installed app."""
    problem = f"{path!r} is not a task in a module of an installed app"
    if apps.get_containing_app_config(path) is None:
        raise GiveUp(problem)
    try:
        task = import_string(path)
    except ImportError as error:
        raise GiveUp(f"{problem}: {error}") from None
    if not isinstance(task, base.Task):
        raise GiveUp(problem)
    return task


def _set(result: Any, **values: Any) -> None:
    """Results of Django are frozen; its own backends change them so."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _error_of(failure: Failure) -> Any:
    """The path of the class is in the last line of the traceback that has its name."""
    path = f"builtins.{failure.error}"
    for line in reversed(failure.traceback.splitlines()):
        name = line.partition(":")[0]
        if name.endswith(f".{failure.error}"):
            path = name
            break
    traceback = failure.traceback or f"{failure}\n"
    return base.TaskError(exception_class_path=path, traceback=traceback)


def _worker_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"

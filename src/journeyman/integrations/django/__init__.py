"""Journeyman in Django: settings, a management command, and jobs that wait for the commit.

    INSTALLED_APPS = [..., "journeyman.integrations.django"]
    JOURNEYMAN = {"APP": "shop.tasks:app"}

    python manage.py journeyman_worker -c 8      the options of `journeyman worker`

    with transaction.atomic():
        order = Order.objects.create(...)
        on_commit(send_receipt).send(order.id)   sent if, and when, the transaction commits

The worker imports the ``tasks`` module of every installed app, and closes old database connections
around every job.
"""

from __future__ import annotations

from typing import Any, Generic, ParamSpec, TypeVar

from django.db import transaction

from journeyman.tasks import Job, Task
from journeyman.tasks.task import Call, Sender

__all__ = ["on_commit"]

P = ParamSpec("P")
T = TypeVar("T")


class OnCommit(Generic[P, T]):
    """A task whose jobs are added when the open transaction commits; at once if there is none."""

    def __init__(self, task: Task[P, Any, T] | Sender[P, T], using: str | None) -> None:
        self._task = task
        self._using = using

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Arguments are checked now. The job has its id now, but exists after the commit."""
        call: Call[T] = self._task.call(*args, **kwargs)
        order = call.order()
        transaction.on_commit(lambda: call.app.broker.add(order) and None, using=self._using)
        return call.job_of(order)


def on_commit(task: Task[P, Any, T] | Sender[P, T], *, using: str | None = None) -> OnCommit[P, T]:
    """Send after the commit: ``on_commit(task).send(...)``. ``using`` names the database."""
    return OnCommit(task, using)

"""The outbox in a database of Django. Its table is made by ``manage.py migrate``.

outbox = DjangoOutbox()
app.use_outbox(outbox)

with transaction.atomic():
    order = Order.objects.create(...)
    outbox.send(send_receipt.call(order.id))
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, transaction

from journeyman.tasks.jobs import Job
from journeyman.tasks.outbox import Outbox
from journeyman.tasks.task import Call

T = TypeVar("T")


class DjangoOutbox(Outbox):
    """``using`` names the database."""

    def __init__(self, using: str = DEFAULT_DB_ALIAS) -> None:
        super().__init__(lambda: connections[using], paramstyle="format")
        self._using = using

    def send(self, call: Call[T]) -> Job[T]:  # type: ignore[override]
        """Write the job into the open transaction; without one it is committed at once."""
        with connections[self._using].cursor() as cursor:
            return super().send(cursor, call)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        close_old_connections()
        try:
            with transaction.atomic(using=self._using), connections[self._using].cursor() as cursor:
                yield cursor
        finally:
            close_old_connections()

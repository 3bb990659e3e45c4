"""The table of the outbox (outbox.py)."""

from __future__ import annotations

from typing import ClassVar

from django.db import models


class OutboxRow(models.Model):  # type: ignore[misc]
    """A job that waits to be sent, or that was not sent for the reason in ``problem``."""

    id = models.CharField(max_length=36, primary_key=True)
    created_ms = models.BigIntegerField()
    expires_ms = models.BigIntegerField()
    job = models.TextField()
    problem = models.CharField(max_length=500, default="", blank=True)

    class Meta:
        db_table = "journeyman_outbox"
        indexes: ClassVar = [models.Index(fields=["created_ms"], name="journeyman_outbox_created")]

    def __str__(self) -> str:
        return str(self.id)

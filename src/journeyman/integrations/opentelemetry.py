"""Spans of jobs, below the span of their sender.

    app.use(OpenTelemetry())

The sender puts its trace context into the envelope by itself. Each attempt is one span, ``process
QUEUE``, of kind CONSUMER, by the semantic conventions of OpenTelemetry for messaging; an exception
is recorded on it. Spans of the function are below it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, TracerProvider

from journeyman.tasks import CurrentJob

OPERATION = "process"


class OpenTelemetry:
    """Middleware; see the module."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("journeyman", tracer_provider=tracer_provider)

    async def around(self, job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        attributes: dict[str, str | int] = {
            "messaging.system": "journeyman",
            "messaging.operation.name": OPERATION,
            "messaging.operation.type": OPERATION,
            "messaging.destination.name": job.queue,
            "messaging.message.id": job.id,
            "journeyman.task": job.task,
            "journeyman.attempt": job.attempt,
        }
        with self._tracer.start_as_current_span(
            f"{OPERATION} {job.queue}",
            context=propagate.extract(dict(job.trace)),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        ) as span:
            try:
                return await call()
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                raise

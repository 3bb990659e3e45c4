"""Spans of jobs: where they are sent, and where they run.

    app.use(OpenTelemetry())

    span of the caller
      send QUEUE          PRODUCER, one per send; a group or a flow is one send of several jobs
        process QUEUE     CONSUMER, one per attempt; an exception is recorded on it
          spans of the function

The attributes are those of the semantic conventions of OpenTelemetry for messaging. The envelope
carries the trace context. It does so too without this middleware in the sender: then attempts are
below the span of the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, TracerProvider

from journeyman.tasks import CurrentJob
from journeyman.tasks.sending import Sending

SEND, PROCESS = "send", "process"


class OpenTelemetry:
    """Middleware; see the module."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("journeyman", tracer_provider=tracer_provider)

    @contextmanager
    def sending(self, sending: Sending) -> Iterator[None]:
        """The span of a send."""
        with self._tracer.start_as_current_span(
            f"{SEND} {sending.queue}",
            kind=SpanKind.PRODUCER,
            attributes=_attributes(SEND, sending.queue, sending.task),
        ) as span:
            with _error_type(span):
                yield
            if len(sending.job_ids) == 1:
                span.set_attribute("messaging.message.id", sending.job_ids[0])
            else:
                span.set_attribute("messaging.batch.message_count", len(sending.job_ids))

    async def around(self, job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        """Run an attempt in its span."""
        attributes = _attributes(PROCESS, job.queue, job.task)
        attributes |= {"messaging.message.id": job.id, "journeyman.attempt": job.attempt}
        span = self._tracer.start_as_current_span(
            f"{PROCESS} {job.queue}",
            context=propagate.extract(dict(job.trace)),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        )
        with span as current, _error_type(current):
            return await call()


def _attributes(operation: str, queue: str, task: str) -> dict[str, str | int]:
    return {
        "messaging.system": "journeyman",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "journeyman.task": task,
    }


@contextmanager
def _error_type(span: Span) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        span.set_attribute("error.type", type(error).__qualname__)
        raise

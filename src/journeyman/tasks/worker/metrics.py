"""Metrics of a worker for Prometheus: ``journeyman worker --metrics 9100``.

journeyman_worker_jobs_total{task, queue, outcome}     outcome: done, retry, failed
journeyman_worker_job_seconds{task}                    how long attempts took
"""

from __future__ import annotations

from collections.abc import Callable

from journeyman.errors import UsageError
from journeyman.tasks.running import Again, Outcome, Prepared, TaskDone

MAX_PORT = 65535
UNKNOWN = "?"  # names that no task has: anyone can send one, and each label is kept for ever


def serve_metrics(where: str) -> Callable[[Prepared, Outcome, float], None]:
    """Listen on ``[HOST:]PORT``; what to call for every outcome."""
    try:
        from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
    except ModuleNotFoundError:
        raise UsageError("--metrics needs: pip install prometheus-client") from None
    host, _, port = where.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= MAX_PORT):
        raise UsageError(f"not a port: {where!r}; write for example 9100 or 0.0.0.0:9100")
    registry = CollectorRegistry()
    jobs = Counter(
        "journeyman_worker_jobs", "Attempts by outcome", ["task", "queue", "outcome"],
        registry=registry,
    )  # fmt: skip
    took = Histogram(
        "journeyman_worker_job_seconds", "Time of an attempt", ["task"], registry=registry
    )
    try:
        start_http_server(int(port), host or "127.0.0.1", registry=registry)
    except OSError as error:
        raise UsageError(f"cannot serve metrics on {where}: {error.strerror or error}") from None

    def count(prepared: Prepared, outcome: Outcome, took_s: float) -> None:
        kind = "retry" if isinstance(outcome, Again) else "failed"
        if isinstance(outcome, TaskDone):
            kind = "done"
        name = UNKNOWN if prepared.task is None else prepared.name
        jobs.labels(name, prepared.delivery.queue, kind).inc()
        took.labels(name).observe(took_s)

    return count

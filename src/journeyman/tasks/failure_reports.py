"""``on_failure`` of a task: the job that reports that a job of it has failed for good.

    @app.task(retries=5, on_failure=alert)                       another task gets the facts, a dict
    @app.task(retries=5, on_failure="mail ops@example.com")      a worker sends a mail
    @app.task(on_failure="http POST https://example.com/hook")   ... or runs any runner

The report is a job. The worker adds it before it reports the failure, under an id made of the
failed job's: so a failure that was acknowledged has its report, and a worker that dies in between
adds nothing twice. Words are a call of the task ``journeyman.notice``, which every app has whose
tasks use them; it runs in the workers of the same queue, with the settings of the environment
(JOURNEYMAN_NOTICES_SMTP_HOST and others).
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

from journeyman.config import Settings, load
from journeyman.errors import JourneymanError
from journeyman.protocols.workq.salts import stable_id
from journeyman.protocols.ztick.grammar import read_reporter
from journeyman.tasks.broker import Order
from journeyman.tasks.current import FailedJob
from journeyman.tasks.durations import Backoff
from journeyman.tasks.options import Options
from journeyman.tasks.sending import Application
from journeyman.tasks.task import AnyTask, Call, Task

NOTICE = "journeyman.notice"
_OPTIONS = Options(retries=12, backoff=Backoff(first=10, factor=2, max=3600))


def notice_task(app: Application, queue: str) -> AnyTask:
    """Return the task by which the workers of this app send reports. A report goes to the queue of
    the job that failed; the task gets the queue of the first task that has such reports, so that
    no worker serves another queue for it."""
    return Task(app, send_notice, NOTICE, replace(_OPTIONS, queue=queue))


def order_of_report(app: Application, options: Options, failed: FailedJob) -> Order | None:
    """The job that reports this failure; None: the task asks for none."""
    reporter = options.on_failure
    if reporter is None:
        return None
    facts = {
        "event": "failed",
        "owner": failed.task,
        "job": failed.id,
        "queue": failed.queue,
        "attempt": failed.attempt,
        "reason": str(failed.failure),
        "output": failed.failure.traceback,
    }
    job_id = stable_id(UUID(failed.id).bytes, b"failed")
    if isinstance(reporter, tuple):
        task = app.tasks[NOTICE]
        of_queue = replace(task.defaults, queue=failed.queue)
        call: Call[Any] = Call(task, (list(reporter), facts), {}, of_queue, job_id=job_id)
    else:
        arguments = {"args": list(failed.args), "kwargs": dict(failed.kwargs)}
        call = Call(reporter, ({**facts, **arguments},), {}, reporter.defaults, job_id=job_id)
    return call.order()


async def send_notice(reporter: list[str], facts: dict[str, Any]) -> None:
    """The task ``journeyman.notice``."""
    from journeyman.runners import RunnerSet, RunRequest

    runner = read_reporter(reporter)
    if isinstance(runner, str):
        raise JourneymanError(f"on_failure: {runner}")
    settings: Settings = load(None, environ=os.environ).settings
    async with RunnerSet(settings) as runners:
        job, owner = str(facts["job"]), str(facts["owner"])
        request = RunRequest(job, time.time_ns(), runner, owner, facts=facts)
        result = await runners.run(request)
    if not result.success:
        raise JourneymanError(result.reason)

"""Tasks sent by name from a scheduler of workflows, once for each attempt of a step.

Airflow and Dagster may start a step again after they lost its process. The id of the job is made of
the step and its attempt, so the second start finds the job of the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from journeyman.protocols.workq.salts import salted, stable_id
from journeyman.tasks import App, Job
from journeyman.tasks.options import Options, check_job_options
from journeyman.tasks.task import Call, Task


def send_once(
    app: App,
    task: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    attempt: Sequence[str],
    options: Mapping[str, Any],
) -> Job[Any]:
    """Add the job of this attempt, or find the one that was added for it before.

    Other arguments are another job. Raises UsageError if an option is none of a job.
    """
    check_job_options(options)
    chosen = Options().with_(cast(Any, options))
    sent: Task[Any, Any, Any] = Task(app, _accept_anything, task, chosen)
    call = app.codec.dumps([list(args), dict(kwargs)])
    job_id = salted(stable_id(task, call, *attempt), app.broker.salt())
    return Call[Any](sent, tuple(args), dict(kwargs), chosen, job_id=job_id).send()


def _accept_anything(*args: Any, **kwargs: Any) -> None:
    """Stand for a function that only the worker has; the worker checks the arguments."""

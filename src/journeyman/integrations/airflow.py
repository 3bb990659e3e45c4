"""Tasks as steps of an Airflow DAG. See docs/integrations.md.

    SendTask(task_id="report", task="shop.build_report", task_args=[5], options={"queue": "slow"})
    WaitForJob(task_id="shipped", job_id="{{ ti.xcom_pull('order') }}")

Both defer: while the job waits and runs, a trigger waits for it, and no slot of a worker is taken.
The server is that of ``url``, or of ``JOURNEYMAN_URL`` on Airflow's workers and triggerers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from journeyman.client import NotFound
from journeyman.integrations.send_once import send_once
from journeyman.tasks import App, JobFailed


class JobEnded(BaseTrigger):
    """Fires when a job has ended, with its result or its error."""

    def __init__(self, job_id: str, url: str | None = None) -> None:
        super().__init__()
        self.job_id = job_id
        self.url = url

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return how Airflow makes this trigger again in a triggerer."""
        return f"{__name__}.JobEnded", {"job_id": self.job_id, "url": self.url}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the job."""
        app = App(self.url)
        try:
            yield TriggerEvent({"result": await app.job(self.job_id).aresult()})
        except JobFailed as error:
            yield TriggerEvent({"error": str(error)})
        except NotFound:
            yield TriggerEvent({"error": f"the server knows no job {self.job_id}"})
        finally:
            await app.aclose()


class WaitForJob(BaseOperator):
    """Wait for a job that something else sent; its result is the result of the step."""

    template_fields: Sequence[str] = ("job_id",)

    def __init__(self, *, job_id: str, url: str | None = None, **rest: Any) -> None:
        super().__init__(**rest)
        self.job_id = job_id
        self.url = url

    def execute(self, context: Any) -> None:  # noqa: ARG002 - Airflow passes it
        """Defer until the job has ended."""
        self.defer(trigger=JobEnded(self.job_id, self.url), method_name="finish")

    def finish(self, context: Any, event: Mapping[str, Any]) -> Any:  # noqa: ARG002 - likewise
        """Return the result. A job that failed was tried again by its worker already, as often as
        its task says: a retry of the step sends a new one."""
        if "error" in event:
            raise self.failure(event["error"])
        return event["result"]

    def failure(self, reason: str) -> Exception:
        """Return what ends the step: the same job will not succeed if it is waited for again."""
        final: Exception = AirflowFailException(reason)
        return final


class SendTask(WaitForJob):
    """Send a task by its name, once for each try of the step, and wait for its result."""

    template_fields: Sequence[str] = ("task_args", "task_kwargs")

    def __init__(
        self,
        *,
        task: str,
        task_args: Sequence[Any] = (),
        task_kwargs: Mapping[str, Any] | None = None,
        url: str | None = None,
        options: Mapping[str, Any] | None = None,
        **rest: Any,
    ) -> None:
        """``options`` of the job, as docs/tasks.md lists them: ``{"queue": "reports"}``."""
        super().__init__(job_id="", url=url, **rest)
        self.task = task
        self.task_args = task_args
        self.task_kwargs = task_kwargs or {}
        self.options = options or {}

    def execute(self, context: Any) -> None:
        """Send the job, and defer until it has ended."""
        step = context["ti"]
        attempt = [step.dag_id, step.run_id, step.task_id, str(step.map_index)]
        attempt.append(str(step.try_number))
        app = App(self.url)
        try:
            job = send_once(
                app,
                self.task,
                self.task_args,
                self.task_kwargs,
                attempt=attempt,
                options=self.options,
            )
        finally:
            app.close()
        self.log.info("job %s of task %s", job.id, self.task)
        self.job_id = job.id
        super().execute(context)

    def failure(self, reason: str) -> Exception:
        """Return an error after which Airflow may try again: a new try sends a new job."""
        return RuntimeError(reason)

"""Tasks as computations of Dagster's assets and ops. See docs/integrations.md.

@dg.asset
def report(context: dg.AssetExecutionContext, journeyman: JourneymanResource) -> dict:
    return journeyman.run(context, "shop.build_report", 5, options={"queue": "reports"})

dg.Definitions(assets=[report], resources={"journeyman": JourneymanResource()})
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster import ConfigurableResource, OpExecutionContext

from journeyman.integrations.send_once import send_once
from journeyman.tasks import App


class JourneymanResource(ConfigurableResource):
    """A server: ``url``, or that of ``JOURNEYMAN_URL``."""

    url: str = ""

    def run(
        self,
        context: OpExecutionContext,
        task: str,
        /,
        *args: Any,
        options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Send a task by its name, once for each try of the step and arguments; return its result.

        Raises JobFailed. If Dagster ends the step meanwhile, the job is cancelled.
        """
        step = context.get_step_execution_context()
        attempt = [context.run_id, step.step.key, str(context.retry_number)]
        app = App(self.url or None)
        try:
            job = send_once(app, task, args, kwargs, attempt=attempt, options=options or {})
            context.log.info("job %s of task %s", job.id, task)
            try:
                return job.result()
            except BaseException as error:
                if not isinstance(error, Exception):  # an interrupt, not a failure of the job
                    job.cancel()
                raise
        finally:
            app.close()

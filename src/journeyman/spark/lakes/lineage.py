"""OpenLineage events of an ingest: which logs flow into which tables of a lake.

    OPENLINEAGE_URL=http://catalog:5000 journeyman pipeline ingest journeyman-data/ --lake lake

    START     the logs, before anything is read
    RUNNING   with --follow: the tables that a round has changed
    COMPLETE  the tables that were changed; FAIL with the reason, or ABORT after an interrupt

The variables of the library configure it (OPENLINEAGE_URL, OPENLINEAGE_CONFIG, OPENLINEAGE__...);
if none is set, nothing of it is imported. A receiver that refuses or does not answer is reported
and never fails an ingest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from journeyman.clock import SystemClock
from journeyman.disk import is_database
from journeyman.spark.files import absolute, is_uri
from journeyman.spark.lakes.layout import TABLES
from journeyman.units import NS_PER_S

if TYPE_CHECKING:
    from journeyman.spark.lakes.ingest import Ingested

_PRODUCER: Final = "https://pypi.org/project/journeyman/"
_DEFAULT_NAMESPACE: Final = "default"

Note = Callable[["Ingested"], None]


def is_configured() -> bool:
    """Return whether a variable of OpenLineage is set."""
    return any(name.startswith("OPENLINEAGE_") for name in os.environ)


@contextmanager
def events_of_ingest(
    lake: str,
    logs: Mapping[str, Sequence[str]],
    *,
    host: str,
    follows: bool,
    warn: Callable[[str], None],
) -> Iterator[Note]:
    """Send the events of one ingest; the function that is given takes what came of each round."""
    if not is_configured():
        yield lambda _done: None
        return
    run = _Run(lake, logs, host, follows, warn)
    run.send("START")
    try:
        yield run.note
    except KeyboardInterrupt:
        run.send("COMPLETE" if follows else "ABORT")
        raise
    except BaseException as error:
        run.send("FAIL", str(error) or type(error).__name__)
        raise
    run.send("COMPLETE")


class _Run:
    """One run of an ingest, as OpenLineage sees it."""

    def __init__(
        self,
        lake: str,
        logs: Mapping[str, Sequence[str]],
        host: str,
        follows: bool,
        warn: Callable[[str], None],
    ) -> None:
        self._lake, self._logs, self._host = absolute(lake), logs, host
        self._follows, self._warn = follows, warn
        self._versions: dict[str, int] = {}
        self._client: Any = None
        self._id = ""

    def note(self, done: Ingested) -> None:
        """Remember the tables that a round has changed."""
        self._versions.update(done.versions)
        if self._follows and done.versions:
            self.send("RUNNING")

    def send(self, state: str, reason: str = "") -> None:
        """Send an event, or report why it was not sent."""
        try:
            self._emit(state, reason)
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("openlineage"):
                raise
            if state == "START":
                self._warn("no lineage is sent: pip install 'journeyman[lineage]'")
        except Exception as error:  # noqa: BLE001 - transports raise what their libraries raise
            self._warn(f"the {state} event was not sent to OpenLineage: {error}")

    def _emit(self, state: str, reason: str) -> None:
        from openlineage.client import OpenLineageClient
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import job_type_job
        from openlineage.client.uuid import generate_new_uuid

        if self._client is None:
            self._client = OpenLineageClient()
            self._id = str(generate_new_uuid())
        namespace = os.environ.get("OPENLINEAGE_NAMESPACE", _DEFAULT_NAMESPACE)
        kind = job_type_job.JobTypeJobFacet(
            processingType="STREAMING" if self._follows else "BATCH",
            integration="JOURNEYMAN",
            jobType="JOB",
            producer=_PRODUCER,
        )
        self._client.emit(
            RunEvent(
                eventTime=datetime.fromtimestamp(
                    SystemClock().now_ns() / NS_PER_S, UTC
                ).isoformat(),
                producer=_PRODUCER,
                run=Run(self._id, facets=_facets_of_run(reason)),
                job=Job(namespace, f"journeyman.ingest:{self._lake}", facets={"jobType": kind}),
                eventType=RunState(state),
                inputs=self._inputs(),
                outputs=self._outputs(),
            )
        )

    def _inputs(self) -> list[Any]:
        from openlineage.client.event_v2 import InputDataset

        paths = sorted({path for paths in self._logs.values() for path in paths})
        return [InputDataset(*name_of(path, host=self._host)) for path in paths]

    def _outputs(self) -> list[Any]:
        from openlineage.client.event_v2 import OutputDataset
        from openlineage.client.facet_v2 import dataset_version_dataset, schema_dataset

        outputs = []
        for name, version in sorted(self._versions.items()):
            fields = [
                schema_dataset.SchemaDatasetFacetFields(
                    name=column, type=kind.rstrip("!"), description=about
                )
                for column, kind, about in TABLES[name].columns
            ]
            facets = {
                "schema": schema_dataset.SchemaDatasetFacet(fields=fields, producer=_PRODUCER),
                "version": dataset_version_dataset.DatasetVersionDatasetFacet(
                    datasetVersion=str(version), producer=_PRODUCER
                ),
            }
            outputs.append(OutputDataset(*name_of(f"{self._lake}/{name}"), facets=facets))
        return outputs


def _facets_of_run(reason: str) -> dict[str, Any]:
    """Return the reason of a failure, and the run of a scheduler that started this one."""
    from openlineage.client.facet_v2 import error_message_run, parent_run

    facets: dict[str, Any] = {}
    if reason:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=reason, programmingLanguage="python", producer=_PRODUCER
        )
    namespace, _, rest = os.environ.get("OPENLINEAGE_PARENT_ID", "").partition("/")
    name, _, run_id = rest.rpartition("/")
    if name:
        facets["parent"] = parent_run.ParentRunFacet(
            run=parent_run.Run(runId=run_id),
            job=parent_run.Job(namespace=namespace, name=name),
            producer=_PRODUCER,
        )
    return facets


def name_of(path: str, host: str = "") -> tuple[str, str]:
    """Return the namespace and the name of a path by OpenLineage's rules, without a password."""
    path = absolute(path)
    if not is_uri(path):
        return (f"file://{host}" if host else "file"), path
    parts = urlsplit(path)
    if is_database(path):
        return f"postgres://{parts.netloc.rpartition('@')[2]}", parts.path.lstrip("/")
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/") or "/"

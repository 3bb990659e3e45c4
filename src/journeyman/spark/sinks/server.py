"""``write.format("journeyman")``: a DataFrame of jobs onto a running server, over its protocol.

    where       when                     what
    driver      ``writer``               options and columns checked; the run gets its id
    executors   ``write``, once a task   jobs are put, in batches, at the task's share of the rate
    driver      ``commit``               counts; refused jobs make the write fail, or not

A job that was put stays put: there is nothing to roll back on a server. So a write that fails has
put some of its jobs, and to repeat it does no harm (see sending).

Spark imports this module in every session, to see which formats there are; so it imports little.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from journeyman.errors import JourneymanError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from journeyman.spark.sinks.sending import Sent
    from journeyman.spark.sinks.server_options import ServerOptions


class JobsRefused(JourneymanError):
    """The server refused some of the jobs; the others are there."""


class ServerSink(DataSource):
    """The data source. It only writes."""

    @classmethod
    def name(cls) -> str:
        return "journeyman"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise UsageError("jobs are put onto a server, and nothing there is overwritten: append")
        from journeyman.spark.sinks.sending import check_columns
        from journeyman.spark.sinks.server_options import ServerOptions

        options = ServerOptions.parse(self.options)
        check_columns(options.door, schema.fieldNames())
        return ServerWriter(options)


@dataclass(frozen=True, slots=True)
class _Told(WriterCommitMessage):
    sent: Sent


class ServerWriter(DataSourceArrowWriter):
    """One write. Pickled to wherever a step of it runs."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        from pyspark import TaskContext

        from journeyman.clock import SystemClock
        from journeyman.spark.sinks.sending import send_rows

        context = TaskContext.get()
        tasks = self._options.tasks
        if context is not None and tasks is not None and context.partitionId() >= tasks:
            raise UsageError(f"the DataFrame has more than the {tasks} partitions that tasks says")
        rows = (row for batch in iterator for row in batch.to_pylist())
        return _Told(send_rows(self._options, rows, SystemClock()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        from journeyman.spark.sinks.sending import Sent

        total = Sent()
        for message in messages:
            if isinstance(message, _Told):
                total.add(message.sent)
        if self._options.report is not None:
            with open(self._options.report, "w", encoding="utf-8") as file:
                json.dump(asdict(total), file)
        if total.refused and self._options.refused == "fail":
            raise JobsRefused(_complaint(total, self._options.where))


def send(frame: DataFrame, door: str, address: str, *, tasks: int = 1, **options: Any) -> None:
    """Put the jobs of a DataFrame onto a server by at most ``tasks`` tasks; options as above.

    One task with batches is as fast as most servers; more of them help where the network is slow.
    """
    from journeyman.spark.sinks.sending import check_columns
    from journeyman.spark.sinks.server_options import ServerOptions
    from journeyman.spark.source.api import SERVER_FORMAT, registered

    given = {name: str(value) for name, value in options.items() if value is not None}
    given |= {"door": door, "address": address, "tasks": str(tasks)}
    check_columns(ServerOptions.parse(given).door, frame.columns)
    registered(frame.sparkSession, SERVER_FORMAT)
    frame.coalesce(tasks).write.format(SERVER_FORMAT).mode("append").options(**given).save()


def _complaint(total: Sent, where: str) -> str:
    shown = "; ".join(f"{job[:80]}: {reason}" for job, reason in total.first_refused)
    there = total.put + total.already_there
    return f"{where} refused {total.refused} jobs ({shown}); the other {there} are there"

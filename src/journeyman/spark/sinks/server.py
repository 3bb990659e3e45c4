"""``write.format("journeyman")``: a DataFrame of jobs onto a running server, over its protocol.

The same for streams: ``writeStream.format("journeyman")``; ``commit`` is called for each batch.

    where       when                     what
    driver      ``writer``               options and columns checked; the run gets its id
    executors   ``write``, once a task   jobs are put, in batches, at the task's share of the rate
    driver      ``commit``               counts; refused jobs make the write fail, or not

A job that was put stays put: there is nothing to roll back on a server. So a write that fails has
put some of its jobs, and to repeat it does no harm (see sending).

Spark imports this module in every session, to see which formats there are. So it imports little;
a client only where a connection is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from journeyman.errors import JourneymanError, UsageError
from journeyman.spark.sinks.server_options import OPTIONS, ServerOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from journeyman.spark.sinks.sending import Sent


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

        options = ServerOptions.parse(self.options)
        check_columns(options.dialect, schema.fieldNames())
        return ServerWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        if overwrite:
            raise UsageError('outputMode is "append": jobs that are on the server stay there')
        from journeyman.spark.sinks.sending import check_columns

        # Spark hands over options of its own, such as the checkpoint's place.
        known = {name.lower() for name, _, _ in OPTIONS}
        given = {name: text for name, text in self.options.items() if name.lower() in known}
        options = ServerOptions.parse(given)
        check_columns(options.dialect, schema.fieldNames())
        named = {"job_id", "identifier"} & set(schema.fieldNames())
        if not named and "runid" not in {name.lower() for name in given}:
            raise UsageError("a stream of jobs by job_key needs the option runId: any fixed text")
        return ServerStreamWriter(options)


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


class ServerStreamWriter(DataSourceStreamArrowWriter):
    """A writer for each batch of a stream."""

    def __init__(self, options: ServerOptions) -> None:
        self._writer = ServerWriter(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return self._writer.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - as Spark calls it
        self._writer.commit(messages)


def _complaint(total: Sent, where: str) -> str:
    shown = "; ".join(f"{job[:80]}: {reason}" for job, reason in total.first_refused)
    there = total.put + total.already_there
    return f"{where} refused {total.refused} jobs ({shown}); the other {there} are there"

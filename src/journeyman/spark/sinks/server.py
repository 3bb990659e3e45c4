"""``write.format("journeyman")``: a DataFrame of jobs onto a running server, over its protocol.

The same for streams: ``writeStream.format("journeyman")``; ``commit`` is called for each batch.

    where       when                     what
    driver      ``writer``               options and columns checked; the run gets its id
    executors   ``write``, once a task   jobs are put, in batches, at the task's share of the rate
    driver      ``commit``               counts; refused jobs make the write fail, or not

A job that was put stays put: there is nothing to roll back on a server. So a write that fails has
put some of its jobs, and to repeat it does no harm (see sending).

Spark imports this module in every session, to see which formats there are. So it imports little;
a client only where a port or a connection is needed. The options:

    door         ztick or workq: which of the server's protocols
    address      HOST:PORT; by default 127.0.0.1 and the port of that service
    token        the secret of a token
    tls          true: speak TLS, trusting what the system trusts; tlsCa: trusting this file
    batchSize    jobs on the way at a time, for each task (500)
    rateLimit    jobs a second over all tasks together; then ``tasks`` is needed
    tasks        how many tasks there are at most; each gets its share of the rate
    maxRetries   how often a task connects anew before it gives up (5)
    refused      fail (default): the write fails, behind all jobs that were taken; skip: it does not
    report       a file on the driver's machine for the counts, as JSON
    runId        workq: what ids are made of besides ``job_key``; say the same again to repeat a
                 write that failed, and no job is added twice. A stream whose rows have no
                 ``job_id`` needs it: a batch that Spark repeats must add nothing twice

A name that nobody knows is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from journeyman.errors import JourneymanError, UsageError
from journeyman.spark.source.options import (
    OptionTable,
    any_text,
    flag_option,
    number_from,
    one_of,
    parse_options,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from journeyman.spark.sinks.sending import Sent


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Checked and with defaults. Pickled with every task; ``run_id`` is the same in all."""

    dialect: str
    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    tls: bool = False
    tls_ca: str | None = None
    batch_size: int = 500
    rate_limit: float | None = None
    tasks: int | None = None
    max_retries: int = 5
    refused: str = "fail"
    report: str | None = None
    run_id: str = ""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ServerOptions:
        """Raises UsageError."""
        values = parse_options("format('journeyman')", given, _OPTIONS)
        dialect = values.pop("dialect", None)
        if dialect is None:
            raise UsageError("format('journeyman') needs the option door: ztick or workq")
        host, port = parse_address(values.pop("address", None), _default_port(dialect))
        values.setdefault("run_id", str(uuid4()))
        options = cls(dialect, host, port, **values)
        if options.rate_limit is not None and options.tasks is None:
            raise UsageError(
                "rateLimit is over all tasks: say with tasks how many there are at most,"
                " or use journeyman.spark.send"
            )
        return options

    @property
    def where(self) -> str:
        return f"{self.host}:{self.port}"


def _default_port(dialect: str) -> int:
    port: int = import_module(f"journeyman.client.{dialect}").DEFAULT_PORT
    return port


def parse_address(text: str | None, default_port: int) -> tuple[str, int]:
    """HOST, HOST:PORT or [ADDRESS]:PORT."""
    if text is None:
        return "127.0.0.1", default_port
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise UsageError(f"an address is HOST:PORT, not {text!r}")
    return host, int(port)


def _rate(name: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise UsageError(f"{name} is a number of jobs a second above 0, not {text!r}")
    return rate


_OPTIONS: Final[OptionTable] = (
    ("door", "dialect", one_of("ztick", "workq")),
    ("address", "address", any_text),
    ("token", "token", any_text),
    ("tls", "tls", flag_option),
    ("tlsCa", "tls_ca", any_text),
    ("batchSize", "batch_size", number_from(1)),
    ("rateLimit", "rate_limit", _rate),
    ("tasks", "tasks", number_from(1)),
    ("maxRetries", "max_retries", number_from(0)),
    ("refused", "refused", one_of("fail", "skip")),
    ("report", "report", any_text),
    ("runId", "run_id", any_text),
)


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
        from journeyman.spark.sinks.server import ServerOptions

        options = ServerOptions.parse(self.options)
        check_columns(options.dialect, schema.fieldNames())
        return ServerWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        if overwrite:
            raise UsageError('outputMode is "append": jobs that are on the server stay there')
        from journeyman.spark.sinks.sending import check_columns
        from journeyman.spark.sinks.server import ServerOptions, ServerStreamWriter

        # Spark hands over options of its own, such as the checkpoint's place.
        known = {name.lower() for name, _, _ in _OPTIONS}
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
    """The same for each batch of a stream."""

    def __init__(self, options: ServerOptions) -> None:
        self._writer = ServerWriter(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        return self._writer.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - as Spark calls it
        self._writer.commit(messages)


def send(frame: DataFrame, dialect: str, address: str, *, tasks: int = 1, **options: Any) -> None:
    """Put the jobs of a DataFrame onto a server by at most ``tasks`` tasks; options as above.

    One task with batches is as fast as most servers; more of them help where the network is slow.
    """
    from journeyman.spark.sinks.sending import check_columns
    from journeyman.spark.sinks.server import ServerOptions
    from journeyman.spark.source import SERVER_FORMAT, register_formats

    given = {name: str(value) for name, value in options.items() if value is not None}
    given |= {"door": dialect, "address": address, "tasks": str(tasks)}
    check_columns(ServerOptions.parse(given).dialect, frame.columns)
    register_formats(frame.sparkSession, SERVER_FORMAT)
    frame.coalesce(tasks).write.format(SERVER_FORMAT).mode("append").options(**given).save()


def _complaint(total: Sent, where: str) -> str:
    shown = "; ".join(f"{job[:80]}: {reason}" for job, reason in total.first_refused)
    there = total.put + total.already_there
    return f"{where} refused {total.refused} jobs ({shown}); the other {there} are there"

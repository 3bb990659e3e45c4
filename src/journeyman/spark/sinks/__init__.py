"""DataFrames back into logs, and onto a running server.

    write(frame, "ztick", path)              sorted and written; what most callers want
    frame.write.format("ztick")...           the same for rows that are in order already
    send(frame, "ztick", "host:5678")        jobs onto a server over its protocol
    frame.write.format("journeyman")...      the same, by all of the DataFrame's tasks

What a log sink promises: rows in order, all files or none, a log that the server and the originals
load, and nothing twice whatever tasks are retried. docs/sinks.md says how, and what it does not.

Nothing is imported before it is called: Spark looks into this package in every session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import DataSourceArrowWriter
    from pyspark.sql.types import StructType

__all__ = ["log_writer", "send", "write"]


def log_writer(
    dialect: str, options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of a log's data source; see log_sink.py."""
    from journeyman.spark.sinks import log_sink

    return log_sink.log_writer(dialect, options, schema, overwrite)


def write(frame: DataFrame, dialect: str, path: str, **options: Any) -> None:
    """Sort the rows and write them as a log; see log_sink.py."""
    from journeyman.spark.sinks import log_sink

    log_sink.write(frame, dialect, path, **options)


def send(frame: DataFrame, door: str, address: str, **options: Any) -> None:
    """Put the jobs of a DataFrame onto a server; see server.py."""
    from journeyman.spark.sinks import server

    server.send(frame, door, address, **options)

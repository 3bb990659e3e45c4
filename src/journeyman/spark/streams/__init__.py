"""Live logs as streams: ``spark.readStream.format("ztick").load(path)``, and so on.

    layout       what files are there now
    survey       the same, proved to be one moment, with hard links on what is still to be read
    chains       which of them come next, behind what the stream knows; lost history, replaced files
    admission    how much of that goes into one micro-batch
    boundaries   ... ending at a whole entry
    offsets      the answer: every log, every file, every byte; JSON in Spark's checkpoint
    reader       the class that Spark calls

Everything but ``reader`` is plain Python over files. Rows are those of the batch source. See
docs/streaming.md for what happens on rotation, compaction, damage and kill -9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

__all__ = ["stream_reader"]


def stream_reader(
    dialect: str, options: Mapping[str, str], schema: StructType
) -> DataSourceStreamReader:
    """What a source answers to ``streamReader``. Raises UsageError for options it cannot meet."""
    from journeyman.spark.streams.reader import LogStreamReader

    return LogStreamReader(dialect, options, schema)

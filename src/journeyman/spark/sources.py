"""The data sources: ``spark.read.format("ztick" | "workq" | "kestrel" | "keyspace")``.

    in the driver     spark.read.format("ztick").load(path)      options and schema are checked
    in a planner      LogReader.partitions()                     files are found and cut
    in the tasks      LogReader.read(partition)                  bytes become Arrow batches

Each of the three runs in a process of its own, on a pickled copy; so what only one of them needs
is imported there. A source opens nothing when it is made. Writing and streaming are other modules'
work, imported when asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from journeyman.spark.layout import Log, find_logs, partition_columns
from journeyman.spark.options import SourceOptions
from journeyman.spark.reduction import reducer_of
from journeyman.spark.schemas import arrow_schema, base_schema, narrowed, with_extras
from journeyman.spark.splits import LogPartition, SplitContext

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "SOURCES",
    "FilteringLogReader",
    "KestrelSource",
    "KeyspaceSource",
    "LogReader",
    "LogSource",
    "WorkqSource",
    "ZtickSource",
    "full_schema",
]


class LogSource(DataSource):
    """A log of one dialect as a table."""

    dialect: str

    @classmethod
    def name(cls) -> str:
        return cls.dialect

    def schema(self) -> StructType:
        return full_schema(self._options())

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._options()
        return (FilteringLogReader if options.push_filters else LogReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from journeyman.spark.streams import stream_reader

        return stream_reader(self.dialect, self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from journeyman.spark.sinks import log_writer

        return log_writer(self.dialect, self.options, schema, overwrite)

    def _options(self) -> SourceOptions:
        return SourceOptions.parse(self.dialect, self.options)


class ZtickSource(LogSource):
    dialect = "ztick"


class WorkqSource(LogSource):
    dialect = "workq"


class KestrelSource(LogSource):
    dialect = "kestrel"


class KeyspaceSource(LogSource):
    dialect = "keyspace"


SOURCES = (ZtickSource, WorkqSource, KestrelSource, KeyspaceSource)


def full_schema(options: SourceOptions) -> StructType:
    """All columns of a read. Looks at the paths, whose names may be columns."""
    return _schema_of(options, find_logs(options))


def _schema_of(options: SourceOptions, logs: Iterable[Log]) -> StructType:
    base = base_schema(options.dialect) if options.reduce is None else reducer_of(options).schema
    return with_extras(base, partition_columns(logs), options.corrupt_column)


class LogReader(DataSourceReader):
    """Plans a read and does the parts of it. Small and picklable: options, schema, conditions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions: list[Filter] = []

    def partitions(self) -> Sequence[InputPartition]:
        from journeyman.spark.planning import plan_partitions

        logs = find_logs(self._options)
        narrowed(_schema_of(self._options, logs), self._schema)
        return list(plan_partitions(logs, self._options, self._is_wanted))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from journeyman.spark.batches import read_pieces

        # Spark makes a partition of its own when there are none.
        pieces = partition.pieces if isinstance(partition, LogPartition) else ()
        return read_pieces(pieces, self._options, self._schema, self._conditions)

    def _is_wanted(self, context: SplitContext) -> bool:
        """Whether rows of this file can meet the conditions."""
        if not self._conditions:
            return True
        from journeyman.spark.pushdown import may_meet

        return may_meet(self._conditions, context.constants(), arrow_schema(self._schema))


class FilteringLogReader(LogReader):
    """A reader that meets conditions itself; journeyman.spark.pushdown says when that is safe."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        from journeyman.spark.pushdown import is_supported

        schema = arrow_schema(self._schema)
        self._conditions = [each for each in filters if is_supported(each, schema)]
        return [each for each in filters if not is_supported(each, schema)]

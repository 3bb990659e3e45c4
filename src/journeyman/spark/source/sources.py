"""The data sources: ``spark.read.format("ztick" | "workq" | "kestrel" | "keyspace")``.

    in the driver     spark.read.format("ztick").load(path)      options and schema are checked
    in a planner      LogReader.partitions()                     files are found and cut
    in the tasks      LogReader.read(partition)                  bytes become Arrow batches

Each of the three runs in a process of its own, on a pickled copy; so what only one of them needs
is imported there. A source opens nothing when it is made. Writing and streaming are other modules'
work, imported when asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructField, StructType

from journeyman.logs.catalog import Log, partition_columns
from journeyman.spark.files import find_logs
from journeyman.spark.source.options import SourceOptions, own_options
from journeyman.spark.source.schemas import (
    PACKET_SCHEMA,
    base_schema,
    narrowed,
    with_extras,
)
from journeyman.spark.source.splits import LogPartition, plan_partitions

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT_OPTIONS = "journeyman.options"


class LogSource(DataSource):
    """A log of one dialect as a table."""

    dialect: str

    @classmethod
    def name(cls) -> str:
        return cls.dialect

    def schema(self) -> StructType:
        found = full_schema(self._options())
        return _with_options(found, own_options(self.options)) if _is_table(self.options) else found

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(SourceOptions.parse(self.dialect, self._given(schema)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from journeyman.spark.streams import stream_reader

        return stream_reader(self.dialect, self._given(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from journeyman.spark.sinks import log_writer

        return log_writer(self.dialect, self._given(schema), schema, overwrite)

    def _options(self) -> SourceOptions:
        return SourceOptions.parse(self.dialect, self.options)

    def _given(self, schema: StructType) -> dict[str, str]:
        """The options of this read, and those that the table was created with."""
        return {**_options_in(schema), **own_options(self.options)}


class ZtickSource(LogSource):
    dialect = "ztick"


class WorkqSource(LogSource):
    dialect = "workq"


class KestrelSource(LogSource):
    dialect = "kestrel"


class KeyspaceSource(LogSource):
    dialect = "keyspace"


SOURCES = (ZtickSource, WorkqSource, KestrelSource, KeyspaceSource)


def _is_table(options: Mapping[str, str]) -> bool:
    return "provider" in options


def _with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema with the options of a table in the metadata of its first column.

    Spark (4.3.0) does not hand the options of a table in a catalog to a Python source that reads
    it, but it keeps the schema that CREATE TABLE was given, with all that is in it.
    """
    first, *others = schema.fields
    kept = {_KEPT_OPTIONS: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, kept), *others])


def _options_in(schema: StructType) -> dict[str, str]:
    kept = [f.metadata[_KEPT_OPTIONS] for f in schema.fields if _KEPT_OPTIONS in (f.metadata or {})]
    options: dict[str, str] = json.loads(kept[0]) if kept else {}
    return options


def full_schema(options: SourceOptions) -> StructType:
    """All columns of a read. Looks at the paths, whose names may be columns."""
    return _schema_of(options, find_logs(options))


def _schema_of(options: SourceOptions, logs: Iterable[Log]) -> StructType:
    base = base_schema(options.dialect) if options.reduce is None else PACKET_SCHEMA
    return with_extras(base, partition_columns(logs), options.corrupt_column)


class LogReader(DataSourceReader):
    """Plans a read and does the parts of it. Small and picklable: options, schema."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        logs = find_logs(self._options)
        narrowed(_schema_of(self._options, logs), self._schema)
        return list(plan_partitions(logs, self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from journeyman.spark.source.task import read_pieces

        # Spark makes a partition of its own when there are none.
        pieces = partition.pieces if isinstance(partition, LogPartition) else ()
        return read_pieces(pieces, self._options, self._schema)

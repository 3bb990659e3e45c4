"""The data sources of a Spark session: the formats ``ztick``, ``workq``, ``kestrel`` and
``ledger`` of logs, and ``journeyman`` of a server.

    in the driver     spark.read.format("ztick").load(path)      options and schema are checked
    in a planner      LogReader.partitions()                     files are found and cut: splits.py
    in the tasks      LogReader.read(partition)                  bytes become Arrow batches: task.py

Each of the three runs in a process of its own, on a pickled copy; so what only one of them needs is
imported there. A source opens nothing when it is made. Writing and streaming are the work of
``spark/sinks`` and ``spark/streams``, which are imported when they are asked for.

The functions of ``journeyman.spark`` that read, write and send lead here. Spark
checks the options of a Python source in another process and wraps what is wrong in a trace; here
they are checked in the caller's, so that the error is one line. What was read is remembered, so
that a command can say at its end how much of it is damaged (``measure_damage``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructField, StructType

from journeyman.errors import UsageError
from journeyman.logs.catalog import Log, partition_columns
from journeyman.spark.files import absolute, find_source_logs
from journeyman.spark.slots import slots_of
from journeyman.spark.source import options as source_options
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.pieces import LogPartition
from journeyman.spark.source.splits import plan_partitions

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT_OPTIONS = "journeyman.options"
SERVER_FORMAT = "journeyman"
_DAMAGE_COLUMNS = "_file string, _offset bigint, _length int, kind string, _damage string"
_SAME_DAMAGE = (
    *("paths", "salvage", "queue", "asOf", "pathGlobFilter", "recursiveFileLookup"),
    *("ignoreMissingFiles", "minPartitions", "splitBytes"),
)
# Each session has its reads, as dialect and options, to be asked for their damage afterwards.
_read_in: WeakKeyDictionary[SparkSession, dict[str, tuple[str, dict[str, str]]]] = (
    WeakKeyDictionary()
)
_salvaging: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()
# Registering again would do no harm but for a warning from Spark each time.
_known_to: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


class LogSource(DataSource):
    """A log of one dialect as a table."""

    dialect: str

    @classmethod
    def name(cls) -> str:
        return cls.dialect

    def schema(self) -> StructType:
        found = full_schema(self._options())
        return (
            _with_options(found, source_options.own_options(self.options))
            if _is_table(self.options)
            else found
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(SourceOptions.parse(self.dialect, self._table_options(schema)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from journeyman.spark.streams import LogStreamReader

        return LogStreamReader(self.dialect, self._table_options(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from journeyman.spark.sinks.log_sink import new_writer

        given = self._table_options(schema)
        return new_writer(self.dialect, given, schema.fieldNames(), overwrite=overwrite)

    def _options(self) -> SourceOptions:
        return SourceOptions.parse(self.dialect, self.options)

    def _table_options(self, schema: StructType) -> dict[str, str]:
        """The options of this read, and those that the table was created with."""
        return {**_options_in(schema), **source_options.own_options(self.options)}


class ZtickSource(LogSource):
    dialect = "ztick"


class WorkqSource(LogSource):
    dialect = "workq"


class KestrelSource(LogSource):
    dialect = "kestrel"


class LedgerSource(LogSource):
    dialect = "ledger"


SOURCES = (ZtickSource, WorkqSource, KestrelSource, LedgerSource)


def _is_table(options: Mapping[str, str]) -> bool:
    return "provider" in options


def _with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema with the options of a table in the metadata of its first column.

    Spark (4.3.0) does not hand the options of a table in a catalog to a Python source that reads
    it, but it keeps the schema that CREATE TABLE was given, with all that is in it.
    """
    first, *others = schema.fields
    kept = {**(first.metadata or {}), _KEPT_OPTIONS: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, kept), *others])


def _options_in(schema: StructType) -> dict[str, str]:
    kept = [f.metadata[_KEPT_OPTIONS] for f in schema.fields if _KEPT_OPTIONS in (f.metadata or {})]
    options: dict[str, str] = json.loads(kept[0]) if kept else {}
    return options


def full_schema(options: SourceOptions) -> StructType:
    """All columns of a read. Looks at the paths, whose names may be columns."""
    return _schema_of(options, find_source_logs(options))


def _schema_of(options: SourceOptions, logs: Iterable[Log]) -> StructType:
    base = (
        source_options.base_schema(options.dialect)
        if options.reduce is None
        else source_options.PACKET_SCHEMA
    )
    return source_options.with_extras(base, partition_columns(logs), options.corrupt_column)


class LogReader(DataSourceReader):
    """Plans a read and does the parts of it. Small and picklable: options, schema."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        logs = find_source_logs(self._options)
        full = _schema_of(self._options, logs)
        named = source_options.NAMED_COLUMNS.get(self._options.dialect, [])
        source_options.narrowed(StructType([*full.fields, *named]), self._schema)
        return list(plan_partitions(logs, self._options, times="time" in self._schema.names))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from journeyman.spark.source.task import read_partition

        # Spark makes a partition of its own when there are none.
        pieces = partition.pieces if isinstance(partition, LogPartition) else ()
        return read_partition(pieces, self._options, self._schema)


class DamageFound(NamedTuple):
    """How much of some logs is damaged. ``file`` is one of the files; at least so many records."""

    files: int
    places: int
    damaged_bytes: int
    records: int
    file: str


def register_formats(spark: SparkSession, *formats: str) -> None:
    """Make these formats, or all, known to this session. Each one costs a Python process once."""
    known = _known_to.setdefault(spark, set())
    wanted: list[type[DataSource]] = [
        source for source in SOURCES if not formats or source.name() in formats
    ]
    if not formats or SERVER_FORMAT in formats:
        from journeyman.spark.sinks.server import ServerSink

        wanted.append(ServerSink)
    for source in wanted:
        if source.name() not in known:
            spark.dataSource.register(source)
            known.add(source.name())


def open_logs(
    spark: SparkSession, dialect: str, paths: Sequence[str], options: Mapping[str, object]
) -> DataFrame:
    """The logs at these paths as one DataFrame.

    ``schema``, as DDL or StructType, is for Spark; the other options are the source's. An option
    that is None is not given.
    """
    if dialect not in source_options.DIALECTS:
        raise UsageError(f"no dialect {dialect!r}; there are {', '.join(source_options.DIALECTS)}")
    schema = options.get("schema")
    given = {
        name: _spelt(value)
        for name, value in options.items()
        if name != "schema" and value is not None
    }
    if paths:
        given["paths"] = json.dumps([absolute(str(path)) for path in paths])
    if _salvaging.get(spark):
        given.setdefault("salvage", "true")
    SourceOptions.parse(dialect, given)
    if "minpartitions" not in {name.lower() for name in given}:
        given["minPartitions"] = str(slots_of(spark))
    register_formats(spark, dialect)
    _note(spark, dialect, given)
    reader = spark.read.format(dialect).options(**given)
    if isinstance(schema, str | StructType):
        reader = reader.schema(schema)
    return reader.load()


def write_log(
    frame: DataFrame,
    dialect: str,
    path: str,
    *,
    mode: str = "append",
    partitions: int | None = None,
    **options: Any,
) -> None:
    """Sort the rows and write them as a log; options as docs/spark.md has them.

    ``partitions`` is how many tasks write; by default Spark decides.
    """
    from journeyman.spark.sinks.log_options import MODES, SinkOptions

    if mode not in MODES:
        raise UsageError(f"mode is {' or '.join(MODES)}, not {mode!r}")
    given = {name: str(value) for name, value in options.items() if value is not None}
    order = SinkOptions.parse(dialect, {**given, "path": path}, frame.columns).order_by
    columns = [f"`{name}`" for name in order]
    if partitions is None:
        ranged = frame.repartitionByRange(*columns)
    else:
        ranged = frame.repartitionByRange(partitions, *columns)
    rows = ranged.sortWithinPartitions(*columns)
    register_formats(rows.sparkSession, dialect)
    rows.write.format(dialect).mode(mode).options(**given).save(path)


def send_jobs(
    frame: DataFrame, dialect: str, address: str, *, tasks: int = 1, **options: Any
) -> None:
    """Put the jobs of a DataFrame onto a server by at most ``tasks`` tasks; options as
    ``sinks/server_options.py`` lists them.

    One task with batches is as fast as most servers; more of them help where the network is slow.
    """
    from journeyman.spark.sinks.sending import check_columns
    from journeyman.spark.sinks.server_options import ServerOptions

    given = {name: str(value) for name, value in options.items() if value is not None}
    given |= {"door": dialect, "address": address, "tasks": str(tasks)}
    check_columns(ServerOptions.parse(given).dialect, frame.columns)
    register_formats(frame.sparkSession, SERVER_FORMAT)
    frame.coalesce(tasks).write.format(SERVER_FORMAT).mode("append").options(**given).save()


def begin_command(spark: SparkSession, salvage: bool) -> None:
    """Forget what was read before; from now on, reads that do not say so salvage, or do not."""
    _salvaging[spark] = salvage
    _read_in.pop(spark, None)


def forget_reads(spark: SparkSession, dialect: str) -> None:
    """Note that all reads of this dialect so far found whole logs, so that nobody looks again."""
    read = _read_in.get(spark, {})
    for key in [key for key, (each, _) in read.items() if each == dialect]:
        del read[key]


def measure_damage(spark: SparkSession) -> DamageFound:
    """The damage in all logs that were read in this session.

    They are walked through once more for it, which is several times as fast as reading them.
    """
    frames = _damages_read(spark)
    if not frames:
        return DamageFound(0, 0, 0, 0, "")
    # Several reads may have met the same damage.
    places = reduce(DataFrame.union, frames).distinct()
    # An entry cut short, or a header, does not tell whether a record was lost.
    is_record = F.col("_damage").rlike("^(corrupt|padding): ")
    found = places.agg(
        F.count_distinct("_file"),
        F.count(F.lit(1)),
        F.coalesce(F.sum("_length"), F.lit(0)),
        F.count_if(is_record),
        F.coalesce(F.min("_file"), F.lit("")),
    ).collect()[0]
    return DamageFound(*found)


def _damages_read(spark: SparkSession) -> list[DataFrame]:
    """One frame for each set of logs that was read in this session: rows about damage alone."""
    frames = []
    damage = {"damageOnly": "true", "ignoreMissingFiles": "true"}
    for dialect, options in _read_in.get(spark, {}).values():
        reader = spark.read.format(dialect).options(**{**options, **damage})
        frames.append(reader.schema(_DAMAGE_COLUMNS).load())
    return frames


def _note(spark: SparkSession, dialect: str, options: Mapping[str, str]) -> None:
    kept = {name: options[name] for name in _SAME_DAMAGE if name in options}
    _read_in.setdefault(spark, {})[json.dumps([dialect, kept])] = dialect, kept


def _spelt(value: object) -> str:
    """An option as Spark writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(each) for each in value)
    return str(value)

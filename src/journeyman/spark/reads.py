"""What ``journeyman.spark.register`` and ``read`` do: formats made known, options checked first.

Spark checks the options of a Python source in another process and wraps what is wrong in a trace;
here they are checked in the caller's, so that the error is one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from journeyman.errors import UsageError
from journeyman.spark.filesystem import absolute
from journeyman.spark.options import SourceOptions
from journeyman.spark.schemas import DIALECTS

__all__ = ["SERVER_FORMAT", "opened", "registered"]

SERVER_FORMAT = "journeyman"

_LOCAL_MASTER = re.compile(r"local\[(\d+)(?:,\d+)?\]|(local)")


# Registering again would do no harm but for a warning from Spark each time.
_known_to: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


def registered(spark: SparkSession, *formats: str) -> None:
    """These formats, or all of them, known to this session. Of each Spark asks a Python process."""
    from journeyman.spark.sources import SOURCES

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


def opened(
    spark: SparkSession, dialect: str, paths: Sequence[str], options: Mapping[str, object]
) -> DataFrame:
    """``schema``, as DDL or StructType, is for Spark; the other options are the source's.

    An option that is None is not given.
    """
    if dialect not in DIALECTS:
        raise UsageError(f"no dialect {dialect!r}; there are {', '.join(DIALECTS)}")
    schema = options.get("schema")
    given = {
        name: _spelt(value)
        for name, value in options.items()
        if name != "schema" and value is not None
    }
    if paths:
        given["paths"] = json.dumps([absolute(str(path)) for path in paths])
    SourceOptions.parse(dialect, given)
    if "minpartitions" not in {name.lower() for name in given}:
        given |= _parallelism(spark)
    registered(spark, dialect)
    reader = spark.read.format(dialect).options(**given)
    if isinstance(schema, str | StructType):
        reader = reader.schema(schema)
    return reader.load()


def _spelt(value: object) -> str:
    """An option as Spark writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(each) for each in value)
    return str(value)


def _parallelism(spark: SparkSession) -> dict[str, str]:
    """How many tasks run at once, where the session says so."""
    known = spark.conf.get("spark.default.parallelism", None)
    if known is None:
        match = _LOCAL_MASTER.fullmatch(spark.conf.get("spark.master", None) or "")
        known = match and (match[1] or "1")
    return {"minPartitions": known} if known else {}

"""``states``: from paths to state tables, by the fast way: reduced while read, then replayed.

    states(spark, "ztick", "/logs")     {"jobs": DataFrame, "rules": DataFrame}
    states(spark, "workq", "/logs")     {"jobs": DataFrame, "orphans": DataFrame}
    states(spark, "kestrel", "/logs")   {"items": DataFrame, "readers": DataFrame}
    states(spark, "ledger", "/logs")    {"entries": DataFrame}

What compaction, conversion, SQL and reports call. All tables of a dialect are made from the same
packets. Spark reads the log once for each table that is asked for, unless the packets are cached:

    held = packets(spark, "ztick", "/logs").persist()
    jobs, rules = tables_of(held, "ztick").values()

That is cheap, for packets are a fraction of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructType

from journeyman.errors import UsageError
from journeyman.spark.replay.point_reads import with_payloads
from journeyman.spark.replay.state_tables import STATE_TABLES, state_table
from journeyman.spark.source.api import open_logs
from journeyman.spark.source.options import DAMAGE_KIND, LEDGER, REDUCERS

_WITH_PAYLOADS: Final = {("workq", "jobs"), ("kestrel", "items")}


def states(
    spark: SparkSession,
    dialect: str,
    paths: str | Sequence[str],
    *,
    payloads: bool = False,
    **options: object,
) -> dict[str, DataFrame]:
    """The state tables of the logs at these paths, by name. Options are those of the source.

    ``payloads`` fills payload, result and data, by reading those of the final state again.
    """
    if dialect == LEDGER:
        listed = [paths] if isinstance(paths, str) else list(paths)
        return {"entries": _entries(open_logs(spark, dialect, listed, options))}
    return tables_of(packets(spark, dialect, paths, **options), dialect, payloads=payloads)


def packets(
    spark: SparkSession, dialect: str, paths: str | Sequence[str], **options: object
) -> DataFrame:
    """The logs at these paths, reduced to what a replay needs; see spark/source/packets."""
    if dialect not in STATE_TABLES:
        raise UsageError(f"{dialect} has no state tables: it is a state itself")
    listed = [paths] if isinstance(paths, str) else list(paths)
    return open_logs(spark, dialect, listed, {"reduce": REDUCERS[dialect], **options})


def fetch_packets(packets: DataFrame) -> tuple[DataFrame, int]:
    """The packets of small logs, fetched; and in how many places these are damaged."""
    fetched = packets.toArrow()
    places = fetched.column("kind").to_pylist().count(DAMAGE_KIND)
    return packets.sparkSession.createDataFrame(fetched, packets.schema), places


def count_damages(packets: DataFrame) -> int:
    """In how many places the logs are damaged."""
    found = packets.agg(F.count_if(F.col("kind") == DAMAGE_KIND)).collect()[0][0]
    return int(found)


def table_schema(name: str) -> StructType:
    """The columns of ``ztick.jobs`` and so on, without those that come from paths."""
    dialect, _, table = name.partition(".")
    return STATE_TABLES[dialect][table].schema


def tables_of(frame: DataFrame, dialect: str, *, payloads: bool = False) -> dict[str, DataFrame]:
    """The state tables of rows or packets of the source, by name."""
    tables = {name: state_table(frame, dialect, name) for name in STATE_TABLES[dialect]}
    if payloads:
        for name, table in tables.items():
            if (dialect, name) in _WITH_PAYLOADS:
                tables[name] = with_payloads(table)
    return tables


def _entries(frame: DataFrame) -> DataFrame:
    """The last record of each family and key, if it removes nothing.

    A ledger is small, so this is a plain query on the rows of the source, without packets. Records
    without a key stand by themselves; the same record twice is one.
    """
    own_key = F.concat_ws(" ", "logged_ns", "payload")
    columns = [F.col(name) for name in ("_log", "family", "key")]
    about = Window.partitionBy(*columns, F.when(F.col("key").isNull(), own_key))
    last = F.row_number().over(about.orderBy(F.col("_position").desc()))
    records = frame.where(F.col("kind") != DAMAGE_KIND).withColumn("_last", last)
    removed = F.coalesce("removes", F.lit(False))
    return records.where((F.col("_last") == 1) & ~removed).drop("_last", "removes")

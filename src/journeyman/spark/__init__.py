"""The data pipeline on Spark: logs as tables. The only room that knows pyspark.

    from journeyman.spark import read, register

    register(spark)                                     # once a session; harmless if repeated
    spark.read.format("ztick").load("/var/log/ztick")   # or, with several paths and checks first:
    read(spark, "ztick", "/logs/host=a", "/logs/host=b", mode="FAILFAST")

Everything works through Spark Connect too: no RDD, no sparkContext, no _jvm. What a log looks like
as a table is written in docs/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read", "register"]


def register(spark: SparkSession) -> None:
    """Make all formats known to this session."""
    from journeyman.spark.source.api import register_formats

    register_formats(spark)


def read(spark: SparkSession, dialect: str, *paths: str, **options: object) -> DataFrame:
    """The logs at these paths as one DataFrame. Raises UsageError before Spark is asked."""
    from journeyman.spark.source.api import open_logs

    return open_logs(spark, dialect, paths, options)

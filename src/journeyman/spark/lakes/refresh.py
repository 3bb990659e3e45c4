"""Silver and gold of what is fresh in bronze."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from journeyman.spark.lakes import gold, silver
from journeyman.spark.lakes.storage import Lake

Session = Callable[[], SparkSession]  # called when there is work for Spark


def refresh(spark: SparkSession, lake: Lake, keys: Sequence[str] = ()) -> None:
    """Change silver and gold by what is fresh in bronze, and fold these keys again. The caller
    commits."""
    days = silver.change_silver(spark, lake, keys)
    gold.change_gold(spark, lake, days)


def finish_refresh(session: Session, lake: Lake) -> None:
    """Finish an ingest that was cut off after bronze."""
    if not lake.snapshot.complete:
        refresh(session(), lake)
        lake.commit(complete=True)

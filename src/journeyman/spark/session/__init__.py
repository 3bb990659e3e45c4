"""A Spark session as the pipeline wants it, on any master."""

from pyspark.sql import DataFrame, SparkSession

from journeyman.spark.session.session import (
    TINY_SETTINGS,
    active_session,
    build_session,
    cancel_all,
    end_session,
)

__all__ = [
    "TINY_SETTINGS",
    "DataFrame",
    "SparkSession",
    "active_session",
    "build_session",
    "cancel_all",
    "end_session",
]

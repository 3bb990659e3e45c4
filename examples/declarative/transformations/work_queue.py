"""All records of a work queue's log as a streaming table, and how many jobs of each queue ended."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

spark = SparkSession.active()
LOG = spark.conf.get("journeyman.log")


@dp.table
def records() -> DataFrame:
    """Every record once, however often the pipeline runs."""
    return spark.readStream.format("workq").load(LOG).drop("payload", "result")


@dp.materialized_view
def ended() -> DataFrame:
    """Jobs that have completed or failed, by queue and hour."""
    all_records = spark.read.table("records")
    adds = all_records.where("kind IN ('add', 'schedule')").select("key", "name").distinct()
    ends = all_records.where("kind IN ('complete', 'fail')").select("key", "kind", "time")
    hour = F.date_trunc("hour", "time").alias("hour")
    return ends.join(adds, "key").groupBy("name", hour).pivot("kind", ["complete", "fail"]).count()

"""Which segments of a workq log nothing needs any more.

    segment    1          2                3
    records    add a      add b, delete a  delete b ...
    a, b are over: 1 may go; then 2, whose delete of a has no add in front of it; 3 is the newest

A segment goes when every job in it is over (deleted, expired or past its TTL), and no add stands in
front of it, in a segment that stays, of a job that it speaks of: the add goes before its delete, or
the job would be back. The rule is that of journeyman.logs.workq.droppable, for whole segments.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.spark import read
from journeyman.spark.maintenance.holding import Hands
from journeyman.spark.replay.workq import visible
from journeyman.spark.tables import states


def unneeded_segments(spark: SparkSession, hands: Hands, as_of_ns: int) -> tuple[str, ...]:
    """Paths of segments that may go, oldest first."""
    rows = read(spark, "workq", *hands.paths, schema="_segment int, key string, kind string")
    living = visible(states(spark, "workq", hands.paths)["jobs"], as_of_ns).select("key")
    needed = {
        row["_segment"] for row in rows.join(living, "key").select("_segment").distinct().collect()
    }
    adds = rows.filter(F.col("kind").isin("add", "schedule")).select(
        F.col("_segment").alias("add_segment"), "key"
    )
    # What a newer writer says of a job that is not known here may be an add.
    foreign = rows.filter(F.col("kind") == "unknown").join(adds, "key", "left_anti")
    needed |= {row["_segment"] for row in foreign.select("_segment").distinct().collect()}
    in_segments = rows.select("_segment", "key").distinct()
    pairs = (
        in_segments.join(adds.distinct(), "key")
        .filter(F.col("add_segment") < F.col("_segment"))
        .select("_segment", "add_segment")
        .distinct()
        .collect()
    )
    goes: dict[int, str] = {}
    for file in hands.log.files[:-1]:
        adds_before = {row["add_segment"] for row in pairs if row["_segment"] == file.segment}
        if file.segment not in needed and adds_before <= goes.keys():
            goes[file.segment] = file.path
    return tuple(goes.values())

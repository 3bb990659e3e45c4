"""How many tasks run at once: the slots of the executors.

`spark.sql.shuffle.partitions` is no answer: Spark's own default of 200 is meant to be joined again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MANY = 4096  # more than tasks run at once
_LOCAL_MASTER = re.compile(r"local\[(\d+)(?:,\d+)?\]|(local)")
_counted: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()


def slots_of(spark: SparkSession) -> int:
    """By the settings of the session, else by how Spark cuts a range."""
    known = spark.conf.get("spark.default.parallelism", None)
    if known is not None:
        return max(1, int(known))
    if local := _LOCAL_MASTER.fullmatch(spark.conf.get("spark.master", None) or ""):
        return max(1, int(local[1] or 1))
    executors = spark.conf.get("spark.executor.instances", None)
    cores = spark.conf.get("spark.executor.cores", None)
    if executors and cores and int(executors):
        return int(executors) * int(cores)
    if spark not in _counted:
        # Executors of a cluster come when the first task waits for them, so there is one.
        spark.range(1).select(F.spark_partition_id()).collect()
        parts = spark.range(_MANY).select(F.spark_partition_id()).distinct()
        _counted[spark] = max(1, parts.count())
    return _counted[spark]

"""How many tasks run at once, the slots of the executors; and work that tasks share.

`spark.sql.shuffle.partitions` is no answer: Spark's own default of 200 is meant to be joined again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Unit = TypeVar("Unit")
Read = Callable[[Unit], "Iterable[pa.RecordBatch]"]

_MANY = 4096  # more than tasks run at once
_LOCAL_MASTER = re.compile(r"local\[(\d+)(?:,\d+)?\]|(local)")
_counted: WeakKeyDictionary[SparkSession, int] = WeakKeyDictionary()


def slots_of(spark: SparkSession) -> int:
    """Return the number of task slots by the settings of the session, else by how Spark cuts a
    range."""
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


def read_units(
    spark: SparkSession,
    units: Sequence[Unit],
    read: Read[Unit],
    schema: StructType | str,
    tasks: int | None = None,
) -> DataFrame:
    """The rows that ``read`` gives of all units. Without a number of tasks there are a few a slot,
    each of which reads every so many-th unit."""
    count = max(1, min(len(units), 4 * slots_of(spark)) if tasks is None else tasks)
    numbers = spark.range(0, count, 1, count)
    return numbers.mapInArrow(partial(_read_some, read, units, count), schema)


def _read_some(
    read: Read[Unit], units: Sequence[Unit], tasks: int, numbers: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column("id").to_pylist():
            for unit in units[number::tasks]:
                yield from read(unit)

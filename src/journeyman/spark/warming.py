"""Python workers that are ready when the first task wants one.

Before a source is read, Spark asks three Python processes about it, one after another, while the
other cores have nothing to do. A tiny job beside that starts a worker and lets it import what
reading logs takes; Spark then gives the first task this worker. For a command on a small log that
is a tenth of the whole time. It changes nothing but the time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

# What the first task imports; the decoders bring numba, some Arrow calls bring pandas.
_MODULES = ("journeyman.spark.source.task", "journeyman.columnar.ztick.decode", "pandas")


def warm_a_worker(spark: SparkSession) -> threading.Thread:
    """Let a worker get ready, in a thread of its own."""
    thread = threading.Thread(target=_run, args=(spark,), daemon=True)
    thread.start()
    return thread


def _run(spark: SparkSession) -> None:
    # Nobody waits for this: what is wrong with Spark is told by the query that somebody waits for.
    with suppress(PySparkException, Py4JError, ConnectionError):
        spark.range(1, numPartitions=1).mapInArrow(_import, "id long").collect()


def _import(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for module in _MODULES:
        import_module(module)
    yield from batches

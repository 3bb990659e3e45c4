"""Any log -> Parquet, with all that it takes to come back byte for byte.

    OUTPUT/part-....parquet     the rows of the source with payloads, and ``_raw``
    OUTPUT/_log.json            which files there were, and how long each was

Columns leave a little out: zone offsets, numbers beyond 64 bits, header words of unknown commands.
So every stretch of rows is encoded again and compared with the log. Where that gives the same
bytes, as it does for all that this program writes, ``_raw`` is null; elsewhere it holds the record
as it is.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from journeyman.errors import EncodeError
from journeyman.logs.catalog import Log
from journeyman.spark import read
from journeyman.spark.files import absolute, filesystem_of
from journeyman.spark.maintenance.holding import logs_at
from journeyman.spark.maintenance.reports import refuse_damage
from journeyman.spark.replay.point_reads import Span, read_spans
from journeyman.spark.tables import packets

MANIFEST: Final = "_log.json"
RAW: Final = "_raw"
_STRETCH: Final = 1024  # rows that are compared, and kept raw, together


def log_to_parquet(
    spark: SparkSession, dialect: str, paths: Sequence[str], output: str, *, force: bool = False
) -> int:
    """Write the logs at these paths; how many records they are. Damage is refused."""
    place = absolute(output).rstrip("/")
    logs = logs_at(dialect, tuple(paths))
    records = refuse_damage(packets(spark, dialect, list(paths)), ", ".join(paths))
    frame = rows_with_raw(
        read(spark, dialect, *paths, payloads=True, mode="DROPMALFORMED"), dialect
    )
    frame.write.mode("overwrite" if force else "errorifexists").parquet(place)
    manifest = json.dumps({"dialect": dialect, "logs": [_described(log) for log in logs]})
    file = filesystem_of(place).create(posixpath.join(place, MANIFEST))
    file.write(manifest.encode())
    file.close()
    return records


def rows_with_raw(frame: DataFrame, dialect: str) -> DataFrame:
    """Rows of the source with the bytes that the columns alone would not give back."""
    schema = StructType([*frame.schema.fields, StructField(RAW, BinaryType())])

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for begin in range(0, batch.num_rows, _STRETCH):
                yield _with_raw(dialect, batch.slice(begin, _STRETCH))

    return frame.mapInArrow(task, schema)


def _described(log: Log) -> dict[str, Any]:
    files = [{"path": f.path, "size": f.size, "reader": f.reader} for f in log.files]
    return {"name": log.name, "files": files}


def _with_raw(dialect: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch.column(name).to_pylist() for name in ("_file", "_offset", "_length")]
    raw = read_spans([Span(*each) for each in zip(*columns, strict=True)])
    same = _encoded(dialect, batch) == b"".join(raw)
    column = pa.nulls(batch.num_rows, pa.binary()) if same else pa.array(raw, pa.binary())
    return batch.append_column(RAW, column)


def _encoded(dialect: str, batch: pa.RecordBatch) -> bytes | None:
    encode = import_module(f"journeyman.columnar.{dialect}.encode").encode
    try:
        return bytes(encode(batch))
    except EncodeError:
        return None  # a record that columns cannot hold

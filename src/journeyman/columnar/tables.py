"""``read_table``: a log, or a table of a lake, as an Arrow table: one machine, no Spark.

    from journeyman.columnar import read_table
    read_table("/lake/silver/attempts").to_pandas()
    read_table("s3://bucket/lake/silver/attempts").to_pandas()

A log's rows are its records in log order, with the columns of docs/spark.md, and the path of their
file as ``_file``. The whole table is in memory. A damaged log is refused: Spark reads past damage,
and ``journeyman repair`` sets it aside.
"""

from __future__ import annotations

import posixpath
from importlib import import_module

import pyarrow as pa

from journeyman.columnar.delta import open_delta
from journeyman.disk import disk_of, is_database
from journeyman.errors import LogError, UsageError
from journeyman.formats.framing import Stop
from journeyman.logs.catalog import KESTREL, LogFile
from journeyman.logs.detection import LogFinder

_GOOD_ENDS = (Stop.EOF, Stop.TORN, Stop.ZERO_BYTE)


def read_table(path: str, *, payloads: bool = False) -> pa.Table:
    """Everything at ``path``. ``payloads`` also reads payloads, results and data of a log."""
    disk = disk_of(path)
    is_elsewhere = "://" in path and not is_database(path)
    if is_elsewhere or disk.is_dir(posixpath.join(path, "_delta_log")):
        opened = open_delta(path)
        if opened is None:
            raise UsageError(f"there is no Delta table at {path}: only these are read at a URI")
        table: pa.Table = opened.to_pyarrow_table()
        return table
    logs = LogFinder(disk, lambda _: None).find([path])
    files = [file for log in logs for file in log.files if file.reader is None]
    if len({file.dialect for file in files}) != 1:
        raise UsageError(f"{path} is neither one log nor a table of a lake")
    return pa.concat_tables([_read_file(file, payloads=payloads) for file in files])


def _read_file(file: LogFile, *, payloads: bool) -> pa.Table:
    decoder = import_module(f"journeyman.columnar.{file.dialect}.decode")
    codec = {"codec": file.codec} if file.dialect == KESTREL else {}
    data = disk_of(file.path).view(file.path)
    batches = []
    for chunk in decoder.iter_batches(data, payloads=payloads, **codec):
        batches.append(chunk.batch)
        if chunk.ending is not None and chunk.ending.stop not in _GOOD_ENDS:
            where = f"is damaged at byte {chunk.ending.offset}"
            raise LogError(file.path, f"{where}; run `journeyman repair`, or read it with Spark")
    table = pa.Table.from_batches(batches, schema=decoder.SCHEMA)
    return table.append_column("_file", pa.array([file.path] * table.num_rows, pa.string()))

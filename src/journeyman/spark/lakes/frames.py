"""Tables of a lake as DataFrames: ``journeyman.spark.lakes(spark, "/lake")["attempts"]``.

With ``live`` logs the tables also have what these logs hold beyond the lake, up to the last whole
record: an ingest without its commit. New files are written to a directory of their own and removed
when the process ends; the lake, the logs and what they hold for it stay as they are.
"""

from __future__ import annotations

import atexit
import posixpath
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from pyspark.sql import DataFrame, SparkSession

from journeyman.errors import UsageError
from journeyman.spark.files import is_uri, remote_of
from journeyman.spark.lakes import bronze, ingest
from journeyman.spark.lakes.layout import TABLES
from journeyman.spark.lakes.refresh import refresh
from journeyman.spark.lakes.storage import Lake, open_lake

_NAMES = {short: table.name for table in TABLES.values() for short in (table.short, table.name)}


class LakeTables(Mapping[str, DataFrame]):
    """The tables of a lake by name, ``attempts`` or ``silver/attempts``, all as of one moment."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self.lake = lake

    def __getitem__(self, name: str) -> DataFrame:
        if name not in _NAMES:
            raise UsageError(f"a lake has no table {name}: it has {', '.join(self)}")
        return self.lake.read(self._spark, _NAMES[name])

    def __iter__(self) -> Iterator[str]:
        return iter(table.short for table in TABLES.values())

    def __len__(self) -> int:
        return len(TABLES)


def open_tables(
    spark: SparkSession,
    path: str,
    live: Mapping[str, Sequence[str]] | None = None,
    host: str | None = None,
) -> LakeTables:
    """The tables of the lake at a path; ``live`` are logs by dialect."""
    lake = open_lake(path)
    if live:
        _add_live(spark, lake, live, host or socket.gethostname())
    return LakeTables(spark, lake)


def _add_live(
    spark: SparkSession, lake: Lake, live: Mapping[str, Sequence[str]], host: str
) -> None:
    """Change a lake by what is new in these logs, without a commit."""
    lake.new_files = _new_directory(spark, lake)
    feeds = [bronze.Feed(lake, each, holds=False) for each in ingest.sources_of(live, host)]
    is_new = False
    while ingest.store_news(lambda: spark, lake, feeds, None):
        is_new = True
    if reasons := bronze.reasons_of(feeds):
        raise ingest.LogsLeftOut(reasons, ingest.Ingested({}, lake.snapshot.number))
    if is_new:
        refresh(spark, lake)


def _new_directory(spark: SparkSession, lake: Lake) -> str:
    """Where tasks write files that end with this process."""
    if (spark.conf.get("spark.master", None) or "").startswith("local"):
        directory = tempfile.mkdtemp(prefix="journeyman-live-")
    else:  # all machines see the lake
        directory = posixpath.join(lake.path, f"_live-{secrets.token_hex(8)}")
    atexit.register(_remove, directory)
    return directory


def _remove(directory: str) -> None:
    if not is_uri(directory):
        shutil.rmtree(directory, ignore_errors=True)
        return
    filesystem = remote_of(directory)
    for path in filesystem.sizes_below(directory):
        with suppress(OSError):
            filesystem.remove(path)

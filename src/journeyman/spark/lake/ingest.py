"""``ingest``: new records into bronze, then silver and gold of what they touch.

    ingest(spark, "/lake", {"workq": ["/var/lib/workq"]}, host="a")

Each step is a commit of its own: killed in between, the next ingest goes on where this one was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from journeyman.errors import UsageError
from journeyman.spark.lake import gold, silver
from journeyman.spark.lake.bronze import (
    LakeSource,
    has_news,
    register_holder,
    start_stream,
    store_readers,
    store_runs,
)
from journeyman.spark.lake.layout import LOG_DIALECTS
from journeyman.spark.lake.storage import Lake, StagedFiles, change_lake
from journeyman.spark.source.options import KESTREL, ZTICK

_AT_ONCE = 4
_PARQUET = {
    # Parquet's own timestamps, which every reader knows.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}


@dataclass(frozen=True, slots=True)
class Ingested:
    """How many files each table of bronze got; none if there was nothing new."""

    files: Mapping[str, int]
    commit: int


def ingest(
    spark: SparkSession,
    path: str,
    logs: Mapping[str, Sequence[str]],
    *,
    host: str,
    format_: str | None = None,
    payloads: bool = False,
    run_directory: str | None = None,
    follow: Callable[[], bool] | None = None,
) -> Ingested:
    """Bring a lake up to date. ``follow`` is asked between rounds whether to go on."""
    unknown = sorted(set(logs) - set(LOG_DIALECTS))
    if unknown:
        raise UsageError(f"a lake takes {', '.join(LOG_DIALECTS)}, not {', '.join(unknown)}")
    sources = [
        LakeSource(dialect, each, host, payloads)
        for dialect, paths in logs.items()
        for each in paths
    ]
    for source in sources:
        source.check_hosts()
    for name, value in _PARQUET.items():
        spark.conf.set(name, value)
    with change_lake(path, format_) as lake:
        while True:
            done = _one_round(spark, lake, sources, run_directory)
            if follow is None or not follow():
                return done


def _one_round(
    spark: SparkSession, lake: Lake, sources: Sequence[LakeSource], run_directory: str | None
) -> Ingested:
    queries = [start_stream(spark, lake, each) for each in sources if has_news(lake, each)]
    try:
        for query in queries:
            query.awaitTermination()
    finally:  # should one have failed, no other may go on behind the lock
        for query in queries:
            query.stop()
    for source in sources:
        register_holder(lake, source)
    lag_noted = False
    for source in sources:
        if source.dialect == ZTICK:
            store_runs(lake, source, run_directory)
        elif source.dialect == KESTREL:
            lag_noted = store_readers(spark, lake, source) or lag_noted
    files = {table: len(names) for table, names in lake.state.fresh.items() if names}
    refresh(spark, lake, lag_noted=lag_noted)
    return Ingested(files, lake.state.commit)


def refresh(
    spark: SparkSession,
    lake: Lake,
    change: silver.SilverChange | None = None,
    *,
    lag_noted: bool = False,
) -> None:
    """Silver and gold of what is fresh in bronze, in one commit. ``change``: or of these keys."""
    found = change or silver.attempts_changed(spark, lake)
    appended = silver.new_rows(spark, lake)
    tasks: list[Callable[[], StagedFiles]] = [
        partial(_append, lake, table, rows) for table, rows in appended.items()
    ]
    changed: list[DataFrame] = []
    held = [rows.persist() for rows in appended.values()]
    attempts = lake.read(spark, "silver/attempts")
    if found is not None:
        old, new = found.old, found.new
        held += [found.touched, new]
        tasks.append(partial(silver.stage_keyed, lake, "silver/attempts", found, old, new))
        jobs = silver.jobs_of(old), silver.jobs_of(new)
        tasks.append(partial(silver.stage_keyed, lake, "silver/jobs", found, *jobs))
        fired = silver.firings_of(old), silver.firings_of(new)
        tasks.append(partial(silver.stage_keyed, lake, "silver/timetable_firings", found, *fired))
        attempts = attempts.join(found.touched, list(silver.KEY), "left_anti").unionByName(new)
        changed += [old, new]
    if (items := appended.get("silver/items")) is not None:
        changed.append(silver.items_as_history(items, items["log"]))
    if changed and (days := gold.touched_days(changed)):
        now = {table: _with(lake, spark, table, appended) for table in silver.APPENDED}
        rows = gold.gold_rows(attempts, now["silver/items"], days).persist()
        held.append(rows)
        tasks += gold.gold_tasks(spark, lake, rows, now["silver/runs"], days)
    if lag_noted:
        tasks.append(partial(gold.stage_lag, spark, lake))
    if not tasks and not lake.state.fresh:
        return
    # Each is a small query that mostly waits for Spark to plan it.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        staged = list(pool.map(lambda task: task(), tasks))
    removes = {each.table: files for each, files in staged if files}
    lake.commit([each for each, _ in staged], removes, fresh={})
    for frame in held:
        frame.unpersist()


def _append(lake: Lake, table: str, rows: DataFrame) -> StagedFiles:
    return lake.stage(rows, table), []


def _with(
    lake: Lake, spark: SparkSession, table: str, appended: Mapping[str, DataFrame]
) -> DataFrame:
    """A table as it will be."""
    known = lake.read(spark, table)
    return known.unionByName(appended[table]) if table in appended else known

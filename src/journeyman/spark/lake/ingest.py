"""``ingest``: new records into bronze, then silver and gold of what they touch.

    ingest(spark, "/lake", {"workq": ["/var/lib/workq"]}, host="a")

Each step is a commit of its own: killed in between, the next ingest goes on where this one was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from journeyman.errors import UsageError
from journeyman.spark.lake import gold, silver
from journeyman.spark.lake.bronze import LakeSource, start_stream, store_readers, store_runs
from journeyman.spark.lake.layout import LOG_DIALECTS
from journeyman.spark.lake.storage import Lake, Staged, change_lake
from journeyman.spark.source.options import KESTREL, ZTICK

EVERY_S = 10.0
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
    queries = [start_stream(spark, lake, source) for source in sources]
    for query in queries:
        query.awaitTermination()
    for source in sources:
        if source.dialect == ZTICK:
            store_runs(lake, source, run_directory)
        elif source.dialect == KESTREL:
            store_readers(spark, lake, source)
    files = {table: len(names) for table, names in lake.state.fresh.items() if names}
    refresh(spark, lake)
    return Ingested(files, lake.state.commit)


def refresh(spark: SparkSession, lake: Lake, change: silver.SilverChange | None = None) -> None:
    """Silver and gold of what is fresh in bronze, in one commit."""
    found = change or silver.attempts_changed(spark, lake)
    staged: list[tuple[Staged, list[str]]] = []
    changed: list[DataFrame] = []
    attempts = lake.read(spark, "silver/attempts")
    if found is not None:
        new_jobs, old_jobs = silver.jobs_of(found.new), silver.jobs_of(found.old)
        staged.append(silver.stage_keyed(lake, "silver/attempts", found, found.old, found.new))
        staged.append(silver.stage_keyed(lake, "silver/jobs", found, old_jobs, new_jobs))
        rest = attempts.join(found.touched, ["host", "log", "dialect", "key"], "left_anti")
        attempts = rest.unionByName(found.new)
        changed += [found.old, found.new]
    runs, items = lake.read(spark, "silver/runs"), lake.read(spark, "silver/items")
    appended = {
        "silver/runs": silver.new_runs(spark, lake),
        "silver/items": silver.new_items(spark, lake),
        "silver/damage": silver.new_damage(spark, lake),
    }
    for table, rows in appended.items():
        if rows is not None:
            staged.append((lake.stage(rows, table), []))
    if (new_runs := appended["silver/runs"]) is not None:
        runs = runs.unionByName(new_runs)
    if (new_items := appended["silver/items"]) is not None:
        items = items.unionByName(new_items)
        put = silver.items_as_history(new_items, new_items["log"])
        changed.append(put)
    if changed and (days := gold.touched_days(changed)):
        rows = gold.gold_rows(attempts, items, days).persist()
        staged += gold.stage_gold(spark, lake, rows, runs, days)
        rows.unpersist()
    lag_days = _unseen_days(lake)
    if lag_days:
        staged.append(gold.stage_lag(spark, lake, lag_days))
    if staged or lake.state.fresh:
        lake.commit(
            [each for each, _ in staged],
            {each.table: files for each, files in staged if files},
            fresh={},
        )
    if found is not None:
        found.new.unpersist()
        found.touched.unpersist()


def _unseen_days(lake: Lake) -> list[str]:
    """The days of which readers were noted since the last commit of their lag: today, mostly."""
    from journeyman.spark.lake.storage import partition_values

    seen = {partition_values(name)["date"] for name in lake.files("silver/readers")}
    return sorted(seen)[-1:]

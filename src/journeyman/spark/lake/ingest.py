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
from journeyman.spark.lake.bronze import LakeSource, store_new
from journeyman.spark.lake.layout import BRONZE_DIALECTS
from journeyman.spark.lake.small_files import store_readers, store_runs
from journeyman.spark.lake.storage import Lake, StagedFiles, change_lake
from journeyman.spark.source.options import KESTREL, ZTICK

_AT_ONCE = 4
_SETTINGS = {
    # Parquet's own timestamps, which every reader knows.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # Beyond 32 directories Spark lists them by a job, which takes longer than to list them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
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
    unknown = sorted(set(logs) - set(BRONZE_DIALECTS))
    if unknown:
        raise UsageError(f"a lake takes {', '.join(BRONZE_DIALECTS)}, not {', '.join(unknown)}")
    sources = [
        LakeSource(dialect, each, host, payloads)
        for dialect, paths in logs.items()
        for each in paths
    ]
    for source in sources:
        source.check_hosts()
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    with change_lake(path, format_) as lake:
        while True:
            done = _one_round(spark, lake, sources, run_directory)
            if follow is None or not follow():
                return done


def _one_round(
    spark: SparkSession, lake: Lake, sources: Sequence[LakeSource], run_directory: str | None
) -> Ingested:
    for source in sources:
        store_new(spark, lake, source)
        if source.dialect == ZTICK:
            store_runs(lake, source, run_directory)
    files = {table: len(names) for table, names in lake.state.fresh.items() if names}
    refresh(spark, lake)
    noted = [store_readers(lake, source) for source in sources if source.dialect == KESTREL]
    if any(noted):
        staged, replaced = gold.stage_lag(lake)
        lake.commit([staged], {staged.table: replaced})
    return Ingested(files, lake.state.commit)


def refresh(
    spark: SparkSession,
    lake: Lake,
    change: silver.SilverChange | None = None,
) -> None:
    """Silver and gold of what is fresh in bronze, in one commit. ``change``: or of these keys."""
    if change is None and not lake.state.fresh:
        return
    found = change or silver.attempts_changed(spark, lake)
    appended = silver.new_rows(spark, lake)
    tasks: list[Callable[[], list[StagedFiles]]] = [
        partial(_append, lake, table, rows) for table, rows in appended.items()
    ]
    tasks.append(partial(silver.stage_damage, lake))
    days: set[str] = set()
    held = [rows.persist() for rows in appended.values()]
    attempts = lake.read(spark, "silver/attempts")
    if found is not None:
        new = found.new
        held += [found.touched, new]
        days |= found.extent.days
        keyed = {"silver/attempts": new, "silver/jobs": silver.jobs_of(new)}
        if found.extent.has_firings:
            keyed["silver/timetable_firings"] = silver.firings_of(new)
        tasks += [
            partial(silver.stage_keyed, lake, table, found, rows) for table, rows in keyed.items()
        ]
        attempts = attempts.join(found.touched, list(silver.KEY), "left_anti").unionByName(new)
    if (items := appended.get("silver/items")) is not None:
        days |= set(map(str, silver.days_in(items)))
    if days:
        now = {table: _with(lake, spark, table, appended) for table in silver.APPENDED}
        touched = sorted(days)
        rows = gold.gold_rows(attempts, now["silver/items"], touched).persist()
        held.append(rows)
        tasks.append(partial(gold.stage_gold, lake, rows, now["silver/runs"], touched))
    # Each is a small query that mostly waits for Spark to plan it.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        staged = [each for made in pool.map(lambda task: task(), tasks) for each in made]
    removes = {each.table: files for each, files in staged if files}
    lake.commit([each for each, _ in staged], removes, fresh={})
    for frame in held:
        frame.unpersist()


def _append(lake: Lake, table: str, rows: DataFrame) -> list[StagedFiles]:
    return [(lake.stage(rows, table), [])]


def _with(
    lake: Lake, spark: SparkSession, table: str, appended: Mapping[str, DataFrame]
) -> DataFrame:
    """A table as it will be."""
    known = lake.read(spark, table)
    return known.unionByName(appended[table]) if table in appended else known

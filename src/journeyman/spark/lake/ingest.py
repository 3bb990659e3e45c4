"""``ingest``: new records into bronze, then silver and gold of what they touch.

    ingest(spark, "/lake", {"workq": ["/var/lib/workq"]}, host="a")

Each step is a commit of its own: killed in between, the next ingest goes on where this one was.
A log that cannot be read is left out, and said at the end; the others are in the lake by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from journeyman.errors import JourneymanError, UsageError
from journeyman.spark.lake import gold, silver
from journeyman.spark.lake.bronze import LakeSource, add_plans, store_new
from journeyman.spark.lake.layout import BRONZE_DIALECTS
from journeyman.spark.lake.small_files import UnreadableFile, store_readers, store_runs
from journeyman.spark.lake.storage import Lake, change_lake
from journeyman.spark.session import in_one_sentence
from journeyman.spark.source.options import KESTREL, ZTICK

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


class LogsLeftOut(JourneymanError):
    """Logs that could not be read, and why. ``done`` is what came of the others."""

    def __init__(self, reasons: Mapping[str, Exception], done: Ingested) -> None:
        said = "; ".join(f"{path} was left out: {_words(why)}" for path, why in reasons.items())
        super().__init__(said)
        self.reasons = reasons
        self.done = done


def _words(why: Exception) -> str:
    if isinstance(why, OSError) and why.strerror:
        return f"{why.strerror}: {why.filename}"
    return str(in_one_sentence(why) or why)


def ingest(
    spark: SparkSession,
    path: str,
    logs: Mapping[str, Sequence[str]],
    *,
    host: str,
    format_: str | None = None,
    payloads: bool = False,
    run_directory: str | None = None,
    follow: Callable[[LogsLeftOut | None], bool] | None = None,
) -> Ingested:
    """Bring a lake up to date. Raises LogsLeftOut, once all logs that can be read are in the lake.

    ``follow`` is asked between rounds whether to go on, and told which logs were left out.
    """
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
            done, reasons = _one_round(spark, lake, sources, run_directory)
            left_out = LogsLeftOut(reasons, done) if reasons else None
            if follow is None and left_out is not None:
                raise left_out
            if follow is None or not follow(left_out):
                return done


def _one_round(
    spark: SparkSession, lake: Lake, sources: Sequence[LakeSource], run_directory: str | None
) -> tuple[Ingested, dict[str, Exception]]:
    """What is new in the lake, and why logs at some paths were left out."""
    left_out = store_new(spark, lake, sources)
    for source in sources:
        if source.dialect == ZTICK and source not in left_out:
            with _noted(left_out, source):
                store_runs(lake, source, run_directory)
    files = {table: len(names) for table, names in lake.state.fresh.items() if names}
    refresh(spark, lake)
    noted = False
    for source in sources:
        if source.dialect == KESTREL and source not in left_out:
            with _noted(left_out, source):
                noted = store_readers(lake, source) or noted
    if noted:
        staged, replaced = gold.stage_lag(lake)
        lake.commit([staged], {staged.table: replaced})
    done = Ingested(files, lake.state.commit)
    return done, {source.path: error for source, error in left_out.items()}


@contextmanager
def _noted(left_out: dict[LakeSource, Exception], source: LakeSource) -> Iterator[None]:
    """Only what cannot be read: behind a commit that fails, nothing may be done to the lake."""
    try:
        yield
    except UnreadableFile as error:
        left_out[source] = error


def refresh(spark: SparkSession, lake: Lake, keys: Sequence[str] = ()) -> None:
    """Silver and gold of what is fresh in bronze, and of these keys, in one commit."""
    add_plans(lake)
    fresh = lake.state.fresh
    if not fresh and not keys:
        return
    change = silver.change_silver(spark, lake, fresh, gold.count_items, keys)
    silver.stage_runs(lake, fresh, change)
    staged = [*change.files, *silver.stage_damage(lake), *gold.stage_gold(spark, lake, change)]
    removes = {each.table: files for each, files in staged if files}
    lake.commit([each for each, _ in staged], removes, fresh={})

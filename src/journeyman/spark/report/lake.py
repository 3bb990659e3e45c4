"""A report from a lake: the sections of a report from logs, and the last week and the one before.

Queues that got worse are named first: those whose failures, waits or runs have grown by more than a
quarter, with enough starts in both weeks for that to mean something.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.lake.layout import LOG_DIALECTS
from journeyman.spark.lake.storage import Lake
from journeyman.spark.lake.views import lag_in
from journeyman.spark.report.charts import shown
from journeyman.spark.report.page import verdict
from journeyman.spark.report.queries import (
    TOP,
    Lag,
    Measured,
    Report,
    Section,
    Stored,
    Table,
    measure,
    open_lake_rows,
)
from journeyman.spark.report.sections import section_of
from journeyman.spark.source.options import KESTREL
from journeyman.units import NS_PER_S

WORSE = 1.25  # times the week before
ENOUGH = 20  # starts in both weeks
_DAYS = 7


@dataclass(frozen=True, slots=True)
class Week:
    """A queue in one week. Percentiles are the worst of its days."""

    started: int = 0
    failed: int = 0
    wait_p95_s: float | None = None
    run_p95_s: float | None = None

    @property
    def failed_share(self) -> float:
        return self.failed / self.started if self.started else 0.0


def report_of_lake(
    spark: SparkSession, lake: Lake, *, made_ns: int, title: str, as_of_ns: int | None = None
) -> Report:
    """What the page says of a lake."""
    # Side by side: a query mostly waits for Spark to plan it.
    with ThreadPoolExecutor(len(LOG_DIALECTS)) as pool:
        opened = list(pool.map(partial(open_lake_rows, spark, lake), LOG_DIALECTS))
        try:
            known = [each.last_ns for each in opened if each.last_ns is not None]
            moment_ns = as_of_ns if as_of_ns is not None else max(known, default=made_ns)
            counted = list(pool.map(lambda each: measure(each, moment_ns), opened))
        finally:
            for each in opened:
                each.close()
    measured = [found for found in counted if found.rows]
    for found in measured:
        if found.dialect == KESTREL:
            _measure_readers(spark, lake, found)
    said, severity = verdict(None, measured)
    worse, section = compare_weeks(weeks(lake.read(spark, "gold/latency_daily"), moment_ns))
    if worse:
        said = f"Worse than the week before: {', '.join(worse)}. {said}"
        severity = "warning" if severity == "good" else severity
    sections = [section, *(section_of(found) for found in measured), _damage(spark, lake)]
    return Report(title, made_ns, [lake.path], said or "No failures.", severity, sections)


def weeks(latency: DataFrame, moment_ns: int) -> dict[str, tuple[Week, Week]]:
    """By queue: the week before the last one, and the last one, which ends with this moment."""
    end = date(1970, 1, 1) + timedelta(seconds=moment_ns // NS_PER_S)
    middle, begin = end - timedelta(days=_DAYS), end - timedelta(days=2 * _DAYS)
    recent = latency.where((F.col("date") > F.lit(begin)) & (F.col("date") <= F.lit(end)))
    rows = (
        recent.groupBy("dialect", "queue", (F.col("date") > F.lit(middle)).alias("is_last"))
        .agg(
            F.sum("started").alias("started"),
            F.sum("failed").alias("failed"),
            F.max("wait_p95_s").alias("wait"),
            F.max("run_p95_s").alias("run"),
        )
        .collect()
    )
    found: dict[str, dict[bool, Week]] = {}
    for row in rows:
        name = f"{row.dialect} {row.queue}".strip()
        found.setdefault(name, {})[row.is_last] = Week(row.started, row.failed, row.wait, row.run)
    return {name: (each.get(False, Week()), each.get(True, Week())) for name, each in found.items()}


def compare_weeks(found: dict[str, tuple[Week, Week]]) -> tuple[list[str], Section]:
    """What got worse, in words; and a section with every queue, the worse ones first."""
    reasons = {name: _worse(*pair) for name, pair in found.items()}
    order = sorted(found, key=lambda name: (not reasons[name], -found[name][1].started, name))
    listed = order[: 2 * TOP]
    rows = [
        [name, *(text for week in found[name] for text in _cells(week)), ", ".join(reasons[name])]
        for name in listed
    ]
    names = ("Started", "Failed", "Wait p95", "Run p95")
    columns = ["Queue", *(f"{name}, before" for name in names), *names, "Worse"]
    marks = ["warning" if reasons[name] else "info" for name in listed]
    note = "The seven days up to the last event, and the seven before them."
    table = Table("By queue", note, columns, rows, frozenset(range(1, 9)), marks)
    worse = [f"{name} ({', '.join(reasons[name])})" for name in order if reasons[name]]
    intro = "What changed since the week before."
    return worse, Section("Week on week", intro, parts=[table] if rows else [])


def _worse(before: Week, after: Week) -> list[str]:
    if min(before.started, after.started) < ENOUGH:
        return []
    found = []
    if after.failed_share > max(before.failed_share * WORSE, before.failed_share + 0.01):
        found.append("failures")
    for what, old, new in (
        ("waits", before.wait_p95_s, after.wait_p95_s),
        ("runs", before.run_p95_s, after.run_p95_s),
    ):
        if old is not None and new is not None and new > max(old * WORSE, old + 0.01):
            found.append(what)
    return found


def _cells(week: Week) -> list[str]:
    times = (week.wait_p95_s, week.run_p95_s)
    return [
        shown(week.started, "count"),
        f"{100 * week.failed_share:.1f} %",
        *("" if each is None else shown(each * NS_PER_S, "ns") for each in times),
    ]


def _measure_readers(spark: SparkSession, lake: Lake, measured: Measured) -> None:
    behind = lag_in(spark, lake).orderBy(F.desc("items_behind"), "queue", "reader").collect()
    measured.lag = [
        Lag(row.queue, row.reader, row.items_behind, row.bytes_behind, row.oldest_ns)
        for row in behind[:TOP]
    ]
    measured.items_behind = sum(row.items_behind for row in behind)
    waiting: dict[str, int] = {}
    for row in behind:
        waiting[row.queue] = max(waiting.get(row.queue, 0), row.items_behind)
    put = {
        row.queue: row["count"]
        for row in lake.read(spark, "silver/items").groupBy("queue").count().collect()
    }
    busiest = sorted(put, key=lambda queue: (-put[queue], queue))[:TOP]
    measured.queues = [Stored(q, put[q], put[q], waiting.get(q, 0)) for q in busiest]
    measured.items_put = sum(put.values())


def _damage(spark: SparkSession, lake: Lake) -> Section:
    found = lake.read(spark, "silver/damage").orderBy(F.desc("found_at")).limit(TOP).collect()
    if not found:
        return Section("Damage", "Every record of the logs could be read.")
    rows = [[row.log, str(row.offset), row.what] for row in found]
    table = Table("Damage", "The latest first.", ["Log", "Offset", "What"], rows, frozenset({1}))
    return Section("Damage", "Places of the logs that could not be read.", parts=[table])

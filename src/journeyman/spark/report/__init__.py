r"""What a report says, of logs of any mix of dialects or of a lake.

    logs    queries.measure, and an audit  --\
    lake    lake_counts.measure_lake       ---+--> sections --> Report --page.page--> one HTML file

Of a lake it begins with the last week and the one before. Queues that got worse are named first:
those whose failures, waits or runs have grown by more than a quarter, with enough starts in both
weeks for that to mean something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.audit import Audit, audit
from journeyman.spark.findings import SERIOUS, SEVERITIES, WARNING
from journeyman.spark.history.columns import EVERY_ROW, RowFilter
from journeyman.spark.lake.columns import pc
from journeyman.spark.lake.layout import LOG_DIALECTS, moment_of
from journeyman.spark.lake.names import days_of
from journeyman.spark.lake.storage import Lake
from journeyman.spark.lake.views import history_of
from journeyman.spark.report.charts import (
    shown,
)
from journeyman.spark.report.lake_counts import measure_lake
from journeyman.spark.report.page import Bars, Report, Section, Table, Tile
from journeyman.spark.report.queries import (
    TOP,
    Lag,
    Measured,
    Opened,
    Stored,
    measure,
    open_lake_rows,
    open_logs,
)
from journeyman.spark.report.sections import TITLES, section_of
from journeyman.spark.source.options import KESTREL
from journeyman.units import NS_PER_S

SERIOUS_SHARE = 0.1  # of attempts that failed
WARNING_SHARE = 0.01
_SHOWN_FILES = 40
WORSE = 1.25  # times the week before
ENOUGH = 20  # starts in both weeks
_DAYS = 7
_Found = tuple[str, str, int, int, str | None, str | None]


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


def report(
    spark: SparkSession,
    logs: Mapping[str, Sequence[str]],
    *,
    made_ns: int,
    title: str = "Journeyman report",
    as_of_ns: int | None = None,
    run_directories: Sequence[str] = (),
    chosen: RowFilter = EVERY_ROW,
) -> Report:
    """What the page says. Jobs are late or expired as of ``as_of_ns``.

    The default is the last moment recorded in the logs, so that an old log is judged by its own
    time. The audit and the account of files are of whole logs, whatever rows are chosen.
    """
    opened = [
        open_logs(spark, dialect, paths, run_directories, chosen) for dialect, paths in logs.items()
    ]
    measured, as_of_ns = _measure_all(opened, made_ns, as_of_ns)
    audited = audit(spark, logs, as_of_ns=as_of_ns, run_directories=run_directories)
    found = _findings(audited)
    sections = [section_of(each) for each in measured]
    sections += [_audit_section(found), _files_section(audited)]
    return Report(
        title,
        made_ns,
        [path for paths in logs.values() for path in paths],
        *verdict(found, measured),
        sections,
    )


def report_of_lake(
    spark: SparkSession,
    lake: Lake,
    *,
    made_ns: int,
    title: str,
    as_of_ns: int | None = None,
    chosen: RowFilter = EVERY_ROW,
) -> Report:
    """What the page says of a lake. The weeks that it compares are those of all rows."""
    readers = _last_seen(lake)
    if chosen:
        measured, moment_ns = _measure_chosen(spark, lake, chosen, made_ns, as_of_ns)
    else:
        measured, moment_ns = measure_lake(spark, lake, _heads(readers), made_ns, as_of_ns)
    for found in measured:
        if found.dialect == KESTREL:
            _measure_readers(found, readers)
    said, severity = verdict(None, measured)
    worse, section = compare_weeks(_weeks(lake, moment_ns))
    if worse:
        said = f"Worse than in the previous week: {', '.join(worse)}. {said}"
        severity = "warning" if severity == "good" else severity
    sections = [section, *(section_of(found) for found in measured), _damage(lake)]
    return Report(title, made_ns, [lake.path], said or "No failures.", severity, sections)


def _measure_chosen(
    spark: SparkSession, lake: Lake, chosen: RowFilter, made_ns: int, as_of_ns: int | None
) -> tuple[list[Measured], int]:
    """Some rows of a lake, with DataFrames: a condition is any that Spark understands."""
    history = history_of(spark, lake, None, chosen.since_ns, chosen.until_ns)
    opened = [open_lake_rows(chosen.rows(history), dialect) for dialect in LOG_DIALECTS]
    measured, moment_ns = _measure_all(opened, made_ns, as_of_ns)
    return [each for each in measured if each.rows], moment_ns


def _measure_all(
    opened: Sequence[Opened], made_ns: int, as_of_ns: int | None
) -> tuple[list[Measured], int]:
    """Of each, and the moment at which that was so: ``as_of_ns``, or else the last one of all."""
    try:
        known = [each.last_ns for each in opened if each.last_ns is not None]
        moment_ns = max(known, default=made_ns) if as_of_ns is None else as_of_ns
        return [measure(each, moment_ns) for each in opened], moment_ns
    finally:
        for each in opened:
            each.close()


def verdict(found: Sequence[_Found] | None, measured: Sequence[Measured]) -> tuple[str, str]:
    """What a reader needs to know first, and how bad it is: good, warning or serious.

    ``found`` is None without an audit.

    Attempts that failed count as well as what the audit found: many failures are bad news although
    the log is in perfect order.
    """
    counts = Counter[str]()
    for _, severity, count, *_ in found or ():
        counts[severity] += count
    sentences = []
    if found is not None:
        sentences.append(_audit_sentence(counts[SERIOUS], counts[WARNING]))
    sentences += [_failure_sentence(each) for each in measured if each.failed]
    worst = max((each.failed_share for each in measured), default=0.0)
    if counts[SERIOUS] or worst >= SERIOUS_SHARE:
        return " ".join(sentences), SERIOUS
    if counts[WARNING] or worst >= WARNING_SHARE:
        return " ".join(sentences), WARNING
    return " ".join(sentences), "good"


def _audit_sentence(serious: int, warnings: int) -> str:
    if not serious and not warnings:
        return "The audit found no problems."
    found = [
        f"{shown(number, 'count')} {word}{'' if number == 1 else 's'}"
        for number, word in ((serious, "serious problem"), (warnings, "warning"))
        if number
    ]
    return f"The audit found {' and '.join(found)}."


def _failure_sentence(measured: Measured) -> str:
    ended = measured.failed + measured.succeeded
    what = "attempts" if measured.dialect == "workq" else "runs"
    return (
        f"{TITLES[measured.dialect]}: {100 * measured.failed_share:.1f} % of {what} failed "
        f"({shown(measured.failed, 'count')} of {shown(ended, 'count')})."
    )


def _findings(audited: Audit) -> list[_Found]:
    """finding, severity, count, logs, and one of them as an example."""
    rows = (
        audited.findings.groupBy("finding", "severity")
        .agg(
            F.count("*").alias("count"),
            F.count_distinct("log").alias("logs"),
            F.min_by("key", "detail").alias("key"),
            F.min("detail").alias("detail"),
        )
        .collect()
    )
    found = [
        (row.finding, row.severity, row["count"], row.logs, row.key, row.detail) for row in rows
    ]
    return sorted(found, key=lambda each: (SEVERITIES.index(each[1]), -each[2], each[0]))


def _audit_section(found: Sequence[_Found]) -> Section:
    intro = "Problems found in the logs. Run journeyman pipeline audit to list each of them."
    if not found:
        return Section("Audit", "No problems were found in the logs.")
    rows = [
        [
            finding,
            severity,
            shown(count, "count"),
            shown(logs, "count"),
            f"{key}: {detail}" if key else detail or "",
        ]
        for finding, severity, count, logs, key, detail in found
    ]
    columns = ["Finding", "Severity", "Count", "Logs", "Example"]
    marks = [severity for _, severity, *_ in found]
    table = Table("Findings", "Most serious first.", columns, rows, frozenset({2, 3}), marks)
    return Section("Audit", intro, parts=[table])


def _files_section(audited: Audit) -> Section:
    intro = "Bytes the current state needs; compaction and cleaning free the rest."
    rows = audited.segments.orderBy(F.desc("record_bytes"), "_file").limit(_SHOWN_FILES).collect()
    if not rows:
        return Section("Files", "No file holds a record.")
    names = ("records", "record_bytes", "dead_bytes", "damaged_bytes")
    sums = (F.sum(name).alias(name) for name in names)
    total = audited.segments.agg(F.count("*").alias("files"), *sums).collect()[0]
    unneeded = f"{100 * total.dead_bytes / max(total.record_bytes, 1):.0f} % no longer needed"
    tiles = [
        Tile("Files", shown(total.files, "count")),
        Tile("Records", shown(total.records, "count")),
        Tile("Bytes", shown(total.record_bytes, "bytes"), unneeded),
        Tile("Damaged", shown(total.damaged_bytes, "bytes")),
    ]
    parts = [("needed", "teal"), ("no longer needed", "grey"), ("damaged", "red")]
    bars = [
        (row._file, [float(row.live_bytes), float(row.dead_bytes), float(row.damaged_bytes)])
        for row in rows
    ]
    note = "Bytes of the records in each file, largest first."
    if total.files > _SHOWN_FILES:
        note += f" The first {_SHOWN_FILES} of {shown(total.files, 'count')} files."
    return Section("Files", intro, tiles, [Bars("Bytes", note, parts, bars, "bytes")])


def _weeks(lake: Lake, moment_ns: int) -> dict[str, tuple[Week, Week]]:
    """By queue: the week before the last one, and the last one, which ends with this moment."""
    end = date(1970, 1, 1) + timedelta(seconds=moment_ns // NS_PER_S)
    middle, begin = end - timedelta(days=_DAYS), end - timedelta(days=2 * _DAYS)
    table, day = "gold/latency_daily", ds.field("date")
    files = [name for name in lake.files(table) if days_of(name)[1] >= str(begin)]
    recent = lake.read_arrow(table, files, where=(day > begin) & (day <= end))
    named = recent.append_column("is_last", pc.greater(recent["date"], pa.scalar(middle)))
    rows = (
        named.group_by(["dialect", "queue", "is_last"])
        .aggregate(
            [("started", "sum"), ("failed", "sum"), ("wait_p95_s", "max"), ("run_p95_s", "max")]
        )
        .to_pylist()
    )
    found: dict[str, dict[bool, Week]] = {}
    for row in rows:
        name = f"{row['dialect']} {row['queue']}".strip()
        found.setdefault(name, {})[row["is_last"]] = Week(
            row["started_sum"], row["failed_sum"], row["wait_p95_s_max"], row["run_p95_s_max"]
        )
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
    note = "The seven days up to the last event, and the seven days before."
    table = Table("By queue", note, columns, rows, frozenset(range(1, 9)), marks)
    worse = [f"{name} ({', '.join(reasons[name])})" for name in order if reasons[name]]
    intro = "Changes since the previous week."
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


def _last_seen(lake: Lake) -> list[dict[str, Any]]:
    """Where each reader stood when the lake last looked."""
    seen = lake.read_arrow("silver/readers", lake.files("silver/readers"))
    last = {
        (row["host"], row["log"], row["reader"]): row
        for row in seen.sort_by("observed_at").to_pylist()
    }
    return list(last.values())


def _heads(readers: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """By host and log, the last item that every reader had finished."""
    found: dict[tuple[str, str], int] = {}
    for row in readers:
        if row["head"] is not None:
            log = row["host"], row["log"]
            found[log] = min(row["head"], found.get(log, row["head"]))
    return found


def _measure_readers(measured: Measured, readers: Sequence[Mapping[str, Any]]) -> None:
    ordered = sorted(readers, key=lambda row: (-row["items_behind"], row["queue"], row["reader"]))
    measured.lag = [
        Lag(row["queue"], row["reader"], row["items_behind"], row["bytes_behind"], _ns(row))
        for row in ordered[:TOP]
    ]
    measured.items_behind = sum(row["items_behind"] for row in readers)
    waiting: dict[str, int] = {}
    for row in readers:
        waiting[row["queue"]] = max(waiting.get(row["queue"], 0), row["items_behind"])
    put = {group.name: group.jobs for group in measured.groups}
    busiest = sorted(put, key=lambda queue: (-put[queue], queue))[:TOP]
    measured.queues = [Stored(q, put[q], put[q], waiting.get(q, 0)) for q in busiest]
    measured.items_put = sum(measured.outcomes.values())
    measured.groups = []


def _ns(row: Mapping[str, Any]) -> int | None:
    oldest: datetime | None = row["oldest_at"]
    return None if oldest is None else (oldest - moment_of(0)) // timedelta(microseconds=1) * 1000


def _damage(lake: Lake) -> Section:
    table = "silver/damage"
    found = lake.read_arrow(table, lake.files(table)).sort_by([("found_at", "descending")])
    if not found.num_rows:
        return Section("Damage", "Every record of the logs could be read.")
    rows = [[row["log"], str(row["offset"]), row["what"]] for row in found[:TOP].to_pylist()]
    shown_rows = Table(
        "Damage", "The latest first.", ["Log", "Offset", "What"], rows, frozenset({1})
    )
    return Section("Damage", "Parts of the logs that could not be read.", parts=[shown_rows])

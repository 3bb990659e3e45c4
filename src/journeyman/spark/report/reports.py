"""``report``: logs of any mix of dialects -> one page.

measure each dialect, audit all of them  -->  Report  -->  HTML
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.audit.audits import Audit, audit
from journeyman.spark.audit.findings import SERIOUS, SEVERITIES, WARNING
from journeyman.spark.report.model import Bars, Report, Section, Table, Tile
from journeyman.spark.report.page import page
from journeyman.spark.report.queries import Measured, measure, open_logs
from journeyman.spark.report.sections import TITLES, section_of
from journeyman.spark.report.wording import shown

SERIOUS_SHARE = 0.1  # of attempts that failed
WARNING_SHARE = 0.01
_SHOWN_FILES = 40
_Found = tuple[str, str, int, int, str | None, str | None]


def report_page(
    spark: SparkSession,
    logs: Mapping[str, Sequence[str]],
    *,
    made_ns: int,
    title: str = "Journeyman report",
    as_of_ns: int | None = None,
    run_directories: Sequence[str] = (),
) -> str:
    """The whole page; see ``report``."""
    gathered = report(
        spark,
        logs,
        made_ns=made_ns,
        title=title,
        as_of_ns=as_of_ns,
        run_directories=run_directories,
    )
    return page(gathered)


def report(
    spark: SparkSession,
    logs: Mapping[str, Sequence[str]],
    *,
    made_ns: int,
    title: str = "Journeyman report",
    as_of_ns: int | None = None,
    run_directories: Sequence[str] = (),
) -> Report:
    """What the page says. Jobs are late or expired as of ``as_of_ns``.

    The default is the last moment recorded in the logs, so that an old log is judged by its own
    time.
    """
    opened = [open_logs(spark, dialect, paths, run_directories) for dialect, paths in logs.items()]
    try:
        if as_of_ns is None:
            known = [each.last_ns for each in opened if each.last_ns is not None]
            as_of_ns = max(known, default=made_ns)
        measured = [measure(each, as_of_ns) for each in opened]
    finally:
        for each in opened:
            each.close()
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


def verdict(found: Sequence[_Found], measured: Sequence[Measured]) -> tuple[str, str]:
    """What a reader needs to know first, and how bad it is: good, warning or serious.

    Attempts that failed count as well as what the audit found: many failures are bad news although
    the log is in perfect order.
    """
    counts = Counter[str]()
    for _, severity, count, *_ in found:
        counts[severity] += count
    sentences = [_audit_sentence(counts[SERIOUS], counts[WARNING])]
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

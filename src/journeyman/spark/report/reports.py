"""``report``: logs of any mix of dialects -> one page.

measure each dialect, audit all of them  -->  Report  -->  HTML
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.audit.audits import Audit, audit
from journeyman.spark.audit.findings import SERIOUS, SEVERITIES
from journeyman.spark.report.facts import Bars, Report, Section, Table, Tile
from journeyman.spark.report.measuring import measure
from journeyman.spark.report.page import page
from journeyman.spark.report.sections import section_of
from journeyman.spark.report.wording import shown

__all__ = ["report", "report_page"]

_SHOWN_FILES = 40


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

    Unless it is given, that is the last moment that the logs tell of: a log that was put away a
    year ago is judged by its own time.
    """
    measured = [measure(spark, dialect, paths, run_directories) for dialect, paths in logs.items()]
    if as_of_ns is None:
        known = [each.last_ns for each in measured if each.last_ns is not None]
        as_of_ns = max(known, default=made_ns)
    audited = audit(spark, logs, as_of_ns=as_of_ns, run_directories=run_directories)
    found = _findings(audited)
    serious = sum(count for _, severity, count, *_ in found if severity == SERIOUS)
    sections = [section_of(each) for each in measured]
    sections += [_audit_section(found), _files_section(audited)]
    return Report(
        title,
        made_ns,
        [path for paths in logs.values() for path in paths],
        _verdict(serious),
        serious > 0,
        sections,
    )


def _verdict(serious: int) -> str:
    if not serious:
        return "Nothing serious was found."
    return f"{shown(serious, 'count')} serious finding{'' if serious == 1 else 's'}: see the audit."


_Found = tuple[str, str, int, int, str | None, str | None]


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
    intro = "What is not as it should be; journeyman pipeline audit lists every single one."
    if not found:
        return Section("Audit", f"{intro} Nothing was found.")
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
    columns = ["Finding", "Severity", "Count", "Logs", "For example"]
    marks = [severity for _, severity, *_ in found]
    table = Table("Findings", "The most serious first.", columns, rows, frozenset({2, 3}), marks)
    return Section("Audit", intro, parts=[table])


def _files_section(audited: Audit) -> Section:
    intro = "Which bytes the state still needs; the rest is what compaction and cleaning free."
    rows = audited.segments.orderBy(F.desc("record_bytes"), "_file").limit(_SHOWN_FILES).collect()
    if not rows:
        return Section("Files", f"{intro} There is no record in any file.")
    total = sum(row.record_bytes for row in rows)
    dead = sum(row.dead_bytes for row in rows)
    damaged = sum(row.damaged_bytes for row in rows)
    tiles = [
        Tile(
            "Files", shown(len(rows), "count"), "the largest" if len(rows) == _SHOWN_FILES else ""
        ),
        Tile("Records", shown(sum(row.records for row in rows), "count")),
        Tile(
            "Bytes", shown(total, "bytes"), f"{100 * dead / max(total, 1):.0f} % no longer needed"
        ),
        Tile("Damaged", shown(damaged, "bytes")),
    ]
    parts = [("needed", "teal"), ("no longer needed", "grey"), ("damaged", "red")]
    bars = [
        (row._file, [float(row.live_bytes), float(row.dead_bytes), float(row.damaged_bytes)])
        for row in rows
    ]
    note = "Bytes of records in each file, the largest first."
    return Section("Files", intro, tiles, [Bars("Bytes", note, parts, bars, "bytes")])

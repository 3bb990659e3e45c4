r"""The contents of a report, of logs of any mix of dialects or of a lake.

    logs    attempts, records, an audit  --\
    lake    attempts                     ---+--> figures --> sections --> Report --> one HTML file
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.spark.audit import Audit, audit
from journeyman.spark.findings import SERIOUS, SEVERITIES, WARNING
from journeyman.spark.history import kestrel_attempts
from journeyman.spark.history.columns import EVERY_ROW, RowFilter
from journeyman.spark.history.logs import attempts_of, journal_of, records_of
from journeyman.spark.lakes.layout import LOG_DIALECTS
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.lakes.views import history_of, lag_in
from journeyman.spark.report.figures import TOP, DialectFigures, Measured, measure
from journeyman.spark.report.page import Bars, Report, Section, Table, Tile
from journeyman.spark.report.sections import TITLES, compare_weeks, section_of
from journeyman.spark.report.units import format_count, format_share, format_value
from journeyman.spark.source.options import KESTREL, LEDGER, WORKQ
from journeyman.units import NS_PER_MS

SERIOUS_SHARE: Final = 0.1  # a share of failed attempts
WARNING_SHARE: Final = 0.01
_SHOWN_FILES: Final = 40
_WRITTEN_AT: Final = {
    WORKQ: ("logged_ns", F.col),
    KESTREL: ("add_time_ms", lambda name: F.try_multiply(F.col(name), F.lit(NS_PER_MS))),
}


@dataclass(frozen=True, slots=True)
class FindingCount:
    """How often an audit found something, and one example."""

    finding: str
    severity: str
    count: int
    logs: int
    key: str | None = None
    detail: str | None = None


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
    """Return the contents of the page. Jobs are late or expired as of ``as_of_ns``.

    The default is the last moment recorded in the logs, so that an old log is judged by its own
    time. The audit and the account of files are of whole logs, whatever rows are chosen.
    """
    journal = journal_of(spark, logs[KESTREL]) if KESTREL in logs else None
    attempts = attempts_of(spark, logs, run_directories=run_directories, journal=journal)
    logs = {dialect: paths for dialect, paths in logs.items() if dialect != LEDGER}
    measured = measure(
        chosen.rows(attempts),
        list(logs),
        made_ns=made_ns,
        as_of_ns=as_of_ns,
        records=None if chosen else _written(spark, logs),
        lag=None if journal is None else kestrel_attempts.lag(*journal),
    )
    audited = audit(spark, logs, as_of_ns=measured.moment_ns, run_directories=run_directories)
    findings = _count_findings(audited)
    paths = [path for paths in logs.values() for path in paths]
    more = [_audit_section(findings), _files_section(audited)]
    return _report(title, made_ns, paths, measured, findings, more)


def report_of_lake(
    spark: SparkSession,
    lake: Lake,
    *,
    made_ns: int,
    title: str,
    as_of_ns: int | None = None,
    chosen: RowFilter = EVERY_ROW,
) -> Report:
    """Return the contents of the page for a lake."""
    history = history_of(spark, lake, None, chosen.since_ns, chosen.until_ns)
    measured = measure(
        chosen.rows(history),
        LOG_DIALECTS,
        made_ns=made_ns,
        as_of_ns=as_of_ns,
        lag=lag_in(spark, lake),
    )
    known = {name: of for name, of in measured.figures.items() if not of.is_empty}
    damage = _damage_section(lake.read(spark, "silver/damage"))
    return _report(title, made_ns, [lake.path], measured._replace(figures=known), None, [damage])


def _report(
    title: str,
    made_ns: int,
    paths: Sequence[str],
    measured: Measured,
    findings: Sequence[FindingCount] | None,
    more: Sequence[Section],
) -> Report:
    sentence, severity = verdict(findings, list(measured.figures.values()))
    worse, weeks = compare_weeks(measured.weeks)
    if worse:
        sentence = f"Worse than in the previous week: {', '.join(worse)}. {sentence}"
        severity = WARNING if severity == "good" else severity
    sections = [*weeks, *(section_of(of) for of in measured.figures.values()), *more]
    return Report(title, made_ns, paths, sentence or "All is well.", severity, sections)


def verdict(
    findings: Sequence[FindingCount] | None, figures: Sequence[DialectFigures]
) -> tuple[str, str]:
    """Return what a reader needs to know first, and how bad it is: good, warning or serious.

    ``findings`` are None without an audit. Attempts that failed count as well as what the audit
    found: many failures are bad news although the log is in perfect order.
    """
    counts = Counter[str]()
    for each in findings or ():
        counts[each.severity] += each.count
    sentences = [_failure_sentence(of) for of in figures if of.failed]
    if findings is not None:
        sentences.insert(0, _audit_sentence(counts[SERIOUS], counts[WARNING]))
    worst = max((of.failed_share for of in figures), default=0.0)
    if counts[SERIOUS] or worst >= SERIOUS_SHARE:
        return " ".join(sentences), SERIOUS
    if counts[WARNING] or worst >= WARNING_SHARE:
        return " ".join(sentences), WARNING
    return " ".join(sentences), "good"


def _audit_sentence(serious: int, warnings: int) -> str:
    if not serious and not warnings:
        return "The audit found no problems."
    problems = [
        f"{format_count(number)} {word}{'' if number == 1 else 's'}"
        for number, word in ((serious, "serious problem"), (warnings, "warning"))
        if number
    ]
    return f"The audit found {' and '.join(problems)}."


def _failure_sentence(figures: DialectFigures) -> str:
    ended = figures.failed + figures.succeeded
    what = "attempts" if figures.dialect == WORKQ else "runs"
    return (
        f"{TITLES[figures.dialect]}: {format_share(figures.failed, ended)} of {what} failed "
        f"({format_count(figures.failed)} of {format_count(ended)})."
    )


def _written(spark: SparkSession, logs: Mapping[str, Sequence[str]]) -> DataFrame | None:
    """Return dialect, ns and bytes of the records; a schedule's log has no times."""
    frames = []
    for dialect, (name, moment) in _WRITTEN_AT.items():
        if dialect in logs:
            records = records_of(spark, dialect, logs[dialect], [name])
            columns = (moment(name).alias("ns"), F.col("_length").cast("long").alias("bytes"))
            timed = records.where(F.col(name).isNotNull())
            frames.append(timed.select(F.lit(dialect).alias("dialect"), *columns))
    return reduce(DataFrame.unionByName, frames) if frames else None


def _count_findings(audited: Audit) -> list[FindingCount]:
    """The most serious first."""
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
    counts = [FindingCount(**row.asDict()) for row in rows]
    return sorted(
        counts, key=lambda each: (SEVERITIES.index(each.severity), -each.count, each.finding)
    )


def _audit_section(findings: Sequence[FindingCount]) -> Section:
    if not findings:
        return Section("Audit", "No problems were found in the logs.")
    rows = [
        [
            each.finding,
            each.severity,
            format_count(each.count),
            format_count(each.logs),
            f"{each.key}: {each.detail}" if each.key else each.detail or "",
        ]
        for each in findings
    ]
    columns = ["Finding", "Severity", "Count", "Logs", "Example"]
    marks = [each.severity for each in findings]
    table = Table("Findings", "Most serious first.", columns, rows, frozenset({2, 3}), marks)
    intro = "Problems found in the logs. Run journeyman pipeline audit to list each of them."
    return Section("Audit", intro, parts=[table])


def _files_section(audited: Audit) -> Section:
    rows = audited.segments.orderBy(F.desc("record_bytes"), "_file").limit(_SHOWN_FILES).collect()
    if not rows:
        return Section("Files", "No file holds a record.")
    names = ("records", "record_bytes", "dead_bytes", "damaged_bytes")
    sums = (F.sum(name).alias(name) for name in names)
    total = audited.segments.agg(F.count("*").alias("files"), *sums).collect()[0]
    unneeded = f"{100 * total.dead_bytes / max(total.record_bytes, 1):.0f} % no longer needed"
    damaged = format_value(total.damaged_bytes, "bytes")
    tiles = [
        Tile("Files", format_count(total.files)),
        Tile("Records", format_count(total.records)),
        Tile("Bytes", format_value(total.record_bytes, "bytes"), unneeded),
        Tile("Damaged", damaged, wrong=total.damaged_bytes > 0),
    ]
    tones = {"needed": "accent", "no longer needed": "faint", "damaged": "alarm"}
    bars = [
        (
            row._file,
            list(
                zip(
                    (row.live_bytes, row.dead_bytes, row.damaged_bytes), tones.values(), strict=True
                )
            ),
        )
        for row in rows
    ]
    note = "Bytes of the records in each file, largest first."
    if total.files > _SHOWN_FILES:
        note += f" The first {_SHOWN_FILES} of {format_count(total.files)} files."
    intro = "Bytes the current state needs; compaction and cleaning free the rest."
    return Section("Files", intro, tiles, [Bars("Bytes", note, bars, "bytes", list(tones.items()))])


def _damage_section(damage: DataFrame) -> Section:
    rows = damage.orderBy(F.desc("found_at"), "log", "offset").limit(TOP).collect()
    if not rows:
        return Section("Damage", "Every record of the logs could be read.")
    cells = [[row.log, str(row.offset), row.what] for row in rows]
    columns = ["Log", "Offset", "What"]
    table = Table("Damage", "The latest first.", columns, cells, frozenset({1}))
    return Section("Damage", "Parts of the logs that could not be read.", parts=[table])

"""An audit of logs of any mix of dialects: findings, and an account of every file.

{"workq": [paths], ...}  -->  Audit(findings, segments)      against: the same of another side
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from journeyman.errors import UsageError
from journeyman.spark.audit import kestrel_audit, workq_audit, ztick_audit
from journeyman.spark.audit.comparison import (
    COMPARED,
    SEGMENTS,
    compare,
    dead_bytes,
    odd_records,
    segments,
    totals,
)
from journeyman.spark.audit.findings import FINDINGS, together
from journeyman.spark.history.logs import journal_of, records_of, runs_of
from journeyman.spark.history.ztick_attempts import grouped
from journeyman.spark.source.schemas import DAMAGE, KESTREL, ZTICK
from journeyman.spark.tables import states

GRACE_NS = 60 * 1_000_000_000

Logs = Mapping[str, Sequence[str]]  # paths by dialect


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found; ``segments`` has one row a file. Both are lazy, and kept once computed."""

    findings: DataFrame
    segments: DataFrame


def audit(
    spark: SparkSession,
    logs: Logs,
    *,
    as_of_ns: int,
    grace_ns: int = GRACE_NS,
    run_directories: Sequence[str] = (),
    against: Logs | None = None,
) -> Audit:
    """What is due counts as late when its time was over by ``grace_ns`` at ``as_of_ns``."""
    _check_sides(logs, against)
    found: list[DataFrame] = []
    accounts: list[DataFrame] = []
    for dialect, paths in logs.items():
        records = records_of(spark, dialect, paths, [DAMAGE])
        files = totals(records).cache()
        more, live = _of_dialect(
            spark, dialect, paths, records, as_of_ns, grace_ns, run_directories
        )
        found += [*more, odd_records(files, dialect)]
        accounts.append(segments(files, live, dialect))
        if against is not None:
            here = states(spark, dialect, paths)
            there = states(spark, dialect, against[dialect])
            found += _compared(dialect, here, there, records)
    account = together(spark, accounts, SEGMENTS).cache()
    findings = together(spark, [*found, dead_bytes(account)], FINDINGS).cache()
    return Audit(findings, account)


def _of_dialect(
    spark: SparkSession,
    dialect: str,
    paths: Sequence[str],
    records: DataFrame,
    as_of_ns: int,
    grace_ns: int,
    run_directories: Sequence[str],
) -> tuple[list[DataFrame], DataFrame]:
    """Findings, and the bytes that are needed of each file."""
    if dialect == ZTICK:
        groups = grouped(records).cache()
        runs = runs_of(spark, paths, run_directories)
        found = ztick_audit.findings(groups, runs, as_of_ns, grace_ns)
        return found, ztick_audit.needed_bytes(groups)
    if dialect == KESTREL:
        items, readers = journal_of(spark, paths)
        readers = readers.cache()
        ids = kestrel_audit.ids_of_segments(items).cache()
        return kestrel_audit.findings(ids, readers), kestrel_audit.needed_bytes(records, readers)
    passed = workq_audit.walked(records, as_of_ns, grace_ns).cache()
    return workq_audit.findings(passed), workq_audit.needed_bytes(passed)


def _compared(
    dialect: str,
    here: Mapping[str, DataFrame],
    there: Mapping[str, DataFrame],
    records: DataFrame,
) -> list[DataFrame]:
    return [
        compare(each, here[each.table], there[each.table], records)
        for each in COMPARED
        if each.dialect == dialect
    ]


def _check_sides(logs: Logs, against: Logs | None) -> None:
    if against is not None and set(logs) != set(against):
        ours, theirs = (", ".join(sorted(side)) or "nothing" for side in (logs, against))
        raise UsageError(f"here are logs of {ours}, there of {theirs}: compare like with like")

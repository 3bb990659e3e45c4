"""Rows of attempts -> the few numbers that a report is made of, counted by ``spark/views``.

    attempts, kept meanwhile  --by outcome-->  totals, and the moment of the report
                              --by bucket-->   at most MOST_POINTS points for each chart
                              --by group-->    the TOP queues, rules and tasks
                              --by reason-->   the TOP errors
                              --by week-->     the last seven days and the seven before

Of logs and of lakes the same is counted, in the same way. A report asks some thirty queries, and
Spark takes a second to plan each. So few rows are fetched once, and DuckDB answers the same texts;
of more, a few hundred numbers reach the driver, whatever the size of the logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from journeyman.spark import views
from journeyman.spark.report.axis import Axis, axis_between
from journeyman.spark.source.options import KESTREL, WORKQ, ZTICK

TOP: Final = 12
RANKS: Final = ("p50", "p90", "p99")
_DIALECT: Final = {"dialect": "dialect"}
_WEEK_NS: Final = 7 * views.DAY_NS
_FEW_ROWS: Final = 250_000  # some 50 MB in the driver
_SPANS: Final = """WITH spans AS (
    SELECT dialect, min(first_ns) AS first_ns, max(last_ns) AS last_ns FROM growth GROUP BY ALL
) SELECT * FROM spans"""
Rows: TypeAlias = pa.Table | DataFrame
Answer: TypeAlias = dict[str, Any]  # a row of a view


@dataclass(frozen=True, slots=True)
class Week:
    """A queue in one week."""

    started: int = 0
    failed: int = 0
    wait_p95_ns: int | None = None
    run_p95_ns: int | None = None

    @property
    def failed_share(self) -> float:
        return self.failed / self.started if self.started else 0.0


@dataclass(slots=True)
class DialectFigures:
    """The numbers of one dialect. Series have a value for each bucket of their axis."""

    dialect: str
    outcomes: dict[str, int] = field(default_factory=dict)
    jobs: int = 0  # jobs added; plans; items
    started: int = 0  # leases; runs with recorded times
    succeeded: int = 0
    failed: int = 0
    unrecorded: int = 0  # runs that ended at a time nobody recorded
    first_ns: int | None = None
    last_ns: int | None = None
    axis: Axis = field(default_factory=Axis)
    counts: dict[str, list[int]] = field(default_factory=dict)
    depth: dict[str, list[int]] = field(default_factory=dict)
    latency: dict[str, list[int | None]] = field(default_factory=dict)
    growth: list[int] = field(default_factory=list)  # bytes of the log at the end of each bucket
    due_axis: Axis = field(default_factory=Axis)
    due: list[int] = field(default_factory=list)
    overall: dict[str, int | None] = field(default_factory=dict)  # percentiles of all
    groups: dict[str, list[Answer]] = field(default_factory=dict)  # by queue, rule, prefix, task
    reasons: list[tuple[str, str, int]] = field(default_factory=list)  # outcome, reason, failures
    stored: list[Answer] = field(default_factory=list)  # items by queue: the TOP ones
    items_put: int = 0
    lag: list[Answer] = field(default_factory=list)  # by reader: the TOP ones
    items_behind: int = 0  # the sum of all readers

    @property
    def attempts(self) -> int:
        return sum(self.outcomes.values())

    @property
    def failed_share(self) -> float:
        """Return the share of failures among successes and failures, from 0 to 1."""
        ended = self.failed + self.succeeded
        return self.failed / ended if ended else 0.0

    @property
    def is_empty(self) -> bool:
        return not self.attempts and not self.items_put


class Measured(NamedTuple):
    """The counts of ``measure``, by dialect, as of ``moment_ns``."""

    figures: dict[str, DialectFigures]
    weeks: dict[str, tuple[Week, Week]]  # by queue: the week before the last one, the last one
    moment_ns: int


class _Views:
    """Asks the views about some rows of attempts as they stood at a moment."""

    def __init__(self, attempts: Rows, as_of_ns: int | None) -> None:
        self._attempts = attempts
        self._as_of_ns = as_of_ns

    def ask(
        self,
        view: str,
        keys: Mapping[str, str] = _DIALECT,
        where: str = "true",
        order: str = "",
        tables: Mapping[str, pa.Table] | None = None,
        **options: Any,
    ) -> list[Answer]:
        """The rows of a view over the attempts that meet a condition, which may name tables."""
        text = views.statement(view, keys, as_of_ns=self._as_of_ns, **options)
        chosen = f"WITH attempts AS (SELECT * FROM every_attempt WHERE {where}),"
        text = f"{chosen}{text.removeprefix('WITH')} {order}"
        return _answers(text, every_attempt=self._attempts, **tables or {})

    def by_dialect(self, view: str, **options: Any) -> dict[str, list[Answer]]:
        found: dict[str, list[Answer]] = {}
        for row in self.ask(view, **options):
            found.setdefault(row["dialect"], []).append(row)
        return found


def _fetched(frame: DataFrame) -> Rows:
    """The rows of a frame that is kept, if they are few; else the frame."""
    few = frame.limit(_FEW_ROWS + 1).toArrow()
    return few if few.num_rows <= _FEW_ROWS else frame


def _answers(text: str, **tables: Rows) -> list[Answer]:
    frames = [table for table in tables.values() if isinstance(table, DataFrame)]
    if not frames:
        return views.run_in_duckdb(text, **tables).to_pylist()
    spark = frames[0].sparkSession
    given = {
        name: table if isinstance(table, DataFrame) else spark.createDataFrame(table)
        for name, table in tables.items()
    }
    return [row.asDict() for row in views.run_in_spark(spark, text, **given).collect()]


def measure(
    attempts: DataFrame,
    dialects: Sequence[str],
    *,
    made_ns: int,
    as_of_ns: int | None = None,
    records: DataFrame | None = None,
    lag: DataFrame | None = None,
) -> Measured:
    """All numbers of these rows. Without ``as_of_ns`` they are as of the last moment recorded.

    ``records``: dialect, ns and bytes of what was written; ``lag``: rows of the view of its name.
    """
    kept = [attempts.persist()]
    try:
        rows = _fetched(attempts)
        growth: Rows | None = None
        written: dict[str, Answer] = {}
        if records is not None:
            text = views.statement("growth", _DIALECT, bucket_ns=10**6)
            counted = views.run_in_spark(records.sparkSession, text, records=records)
            kept.append(counted.persist())
            growth = _fetched(counted)
            written = {row["dialect"]: row for row in _answers(_SPANS, growth=growth)}
        if as_of_ns is None:
            spans = [*_Views(rows, None).ask("outcomes"), *written.values()]
            as_of_ns = _most(spans, "last_ns", made_ns)
        asked = _Views(rows, as_of_ns)
        figures = {dialect: DialectFigures(dialect) for dialect in dialects}
        _count_outcomes(asked, figures, written)
        _count_over_time(asked, figures)
        if growth is not None:
            _count_growth(growth, figures)
        _count_groups(asked, figures)
        if lag is not None and KESTREL in figures:
            _count_readers(asked, figures[KESTREL], lag)
        return Measured(figures, _count_weeks(asked, as_of_ns), as_of_ns)
    finally:
        for frame in kept:
            frame.unpersist()


def _least(rows: Sequence[Answer], name: str) -> int | None:
    return min((row[name] for row in rows if row[name] is not None), default=None)


def _most(rows: Sequence[Answer], name: str, default: Any = None) -> Any:
    return max((row[name] for row in rows if row[name] is not None), default=default)


def _count_outcomes(
    view_answers: _Views, figures: Mapping[str, DialectFigures], written: Mapping[str, Answer]
) -> None:
    outcomes = view_answers.by_dialect("outcomes")
    for dialect, rows in outcomes.items():
        of = figures[dialect]
        of.outcomes = {row["outcome"]: row["attempts"] for row in rows}
        for name in ("jobs", "started", "succeeded", "failed", "unrecorded"):
            setattr(of, name, sum(row[name] for row in rows))
        spans = [*rows, *filter(None, [written.get(dialect)])]
        of.first_ns, of.last_ns = _least(spans, "first_ns"), _most(spans, "last_ns")
        of.groups = {name: [] for name in _groupings(dialect, rows)}
    plans = outcomes.get(ZTICK, [])
    first_due_ns, last_due_ns = _least(plans, "first_due_ns"), _most(plans, "last_due_ns")
    if first_due_ns is None:
        return

    def due(bucket_ns: int) -> dict[int, int]:
        rows = view_answers.ask("throughput", where="dialect = 'ztick'", bucket_ns=bucket_ns)
        return {row["bucket_ns"]: row["due"] for row in rows if row["due"]}

    axis = figures[ZTICK].due_axis = axis_between(first_due_ns, last_due_ns, due)
    counted = due(axis.bucket_ns)
    figures[ZTICK].due = [counted.get(at, 0) for at in axis.times_ns]


def _groupings(dialect: str, rows: Sequence[Answer]) -> tuple[str, ...]:
    """Return how jobs of a dialect are grouped: a schedule without recorded runs knows no rules."""
    if dialect == ZTICK:
        return ("rule",) if any(row["with_rule"] for row in rows) else ("prefix",)
    return ("queue", "task", "worker") if dialect == WORKQ else ("queue",)


def _count_over_time(view_answers: _Views, figures: Mapping[str, DialectFigures]) -> None:
    """The series of all dialects, on one axis."""
    known = [each for each in figures.values() if each.first_ns is not None]
    firsts = [each.first_ns for each in known if each.first_ns is not None]
    last_ns = max((each.last_ns for each in known if each.last_ns is not None), default=None)
    if last_ns is None:
        return

    def busy(bucket_ns: int) -> set[int]:
        rows = view_answers.ask("throughput", bucket_ns=bucket_ns, until_ns=last_ns)
        return {row["bucket_ns"] for row in rows}

    axis = axis_between(min(firsts), last_ns, busy)
    options = {"bucket_ns": axis.bucket_ns, "until_ns": last_ns}
    counted, changed, timed, overall = (
        view_answers.by_dialect("throughput", **options),
        view_answers.by_dialect("depth_changes", **options),
        view_answers.by_dialect("latency", **options),
        view_answers.by_dialect("latency"),
    )
    for of in known:
        of.axis = axis
        for name in views.COUNTS:
            of.counts[name] = _series(counted.get(of.dialect, []), name, axis)
        for state in views.STATES:
            of.depth[state] = _levels(changed.get(of.dialect, []), state, axis)
        lengths = {row["bucket_ns"]: row for row in timed.get(of.dialect, [])}
        for name in (f"{what}_{rank}_ns" for what in ("wait", "run") for rank in RANKS):
            of.latency[name] = [
                lengths[at][name] if at in lengths else None for at in axis.times_ns
            ]
        for row in overall.get(of.dialect, []):
            of.overall = row


def _series(rows: Sequence[Answer], name: str, axis: Axis) -> list[int]:
    """The values of one column in the order of the buckets, 0 where there are none."""
    values = {row["bucket_ns"]: row[name] for row in rows}
    return [values.get(at, 0) for at in axis.times_ns]


def _levels(rows: Sequence[Answer], name: str, axis: Axis) -> list[int]:
    """The sum of all changes up to the end of each bucket, those in gaps of the axis as well."""
    changes = sorted((row["bucket_ns"], row[name]) for row in rows)
    sums = list(accumulate((change for _, change in changes), initial=0))
    found, at = [], 0
    for begin in axis.times_ns:
        while at < len(changes) and changes[at][0] <= begin:
            at += 1
        found.append(sums[at])
    return found


def _count_growth(growth: Rows, figures: Mapping[str, DialectFigures]) -> None:
    axis = next((of.axis for of in figures.values() if of.axis.times_ns), Axis())
    text = views.statement("growth", _DIALECT, bucket_ns=axis.bucket_ns)
    records = "WITH records AS (SELECT dialect, bucket_ns AS ns, bytes FROM counted),"
    rows = _answers(records + text.removeprefix("WITH"), counted=growth)
    for dialect in {row["dialect"] for row in rows}:
        mine = [row for row in rows if row["dialect"] == dialect]
        figures[dialect].growth = _levels(mine, "bytes", axis)


def _count_groups(view_answers: _Views, figures: Mapping[str, DialectFigures]) -> None:
    """The busiest groups of each dialect, and the reasons of most failures."""
    for of in figures.values():
        is_mine = f"dialect = '{of.dialect}'"
        for by in of.groups:
            keys = {"name": views.GROUPINGS[by]}
            rows = view_answers.ask(
                "groups", keys, is_mine, f"ORDER BY jobs DESC, name LIMIT {TOP}"
            )
            names = [row["name"] for row in rows]
            if by in ("task", "worker") and not any(names):
                continue  # the log does not know them
            if of.dialect != KESTREL:
                busiest = pa.table({"name": pa.array(names, pa.string())})
                where = f"{is_mine} AND {keys['name']} IN (SELECT name FROM busiest)"
                timed = view_answers.ask("latency", keys, where, tables={"busiest": busiest})
                latency = {row["name"]: row for row in timed}
                of.groups[by] = [{**latency.get(row["name"], {}), **row} for row in rows]
        if of.failed:
            order = f"ORDER BY failures DESC, reason LIMIT {TOP}"
            of.reasons = [
                (row["outcome"], row["reason"], row["failures"])
                for row in view_answers.ask("failures", where=is_mine, order=order)
            ]
        of.groups = {by: groups for by, groups in of.groups.items() if groups}


def _count_readers(view_answers: _Views, figures: DialectFigures, lag: DataFrame) -> None:
    """Queues by items ever put, readers by how far they are behind."""
    readers = [row.asDict() for row in lag.collect()]
    readers.sort(key=lambda row: (-row["items_behind"], row["queue"], row["reader"]))
    figures.lag = readers[:TOP]
    figures.items_behind = sum(row["items_behind"] for row in readers)
    # Ids are given out one after the other and never again: the highest is the number of puts.
    tails = {(row["_log"], row["queue"]): row["tail_id"] or 0 for row in readers}
    put = Counter[str]()
    for (_, queue), tail in tails.items():
        put[queue] += tail
    keys = {"queue": views.GROUPINGS["queue"]}
    stored, waiting = Counter[str](), Counter[str]()
    for row in view_answers.ask("outcomes", keys, f"dialect = '{KESTREL}'"):
        stored[row["queue"]] += row["attempts"]
        waiting[row["queue"]] += row["attempts"] if row["outcome"] == "waiting" else 0
    counted: list[Answer] = [
        {
            "queue": queue,
            "put": max(put[queue], stored[queue]),
            "stored": stored[queue],
            "waiting": waiting[queue],
        }
        for queue in {*put, *stored}
    ]
    figures.stored = sorted(counted, key=lambda each: (-each["put"], each["queue"]))[:TOP]
    figures.items_put = sum(each["put"] for each in counted)


def _count_weeks(view_answers: _Views, moment_ns: int) -> dict[str, tuple[Week, Week]]:
    """Queues that started something in both weeks before the moment."""
    middle_ns, begin_ns = moment_ns - _WEEK_NS, moment_ns - 2 * _WEEK_NS
    keys = {
        "dialect": "dialect",
        "queue": views.GROUPINGS["queue"],
        "is_last": f"started_ns > {middle_ns}",
    }
    recent = f"started_ns > {begin_ns} AND started_ns <= {moment_ns}"
    found: dict[str, dict[bool, Week]] = {}
    for row in view_answers.ask("latency", keys, recent):
        week = Week(*(row[name] for name in ("started", "failed", "wait_p95_ns", "run_p95_ns")))
        found.setdefault(f"{row['dialect']} {row['queue']}".strip(), {})[row["is_last"]] = week
    return {name: (each[False], each[True]) for name, each in found.items() if len(each) == 2}

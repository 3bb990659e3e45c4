"""The numbers of a report from the tables of a lake: three looks at the columns that each needs.

    which moment is the last?  -->  who is there, and between which times?  -->  series, percentiles

What is counted is what ``queries.measure`` counts of logs with DataFrames; here Arrow and numpy do,
in this process or, of many rows, in tasks of Spark. A task hands back sums by bucket and at most
``_KEPT_LENGTHS`` lengths of each percentile, so the driver needs as much memory for any lake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from journeyman.columnar.workq.attempts import NO_TIME
from journeyman.spark.history.summaries import COUNTS, PERCENTILES, STATES
from journeyman.spark.lake.columns import (
    Bools,
    Ints,
    coded,
    constant,
    first_words,
    is_one_of,
    length_ns,
    ns_column,
    ns_in,
    pc,
    text_of,
    where,
)
from journeyman.spark.lake.folding import FAILURES, MOMENTS
from journeyman.spark.lake.gold import (
    AttemptColumns,
    attempt_columns,
    changes,
    happenings,
    rows_together,
)
from journeyman.spark.lake.layout import LOG_DIALECTS
from journeyman.spark.lake.parts import Part, dealt, parts_in
from journeyman.spark.lake.silver import ITEMS, KEYED
from journeyman.spark.lake.storage import Lake
from journeyman.spark.lake.work import HANDS, Packet, spread
from journeyman.spark.report.queries import DROPPED, TOP, Measured, ReportGroup, axis, overview_of
from journeyman.spark.slots import slots_of
from journeyman.spark.source.options import KESTREL, ZTICK

_SMALL_ROWS: Final = 8_000_000  # counted here: a job of Spark takes longer to begin
_TASK_ROWS: Final = 20_000_000
_KEPT_LENGTHS: Final = 5_000
_SEPARATOR: Final = r"^(?P<group>.*?)(?:[.:/]|$)"
_ATTEMPTS: Final = KEYED[0]
Columns = Mapping[str, Sequence[str]]
_OF_MOMENTS: Final = ("dialect", "life", "first", "outcome", *MOMENTS)
_OF_ITEMS: Final = ("log", "queue", "item_id", "put_ns", "expires_ns")
_FIRST_LOOK: Final[Columns] = {_ATTEMPTS: _OF_MOMENTS, ITEMS: _OF_ITEMS}
_LOOK: Final[Columns] = {
    _ATTEMPTS: (*_OF_MOMENTS, "key", "queue", "rule", "expires_ns"),
    ITEMS: _OF_ITEMS,
}
_OPEN: Final = ("waiting", "leased")
_MOST: Final = 2**63 - 1
Heads = Mapping[tuple[str, str], int]  # host and log -> the item up to which every reader is done


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the third look needs to know of a dialect."""

    times_ns: Sequence[int]
    bucket_ns: int
    last_ns: int
    due_times_ns: Sequence[int]
    due_bucket_ns: int
    grouping: str
    groups: tuple[str, ...]


def measure_lake(
    spark: SparkSession, lake: Lake, heads: Heads, made_ns: int, as_of_ns: int | None
) -> tuple[list[Measured], int]:
    """Of each dialect, and the moment at which that was so: ``as_of_ns``, or else the last one."""
    parts = [part for table in _LOOK for part in parts_in(lake, table, lake.files(table))]
    rows = sum(part.rows for part in parts)
    session = None if rows <= _SMALL_ROWS else spark
    hands = HANDS if session is None else max(slots_of(spark), rows // _TASK_ROWS)
    units = dealt(parts, hands)
    if as_of_ns is None:
        found = spread(session, units, partial(_last_moments, heads))
        lasts: list[int] = [packet.rows["ns"].to_numpy()[0] for packet in found]
        as_of_ns = int(max((ns for ns in lasts if ns != NO_TIME), default=made_ns))
    counted = _Overviews()
    for packet in spread(session, units, partial(_overviews, heads, as_of_ns)):
        counted.add(packet)
    measured = {dialect: counted.measured(dialect) for dialect in LOG_DIALECTS}
    frames = {dialect: counted.frame(each) for dialect, each in measured.items() if each.rows}
    summed: dict[tuple[str, str], Any] = {}
    ranks = _Ranks()
    for packet in spread(session, units, partial(_series, heads, as_of_ns, frames)):
        dialect, what = packet.what.split()
        if what == "lengths":
            ranks.merge(dialect, packet.rows)
        else:
            for name, column in zip(packet.rows.column_names, packet.rows.columns, strict=True):
                summed[dialect, name] = summed.get((dialect, name), 0) + column.to_numpy()
    for dialect, frame in frames.items():
        _fill(measured[dialect], frame, summed, ranks, counted.groups[dialect])
    return [each for each in measured.values() if each.rows], as_of_ns


def _fill(
    found: Measured,
    frame: _Frame,
    summed: Mapping[tuple[str, str], Any],
    ranks: _Ranks,
    groups: Mapping[str, ReportGroup],
) -> None:
    dialect = found.dialect
    if frame.times_ns:
        found.counts = {name: summed[dialect, name].tolist() for name in COUNTS}
        found.depth = {name: list(accumulate(summed[dialect, name].tolist())) for name in STATES}
        buckets = range(len(frame.times_ns))
        for what in ("wait", "run"):
            every = ranks.of(dialect, f"{what} all")
            for rank, share in PERCENTILES.items():
                each = [ranks.of(dialect, f"{what} {at}").at(share) for at in buckets]
                found.latency[f"{what}_{rank}_ns"] = each
                found.overall[f"{what}_{rank}_ns"] = every.at(share)
    if frame.due_times_ns:
        found.due = summed[dialect, "planned"].tolist()
    for name in frame.groups:
        shares = [
            ranks.of(dialect, f"{what} of {name}").at(share)
            for what in ("wait", "run")
            for share in (0.5, 0.99)
        ]
        mine = groups[name]
        found.groups.append(ReportGroup(name, mine.jobs, mine.started, mine.failed, *shares))


def _dialects(
    heads: Heads, as_of_ns: int | None, parts: Sequence[Part]
) -> Iterator[tuple[str, pa.Table, AttemptColumns]]:
    """Rows of attempts, those of one dialect at a time; what has expired by then has ended."""
    for table, host, found in rows_together(parts, _FIRST_LOOK if as_of_ns is None else _LOOK):
        rows = _as_attempts(found, host, heads) if table == ITEMS else found
        for dialect in LOG_DIALECTS:
            mine = where(rows, is_one_of(rows["dialect"], [dialect]))
            if mine.num_rows:
                mine = mine if as_of_ns is None else _expired(mine, as_of_ns)
                yield dialect, mine, attempt_columns(mine)


def _as_attempts(items: pa.Table, host: str, heads: Heads) -> pa.Table:
    """Items as attempts that have been put and nothing else."""
    logs = coded(items["log"])
    done = np.array([heads.get((host, log), -1) for log in logs.dictionary.to_pylist()], np.int64)
    finished = ns_in(items["item_id"]) <= done[logs.indices.to_numpy()]
    words = pa.array(["waiting", "finished"])
    rows = items.num_rows
    nothing = pa.nulls(rows, pa.int64())
    return pa.table(
        {
            "dialect": constant(KESTREL, rows),
            "queue": items["queue"],
            "rule": pa.nulls(rows, pa.string()),
            "life": pa.nulls(rows, pa.int32()),
            "first": pa.repeat(pa.scalar(True), rows),
            "outcome": pa.DictionaryArray.from_arrays(finished.astype(np.int32), words),
            "created_ns": items["put_ns"],
            "ready_ns": items["put_ns"],
            "started_ns": nothing,
            "ended_ns": nothing,
            "expires_ns": items["expires_ns"],
        }
    )


def _expired(rows: pa.Table, as_of_ns: int) -> pa.Table:
    """Open jobs whose time to live is over have expired: see ``history.columns.expired_by``."""
    outcome, expires = coded(rows["outcome"]), ns_in(rows["expires_ns"])
    over = is_one_of(outcome, _OPEN) & (expires != NO_TIME) & (expires <= as_of_ns)
    if not over.any():
        return rows
    words = pa.concat_arrays([outcome.dictionary, pa.array(["expired"])])
    codes = np.where(over, len(words) - 1, outcome.indices.to_numpy()).astype(np.int32)
    ended = ns_column(np.where(over, expires, ns_in(rows["ended_ns"])))
    said = pa.DictionaryArray.from_arrays(codes, words)
    names = rows.column_names
    return rows.set_column(names.index("outcome"), "outcome", said).set_column(
        names.index("ended_ns"), "ended_ns", ended
    )


def _moments(rows: AttemptColumns) -> Ints:
    """Moments of which there is a record."""
    times = rows.times
    each = (times["created_ns"], times["started_ns"], rows.end_or_plan)
    return np.concatenate([column[column != NO_TIME] for column in each])


def _last_moments(heads: Heads, parts: Sequence[Part]) -> Iterator[Packet]:
    last = NO_TIME
    for _, _, rows in _dialects(heads, None, parts):
        last = max(last, int(_moments(rows).max(initial=NO_TIME)))
    yield Packet(0, "last", pa.table({"ns": pa.array([last], pa.int64())}))


def _overviews(heads: Heads, as_of_ns: int, parts: Sequence[Part]) -> Iterator[Packet]:
    """Of each dialect a row for each outcome, and one for each group."""
    for dialect, rows, told in _dialects(heads, as_of_ns, parts):
        moments, is_plan = _moments(told), told.is_plan
        created, started = told.times["created_ns"], told.times["started_ns"]
        is_job = is_plan if dialect == ZTICK else told.first & (created != NO_TIME)
        unrecorded = (told.times["ended_ns"] == NO_TIME) & (told.end_or_plan != NO_TIME)
        due = np.where(is_plan, told.times["ready_ns"], NO_TIME)
        due = due[due != NO_TIME]
        counted: dict[str, Any] = {
            "rows": np.ones(len(created), np.bool_),
            "jobs": is_job,
            "started": started != NO_TIME,
            "unrecorded": unrecorded,
            "rules": np.asarray(rows["rule"].is_valid()),
        }
        codes, words = told.outcome.indices.to_numpy(), told.outcome.dictionary
        sums = {
            name: np.bincount(codes[mask], minlength=len(words)) for name, mask in counted.items()
        }
        span = {
            "first": moments.min(initial=_MOST),
            "last": moments.max(initial=NO_TIME),
            "first_due": due.min(initial=_MOST),
            "last_due": due.max(initial=NO_TIME),
        }
        ends = {name: np.full(len(words), ns, np.int64) for name, ns in span.items()}
        yield Packet(0, f"{dialect} outcomes", pa.table({"outcome": words, **sums, **ends}))
        for by in ("rule", "prefix") if dialect == ZTICK else ("queue",):
            yield Packet(0, f"{dialect} {by}", _by_group(rows, told, by))


def _by_group(rows: pa.Table, told: AttemptColumns, by: str) -> pa.Table:
    groups = _group_of(rows, by)
    codes, size = groups.indices.to_numpy(), len(groups.dictionary)
    is_job = told.first & ~is_one_of(told.outcome, DROPPED)
    masks = {
        "jobs": is_job,
        "started": told.times["started_ns"] != NO_TIME,
        "failed": is_one_of(told.outcome, FAILURES),
    }
    sums = {name: np.bincount(codes[mask], minlength=size) for name, mask in masks.items()}
    there = np.bincount(codes, minlength=size) > 0  # a dictionary may hold words of other rows
    return where(pa.table({"group": groups.dictionary, **sums}), there)


def _group_of(rows: pa.Table, by: str) -> Any:
    """The group of each row, in a dictionary: see ``history.columns.grouped_by``."""
    if by == "prefix":
        return first_words(pc.struct_field(pc.extract_regex(text_of(rows["key"]), _SEPARATOR), 0))
    return first_words(rows["queue"], rows["rule"])


def _series(
    heads: Heads, as_of_ns: int, frames: Mapping[str, _Frame], parts: Sequence[Part]
) -> Iterator[Packet]:
    """Sums by bucket, and lengths for percentiles, of each dialect."""
    ranks = _Ranks()
    for dialect, rows, told in _dialects(heads, as_of_ns, parts):
        frame = frames[dialect]
        if frame.times_ns:
            yield Packet(0, f"{dialect} series", pa.table(_sums(frame, told)))
        if frame.due_times_ns:
            due = told.times["ready_ns"]
            counted = _counted(due, told.is_plan, frame.due_times_ns, frame.due_bucket_ns, _MOST)
            yield Packet(0, f"{dialect} due", pa.table({"planned": counted}))
        if dialect != KESTREL:
            _rank(ranks, dialect, frame, rows, told.times)
    for dialect in frames:
        if (lengths := ranks.table(dialect)).num_rows:
            yield Packet(0, f"{dialect} lengths", lengths)


def _sums(frame: _Frame, told: AttemptColumns) -> dict[str, Ints]:
    sums: dict[str, Ints] = {}
    for name, mask, ns, by in (*happenings(told), *changes(told)):
        counted = by * _counted(ns, mask, frame.times_ns, frame.bucket_ns, frame.last_ns)
        sums[name] = sums[name] + counted if name in sums else counted
    return sums


def _counted(ns: Ints, mask: Bools, times_ns: Sequence[int], bucket_ns: int, last_ns: int) -> Ints:
    """How many of these are in each bucket, up to the last moment."""
    first, end = times_ns[0], times_ns[-1] + bucket_ns
    mine = ns[mask & (ns >= first) & (ns < end) & (ns <= last_ns)]
    # Without a sign: from the earliest to the latest moment is more than int64 holds.
    since = mine.astype(np.uint64) - np.uint64(first % 2**64)
    buckets = (since // np.uint64(bucket_ns)).astype(np.int64)
    return np.bincount(buckets, minlength=len(times_ns)).astype(np.int64)


def _rank(
    ranks: _Ranks, dialect: str, frame: _Frame, rows: pa.Table, times: Mapping[str, Ints]
) -> None:
    started = times["started_ns"]
    groups = _group_of(rows, frame.grouping)
    codes = groups.indices.to_numpy()
    numbers = {name: at for at, name in enumerate(groups.dictionary.to_pylist())}
    lengths = {
        "wait": length_ns(times["ready_ns"], started),
        "run": length_ns(started, times["ended_ns"]),
    }
    for what, ns in lengths.items():
        known = ns != NO_TIME
        ranks.add(dialect, f"{what} all", ns[known])
        for name in frame.groups:
            if name in numbers:
                ranks.add(dialect, f"{what} of {name}", ns[known & (codes == numbers[name])])
        mine = np.flatnonzero(known)
        if len(mine) and frame.times_ns:
            first = frame.times_ns[0]
            buckets = (started[mine] - first) // frame.bucket_ns
            order = mine[np.argsort(buckets, kind="stable")]
            found, begins = np.unique(np.sort(buckets), return_index=True)
            for at, part in zip(found.tolist(), np.split(ns[order], begins[1:]), strict=True):
                ranks.add(dialect, f"{what} {at}", part)


@dataclass(slots=True)
class _Lengths:
    """Lengths, each standing for so many. Beyond a number some stand for their neighbours: the
    rank of what ``at`` answers is off by a few in _KEPT_LENGTHS at most."""

    values: list[Ints] = field(default_factory=list)
    weights: list[npt.NDArray[np.float64]] = field(default_factory=list)
    size: int = 0

    def add(self, values: Ints, weights: npt.NDArray[np.float64]) -> None:
        self.values.append(values)
        self.weights.append(weights)
        self.size += len(values)
        if self.size > 4 * _KEPT_LENGTHS:
            self.shorten()

    def sorted(self) -> tuple[Ints, npt.NDArray[np.float64]]:
        values = np.concatenate([*self.values, np.zeros(0, np.int64)])
        weights = np.concatenate([*self.weights, np.zeros(0)])
        order = np.argsort(values, kind="stable")
        return values[order], weights[order]

    def shorten(self) -> None:
        values, weights = self.sorted()
        if len(values) > _KEPT_LENGTHS:
            so_far = np.cumsum(weights)
            share = so_far[-1] / _KEPT_LENGTHS
            middles = (np.arange(_KEPT_LENGTHS) + 0.5) * share
            values = values[np.searchsorted(so_far, middles)]
            weights = np.full(_KEPT_LENGTHS, share)
        self.values, self.weights, self.size = [values], [weights], len(values)

    def at(self, share: float) -> int | None:
        """The least length that this share of all does not exceed."""
        values, weights = self.sorted()
        if not len(values):
            return None
        so_far = np.cumsum(weights)
        wanted = share * so_far[-1] * (1 - 1e-12)  # a share is not exact
        return int(values[min(int(np.searchsorted(so_far, wanted)), len(values) - 1)])


class _Ranks:
    """Lengths by dialect and what they are of."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], _Lengths] = {}

    def of(self, dialect: str, what: str) -> _Lengths:
        return self._found.setdefault((dialect, what), _Lengths())

    def add(self, dialect: str, what: str, values: Ints) -> None:
        if len(values):
            self.of(dialect, what).add(values, np.ones(len(values)))

    def table(self, dialect: str) -> pa.Table:
        mine = [(what, each) for (whose, what), each in self._found.items() if whose == dialect]
        parts = []
        for what, each in mine:
            each.shorten()
            columns = {"ns": each.values[0], "weight": each.weights[0]}
            parts.append(pa.table({"what": pa.repeat(what, each.size), **columns}))
        return pa.concat_tables(parts) if parts else pa.table({"what": pa.array([], pa.string())})

    def merge(self, dialect: str, rows: pa.Table) -> None:
        whats = coded(rows["what"])
        codes, values = whats.indices.to_numpy(), rows["ns"].to_numpy()
        weights = rows["weight"].to_numpy()
        begins = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
        for begin, end in zip(begins, [*begins[1:], len(codes)], strict=True):
            what = whats.dictionary[int(codes[begin])].as_py()
            self.of(dialect, what).add(values[begin:end], weights[begin:end])


@dataclass(slots=True)
class _Overviews:
    outcomes: dict[str, dict[str, SimpleNamespace]] = field(default_factory=dict)
    by: dict[str, dict[str, ReportGroup]] = field(default_factory=dict)
    groups: dict[str, dict[str, ReportGroup]] = field(default_factory=dict)

    def add(self, packet: Packet) -> None:
        dialect, what = packet.what.split()
        for row in packet.rows.to_pylist():
            if what == "outcomes":
                known = self.outcomes.setdefault(dialect, {})
                _merge(known.setdefault(row["outcome"], SimpleNamespace(**_NONE)), row)
            else:
                known_groups = self.by.setdefault(packet.what, {})
                old = known_groups.get(row["group"])
                jobs, started, failed = (
                    row[name] + getattr(old, name, 0) for name in ("jobs", "started", "failed")
                )
                made = ReportGroup(row["group"], jobs, started, failed, None, None, None, None)
                known_groups[row["group"]] = made

    def measured(self, dialect: str) -> Measured:
        found = [each for each in self.outcomes.get(dialect, {}).values() if each.rows]
        for each in found:
            each.first_due = None if each.first_due == _MOST else each.first_due
            each.last_due = None if each.last_due == NO_TIME else each.last_due
        measured = overview_of(found, dialect)
        firsts = [each.first for each in found if each.first != _MOST]
        lasts = [each.last for each in found if each.last != NO_TIME]
        measured.first_ns, measured.last_ns = min(firsts, default=None), max(lasts, default=None)
        measured.times_ns, measured.bucket_ns = axis(measured.first_ns, measured.last_ns)
        return measured

    def frame(self, measured: Measured) -> _Frame:
        groups = self.by[f"{measured.dialect} {measured.grouping}"]
        self.groups[measured.dialect] = groups
        top = sorted(groups.values(), key=lambda each: (-each.jobs, each.name))[:TOP]
        return _Frame(
            measured.times_ns,
            measured.bucket_ns,
            0 if measured.last_ns is None else measured.last_ns,
            measured.due_times_ns,
            measured.due_bucket_ns,
            measured.grouping,
            tuple(each.name for each in top),
        )


_SUMMED: Final = ("rows", "jobs", "started", "unrecorded", "rules")
_NONE: Final = {
    **dict.fromkeys((*_SUMMED, "outcome"), 0),
    **dict.fromkeys(("first", "first_due"), _MOST),
    **dict.fromkeys(("last", "last_due"), NO_TIME),
}


def _merge(known: SimpleNamespace, row: Mapping[str, Any]) -> None:
    known.outcome = row["outcome"]
    for name in _SUMMED:
        setattr(known, name, getattr(known, name) + row[name])
    for name in ("first", "first_due"):
        setattr(known, name, min(getattr(known, name), row[name]))
    for name in ("last", "last_due"):
        setattr(known, name, max(getattr(known, name), row[name]))

"""Silver -> gold: counts and percentiles by hour and day, computed again only for touched days.

    rows that changed, as they were and as they are --> the days on which any of them was
    added, ready, started or ended --> all rows with something on these days --> gold of these days
    items that are new --> added to what was counted of the others

What is counted in the bucket of which time is what ``spark/views`` says. Percentiles
are exact. Of depth_hourly everything from the first touched day on is added up again, from the
changes of each hour. Rows of gold are hours and queues: few enough for the driver.

Days whose rows of silver were dropped (``upkeep.retain``) stay as they were counted; but items that
come late are added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from journeyman.columnar.workq.attempts import NO_TIME
from journeyman.spark.lake import folding
from journeyman.spark.lake.columns import (
    AnyColumn,
    Bools,
    Ints,
    arrow,
    begins_of,
    coded,
    constant,
    different,
    filled,
    first_known,
    first_words,
    is_one_of,
    length_ns,
    moment_column,
    ns_in,
    pc,
    seconds_column,
    shaped,
    taken,
    text_of,
    where,
)
from journeyman.spark.lake.folding import FAILURES
from journeyman.spark.lake.layout import COUNTS, DAY_NS, HOUR_NS, PERCENTILES, TABLES
from journeyman.spark.lake.names import days_of, partition_values
from journeyman.spark.lake.parts import Part, dealt, parts_on, read_part
from journeyman.spark.lake.silver import KEYED, RUNS, SilverChange, by_group
from journeyman.spark.lake.state import StagedFiles
from journeyman.spark.lake.storage import Lake
from journeyman.spark.lake.work import HANDS, Groups, Packet, at_once, spread
from journeyman.spark.slots import slots_of
from journeyman.spark.source.options import arrow_schema
from journeyman.spark.views import STATES
from journeyman.units import NS_PER_S

ENDS: Final = {
    "completed": ("completed", "executed"),
    "failed": ("failed",),
    "timed_out": ("timed-out",),
    "cut_off": ("cut-off",),
    "expired": ("expired",),
    "deleted": ("deleted", "replaced"),
}
NO_WAIT: Final = ("finished", "replanned", "removed")
LATE_S: Final = 1.0
_REASON_CHARACTERS: Final = 200
SMALL_ROWS: Final = 3_000_000  # counted here: a job of Spark takes longer to begin
_TASK_ROWS: Final = 20_000_000
_AT_ONCE: Final = 500_000
_GROUPS_A_TASK: Final = 4
_HOURS_A_DAY: Final = DAY_NS // HOUR_NS
_LAG: Final = "gold/reader_lag_hourly"
DEPTH_CHANGES: Final = "gold/depth_changes"
_FAILED: Final = "gold/failures_daily"
_COMPUTED: Final = (
    *("gold/throughput_hourly", "gold/throughput_daily", "gold/latency_hourly"),
    *("gold/latency_daily", _FAILED, "gold/lateness_daily", DEPTH_CHANGES),
)
_COUNTED, _TIMED, _LATE = "counted", "timed", "late"
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    KEYED[0]: (
        *("dialect", "queue", "rule", "life", "first", "outcome"),
        *("created_ns", "ready_ns", "started_ns", "ended_ns"),
    ),
    RUNS: ("rule", "outcome", "detail", "planned_ns", "started_ns", "ended_ns"),
}
_SOURCES: Final = {_FAILED: (KEYED[0], RUNS), "gold/lateness_daily": (RUNS,), _LAG: (_LAG,)}
MOMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    KEYED[0]: folding.MOMENTS,
    RUNS: ("started_ns", "ended_ns"),
}


def stage_gold(spark: SparkSession, lake: Lake, change: SilverChange) -> list[StagedFiles]:
    """The gold of the days on which silver changes."""
    days = sorted(change.days)
    if not days:
        return []
    wanted = np.array(days, np.int64)
    parts = [
        part
        for table, moments in MOMENTS.items()
        for found in at_once(
            partial(parts_on, table, moments, wanted), change.paths_after(lake, table)
        )
        for part in found
    ]
    rows = sum(part.rows for part in parts)
    session = None if rows <= SMALL_ROWS else spark
    hands = HANDS if session is None else max(slots_of(spark), rows // _TASK_ROWS)
    groups = 1 if session is None else _GROUPS_A_TASK * hands
    packets = spread(session, dealt(parts, hands), partial(count_parts, wanted, groups), add_up)
    named = [str(date(1970, 1, 1) + timedelta(days=day)) for day in days]
    made: dict[str, list[pa.Table]] = {
        table: [arrow_schema(TABLES[table].schema).empty_table()] for table in _COMPUTED
    }
    for _, table, found in packets:
        made[table].append(found)
    for table, unit in (("gold/throughput_hourly", "hour"), ("gold/throughput_daily", "day")):
        made[table].append(_items_of_days(lake, change, named, table, unit))
    whole = {table: pa.concat_tables(found) for table, found in made.items()}
    staged = [_stage_days(lake, table, whole[table], named) for table in _COMPUTED]
    return [*staged, _stage_depth(lake, whole[DEPTH_CHANGES], named)]


def _items_of_days(
    lake: Lake, change: SilverChange, days: Sequence[str], table: str, unit: str
) -> pa.Table:
    """Items that were put on these days: those that the table has counted, and new ones. None ever
    goes. Each table has its own, as days of one may have been dropped (upkeep.py)."""
    months = {day[:7] for day in days}
    files = [name for name in lake.files(table) if partition_values(name)["month"] in months]
    known = lake.read_arrow(table, files, where=ds.field("dialect") == "kestrel")
    known = known.filter(pc.is_in(known["date"].cast(pa.string()), arrow.array(days)))
    counted: dict[str, AnyColumn] = {
        **{name: text_of(known[name]) for name in ("host", "dialect", "queue")},
        "what": pa.repeat("added", known.num_rows),
        "n": known["added"],
    }
    if unit == "hour":
        counted[unit] = pa.array(ns_in(known["hour"]) * 1000 // HOUR_NS)
    else:
        counted[unit] = known["date"].cast(pa.int32()).cast(pa.int64())
    new = [each.select(list(counted)) for each in change.items]
    every = pa.concat_tables([pa.table(counted), *new], promote_options="permissive")
    return _added(every, unit, list(COUNTS))


# ----------------------------------------
# What tasks do: count the rows of parts, then add up the counts of each day.


def count_parts(days: Ints, groups: int, parts: Sequence[Part]) -> Iterator[Packet]:
    """What happens on these days, so many groups of them."""
    for table, host, rows in rows_together(parts, _COLUMNS):
        for what, found in _COUNTERS[table](rows, host):
            mine = found.filter(pa.array(np.isin(found["day"].to_numpy(), days)))
            yield from by_group(what, mine, mine["day"].to_numpy() % groups, groups)


def rows_together(
    parts: Sequence[Part], columns: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str, pa.Table]]:
    """These columns of parts, many at a time, by table and host: a day may have few rows.

    Texts but keys are in dictionaries; a column is null where the file is older than it.
    """
    for (table, host), mine in groupby(parts, key=lambda part: (part.table, part.host)):
        waiting: list[pa.Table] = []
        for part in mine:
            for rows, _ in read_part(part, columns[table]):
                waiting.append(_as_words(rows, table, columns[table]))
            if sum(rows.num_rows for rows in waiting) > _AT_ONCE:
                yield table, host, pa.concat_tables(waiting)
                waiting = []
        if waiting:
            yield table, host, pa.concat_tables(waiting)


def _as_words(rows: pa.Table, table: str, columns: Sequence[str]) -> pa.Table:
    schema = arrow_schema(TABLES[table].schema)
    found = {}
    for name in columns:
        kind = schema.field(name).type
        column = rows[name] if name in rows.column_names else pa.nulls(rows.num_rows, kind)
        if name == "key":
            found[name] = text_of(column)
        else:
            found[name] = coded(column) if pa.types.is_string(kind) else column
    return pa.table(found)


Found = Iterator[tuple[str, pa.Table]]
Event = tuple[str, Bools, Ints, int]  # what, which rows, when, and by how much


def _count_attempts(rows: pa.Table, host: str) -> Found:
    told = attempt_columns(rows)
    columns = {
        "host": constant(host, rows.num_rows),
        "dialect": coded(rows["dialect"]),
        "queue": first_words(rows["queue"], rows["rule"]),
    }
    numbered = _coded(columns)
    yield _COUNTED, _summed(numbered, happenings(told))
    yield DEPTH_CHANGES, _summed(numbered, changes(told))
    yield _FAILED, _failed_rows(columns, told)
    yield _TIMED, _timed(columns, told.times, is_one_of(told.outcome, FAILURES))


@dataclass(frozen=True, slots=True)
class AttemptColumns:
    """Rows of attempts, as far as they are counted."""

    times: Mapping[str, Ints]
    outcome: AnyColumn
    first: Bools
    is_schedule: Bools
    life: Ints

    @property
    def end_or_plan(self) -> Ints:
        """When a row ended; of runs of a schedule without a record, when they were planned."""
        unrecorded = self.is_schedule & is_one_of(self.outcome, ("executed", "failed"))
        ended = self.times["ended_ns"]
        return np.where((ended == NO_TIME) & unrecorded, self.times["ready_ns"], ended)

    @property
    def is_plan(self) -> Bools:
        return self.is_schedule & self.first & ~is_one_of(self.outcome, ("replanned", "removed"))


def attempt_columns(rows: pa.Table) -> AttemptColumns:
    return AttemptColumns(
        {name: ns_in(rows[name]) for name in folding.MOMENTS},
        coded(rows["outcome"]),
        np.asarray(rows["first"]),
        is_one_of(rows["dialect"], ["ztick"]),
        filled(rows["life"], 1),
    )


def happenings(rows: AttemptColumns) -> list[Event]:
    """What is counted, for which rows, at which time: see ``views/happenings.sql``."""
    happened = [
        ("added", rows.first, rows.times["created_ns"]),
        ("due", rows.is_plan, rows.times["ready_ns"]),
        ("started", np.ones(len(rows.first), np.bool_), rows.times["started_ns"]),
    ]
    ended = rows.end_or_plan
    happened += [(name, is_one_of(rows.outcome, words), ended) for name, words in ENDS.items()]
    return [(name, mask & (ns != NO_TIME), ns, 1) for name, mask, ns in happened]


def changes(rows: AttemptColumns) -> list[Event]:
    """What a row does to the number of jobs in each state: see ``views/depth_changes.sql``."""
    times, outcome, first = rows.times, rows.outcome, rows.first
    ended = times["ended_ns"]
    unrecorded = is_one_of(outcome, ("executed", "failed")) & (ended == NO_TIME)
    known = ~is_one_of(outcome, NO_WAIT) & (rows.life != 0) & ~unrecorded
    triggered = np.where(is_one_of(outcome, ["triggered"]), times["ready_ns"], NO_TIME)
    started = first_known(times["started_ns"], triggered)
    left = first_known(started, ended)
    ready = times["ready_ns"]
    earliest = np.where((left != NO_TIME) & (ready != NO_TIME), np.minimum(ready, left), ready)
    # Of a row that has no time to be ready at, when it left, or else when it started.
    ready = first_known(earliest, np.where(ready == NO_TIME, left, NO_TIME), times["started_ns"])
    ready = np.where(rows.is_schedule & ~first, started, ready)
    created = times["created_ns"]
    scheduled = first & (created != NO_TIME) & (ready != NO_TIME) & (created < ready)
    has_been_ready, has_started = ready != NO_TIME, started != NO_TIME
    each = (
        ("scheduled", scheduled, created, 1),
        ("scheduled", scheduled, ready, -1),
        ("ready", has_been_ready, ready, 1),
        ("ready", has_been_ready, left, -1),
        ("running", has_started, started, 1),
        ("running", has_started, ended, -1),
    )
    return [(name, known & mask & (ns != NO_TIME), ns, by) for name, mask, ns, by in each]


def count_items(rows: pa.Table) -> pa.Table:
    """Items have no recorded end, so they have no depth; see reader_lag_hourly."""
    put = ns_in(rows["put_ns"])
    columns = {
        "host": coded(rows["host"]),
        "dialect": constant("kestrel", rows.num_rows),
        "queue": first_words(rows["queue"]),
    }
    return _summed(_coded(columns), [("added", put != NO_TIME, put, 1)])


def _count_runs(rows: pa.Table, host: str) -> Found:
    """A schedule's runs say why they failed."""
    outcome, ended = text_of(rows["outcome"]), ns_in(rows["ended_ns"])
    said = pc.coalesce(text_of(rows["detail"]), outcome)
    mask = is_one_of(outcome, FAILURES) & (ended != NO_TIME)
    yield (
        _FAILED,
        _chosen(
            {
                "host": pa.repeat(host, rows.num_rows),
                "dialect": pa.repeat("ztick", rows.num_rows),
                "queue": pc.coalesce(text_of(rows["rule"]), ""),
                "outcome": outcome,
                "reason": pc.utf8_slice_codeunits(said, 0, _REASON_CHARACTERS),
                "day": pa.array(ended // DAY_NS),
            },
            mask,
        ),
    )
    started = ns_in(rows["started_ns"])
    late = length_ns(ns_in(rows["planned_ns"]), started)
    ran = np.asarray(rows["rule"].is_valid()) & (started != NO_TIME)
    yield (
        _LATE,
        _chosen(
            {
                "host": pa.repeat(host, rows.num_rows),
                "rule": text_of(rows["rule"]),
                "day": pa.array(started // DAY_NS),
                "late_ns": pa.array(np.where(late == NO_TIME, 0, late)),
            },
            ran,
        ),
    )


_COUNTERS: Final = {KEYED[0]: _count_attempts, RUNS: _count_runs}


def _chosen(columns: Mapping[str, AnyColumn], mask: Bools) -> pa.Table:
    return where(pa.table(dict(columns)), mask)


def _summed(who: tuple[Ints, pa.Table], events: Sequence[Event]) -> pa.Table:
    """How often each thing happened in each hour: the columns of ``who``, day, hour, what, n."""
    codes, words = who
    found = []
    for what, mask, ns, by in events:
        groups, hours, mine = _numbered(codes[mask], ns[mask] // HOUR_NS)
        rows = taken(words, mine)
        columns = {
            **{name: rows[name] for name in words.column_names},
            "day": pa.array(hours // _HOURS_A_DAY),
            "hour": pa.array(hours),
            "what": pa.array([what] * len(hours), pa.string()),
            "n": pa.array(by * np.bincount(groups, minlength=len(hours))),
        }
        found.append(pa.table(columns))
    return pa.concat_tables(found)


def _coded(who: Mapping[str, AnyColumn]) -> tuple[Ints, pa.Table]:
    """A number for each different row, and the rows by number."""
    found = np.zeros(len(next(iter(who.values()))), np.int64)
    columns = {name: coded(column) for name, column in who.items()}
    for column in columns.values():
        found = found * max(1, len(column.dictionary)) + column.indices.to_numpy()
    rows, found = different(found)
    words = {}
    for name, column in reversed(columns.items()):
        words[name] = column.dictionary.take(pa.array(rows % max(1, len(column.dictionary))))
        rows = rows // max(1, len(column.dictionary))
    return found, pa.table(words).select(list(columns))


def _failed_rows(columns: Mapping[str, AnyColumn], told: AttemptColumns) -> pa.Table:
    """Of all but recorded runs of a schedule the outcome is all that is known."""
    ended, is_run = told.end_or_plan, told.is_schedule & (told.times["ended_ns"] != NO_TIME)
    mask = is_one_of(told.outcome, FAILURES) & ~is_run & (ended != NO_TIME)
    reason = {"outcome": told.outcome, "reason": told.outcome, "day": pa.array(ended // DAY_NS)}
    found = _chosen({**columns, **reason}, mask)
    return pa.table(
        {name: text_of(found[name]) for name in found.column_names[:-1]} | {"day": found["day"]}
    )


def _timed(columns: Mapping[str, AnyColumn], times: Mapping[str, Ints], failed: Bools) -> pa.Table:
    started = times["started_ns"]
    lengths = {
        "day": pa.array(started // DAY_NS),
        "hour": pa.array(started // HOUR_NS),
        "wait": pa.array(length_ns(times["ready_ns"], started)),
        "run": pa.array(length_ns(started, times["ended_ns"])),
        "failed": pa.array(failed.astype(np.int64)),
    }
    return _chosen({**columns, **lengths}, started != NO_TIME)


def add_up(groups: Groups) -> Iterator[Packet]:
    """Rows of gold, by table, of the days in each group."""
    for found in groups:
        if _COUNTED in found:
            counted = _added(found[_COUNTED], "hour", list(COUNTS))
            yield Packet(0, "gold/throughput_hourly", counted)
            yield Packet(0, "gold/throughput_daily", _added(found[_COUNTED], "day", list(COUNTS)))
        if DEPTH_CHANGES in found:
            yield Packet(0, DEPTH_CHANGES, _added(found[DEPTH_CHANGES], "hour", list(STATES)))
        if _FAILED in found:
            names = ["host", "dialect", "queue", "outcome", "reason", "day"]
            failures = found[_FAILED].group_by(names).aggregate([([], "count_all")])
            columns = {name: failures[name] for name in names}
            yield Packet(0, _FAILED, _gold(_FAILED, {**columns, "failures": failures["count_all"]}))
        if _TIMED in found:
            yield Packet(0, "gold/latency_hourly", _latency(found[_TIMED], "hour"))
            yield Packet(0, "gold/latency_daily", _latency(found[_TIMED], "day"))
        if _LATE in found:
            yield Packet(0, "gold/lateness_daily", _lateness(found[_LATE]))


_TABLE_OF: Final = {
    ("hour", tuple(COUNTS)): "gold/throughput_hourly",
    ("day", tuple(COUNTS)): "gold/throughput_daily",
    ("hour", STATES): DEPTH_CHANGES,
}


def _added(found: pa.Table, unit: str, words: Sequence[str]) -> pa.Table:
    """A row for each queue and hour, or day, with a column for each word."""
    names = ["host", "dialect", "queue"]
    codes, who = _coded({name: found[name] for name in names})
    time = found[unit].to_numpy()
    order = np.lexsort((time, codes))
    begins = begins_of([codes[order], time[order]])
    what = pc.index_in(text_of(found["what"]), arrow.array(words)).to_numpy()[order]
    n = found["n"].to_numpy()[order]
    rows = taken(who, codes[order][begins])
    columns: dict[str, AnyColumn] = {name: rows[name] for name in names}
    columns[unit] = pa.array(time[order][begins])
    for at, word in enumerate(words):
        columns[word] = pa.array(np.add.reduceat(np.where(what == at, n, 0), begins))
    return _gold(_TABLE_OF[unit, tuple(words)], columns)


def _gold(table: str, columns: Mapping[str, AnyColumn]) -> pa.Table:
    """Rows of a table of gold, from columns with ``hour`` or ``day`` as numbers."""
    made = dict(columns)
    if "hour" in made:
        hours = np.asarray(made["hour"])
        made["day"] = pa.array(hours // _HOURS_A_DAY)
        made["hour"] = moment_column(hours * HOUR_NS)
    days = np.asarray(made.pop("day")).astype(np.int32)
    made["date"] = pa.array(days, pa.date32())
    made["month"] = pc.utf8_slice_codeunits(made["date"].cast(pa.string()), 0, 7)
    return shaped(made, table)


def _latency(found: pa.Table, unit: str) -> pa.Table:
    names = ["host", "dialect", "queue"]
    codes, who = _coded({name: found[name] for name in names})
    groups, time, rows = _numbered(codes, found[unit].to_numpy())
    sizes = len(rows)
    failed = np.bincount(groups, found["failed"].to_numpy(), sizes).astype(np.int64)
    mine = taken(who, rows)
    columns = {
        **{name: mine[name] for name in names},
        unit: pa.array(time),
        "started": pa.array(np.bincount(groups, minlength=sizes).astype(np.int64)),
        "failed": pa.array(failed),
    }
    for what in ("wait", "run"):
        columns |= _ranked(what, groups, found[what].to_numpy(), sizes)
    return _gold(f"gold/latency_{'hourly' if unit == 'hour' else 'daily'}", columns)


def _lateness(found: pa.Table) -> pa.Table:
    names = ["host", "rule"]
    codes, who = _coded({name: found[name] for name in names})
    groups, time, rows = _numbered(codes, found["day"].to_numpy())
    late = found["late_ns"].to_numpy()
    mine = taken(who, rows)
    is_late = np.bincount(groups, late > LATE_S * NS_PER_S, len(rows)).astype(np.int64)
    return _gold(
        "gold/lateness_daily",
        {
            **{name: mine[name] for name in names},
            "day": pa.array(time),
            "runs": pa.array(np.bincount(groups, minlength=len(rows)).astype(np.int64)),
            "late": pa.array(is_late),
            **_ranked("lateness", groups, late, len(rows)),
        },
    )


def _numbered(codes: Ints, time: Ints) -> tuple[Ints, Ints, Ints]:
    """The group of each row, and of each group the time and the code."""
    first = int(time.min()) if len(time) else 0
    span = int(time.max()) - first + 1 if len(time) else 1
    pairs, groups = different(codes * span + (time - first))
    return groups, pairs % span + first, pairs // span


def _ranked(what: str, groups: Ints, lengths_ns: Ints, count: int) -> dict[str, AnyColumn]:
    """Percentiles and the most of each group, in seconds: lengths that really occurred."""
    known = lengths_ns != NO_TIME
    groups, lengths_ns = _sorted(groups[known], lengths_ns[known])
    sizes = np.bincount(groups, minlength=count)
    begins = np.cumsum(sizes) - sizes
    found = {}
    for name, rank in (*PERCENTILES.items(), ("max", 1.0)):
        place = begins + np.maximum(np.ceil(rank * sizes).astype(np.int64) - 1, 0)
        values = np.full(count, NO_TIME)
        values[sizes > 0] = lengths_ns[place[sizes > 0]]
        found[f"{what}_{name}_s"] = seconds_column(values)
    return found


def _sorted(groups: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """By group, then by length: as one number, where both fit."""
    bits = int(lengths.max()).bit_length() if len(lengths) else 0
    most = int(groups.max()) if len(groups) else 0
    if bits + most.bit_length() < 63:
        both = np.sort(groups << bits | lengths)
        return both >> bits, both & ((1 << bits) - 1)
    order = np.lexsort((lengths, groups))
    return groups[order], lengths[order]


def stage_lag(lake: Lake) -> StagedFiles:
    """Readers' lag on the last day that an ingest noted where they stood, and the one before."""
    files = lake.files("silver/readers")
    days = sorted({partition_values(name)["date"] for name in files})[-2:]
    seen = lake.read_arrow(
        "silver/readers", [name for name in files if partition_values(name)["date"] in days]
    )
    hours = pc.floor_temporal(seen["observed_at"], unit="hour")
    months = pc.utf8_slice_codeunits(seen["date"].cast(pa.string()), 0, 7)
    named = seen.append_column("hour", hours).append_column("month", months)
    schema = arrow_schema(TABLES[_LAG].schema)
    most = ("items_behind", "bytes_behind")
    groups = named.group_by([name for name in schema.names if name not in most])
    lag = groups.aggregate([(name, "max") for name in most])
    lag = lag.rename_columns([name.removesuffix("_max") for name in lag.column_names])
    return _stage_days(lake, _LAG, lag.select(schema.names).cast(schema), days)


def _stage_days(lake: Lake, table: str, rows: pa.Table, days: Sequence[str]) -> StagedFiles:
    """These rows in the place of those of the same days; a file for each month and host."""
    months = {day[:7] for day in days}
    replaced = [name for name in lake.files(table) if partition_values(name)["month"] in months]
    return lake.stage_arrow(_in_place(lake, table, rows, days, replaced), table), replaced


def _in_place(
    lake: Lake, table: str, rows: pa.Table, days: Sequence[str], files: Sequence[str]
) -> pa.Table:
    """Rows of these files; those of the days that can be counted again are the given ones."""
    known = lake.read_arrow(table, files)
    return pa.concat_tables(
        [
            where(rows, _is_counted(lake, table, rows, days)),
            where(known, ~_is_counted(lake, table, known, days)),
        ]
    )


def _is_counted(lake: Lake, table: str, rows: pa.Table, days: Sequence[str]) -> Bools:
    """Which rows of gold are of these days, and counted from rows of silver that are all there."""
    dates = rows["date"].cast(pa.string())
    of_days: Bools = np.asarray(pc.is_in(dates, arrow.array(days)))
    first = max(lake.state.dropped.get(source, "") for source in _SOURCES.get(table, (KEYED[0],)))
    if not first:
        return of_days
    is_whole: Bools = np.asarray(pc.greater_equal(dates, pa.scalar(first)))
    if table.startswith("gold/throughput"):
        is_whole |= is_one_of(rows["dialect"], ["kestrel"])
    return of_days & is_whole


def _stage_depth(lake: Lake, changed: pa.Table, days: Sequence[str]) -> StagedFiles:
    """Depth from the first touched day on: the changes of all hours, added up."""
    keys = ["host", "dialect", "queue"]
    every = _in_place(lake, DEPTH_CHANGES, changed, days, lake.files(DEPTH_CHANGES))
    every = every.sort_by([(name, "ascending") for name in (*keys, "hour")])
    if every.num_rows:
        names = np.array([every[name].to_pylist() for name in keys])
        begins = np.flatnonzero(np.any(names[:, 1:] != names[:, :-1], axis=0)) + 1
        for state in STATES:
            sums = [np.cumsum(part) for part in np.split(every[state].to_numpy(), begins)]
            at = every.column_names.index(state)
            every = every.set_column(at, state, pa.array(np.concatenate(sums)))
    table, first = "gold/depth_hourly", days[0]
    files = [name for name in lake.files(table) if days_of(name)[1] >= first]
    old = lake.read_arrow(table, files)
    begin = pa.scalar(date.fromisoformat(first))
    new = every.filter(pc.greater_equal(every["date"], begin)).cast(old.schema)
    wanted = pa.concat_tables([new, old.filter(pc.less(old["date"], begin))])
    return lake.stage_arrow(wanted, table), files

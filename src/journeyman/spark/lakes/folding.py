"""Records of bronze -> rows of silver, as Arrow tables: what a task does with a bucket of keys.

    bronze/workq  --narrow------->  numbers  --workq_rows-->  attempts
    bronze/ztick  --ZtickPlans---->  bronze/plans: first and last record of each plan
    bronze/plans  --ztick_rows---->  attempts
    bronze/runs   --run_lines----->  --^
    attempts      --jobs_of, firings_of-->  rows of the other tables
    bronze/kestrel --items_of-->  items

What becomes of a job is decided by the folds of ``spark/history``, which give the same rows for
whole logs. Nothing here knows of files or of Spark. ``_log`` is host and path of a log in one text;
moments are nanoseconds, NO_TIME in numpy where Arrow has null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import binary, text_in
from journeyman.columnar.kernels.key_table import Hashes, KeyTable
from journeyman.columnar.workq.attempts import NO_TIME
from journeyman.columnar.ztick.plans import PLAN_COLUMNS, PlanTable
from journeyman.logs.segments import COMPACTED_SUFFIX
from journeyman.spark import vectors
from journeyman.spark.history import ledger_notes, workq_attempts
from journeyman.spark.history.ztick_attempts import PLANS, STATUSES, attempt_table
from journeyman.spark.lakes.columns import hosts_and_logs, shaped
from journeyman.spark.lakes.layout import HASH, TABLES
from journeyman.spark.source.options import arrow_schema
from journeyman.spark.vectors import arrow, pc
from journeyman.units import NS_PER_MS

FAILURES: Final = ("failed", "timed-out", "cut-off")
MOMENTS: Final = ("created_ns", "ready_ns", "started_ns", "ended_ns")
_MAX_NS: Final = 2**63 - 1
_OCCURRENCE: Final = (
    r"^(?P<timetable>.+)@"
    r"(?P<occurrence>\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:Z|[+-]\d{2}:\d{2}))$"
)
_STATUSES: Final = pa.array(STATUSES)
_OPEN: Final = ("waiting", "leased", "planned", "triggered")  # outcomes that are none yet
_BLOCK_BITS: Final = 16  # of ids of items: those of a block share a hash, and stay together

# What of a record silver needs, by table of bronze.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "bronze/workq": (*workq_attempts.RECORD, *workq_attempts.NAMES),
    "bronze/notes": tuple(ledger_notes.NOTES.names),
    "bronze/plans": ("_log", "key", *PLAN_COLUMNS[2:]),
    "bronze/runs": (
        *("_log", "kind", "job", "rule", "runner", "execution_ns", "started_ns", "ended_ns"),
        *("outcome", "detail", "output"),
    ),
    "bronze/kestrel": (
        *("_log", "kind", "queue", "item_id", "add_time_ms", "expire_time_ms", "data_size"),
        "_position",
    ),
}
# The column with the key of a job in tables of bronze.
KEYS: Final = {
    "bronze/workq": "key",
    "bronze/ztick": "identifier",
    "bronze/runs": "job",
    "bronze/plans": "key",
    "bronze/notes": "key",
    "bronze/ledger": "key",
}


def workq_rows(records: pa.Table, notes: pa.Table) -> pa.Table:
    """Attempts of jobs, all of whose narrowed records and notes are here, in any order."""
    keys = KeyTable().numbers_of(*text_in(vectors.text_of(records["key"])))
    logs = vectors.coded(records["_log"])
    jobs = keys * len(logs.dictionary) + logs.indices.to_numpy()
    position = records["_position"].to_numpy()
    if (position[1:] < position[:-1]).any():
        order = np.lexsort((position, jobs))
    else:
        order = np.argsort(jobs, kind="stable")
    if (order[1:] < order[:-1]).any():
        jobs, records = jobs[order], vectors.taken(records, order)
    first = np.ones(len(jobs), np.bool_)
    first[1:] = jobs[1:] != jobs[:-1]
    attempts = workq_attempts.attempt_table(workq_attempts.walk(records, first))
    if notes.num_rows:
        places = (_with_hosts(attempts), _with_hosts(notes))
        attempts = ledger_notes.noted_attempts(*places)
    return silver_attempts(attempts)


def _with_hosts(rows: pa.Table) -> pa.Table:
    """The ledger of a host tells of all of its work queues."""
    return rows.append_column("place", vectors.text_of(hosts_and_logs(rows["_log"])["host"]))


_MOST_PLANS = 2_000_000


class ZtickPlans:
    """Of each job and time planned for, what its first and its last record say.

    ``latest`` is the position of the last one, times four, plus its status. Removals are plans
    without a time. ``created_ns`` and ``last_ns`` are when the first and the last record were
    written, if a ledger says so.
    """

    def __init__(self) -> None:
        self._logs: dict[str, int] = {}
        self._keys = KeyTable()
        self._plans = PlanTable()

    def take(self, rows: pa.Table) -> vectors.AnyColumn:
        """Fold these records; their identifiers, in a dictionary if they come again."""
        logs = vectors.coded(rows["_log"])
        numbers_of_logs = np.array(
            [self._logs.setdefault(name, len(self._logs)) for name in logs.dictionary.to_pylist()],
            np.int64,
        )
        position = rows["_position"].to_numpy()
        status = np.maximum(vectors.places_in(rows["status"], _STATUSES), 0)
        written = vectors.ns_in(rows["time"])
        if (written != NO_TIME).any():
            is_own = ~vectors.each_text(rows["_file"], _is_compacted)
            known = is_own & (written != NO_TIME)
            written = np.where(known, np.where(known, written, 0) * 1000, NO_TIME)
        keys = vectors.each_text(rows["identifier"], self._numbers)
        self._plans.add(
            {
                "log": numbers_of_logs[logs.indices.to_numpy()],
                "key": keys,
                "ready_ns": vectors.ns_in(rows["execution_ns"]),
                "latest": position * len(STATUSES) + status,
                "position": position,
                "created_ns": np.where(status == 0, written, NO_TIME),
                "last_ns": written,
            },
            vectors.is_one_of(rows["kind"], ("set", "remove")),
        )
        return self._in_dictionary(rows["identifier"], keys)

    def _in_dictionary(
        self, identifiers: vectors.AnyColumn, numbers: vectors.Ints
    ) -> vectors.AnyColumn:
        """To look these up a second time would take a fifth of the time that writing takes."""
        places = np.zeros(len(self._keys), np.int32)
        places[numbers] = 1
        used = np.flatnonzero(places)
        if 2 * len(used) > len(numbers):
            return identifiers
        places[used] = np.arange(len(used))
        words = binary(pa.string(), *self._keys.keys()).take(arrow.array(used))
        nulls = np.asarray(identifiers.is_null())
        indices = arrow.array(places[numbers], mask=nulls if nulls.any() else None)
        return pa.DictionaryArray.from_arrays(indices, words)

    def _numbers(self, keys: vectors.AnyColumn) -> vectors.Ints:
        return self._keys.numbers_of(*text_in(keys))

    @property
    def is_full(self) -> bool:
        return len(self._plans) > _MOST_PLANS

    def finish(self) -> pa.Table:
        """With the columns of PLANS and hashes of the keys, in the order of these."""
        found = self._plans.columns()
        hashes = self._keys.hashes.view(np.int64)[found["key"]]
        order = np.argsort(hashes)
        found = {name: each[order] for name, each in found.items()}
        logs, keys = (
            pa.array(list(self._logs), pa.string()),
            binary(pa.string(), *self._keys.keys()),
        )
        return pa.table(
            {
                "_log": pa.DictionaryArray.from_arrays(found["log"].astype(np.int32), logs),
                "key": keys.take(arrow.array(found["key"])),
                HASH: arrow.array(hashes[order]),
                **{name: vectors.ns_column(found[name]) for name in PLANS.names[2:]},
            }
        )


def _is_compacted(files: vectors.AnyColumn) -> vectors.Bools:
    return np.asarray(pc.ends_with(files, COMPACTED_SUFFIX))


def plan_rows(rows: pa.Table) -> pa.Table:
    """Plans of one ingest, with plain keys."""
    return rows.set_column(rows.column_names.index("key"), "key", vectors.text_of(rows["key"]))


def run_lines(rows: pa.Table) -> pa.Table:
    """Lines of the run history that are runs."""
    rows = vectors.where(rows, vectors.is_one_of(rows["kind"], ["run"]))
    schema = arrow_schema(TABLES["bronze/runs"].schema)
    return pa.table({name: rows[name].cast(schema.field(name).type) for name in rows.column_names})


def ztick_rows(plans: pa.Table, runs: pa.Table) -> pa.Table:
    """One row a run, and one a plan without a run; all records and runs of each job are here."""
    ran = runs.rename_columns({"job": "key", "execution_ns": "ready_ns"})
    return silver_attempts(attempt_table(plans, ran))


# ----------------------------------------
# Tables of silver.


def silver_attempts(rows: pa.Table) -> pa.Table:
    """Rows of attempts with the columns of the lake's table."""
    columns: dict[str, vectors.AnyColumn] = {name: rows[name] for name in rows.column_names}
    nothing = pa.nulls(rows.num_rows, pa.int64())
    times = {name: vectors.ns_in(columns.get(name, nothing)) for name in (*MOMENTS, "expires_ns")}
    happened = vectors.first_known(
        *(times[f"{name}_ns"] for name in ("ready", "started", "ended", "created"))
    )
    made = {
        **columns,
        **hosts_and_logs(columns["_log"]),
        **vectors.moment_pairs(times),
        "wait_s": vectors.seconds_column(vectors.length_ns(times["ready_ns"], times["started_ns"])),
        "run_s": vectors.seconds_column(vectors.length_ns(times["started_ns"], times["ended_ns"])),
        HASH: vectors.hash_column(columns["key"]),
        "is_open": pa.array(vectors.is_one_of(columns["outcome"], _OPEN)),
        "date": pa.array(vectors.day_of(happened), pa.date32()),
    }
    return shaped(made, "silver/attempts")


_JOB = ("host", "log", "dialect", "key")


def jobs_of(attempts: pa.Table) -> pa.Table:
    """One row a job; ``attempts`` has all rows of each."""
    if attempts.num_rows == 0:
        return shaped({"key": attempts["key"]}, "silver/jobs")
    lives = vectors.filled(attempts["life"], 1)
    order, begins = _jobs_in_order(attempts, lives)
    ends = np.append(begins[1:], len(order)) - 1
    times = {name: vectors.ns_in(attempts[name])[order] for name in MOMENTS}
    failed = vectors.is_one_of(attempts["outcome"], FAILURES)[order]
    lasts = vectors.taken(attempts, order[ends])
    created = np.where(times["created_ns"] == NO_TIME, _MAX_NS, times["created_ns"])
    created = np.minimum.reduceat(created, begins)
    folded = {
        "created_ns": np.where(created == _MAX_NS, NO_TIME, created),
        "ready_ns": times["ready_ns"][ends],
        "started_ns": np.maximum.reduceat(times["started_ns"], begins),
        "ended_ns": times["ended_ns"][ends],
    }
    days = attempts["date"].cast(pa.int32()).to_numpy()[order]
    started = (times["started_ns"] != NO_TIME).astype(np.int64)
    return shaped(
        {
            **{name: lasts[name] for name in (*_JOB, "queue", HASH, "is_open")},
            "life": pa.array(lives[order[ends]]),
            "status": lasts["outcome"],
            "attempts": pa.array(np.add.reduceat(started, begins)),
            "failures": pa.array(np.add.reduceat(failed.astype(np.int64), begins)),
            **vectors.moment_pairs(folded),
            "date": pa.array(np.minimum.reduceat(days, begins), pa.date32()),
        },
        "silver/jobs",
    )


def _jobs_in_order(attempts: pa.Table, lives: vectors.Ints) -> tuple[vectors.Ints, vectors.Ints]:
    """The rows job by job, as they came; and where in that order another job begins."""
    codes = [vectors.coded(attempts[name]).indices.to_numpy() for name in _JOB[:3]]
    codes += [KeyTable().numbers_of(*text_in(vectors.text_of(attempts["key"]))), lives]
    ready = vectors.ns_in(attempts["ready_ns"])
    ready = np.where(ready == NO_TIME, 0, ready)
    last = (attempts["attempt"].to_numpy(), ready, vectors.filled(attempts["position"], -1))
    order = np.lexsort((*last, *reversed(codes)))
    return order, vectors.begins_of([column[order] for column in codes])


def firings_of(attempts: pa.Table) -> pa.Table:
    """The rows of occurrences of timetables; their identifiers say so (docs/timetables.md).

    A retry is another plan, with attempts of its own: those of an occurrence are counted on.
    """
    maybe = np.asarray(pc.match_substring(vectors.text_of(attempts["key"]), "@"))
    rows = vectors.where(attempts, maybe & vectors.is_one_of(attempts["dialect"], ["ztick"]))
    fired = pc.extract_regex(vectors.text_of(rows["key"]), _OCCURRENCE)
    mask = np.asarray(fired.is_valid())
    fired, rows = fired.filter(pa.array(mask)), rows.filter(pa.array(mask))
    parts = {name: pc.struct_field(fired, name) for name in ("timetable", "occurrence")}
    order, begins = _jobs_in_order(rows, np.zeros(rows.num_rows, np.int64))
    numbers = np.arange(1, len(order) + 1)
    lengths = np.diff(begins, append=len(order))
    attempt = np.empty(len(order), np.int64)
    attempt[order] = numbers - np.repeat(begins, lengths)
    columns = {name: rows[name] for name in rows.column_names}
    return shaped(
        {**columns, **parts, "attempt": pa.array(attempt), "lateness_s": rows["wait_s"]},
        "silver/timetable_firings",
    )


def runs_of(lines: pa.Table) -> pa.Table:
    """Rows of the table of runs."""
    times = {
        "planned_ns": vectors.ns_in(lines["execution_ns"]),
        **{name: vectors.ns_in(lines[name]) for name in ("started_ns", "ended_ns")},
    }
    named = ("rule", "runner", "detail", "output")
    return shaped(
        {
            **hosts_and_logs(lines["_log"]),
            "key": lines["job"],
            "outcome": lines["outcome"],
            **{name: vectors.unless_empty(lines[name]) for name in named},
            **vectors.moment_pairs(times),
            "lateness_s": vectors.seconds_column(
                vectors.length_ns(times["planned_ns"], times["started_ns"])
            ),
            "run_s": vectors.seconds_column(
                vectors.length_ns(times["started_ns"], times["ended_ns"])
            ),
            "date": pa.array(vectors.day_of(times["started_ns"]), pa.date32()),
        },
        "silver/runs",
    )


def items_of(rows: pa.Table) -> pa.Table:
    """Rows of the table of items."""
    rows = vectors.where(rows, vectors.is_one_of(rows["kind"], ["PUT"]))
    times = {
        name: _ms_as_ns(vectors.ns_in(rows[old]))
        for name, old in (("put_ns", "add_time_ms"), ("expires_ns", "expire_time_ms"))
    }
    return shaped(
        {
            **hosts_and_logs(rows["_log"]),
            **{name: rows[name] for name in ("queue", "item_id", "data_size")},
            **vectors.moment_pairs(times),
            "position": rows["_position"],
            HASH: item_hashes(rows["item_id"]),
            "date": pa.array(vectors.day_of(times["put_ns"]), pa.date32()),
        },
        "silver/items",
    )


def item_hashes(ids: vectors.AnyColumn) -> vectors.AnyColumn:
    """What tables of items have in their column of hashes."""
    blocks = vectors.ns_in(ids).view(np.uint64) >> np.uint64(_BLOCK_BITS)
    return arrow.array(vectors.mixed([blocks]).view(np.int64))


def _ms_as_ns(times_ms: vectors.Ints) -> vectors.Ints:
    fits = np.abs(times_ms // 2) < _MAX_NS // NS_PER_MS // 2
    return np.where(fits, np.where(fits, times_ms, 0) * NS_PER_MS, NO_TIME)


def without_repeats(items: pa.Table, known: pa.Table) -> pa.Table:
    """Items that are not among the known ones, each once: the first by position."""
    same = ("host", "log", "queue", "item_id", "put_ns", "data_size")
    names = list(same)
    both = pa.concat_tables([known.select(names), items.select(names)])
    codes = [
        vectors.coded(both[name]).indices.fill_null(-1).to_numpy()
        if pa.types.is_dictionary(both.schema.field(name).type)
        else vectors.ns_in(both[name])
        for name in names
    ]
    is_item = np.arange(both.num_rows) >= known.num_rows
    position = np.append(np.zeros(known.num_rows, np.int64), items["position"].to_numpy())
    order = np.lexsort((position, is_item, *codes))
    begins = vectors.begins_of([code[order] for code in codes])
    firsts = order[begins]
    chosen = np.sort(firsts[is_item[firsts]]) - known.num_rows
    return items if len(chosen) == items.num_rows else vectors.taken(items, chosen)


def row_prints(rows: pa.Table) -> Hashes:
    """A number for each row, the same for equal rows and, but for a chance in 2**64, only those."""
    words = []
    for column in rows.columns:
        if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
            words.append(vectors.key_hashes(column))
        elif pa.types.is_floating(column.type):
            continue  # durations, which follow from the moments
        else:
            whole = column.cast(pa.int32()) if pa.types.is_date(column.type) else column
            words.append(vectors.ns_in(whole).view(np.uint64))
    return vectors.mixed(words)

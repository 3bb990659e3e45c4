"""Records of bronze -> rows of silver, as Arrow tables: what a task does with a bucket of keys.

    bronze/workq  --narrow------->  numbers  --workq_rows-->  attempts
    bronze/ztick  --plans_of------>  bronze/plans: first and last record of each plan
    bronze/plans  --ztick_rows---->  attempts
    bronze/runs   --run_lines----->  --^
    attempts      --jobs_of, firings_of-->  rows of the other tables
    bronze/kestrel --items_of-->  items
    bronze/ledger --steps_of, events_of-->  steps, events

What becomes of a job is decided by the folds of ``spark/history``, which give the same rows for
whole logs. Nothing here knows of files or of Spark. ``_log`` is host and path of a log in one text;
moments are nanoseconds, NO_TIME in numpy where Arrow has null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import text_in
from journeyman.columnar.kernels.key_table import Hashes, KeyTable
from journeyman.columnar.workq.attempts import NO_TIME
from journeyman.spark import vectors, views
from journeyman.spark.history import ledger_notes, workq_attempts
from journeyman.spark.lakes.columns import hosts_and_logs, shaped
from journeyman.spark.lakes.layout import HASH, TABLES
from journeyman.spark.source.options import arrow_schema
from journeyman.spark.vectors import arrow, pc
from journeyman.units import NS_PER_MS

MOMENTS: Final = ("created_ns", "ready_ns", "started_ns", "ended_ns")
_MAX_NS: Final = 2**63 - 1
_OPEN: Final = ("waiting", "leased", "planned", "triggered")  # outcomes that are none yet
_BLOCK_BITS: Final = 16  # ids of items in a block share a hash, and stay together

# The columns of records that silver needs, by table of bronze.
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "bronze/workq": (*workq_attempts.RECORD, *workq_attempts.NAMES),
    "bronze/notes": tuple(ledger_notes.NOTES.names),
    "bronze/plans": ("_log", "key", "ready_ns", "latest", "position", "created_ns", "last_ns"),
    "bronze/runs": (
        *("_log", "kind", "job", "rule", "runner", "execution_ns", "started_ns", "ended_ns"),
        *("outcome", "detail", "output"),
    ),
    "bronze/kestrel": (
        *("_log", "kind", "queue", "item_id", "add_time_ms", "expire_time_ms", "data_size"),
        "_position",
    ),
    "bronze/ledger": ("_log", "kind", "key", "logged_ns", "payload", "_position"),
}
STEP_DONE, EVENT_SET = "step-done", "event-set"
# The key of a step: its job and its name, with a mark if it is a wait that came to nothing. A name
# has no `!`.
_STEP: Final = r"^(?P<key>[^/]+)/(?P<step>[^!]+)(?P<late>!timeout)?#(?P<number>[0-9]{1,9})$"
# Tables with a row for each fact, which never changes, and the columns that make it that fact.
FACTS: Final[Mapping[str, tuple[str, ...]]] = {
    "silver/items": ("host", "log", "queue", "item_id", "put_ns", "data_size"),
    "silver/steps": (
        *("host", "log", "key", "step", "number", "timed_out", "added_ns", "done_ns"),
    ),
    "silver/events": ("host", "log", "event", "set_ns"),
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
    attempts = workq_attempts.attempt_table(workq_attempts.walk_records(records, first))
    if notes.num_rows:
        places = (_with_hosts(attempts), _with_hosts(notes))
        attempts = ledger_notes.noted_attempts(*places)
    return silver_attempts(attempts)


def _with_hosts(rows: pa.Table) -> pa.Table:
    """The ledger of a host tells of all of its work queues."""
    return rows.append_column("place", vectors.text_of(hosts_and_logs(rows["_log"])["host"]))


def plans_of(records: pa.Table) -> pa.Table:
    """Return the plans in these records of a schedule, in the order of their hashes."""
    written_ns = pc.multiply(records["time"].cast(pa.int64()), 1000)
    found = views.run_in_duckdb(
        views.statement("plans"), records=records.append_column("time_ns", written_ns)
    )
    found = found.filter(pc.invert(found["is_rule"]))
    return found.append_column(HASH, vectors.hash_column(found["key"])).sort_by(HASH)


def run_lines(rows: pa.Table) -> pa.Table:
    """Lines of the run history that are runs."""
    rows = vectors.where(rows, vectors.is_one_of(rows["kind"], ["run"]))
    schema = arrow_schema(TABLES["bronze/runs"].schema)
    return pa.table({name: rows[name].cast(schema.field(name).type) for name in rows.column_names})


def ztick_rows(plans: pa.Table, runs: pa.Table) -> pa.Table:
    """One row a run, and one a plan without a run; all records and runs of each job are here."""
    text = views.statement("schedule_attempts", given_views=("plans", "runs"))
    return silver_attempts(views.run_in_duckdb(text, plans=plans, runs=runs))


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


def jobs_of(attempts: pa.Table) -> pa.Table:
    """One row a job; ``attempts`` has all rows of each."""
    return _shaped_answer("jobs", attempts, MOMENTS, "silver/jobs")


def firings_of(attempts: pa.Table) -> pa.Table:
    """The rows of occurrences of timetables; their identifiers say so (docs/timetables.md)."""
    return _shaped_answer("firings", attempts, MOMENTS[1:], "silver/timetable_firings")


def _shaped_answer(view: str, attempts: pa.Table, moments: Sequence[str], table: str) -> pa.Table:
    """Return the answer of a view of attempts as rows of a table of the lake."""
    rows = views.run_in_duckdb(views.statement(view), attempts=attempts)
    columns: dict[str, vectors.AnyColumn] = {name: rows[name] for name in rows.column_names}
    times = {name: vectors.ns_in(rows[name]) for name in moments}
    return shaped({**columns, **vectors.moment_pairs(times)}, table)


def run_rows(lines: pa.Table) -> pa.Table:
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
    """Return the hashes of items, as tables of items have them."""
    blocks = vectors.ns_in(ids).view(np.uint64) >> np.uint64(_BLOCK_BITS)
    return arrow.array(vectors.mixed([blocks]).view(np.int64))


def _ms_as_ns(times_ms: vectors.Ints) -> vectors.Ints:
    fits = np.abs(times_ms // 2) < _MAX_NS // NS_PER_MS // 2
    return np.where(fits, np.where(fits, times_ms, 0) * NS_PER_MS, NO_TIME)


def ledger_hashes(records: pa.Table) -> vectors.AnyColumn:
    """Return the hashes of what records of a ledger are about; of a step, that is its job."""
    is_step = pa.array(vectors.is_one_of(records["kind"], [STEP_DONE]))
    jobs = pc.replace_substring_regex(records["key"], "/.*", "")
    return vectors.hash_column(pc.if_else(is_step, jobs, records["key"]))


def steps_of(records: pa.Table) -> pa.Table:
    """Rows of the table of steps. What no server writes as the key of a step is none."""
    rows, members = _facts(records, STEP_DONE)
    parts = pc.extract_regex(vectors.text_of(rows["key"]), _STEP)
    is_step = np.asarray(parts.is_valid())
    rows, parts = vectors.where(rows, is_step), parts.filter(is_step)
    members = [each for each, fits in zip(members, is_step, strict=True) if fits]
    found = {name: pc.struct_field(parts, name) for name in ("key", "step", "late", "number")}
    times = {
        "added_ns": np.array([each["created_ns"] for each in members], np.int64),
        "done_ns": vectors.ns_in(rows["logged_ns"]),
    }
    return _fact_rows(
        "silver/steps",
        rows,
        members,
        times,
        {
            **{name: found[name] for name in ("key", "step")},
            "number": found["number"].cast(pa.int32()),
            "timed_out": pc.not_equal(found["late"], ""),
            HASH: vectors.hash_column(found["key"]),
        },
    )


def events_of(records: pa.Table) -> pa.Table:
    """Rows of the table of events."""
    rows, members = _facts(records, EVENT_SET)
    times = {"set_ns": vectors.ns_in(rows["logged_ns"])}
    columns = {"event": rows["key"], HASH: vectors.hash_column(rows["key"])}
    return _fact_rows("silver/events", rows, members, times, columns)


def _facts(records: pa.Table, kind: str) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The records of this kind, and the members of each."""
    rows = vectors.where(records, vectors.is_one_of(records["kind"], [kind]))
    return rows, [json.loads(str(payload)) for payload in rows["payload"].to_pylist()]


def _fact_rows(
    table: str,
    rows: pa.Table,
    members: Sequence[Mapping[str, Any]],
    times: Mapping[str, vectors.Ints],
    columns: Mapping[str, vectors.AnyColumn],
) -> pa.Table:
    *_, happened = times.values()
    values = [each["value"].encode("utf-8", "replace").decode() for each in members]
    return shaped(
        {
            **hosts_and_logs(rows["_log"]),
            **columns,
            "value": pa.array(values, pa.string()),
            "base64": pa.array([each["base64"] == 1 for each in members], pa.bool_()),
            **vectors.moment_pairs(times),
            "position": rows["_position"],
            "date": pa.array(vectors.day_of(happened), pa.date32()),
        },
        table,
    )


def without_repeats(table: str, facts: pa.Table, earlier: pa.Table) -> pa.Table:
    """Facts that are not among the known ones, each once: the first by position."""
    names = list(FACTS[table])
    both = pa.concat_tables([earlier.select(names), facts.select(names)])
    codes = [
        vectors.coded(both[name]).indices.fill_null(-1).to_numpy()
        if _is_text(both.schema.field(name).type)
        else vectors.ns_in(both[name])
        for name in names
    ]
    is_new = np.arange(both.num_rows) >= earlier.num_rows
    position = np.append(np.zeros(earlier.num_rows, np.int64), facts["position"].to_numpy())
    order = np.lexsort((position, is_new, *codes))
    begins = vectors.begins_of([code[order] for code in codes])
    firsts = order[begins]
    chosen = np.sort(firsts[is_new[firsts]]) - earlier.num_rows
    return facts if len(chosen) == facts.num_rows else vectors.taken(facts, chosen)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_dictionary(kind)


def row_prints(rows: pa.Table) -> Hashes:
    """A number for each row, the same for equal rows and, but for a chance in 2**64, only those."""
    words = []
    for column in rows.columns:
        if _is_text(column.type):
            words.append(vectors.key_hashes(column))
        elif pa.types.is_floating(column.type):
            continue  # durations, which follow from the moments
        else:
            whole = column.cast(pa.int32()) if pa.types.is_date(column.type) else column
            words.append(vectors.ns_in(whole).view(np.uint64))
    return vectors.mixed(words)

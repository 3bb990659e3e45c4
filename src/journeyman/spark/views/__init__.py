"""The counting law: what counts when, as named `.sql` files that DuckDB and Spark both run.

    items, readers --> item_attempts, lag
    attempts, notes --> noted_attempts
    records --> plans --> plan_outcomes; with runs --> schedule_attempts
    attempts of a lake --> jobs, firings
    attempts --> attempts_at --> happenings    --> throughput
                             --> depth_changes --> depth
                             --> lengths       --> latency
                             --> outcomes      --> groups
                             --> failures
    records  --> growth
    readers  --> reader_lag
    attempts, anomalies      --> job_findings         files, live           --> segments
    attempts, plans, planned --> plan_findings        segments, odd_records --> file_findings
    items, readers           --> item_ids --> item_findings
    plans --> plan_bytes     records, readers --> journal_bytes

History, report, audit and the gold tables of a lake come from these files; nothing else counts.
A view reads the tables and the views that its text names. Where a text has a ``$name``, the caller
decides:

    $places       columns that say which log a row is from: ``_log``, or ``host, log`` in a lake
    $keys         what rows are grouped by, as columns of attempts_at; $names are their names
    $bucket_ns    length of a bucket of time; NULL puts all time into one, where a view allows that
    $as_of_ns     the moment at which jobs have expired; NULL: when the logs say so
    $until_ns     nothing later counts
    $late_ns      what was due before, and did not run, is late

The texts keep to what both engines understand alike: no reserved names (``group``), sums cast to
BIGINT, nulls placed in every order, no subtraction that 64 bits may not hold. A test runs each view
with both engines and with a count in plain Python, on golden, generated and damaged logs.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

HOUR_NS: Final = 3_600 * 10**9
DAY_NS: Final = 24 * HOUR_NS
COUNTS: Final = {
    "added": "jobs added, items put",
    "due": "ztick: plans whose time came",
    "started": "attempts that started",
    "completed": "attempts that succeeded",
    "failed": "attempts that failed",
    "timed_out": "leases that ran out",
    "cut_off": "runs that a stop of the server ended",
    "expired": "jobs whose time to live ended",
    "deleted": "jobs deleted or replaced before they were finished",
    "cancelled": "jobs that a client cancelled",
}
STATES: Final = ("scheduled", "ready", "running")
# The columns of ``attempts_at`` by which attempts are grouped; empty where there is none.
GROUPINGS: Final = {
    "queue": "coalesce(queue, rule, '')",  # a schedule has no queues: there the rule stands
    "task": "coalesce(task, '')",
    "worker": "coalesce(worker, '')",
    "rule": "coalesce(rule, queue, '')",
    "prefix": "coalesce(regexp_extract(CASE WHEN dialect = 'ztick' THEN key ELSE queue END, "
    "'^(.*?)([.:/]|$)', 1), '')",
}
# The keys of gold.
LAKE_KEYS: Final = {"host": "host", "dialect": "dialect", "queue": GROUPINGS["queue"]}
TABLES: Final = ("attempts", "items", "notes", "readers", "records")
_MOST: Final = 2**63 - 1
_COMMENT: Final = re.compile(r"--.*")
_SOURCE: Final = re.compile(r"\b(?:FROM|JOIN)\s+([a-z_]+)")
_MEMORY: Final = "512MB"
_DATABASES: Final[dict[int, duckdb.DuckDBPyConnection]] = {}  # by process


def statement(
    view: str,
    keys: Mapping[str, str] | None = None,
    *,
    places: str = "_log",
    bucket_ns: int | None = None,
    as_of_ns: int | None = None,
    until_ns: int | None = None,
    late_ns: int | None = None,
    given_views: Sequence[str] = TABLES,
) -> str:
    """The text of a view with all that it needs: the views it is made of stand before it.

    ``keys`` are expressions by the name that they get in the answer. ``given_views`` are the tables
    that the caller has; views among them were counted before.
    """
    keys = {name: name for name in places.split(", ")} if keys is None else keys
    filled = {
        "places": places,
        "keys": ", ".join(f"{expression} AS {name}" for name, expression in keys.items()),
        "names": ", ".join(keys),
        "bucket_ns": _number(bucket_ns),
        "earliest_ns": str((bucket_ns or 0) - _MOST),  # a bucket begins after what 64 bits hold
        "as_of_ns": _number(as_of_ns),
        "until_ns": str(_MOST if until_ns is None else until_ns),
        "late_ns": _number(late_ns),
    }
    steps = ",\n".join(f"{name} AS (\n{_text(name)}\n)" for name in _views_of(view, given_views))
    return Template(f"WITH {steps}\nSELECT * FROM {view}").substitute(filled)


def run_in_duckdb(statement_: str, **tables: Any) -> pa.Table:
    """The answer of DuckDB over tables or datasets of Arrow, in this process: one thread, a bounded
    amount of memory, no extension that loads by itself. Of a dataset only the columns are read that
    the view needs. Tables are seen by their own statement alone."""
    with _database().cursor() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        answer: pa.Table = connection.sql(statement_).to_arrow_table()
        return answer


def _database() -> duckdb.DuckDBPyConnection:
    """An empty database, kept because opening one takes far longer than a view of a few rows. A
    forked process has its own."""
    import duckdb

    found = _DATABASES.get(os.getpid())
    if found is None:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "threads": 1,
            "memory_limit": _MEMORY,
            # Whatever exceeds it goes to a file. By default that is in the current directory,
            # which may be anyone's, and the file stays there if the process is killed.
            "temp_directory": tempfile.gettempdir(),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        found = _DATABASES[os.getpid()] = duckdb.connect(":memory:", config=settings)
    return found


def run_in_spark(spark: SparkSession, statement_: str, **tables: DataFrame) -> DataFrame:
    """The answer of Spark SQL over whole tables."""
    given = ", ".join(f"{name} AS (SELECT * FROM {{{name}}})" for name in tables)
    # A statement begins with WITH: the tables become the first steps of it. Braces are for Spark.
    steps = statement_.removeprefix("WITH").replace("{", "{{").replace("}", "}}")
    return spark.sql(f"WITH {given},{steps}", None, **tables)


def _number(value: int | None) -> str:
    return "CAST(NULL AS BIGINT)" if value is None else str(value)


def _views_of(view: str, given_views: Sequence[str]) -> list[str]:
    """The view and those that it is made of, each after what it needs."""
    needed = [name for name in _SOURCE.findall(_text(view)) if name not in given_views]
    return [*dict.fromkeys(step for name in needed for step in _views_of(name, given_views)), view]


@cache
def _text(view: str) -> str:
    text = files(__package__).joinpath(f"{view}.sql").read_text("utf-8")
    return _COMMENT.sub("", text).strip()

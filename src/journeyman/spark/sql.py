"""Logs as tables of a SQL session, each made when a statement first names it.

    ztick      ztick_log      jobs, rules              the log as it is; the state it adds up to
    workq      workq_log      work_jobs, orphans
    kestrel    kestrel_log    items, readers
    ledger     ledger_log     ledger_entries
    all        attempts, runs                          history, where there is any

A lake has the tables that docs/lake.md lists; with ``live`` logs they also have what is new there.

To load a table costs Spark a moment even if nobody asks for it, so a statement is searched for the
names first. A name that is found in a comment or a string only costs that moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from journeyman.spark import read
from journeyman.spark.history.logs import attempts_of, runs_of
from journeyman.spark.lakes.frames import open_tables
from journeyman.spark.lakes.layout import LOG_DIALECTS
from journeyman.spark.replay import STATE_TABLES, states
from journeyman.spark.session import cancel_all
from journeyman.spark.source.options import LEDGER

# How a state table is called in SQL, where its own name is not distinct.
_STATE_NAMES = {("workq", "jobs"): "work_jobs", ("ledger", "entries"): "ledger_entries"}

_STATEMENT_PART = re.compile(
    r"""
      (?P<end>;)
    | --[^\n]*              # a comment
    | /\*.*?(?:\*/|\Z)      # a longer one
    | '(?:\\.|[^'\\])*(?:'|\Z)
    | "(?:\\.|[^"\\])*(?:"|\Z)
    | `[^`]*(?:`|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)


def statements(text: str) -> tuple[list[str], str]:
    """The whole statements in a text, without their semicolons, and what follows the last one."""
    whole, start = [], 0
    for part in _STATEMENT_PART.finditer(text):
        if part["end"]:
            whole.append(text[start : part.start()].strip())
            start = part.end()
    return [each for each in whole if each], text[start:]


class LogTables:
    """The tables of some logs, by name, in one session."""

    def __init__(
        self,
        spark: SparkSession,
        paths: Mapping[str, Sequence[str]],
        lake: str | None = None,
        live: Mapping[str, Sequence[str]] | None = None,
        host: str | None = None,
        **options: object,
    ) -> None:
        self._spark = spark
        self._options = options
        self._loaders = {
            name: loader
            for dialect, places in paths.items()
            for name, loader in self._tables_of(dialect, list(places))
        }
        if lake is not None:
            tables = open_tables(spark, lake, live, host)
            self._loaders |= {name: partial(tables.__getitem__, name) for name in tables}
        elif history := {name: paths[name] for name in LOG_DIALECTS if name in paths}:
            self._loaders["attempts"] = partial(attempts_of, spark, history)
        if paths.get("ztick"):
            self._loaders["runs"] = partial(runs_of, spark, paths["ztick"])
        self._made: set[str] = set()

    @property
    def names(self) -> list[str]:
        return sorted(self._loaders)

    def query(self, statement: str) -> DataFrame:
        """Return the result of a statement. One that changes something takes effect at once."""
        words = re.findall(r"\w+", statement.lower())
        self.make(set(self._loaders) if words[:2] == ["show", "tables"] else set(words))
        return self._spark.sql(statement)

    def cancel(self) -> None:
        """Cancel what runs in this session."""
        cancel_all(self._spark)

    def make(self, names: set[str]) -> None:
        """Make those of these tables that are not there yet."""
        for name in sorted(names & self._loaders.keys() - self._made):
            self._loaders[name]().createOrReplaceTempView(name)
            self._made.add(name)

    def _tables_of(
        self, dialect: str, places: list[str]
    ) -> Iterator[tuple[str, Callable[[], DataFrame]]]:
        yield f"{dialect}_log", partial(read, self._spark, dialect, *places, **self._options)
        for table in STATE_TABLES.get(dialect, ("entries",) if dialect == LEDGER else ()):
            name = _STATE_NAMES.get((dialect, table), table)
            yield name, partial(self._state, dialect, places, table)

    def _state(self, dialect: str, places: list[str], table: str) -> DataFrame:
        wanted = dict(self._options)
        payloads = bool(wanted.pop("payloads", False))
        return states(self._spark, dialect, places, payloads=payloads, **wanted)[table]

"""SQL by someone who is not trusted: one SELECT over a lake, in a process with limits.

    caller --request, JSON--> python -m journeyman.spark.lakes.guarded_sql --answer, JSON--> caller

A statement meets three walls, and each would do without the others:

    DuckDB    sees the tables as Arrow datasets; files, networks, extensions and variables of
              Python are switched off, and the settings are locked. One thread, MEMORY
    process   has PROCESS_BYTES of memory, TIME_LIMIT_S of processor time, and may not write a byte
              to any file; its environment has no token
    caller    kills it after TIME_LIMIT_S, and reads at most MAX_ANSWER_BYTES

Nothing here writes: a lake is opened at the versions of its last complete snapshot.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
import resource
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from journeyman.errors import JourneymanError, UsageError

MAX_ROWS: Final = 200
MAX_TEXT: Final = 4_000  # characters of a value
MAX_ANSWER_BYTES: Final = 4_000_000
TIME_LIMIT_S: Final = 20
MEMORY: Final = "512MB"
PROCESS_BYTES: Final = 2 * 2**30
_MAX_SQL: Final = 100_000
_KEPT_VARIABLES: Final = ("PATH", "HOME", "LANG", "PYTHONPATH", "LD_LIBRARY_PATH")
_OF_OBJECT_STORES: Final = ("AWS_", "GOOGLE_", "AZURE_", "SSL_")
_LOCKS: Final = (
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def query_lake(lake: str, sql: str, *, rows: int = MAX_ROWS, cut: bool = True) -> dict[str, Any]:
    """Return ``{"columns", "rows", "more"}`` of a SELECT; ``cut`` shortens long values.

    Raises UsageError if the statement is refused, fails, or needs more than its limits.
    """
    if len(sql) > _MAX_SQL:
        raise UsageError(f"the statement is longer than {_MAX_SQL:,} characters")
    return _ask_child({"lake": lake, "sql": sql, "rows": rows, "cut": cut})


def describe_lake(lake: str) -> dict[str, Any]:
    """Return what the tables of a lake are called, what they hold, and their columns."""
    return _ask_child({"lake": lake})


def _ask_child(request: Mapping[str, Any]) -> dict[str, Any]:
    words = [sys.executable, "-P", "-m", __spec__.name]
    try:
        done = subprocess.run(
            words,
            input=json.dumps(request).encode(),
            capture_output=True,
            env=_environment(),
            timeout=TIME_LIMIT_S + 5,  # starting the process takes some of it
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"the query took longer than {TIME_LIMIT_S} s: ask for less") from None
    if done.returncode != 0 or len(done.stdout) > 2 * MAX_ANSWER_BYTES:
        raise UsageError(
            f"the query needed more than {TIME_LIMIT_S} s of processor time or {MEMORY} of memory:"
            " ask for less"
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer


def _environment() -> dict[str, str]:
    """Return what the child needs of the environment, and no token of a server."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES or name.startswith(_OF_OBJECT_STORES)
    }


# ----------------------------------------
# In the child.


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    import duckdb
    import pyarrow as pa

    from journeyman.spark.lakes import storage
    from journeyman.spark.lakes.layout import TABLES

    pa.set_cpu_count(1)
    lake = storage.open_lake(request["lake"])
    if "sql" not in request:
        return {table.short: _description(table) for table in TABLES.values()}
    settings: dict[str, Any] = {
        "threads": 1,
        "memory_limit": MEMORY,
        "temp_directory": "",  # nothing is written to disk, even if memory is full
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    _limit_process()
    with duckdb.connect(":memory:", config=settings) as connection:
        statements = connection.extract_statements(request["sql"])
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise UsageError("only one SELECT at a time: nothing else is allowed here")
        for table in TABLES.values():
            if re.search(rf"\b{table.short}\b", request["sql"], re.IGNORECASE):
                connection.register(table.short, _dataset(lake, table.name))
        for statement in _LOCKS:
            connection.execute(statement)
        relation = connection.sql(request["sql"])
        found = relation.limit(request["rows"] + 1).fetchall()
        rows = [cut_texts(row) if request["cut"] else row for row in found]
        return _within_limits(relation.columns, rows, request["rows"])


def _within_limits(columns: list[str], rows: list[Any], most: int) -> dict[str, Any]:
    """Return as many rows as an answer may hold."""
    kept: list[Any] = []
    size = 0
    for row in rows[:most]:
        size += len(json.dumps(row, default=_plain))
        if size > MAX_ANSWER_BYTES:
            break
        kept.append(row)
    return {"columns": columns, "rows": kept, "more": len(kept) < len(rows)}


def _limit_process() -> None:
    """Bound this process for the rest of its life. Files that are open already may be read."""
    limits = {
        resource.RLIMIT_DATA: PROCESS_BYTES,
        resource.RLIMIT_CPU: TIME_LIMIT_S,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for which, most in limits.items():
        resource.setrlimit(which, (most, most))


def _dataset(lake: Any, table: str) -> Any:
    """A table at its version of the lake's snapshot. Only what a query needs of it is read."""
    from journeyman.columnar import delta as packages
    from journeyman.spark.lakes import delta

    version = lake.snapshot.versions.get(table)
    if version is None:
        return delta.nullable_schema_of(table).empty_table()
    path = posixpath.join(lake.path, table)
    with packages.errors_of_delta(path):
        opened = packages.import_deltalake().DeltaTable(
            path, version=version, storage_options=packages.storage_options()
        )
        return opened.to_pyarrow_dataset()


def _description(table: Any) -> dict[str, Any]:
    columns = {name: f"{kind.rstrip('!')}: {about}" for name, kind, about in table.columns}
    return {"holds": table.about, "columns": columns}


def cut_texts(value: Any) -> Any:
    """Shorten long texts and bytes, so that one value cannot fill an agent's memory."""
    if isinstance(value, bytes):
        value = value[: 2 * MAX_TEXT].decode(errors="replace")
    if isinstance(value, str):
        if len(value) <= MAX_TEXT:
            return value
        return f"{value[:MAX_TEXT]}... ({len(value)} characters)"
    if isinstance(value, dict):
        return {str(name): cut_texts(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [cut_texts(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no form for it
    return value


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)


def main() -> None:
    """Read a request from stdin, and write its answer to stdout."""
    import duckdb

    try:
        answer = _answer(json.load(sys.stdin))
    except (duckdb.Error, JourneymanError) as error:
        answer = {"error": cut_texts(" ".join(str(error).split()))}
    except (MemoryError, RecursionError):
        answer = {"error": f"the query needed more than {MEMORY} of memory: ask for less"}
    sys.stdout.write(json.dumps(answer, default=_plain))


if __name__ == "__main__":
    main()

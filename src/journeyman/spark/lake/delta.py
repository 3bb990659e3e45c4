"""Delta: the same files, and a log in each table that says which of them count.

A commit of a table carries the number of the lake's commit, so that making it twice is harmless:
whoever opens a lake to change it finishes what was cut off.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from journeyman.clock import SystemClock
from journeyman.columnar.delta import (
    errors_of_delta,
    import_deltalake,
    open_delta,
    storage_options,
)
from journeyman.errors import LogError
from journeyman.spark.files import filesystem_of
from journeyman.spark.lake.footers import footer
from journeyman.spark.lake.layout import TABLES, LakeTable
from journeyman.spark.lake.names import name_of, partition_values
from journeyman.spark.lake.state import TableChange
from journeyman.spark.lake.work import at_once
from journeyman.spark.source.options import arrow_schema
from journeyman.units import NS_PER_MS

_APP: Final = "journeyman"
_TRIES: Final = 8


def files_of(lake: str, table: str, last: TableChange | None) -> list[str]:
    """The files of a table, the last change included, whether its log has it yet or not."""
    opened = open_delta(posixpath.join(lake, table))
    known = set() if opened is None else {name_of(uri) for uri in opened.file_uris()}
    if last is not None and _version(opened) < last.commit:
        known = known - {*last.removes.get(table, ())} | {*last.adds.get(table, ())}
    return sorted(known)


def apply_change(lake: str, change: TableChange) -> None:
    """Commit a change to the logs of its tables, except to those that have it."""
    tables = sorted({*change.adds, *change.removes})
    at_once(lambda table: _apply_to(lake, table, change), tables)


def _apply_to(lake: str, table: str, change: TableChange) -> None:
    path, kind = posixpath.join(lake, table), TABLES[table]
    for _ in range(_TRIES):
        opened = open_delta(path)
        if _version(opened) >= change.commit:
            return
        actions = at_once(partial(_add_action, path), change.adds.get(table, ()))
        actions += [_remove_action(name) for name in change.removes.get(table, ())]
        # Another process may commit to the table: other work on it, or to finish this very change.
        with suppress(import_deltalake().exceptions.CommitFailedError), errors_of_delta(path):
            _commit(opened or _create(path, kind), kind, actions, change.commit)
            return
    raise LogError(path, "other processes keep changing this table; run the command again")


def _version(opened: Any | None) -> int:
    """The last commit of the lake that the log of a table has."""
    return 0 if opened is None else opened.transaction_version(_APP) or 0


def _create(path: str, kind: LakeTable) -> Any:
    return import_deltalake().DeltaTable.create(
        path,
        schema=arrow_schema(kind.schema),
        partition_by=list(kind.partitions),
        storage_options=storage_options(),
    )


def _commit(opened: Any, kind: LakeTable, actions: Sequence[Any], number: int) -> None:
    deltalake = import_deltalake()
    opened.create_write_transaction(
        actions,
        mode="append",
        schema=deltalake.Schema.from_arrow(arrow_schema(kind.schema)),
        partition_by=list(kind.partitions),
        commit_properties=deltalake.CommitProperties(
            max_commit_retries=0, app_transactions=[deltalake.Transaction(_APP, number)]
        ),
    )


def _add_action(path: str, name: str) -> Any:
    whole = posixpath.join(path, name)
    found = filesystem_of(whole).find(whole)
    if found is None:
        raise LogError(whole, "this file of a lake is missing")
    stats = {"numRecords": footer(whole).num_rows}
    modified_ms = (found.modified_ns or 0) // NS_PER_MS
    return import_deltalake().transaction.AddAction(
        name, found.size, partition_values(name), modified_ms, True, json.dumps(stats)
    )


def _remove_action(name: str) -> Any:
    now_ms = SystemClock().now_ns() // NS_PER_MS
    return import_deltalake().transaction.RemoveAction(name, True, now_ms)

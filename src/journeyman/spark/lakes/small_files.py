"""The inputs of a lake besides logs: small files, read in the driver.

runs         lines appended to files of JSON: whole lines after what was read; the next snapshot
             says how far
readers      kestrel's checkpoints are replaced, not appended to: each ingest notes where
             every reader stands
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from journeyman.clock import SystemClock
from journeyman.disk import disk_of, is_database
from journeyman.errors import LogError
from journeyman.folds.kestrel import Reader, fold_reader, open_queue
from journeyman.formats.framing import Entry
from journeyman.formats.kestrel import READER
from journeyman.logs.catalog import Log
from journeyman.logs.damage import Damage
from journeyman.logs.holders import Place, register
from journeyman.logs.sealing import read_file
from journeyman.spark import views
from journeyman.spark.files import absolute, filesystem_of, find_source_logs, is_uri
from journeyman.spark.history.ztick_attempts import run_directories, run_files, whole_run
from journeyman.spark.lakes import delta
from journeyman.spark.lakes.bronze import DAMAGE_COLUMNS, DAMAGE_TABLE, LakeSource, stream_name
from journeyman.spark.lakes.layout import BETWEEN, HASH, to_datetime
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.source.options import DAMAGE_KIND, KESTREL, ZTICK, SourceOptions
from journeyman.spark.vectors import arrow, hash_column, is_one_of, ns_in

_ITEMS: Final[pa.Schema] = arrow.schema(
    [
        ("_log", pa.string()),
        ("item_id", pa.int64()),
        ("data_size", pa.int64()),
        ("put_ns", pa.int64()),
    ]
)
_READERS: Final[pa.Schema] = arrow.schema(
    [
        *((name, pa.string()) for name in ("_log", "queue", "reader")),
        *((name, pa.int64()) for name in ("head", "tail_id")),
        ("done", pa.list_(pa.int64())),
    ]
)
_RUNS_BYTES = 32 * 1024 * 1024  # lines in one commit


def store_runs(
    lake: Lake, source: LakeSource, read: dict[str, int], elsewhere: str | None = None
) -> bool:
    """Some new whole lines of the runs beside these logs, or in the directory ``elsewhere``.

    ``read`` says up to where each file was read, and is brought up to date. False if nothing is
    new.
    """
    found = False
    for log, host, paths, _ in _run_files(source, elsewhere):
        for path in paths:
            found = _store_lines(lake, log, host, path, read) or found
    return found


def register_runs(lake: Lake, source: LakeSource, elsewhere: str | None = None) -> None:
    """Tell the server how far this lake has read the runs."""
    for _, host, paths, directory in _run_files(source, elsewhere):
        if paths and (is_database(directory) or not is_uri(directory)):
            read = lake.snapshot.runs.get(f"{host}{BETWEEN}{paths[-1]}", 0)
            done = Place(posixpath.basename(paths[-1]), None, read)
            holder, who = stream_name(lake, source), f"lake {lake.path}"
            now_ns = SystemClock().now_ns()
            register(disk_of(directory), directory, holder, who, now_ns, {"": done})


class _RunFiles(NamedTuple):
    log: str
    host: str
    paths: list[str]
    directory: str


def _run_files(source: LakeSource, elsewhere: str | None) -> Iterator[_RunFiles]:
    options = SourceOptions.parse(ZTICK, {"path": absolute(source.path)})
    with _reading(source.path):
        hosts = {log.name: dict(log.partitions).get("host") for log in find_source_logs(options)}
        directories = run_directories(options, [] if elsewhere is None else [elsewhere])
    for log, directory in directories.items():
        with _reading(directory):
            paths = [file.path for file in run_files({log: directory})]
        yield _RunFiles(log, hosts.get(log) or source.host, paths, directory)


class UnreadableFile(LogError):
    """A file beside a log cannot be read."""


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnreadableFile(error.filename or path, error.strerror or str(error)) from error


def _store_lines(lake: Lake, log: str, host: str, path: str, read: dict[str, int]) -> bool:
    """Store some lines of a file; False if there are no more."""
    known = f"{host}{BETWEEN}{path}"
    begin = read.get(known, 0)
    with _reading(path):
        data = filesystem_of(path).read_at(path, begin, _RUNS_BYTES)
    end = data.rfind(b"\n") + 1
    if end == 0:
        return False
    place = {"_log": log, "_file": path, "_ingested_at": _now()}
    rows = [{"_offset": begin + at, **values, **place} for at, values in _lines(data[:end])]
    table = _rows_of_today("bronze/runs", rows, host)
    at = table.column_names.index(HASH)
    lake.write("bronze/runs", table.set_column(at, HASH, hash_column(table["job"])))
    damaged = [
        {
            **{new: row[old] for new, old in DAMAGE_COLUMNS.items()},
            "dialect": "runs",
            "found_at": row["_ingested_at"],
        }
        for row in rows
        if row["kind"] == DAMAGE_KIND
    ]
    lake.write(DAMAGE_TABLE, _rows_of_today(DAMAGE_TABLE, damaged, host))
    read[known] = begin + end
    return True


def _lines(data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line: where it begins, and what it says."""
    at = 0
    for line in data.removesuffix(b"\n").split(b"\n"):
        run = whole_run(line)
        if run is None:
            yield at, {"kind": DAMAGE_KIND, "_damage": "corrupt: not a line of the run history"}
        else:
            yield at, {"kind": "run", **asdict(run)}
        at += len(line) + 1


def _rows_of_today(table: str, rows: Sequence[Mapping[str, Any]], host: str) -> pa.Table:
    """Rows of a table, in which ``date`` is today."""
    place = {"date": _now().date(), "host": host}
    return pa.Table.from_pylist([{**row, **place} for row in rows], delta.nullable_schema_of(table))


# ----------------------------------------
# Readers.


def store_readers(lake: Lake, source: LakeSource, looks: dict[str, str]) -> bool:
    """Where the readers of these queues stand now; False if no file changed since the last look.

    How far they are behind is counted over the items of the lake, which must be up to date.
    ``looks`` has a hash of the files' sizes and times by stream, and is brought up to date.
    """
    assert source.dialect == KESTREL
    with _reading(source.path):
        logs = find_source_logs(SourceOptions.parse(KESTREL, {"path": absolute(source.path)}))
    files = [(file.path, file.size, file.modified_ns) for log in logs for file in log.files]
    look = hashlib.sha256(repr(sorted(files, key=str)).encode()).hexdigest()
    if looks.get(source.stream) == look:
        return False
    for log in logs:
        host = dict(log.partitions).get("host") or source.host
        rows = list(_standing(lake, host, log))
        lake.write("silver/readers", _rows_of_today("silver/readers", rows, host))
    looks[source.stream] = look
    return bool(logs)


def _standing(lake: Lake, host: str, log: Log) -> Iterator[dict[str, Any]]:
    """A row for each reader of a queue; how far it is behind is counted by the view ``lag``."""
    found = {
        file.reader: _checkpoint(file.path, file.reader)
        for file in log.files
        if file.reader is not None
    }
    queue = next((file.queue for file in log.files), None)
    heads = [0 if reader is None else reader.head for reader in found.values()]
    ids = _items_from(lake, host, log.name, min(heads, default=0))["item_id"].to_numpy()
    opened = open_queue([int(ids.min()), int(ids.max())] if len(ids) else [], found)
    standing = [
        {
            "_log": log.name,
            "queue": queue,
            "reader": name,
            "tail_id": opened.tail,
            "head": reader.head,
            "done": sorted(reader.done),
        }
        for name, reader in opened.readers.items()
    ]
    lowest = min((reader.head for reader in opened.readers.values()), default=0)
    tables = {
        "readers": pa.Table.from_pylist(standing, _READERS),
        "items": _items_from(lake, host, log.name, lowest + 1),
    }
    for row in views.run_in_duckdb(views.statement("lag"), **tables).to_pylist():
        oldest_ns = row.pop("oldest_ns")
        yield {
            **row,
            "log": log.name,
            "observed_at": _now(),
            "oldest_at": None if oldest_ns is None else to_datetime(oldest_ns),
        }


def _checkpoint(path: str, name: str) -> Reader | None:
    """None if it cannot be trusted."""
    filesystem = filesystem_of(path)
    with _reading(path):
        file = filesystem.find(path)
        data = filesystem.read_at(path, 0, 0 if file is None else file.size)
    items = list(read_file(READER, data))
    damages = [each for each in items if isinstance(each, Damage)]
    if not all(each.kind == "padding" and each.offset > 0 for each in damages):
        return None
    return fold_reader((each.record for each in items if isinstance(each, Entry)), name=name)


def _items_from(lake: Lake, host: str, log: str, first: int) -> pa.Table:
    """The items of a queue from an id on, as the view ``lag`` reads them."""
    parts = [_ITEMS.empty_table()]
    for file in lake.files("silver/items"):
        if file.may_hold(["item_id"], first, 2**63 - 1):
            rows = delta.read_data_file(file, ("host", "log", *_ITEMS.names[1:]))
            wanted = is_one_of(rows["log"], [log]) & is_one_of(rows["host"], [host])
            wanted &= ns_in(rows["item_id"]) >= first
            rows = rows.filter(pa.array(wanted)).rename_columns({"log": "_log"})
            parts.append(rows.select(_ITEMS.names).cast(_ITEMS))
    return pa.concat_tables(parts)


def _now() -> datetime:
    return to_datetime(SystemClock().now_ns())

"""What a lake reads besides logs: small files, in the driver.

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
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
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
from journeyman.spark.files import absolute, filesystem_of, find_logs, is_uri
from journeyman.spark.history.ztick_attempts import run_directories, run_files, whole_run
from journeyman.spark.lakes import delta
from journeyman.spark.lakes.bronze import DAMAGE_COLUMNS, DAMAGE_TABLE, LakeSource, stream_name
from journeyman.spark.lakes.columns import filled, hash_column, is_one_of
from journeyman.spark.lakes.layout import BETWEEN, HASH, moment_of
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.source.options import DAMAGE_KIND, KESTREL, ZTICK, SourceOptions

Numbers: TypeAlias = npt.NDArray[np.int64]

_RUNS_BYTES = 32 * 1024 * 1024  # of lines in one commit


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
        hosts = {log.name: dict(log.partitions).get("host") for log in find_logs(options)}
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
    return pa.Table.from_pylist([{**row, **place} for row in rows], delta.schema_of(table))


# ----------------------------------------
# Readers.


def store_readers(lake: Lake, source: LakeSource, looks: dict[str, str]) -> bool:
    """Where the readers of these queues stand now; False if no file changed since the last look.

    How far they are behind is counted over the items of the lake, which must be up to date.
    ``looks`` has a hash of the files' sizes and times by stream, and is brought up to date.
    """
    assert source.dialect == KESTREL
    with _reading(source.path):
        logs = find_logs(SourceOptions.parse(KESTREL, {"path": absolute(source.path)}))
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
    """A row for each reader of a queue."""
    found = {
        file.reader: _checkpoint(file.path, file.reader)
        for file in log.files
        if file.reader is not None
    }
    queue = next((file.queue for file in log.files), None)
    heads = [0 if reader is None else reader.head for reader in found.values()]
    first, last = 0, 0
    for ids, _, _ in _items_from(lake, host, log.name, min(heads, default=0)):
        first, last = min(first or ids[0], ids.min()), max(last, ids.max())
    opened = open_queue([int(first), int(last)] if last else [], found)
    behind = {name: _Behind() for name in opened.readers}
    lowest = min((reader.head for reader in opened.readers.values()), default=0)
    for ids, sizes, puts in _items_from(lake, host, log.name, lowest + 1):
        for name, reader in opened.readers.items():
            waits = (ids > reader.head) & ~np.isin(ids, list(reader.done))
            behind[name].add(sizes[waits], puts[waits])
    for name, reader in opened.readers.items():
        oldest_ns = behind[name].oldest_ns
        yield {
            "log": log.name,
            "queue": queue,
            "reader": name,
            "observed_at": _now(),
            "head": reader.head,
            "tail_id": opened.tail,
            "items_behind": behind[name].items,
            "bytes_behind": behind[name].bytes,
            "oldest_at": None if oldest_ns is None else moment_of(oldest_ns),
        }


@dataclass(slots=True)
class _Behind:
    items: int = 0
    bytes: int = 0
    oldest_ns: int | None = None

    def add(self, sizes: Numbers, puts: Numbers) -> None:
        if len(sizes):
            self.items += len(sizes)
            self.bytes += int(sizes.sum())
            oldest_ns = int(puts.min())
            self.oldest_ns = oldest_ns if self.oldest_ns is None else min(self.oldest_ns, oldest_ns)


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


def _items_from(
    lake: Lake, host: str, log: str, first: int
) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Ids, sizes and times of the items of a queue from an id on, some at a time."""
    columns = ("host", "log", "item_id", "data_size", "put_ns")
    for file in lake.files("silver/items"):
        if file.may_hold(["item_id"], first, 2**63 - 1):
            rows = delta.read_file(file, columns)
            ids, sizes, puts = (filled(rows[name], 0).astype(np.int64) for name in columns[2:])
            wanted = is_one_of(rows["log"], [log]) & is_one_of(rows["host"], [host])
            wanted &= ids >= first
            if wanted.any():
                yield ids[wanted], sizes[wanted], puts[wanted]


def _now() -> datetime:
    return moment_of(SystemClock().now_ns())

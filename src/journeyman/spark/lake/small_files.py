"""What a lake reads besides logs: small files, in the driver.

runs         lines appended to files of JSON: whole lines behind what was read, and how far,
             are one commit
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
from typing import Any, TypeAlias

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
from journeyman.spark.lake.bronze import LakeSource, stream_name
from journeyman.spark.lake.columns import filled, is_one_of
from journeyman.spark.lake.layout import BETWEEN, TABLES, moment_of
from journeyman.spark.lake.names import partition_values
from journeyman.spark.lake.parts import parts_in, read_part
from journeyman.spark.lake.state import Staged
from journeyman.spark.lake.storage import Lake
from journeyman.spark.source.options import DAMAGE_KIND, KESTREL, ZTICK, SourceOptions, arrow_schema

Numbers: TypeAlias = npt.NDArray[np.int64]

_RUNS_BYTES = 32 * 1024 * 1024  # of lines in one commit


def store_runs(lake: Lake, source: LakeSource, elsewhere: str | None = None) -> None:
    """New whole lines of the runs beside these logs, or in the directory ``elsewhere``."""
    options = SourceOptions.parse(ZTICK, {"path": absolute(source.path)})
    hosts = {log.name: dict(log.partitions).get("host") for log in find_logs(options)}
    with _reading(source.path):
        directories = run_directories(options, [] if elsewhere is None else [elsewhere])
    for log, directory in directories.items():
        host = hosts.get(log) or source.host
        with _reading(directory):
            paths = [file.path for file in run_files({log: directory})]
        for path in paths:
            while _store_lines(lake, log, host, path):
                pass
        if paths and (is_database(directory) or not is_uri(directory)):
            read = lake.state.runs.get(f"{host}{BETWEEN}{paths[-1]}", 0)
            done = Place(posixpath.basename(paths[-1]), None, read)
            holder, who = stream_name(lake, source), f"lake {lake.path}"
            now_ns = SystemClock().now_ns()
            register(disk_of(directory), directory, holder, who, now_ns, {"": done})


class UnreadableFile(LogError):
    """A file beside a log cannot be read."""


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnreadableFile(error.filename or path, error.strerror or str(error)) from error


def _store_lines(lake: Lake, log: str, host: str, path: str) -> bool:
    """Store some lines of a file; False if there are no more."""
    known = f"{host}{BETWEEN}{path}"
    begin = lake.state.runs.get(known, 0)
    with _reading(path):
        data = filesystem_of(path).read_at(path, begin, _RUNS_BYTES)
    end = data.rfind(b"\n") + 1
    if end == 0:
        return False
    rows = [
        {"_log": log, "_file": path, "_offset": begin + at, **values, "_ingested_at": _now()}
        for at, values in _lines(data[:end])
    ]
    staged = stage_rows(lake, "bronze/runs", rows, host)
    lake.commit([staged], {}, runs={**lake.state.runs, known: begin + end})
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


def stage_rows(lake: Lake, table: str, rows: Sequence[Mapping[str, Any]], host: str) -> Staged:
    """A few rows of today."""
    place = {"date": _now().date(), "host": host}
    listed = [{**row, **place} for row in rows]
    return lake.stage_arrow(pa.Table.from_pylist(listed, arrow_schema(TABLES[table].schema)), table)


# ----------------------------------------
# Readers.


def store_readers(lake: Lake, source: LakeSource) -> bool:
    """Where the readers of these queues stand now; False if no file changed since the last look.

    How far they are behind is counted over the items of the lake, which must be up to date.
    """
    assert source.dialect == KESTREL
    with _reading(source.path):
        logs = find_logs(SourceOptions.parse(KESTREL, {"path": absolute(source.path)}))
    files = [(file.path, file.size, file.modified_ns) for log in logs for file in log.files]
    looks = hashlib.sha256(repr(sorted(files, key=str)).encode()).hexdigest()
    if lake.state.readers.get(source.stream) == looks:
        return False
    by_host: dict[str, list[dict[str, Any]]] = {}
    for log in logs:
        host = dict(log.partitions).get("host") or source.host
        by_host.setdefault(host, []).extend(_standing(lake, host, log))
    staged = [stage_rows(lake, "silver/readers", rows, host) for host, rows in by_host.items()]
    lake.commit(staged, {}, readers={**lake.state.readers, source.stream: looks})
    return bool(staged)


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
    table, columns = "silver/items", ("log", "item_id", "data_size", "put_ns")
    mine = [name for name in lake.files(table) if partition_values(name)["host"] == host]
    for part in parts_in(lake, table, mine):
        for rows, _ in read_part(part, columns) if part.greatest >= first else ():
            ids, sizes, puts = (filled(rows[name], 0).astype(np.int64) for name in columns[1:])
            is_wanted = is_one_of(rows["log"], [log]) & (ids >= first)
            if is_wanted.all():
                yield ids, sizes, puts
            elif is_wanted.any():
                yield ids[is_wanted], sizes[is_wanted], puts[is_wanted]


def _now() -> datetime:
    return moment_of(SystemClock().now_ns())

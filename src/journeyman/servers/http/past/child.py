"""The past: a process that folds the logs up to a moment, and keeps what it found.

    server --pipe: (kind, arguments)--> child: log in columns, states of the last moments
           <--pipe: size, then (DONE, answer), (FAILED, why) or (NO_MEMORY, "")--

A process of its own, because folding a million records takes the interpreter for a while, and the
libraries that make it quick stay in memory. It ends with its standard input. Its memory is bounded
(limits.past_bytes): a log that does not fit is refused, and the server ends this process.

    look     files that were appended to are read on; a log whose files are others is read again
    at       the state at a moment (moments.py, columns.py); the last few are kept, until a record
             with an earlier time is appended
    page     jobs of a state, queue and error at that moment, newest first, with their payloads

A small log is folded by the reference fold, and so is any log that is damaged, or where numpy,
Arrow and numba are not installed: several times slower, to the same state.

Of a lake it reads the days: what came, started and ended, from its gold tables. That needs no
Spark.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, BinaryIO

from journeyman.disk import open_own
from journeyman.errors import IncompleteEntry
from journeyman.formats.workq import CODEC, JobAdded, JobFinished, Record
from journeyman.servers.http.past.moments import (
    IN_FILE,
    KEPT_MOMENTS,
    MAX_RECORD_BYTES,
    POSITION_SHIFT,
    Counts,
    Damaged,
    Moment,
    PastJob,
    PlainLog,
    WorkLog,
)

DONE, FAILED, NO_MEMORY = "done", "failed", "no memory"
BULK_BYTES = 4 * 1024 * 1024  # below this, importing the libraries takes longer than the fold
SEARCH_S = 1.0  # then a page is answered as far as it is, with a place to go on from
_READ_BYTES = (4 * 1024, MAX_RECORD_BYTES)  # for most records, for every record
_TAIL_BYTES = 64

Row = tuple[PastJob, JobAdded, bytes | None]

Day = tuple[str, str, int, int, int, int]  # date, dialect, added, started, completed, failed
_TABLE = ("gold", "throughput_daily")
_COUNTS = ("added", "started", "completed", "failed")


class Past:
    """A log of the work queue, and its states at moments."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._files: list[str] = []
        self._seen: dict[str, tuple[int, int]] = {}  # path -> inode and size
        self._tails: dict[str, bytes] = {}  # path -> the last bytes that were read
        self._moments: OrderedDict[int, Moment] = OrderedDict()
        self._counts: dict[int, Counts] = {}
        self._log: WorkLog = PlainLog()
        self._is_small = True  # as the log was when its class was chosen

    def look(self) -> None:
        """Read what is new."""
        names = sorted(
            each.name for each in os.scandir(self.directory) if each.name.endswith(".log")
        )
        files = [os.path.join(self.directory, name) for name in names]
        seen = {path: (facts.st_ino, facts.st_size) for path in files for facts in [os.stat(path)]}
        if seen == self._seen:
            return
        size = sum(each for _, each in seen.values())
        is_small = size < BULK_BYTES
        if not self._has_grown(files, seen) or is_small != self._is_small:
            self._log, self._is_small = PlainLog() if is_small else _column_log(), is_small
            self._moments.clear()
            self._counts.clear()
        self._read_on(files)
        self._files, self._seen = files, seen
        self._tails = {path: _tail(path, end) for path, end in self._log.ends.items()}

    def _has_grown(self, files: list[str], seen: dict[str, tuple[int, int]]) -> bool:
        """Whether all that was read is still there, and more may follow it.

        A batch that the disk refused is cut off again, and others take its place.
        """
        if files[: len(self._files)] != self._files:
            return False
        for path, (inode, size) in self._seen.items():
            end = self._log.ends.get(path, 0)
            if seen[path][0] != inode or seen[path][1] < end:
                return False
            if seen[path][1] != size and _tail(path, end) != self._tails.get(path, b""):
                return False
        return True

    def _read_on(self, files: list[str]) -> None:
        try:
            earliest_ns = self._log.grow(files)
        except Damaged:
            self._log = PlainLog()
            self._moments.clear()
            earliest_ns = self._log.grow(files)
        if earliest_ns is not None:
            for moment_ns in [each for each in self._moments if each >= earliest_ns]:
                del self._moments[moment_ns]
        self._counts = {each: self._counts[each] for each in self._moments if each in self._counts}

    def span(self) -> tuple[int, int]:
        """The times of the first and the last record; zeros for an empty log."""
        self.look()
        return self._log.span()

    def at(self, moment_ns: int) -> Moment:
        self.look()
        found = self._moments.get(moment_ns)
        if found is None:
            found = self._moments[moment_ns] = self._log.at(moment_ns)
            if len(self._moments) > KEPT_MOMENTS:
                self._counts.pop(self._moments.popitem(last=False)[0], None)
        return found

    def counts(self, moment_ns: int, prefix: str = "") -> Counts:
        """Of the queues that begin with ``prefix``."""
        moment = self.at(moment_ns)
        if moment_ns not in self._counts:
            self._counts[moment_ns] = moment.counts()
        found = self._counts[moment_ns]
        return {name: found[name] for name in found if name.startswith(prefix)}

    def page(
        self, moment_ns: int, queue: str, state: str, text: str, error: str, begin: int, limit: int,
        prefix: str = "",
    ) -> tuple[list[Row], int | None]:  # fmt: skip
        """Jobs with their records, and where the next page begins."""
        found: list[Row] = []
        moment = self.at(moment_ns)
        wanted, wrong = text.lower().encode(), error.lower().encode()
        wanted_id = text.replace("-", "").lower()
        over = time.monotonic() + SEARCH_S
        if wrong and state not in ("", "dead"):
            return [], None
        with self._opened() as read:
            for place, job in moment.find(queue, "dead" if wrong else state, begin, prefix):
                row = _row(read, job)
                if row is not None and _matches(row, wanted, wanted_id, wrong):
                    found.append(row)
                if len(found) == limit or time.monotonic() > over:
                    return found, place + 1 if place + 1 < len(moment) else None
        return found, None

    def job(self, moment_ns: int, job_id: bytes, prefix: str = "") -> Row | None:
        job = self.at(moment_ns).job(job_id)
        if job is None or not job.queue.startswith(prefix):
            return None
        with self._opened() as read:
            return _row(read, job)

    def last(self, moment_ns: int, limit: int) -> list[tuple[str, int]]:
        """Files and offsets of the last records by then, newest first."""
        self.look()
        found = self._log.last(moment_ns, limit)
        return [(self._files[at >> POSITION_SHIFT], at & IN_FILE) for at in found]

    def change(self, from_ns: int, to_ns: int, limit: int, prefix: str = "") -> dict[str, Any]:
        """What is different: counts at both, and the newest jobs whose state is another."""
        before, after = self.at(from_ns), self.at(to_ns)
        changed, jobs = after.changes(before, limit, prefix)
        return {
            "before": self.counts(from_ns, prefix),
            "after": self.counts(to_ns, prefix),
            "jobs": [tuple(each) for each in jobs],
            "changed": changed,
        }

    @contextmanager
    def _opened(self) -> Iterator[Callable[[int], Record | None]]:
        """Reads records by position; each file is opened once."""
        files: dict[int, int] = {}

        def read(position: int) -> Record | None:
            number = position >> POSITION_SHIFT
            if number not in files:
                files[number] = open_own(self._files[number], os.O_RDONLY)
            for size in _READ_BYTES:
                try:
                    entry = CODEC.decode(os.pread(files[number], size, position & IN_FILE), 0)
                except IncompleteEntry:
                    continue
                return None if entry is None else entry.record
            return None

        try:
            yield read
        finally:
            for file in files.values():
                os.close(file)


def _row(read: Callable[[int], Record | None], job: PastJob) -> Row | None:
    added = read(job.add_at)
    if not isinstance(added, JobAdded):
        return None
    finished = read(job.result_at) if job.result_at >= 0 else None
    return job, added, finished.result if isinstance(finished, JobFinished) else None


def _matches(row: Row, wanted: bytes, wanted_id: str, wrong: bytes) -> bool:
    job, added, result = row
    if wrong and (result is None or wrong not in result.lower()):
        return False
    return not wanted or job.job_id.hex().startswith(wanted_id) or wanted in added.payload.lower()


class PastLake:
    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, *_TABLE)

    def lake_days(self, limit: int) -> list[Day]:
        """Of all queues and hosts together, the newest first; empty if nothing was ingested."""
        wanted = ["date", "dialect", *_COUNTS]
        table: Any
        if "://" in self._path or os.path.isdir(os.path.join(self._path, "_delta_log")):
            delta: Any = import_module("journeyman.columnar.delta")
            opened = delta.open_delta(self._path)  # not every file is part of it
            if opened is None:
                return []
            table = opened.to_pyarrow_table(columns=wanted)
        elif not os.path.isdir(self._path):
            return []
        else:
            dataset: Any = import_module("pyarrow.dataset")
            found = dataset.dataset(self._path, format="parquet", partitioning="hive")
            table = found.to_table(columns=wanted)
        sums = table.group_by(["date", "dialect"]).aggregate([(name, "sum") for name in _COUNTS])
        columns = ["date", "dialect", *(f"{name}_sum" for name in _COUNTS)]
        rows = sorted(zip(*(sums.column(name).to_pylist() for name in columns), strict=True))
        return [(str(date), *counts) for date, *counts in rows[: -limit - 1 : -1]]


def _tail(path: str, end: int) -> bytes:
    with open(path, "rb", opener=open_own) as file:
        return os.pread(file.fileno(), min(end, _TAIL_BYTES), max(0, end - _TAIL_BYTES))


def _column_log() -> WorkLog:
    try:
        from journeyman.servers.http.past.columns import ColumnLog
    except ImportError:
        return PlainLog()
    return ColumnLog()


def _log_of(kind: str) -> type[Any]:
    """By the first word of a kind of question. What others need takes time to import."""
    word = kind.partition("_")[0]
    if word == "schedule":
        from journeyman.servers.http.past.schedule import ScheduleMoments

        return ScheduleMoments
    if word == "ledger":
        from journeyman.servers.http.past.schedule import PastLedger

        return PastLedger
    return PastLake if word == "lake" else Past


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    known: dict[tuple[str, type], Any] = {}
    while True:
        try:
            directory, kind, arguments = pickle.load(requests)
        except EOFError:
            return
        answer: tuple[str, Any]
        try:
            of = _log_of(kind)
            past = known.get((directory, of))
            if past is None:
                past = known[directory, of] = of(directory)
            call: Callable[..., Any] = getattr(past, kind)
            answer = (DONE, call(*arguments))
        except MemoryError:
            answer = (NO_MEMORY, "")
        except Exception as error:  # noqa: BLE001 - the server reports it
            answer = (FAILED, f"{type(error).__name__}: {error}")
        data = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
        answers.write(len(data).to_bytes(8) + data)
        answers.flush()
        if not gc.isenabled():  # while libraries load it finds nothing; what is there now stays
            gc.freeze()
            gc.enable()


class NotNeeded:
    """What pyarrow and numba import if they find it: up to half a second, for nothing that is used
    here."""

    NAMES = ("pandas", "yaml", "cffi")

    @classmethod
    def find_spec(cls, name: str, *_: object) -> None:
        if name in cls.NAMES:
            raise ModuleNotFoundError(name)


def main() -> None:
    """Not run as a module: what is sent must be of this module, not of __main__."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, this process goes and not the server
    os.nice(5)  # the server comes first
    # Not RLIMIT_AS: that counts libraries, and what allocators reserve and never use.
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit_bytes = int(sys.argv[1])
    if most == resource.RLIM_INFINITY or limit_bytes < most:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, most))
    sys.meta_path.insert(0, NotNeeded)
    # Printed text must not get between the answers.
    with os.fdopen(os.dup(1), "wb") as pipe:
        os.dup2(2, 1)
        _serve(sys.stdin.buffer, pipe)

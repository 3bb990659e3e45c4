r"""The history of runs: files of JSON lines beside the log of a schedule.

    <logfile>.runs/1794769200000.jsonl       named by the millisecond of its creation
                   1794855600123.jsonl       the newest: lines are appended here

    {"job":"backup.db","rule":"backup","runner":"shell","execution_ns":1794769200000000000,
     "started_ns":1794769200001804211,"ended_ns":1794769204113947020,"outcome":"failed",
     "detail":"exit status 3","output":"disk is full\n"}            (one line, ended by \n)

The log of a schedule has no times of writing: it says that a job was executed, never when. These
lines do. The original neither writes nor reads them.

A new file begins when one is full or a day old. Then the oldest are removed: all beyond
``keep_files``, and those whose runs are all older than ``keep_days``. Names only grow,
also when the clock steps back.

History is not a log. It is not synced line by line, and nothing is decided by it: losing it loses
knowledge, not work. A crash may cut off the last line of a file: the next writer ends that line,
and every reader skips it. What a program printed may hold any character; all but plain ASCII is
escaped, so no byte of it can end a line.

Not thread-safe: one writer per directory.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any

from journeyman.clock import Clock
from journeyman.disk import AppendFile, Disk
from journeyman.logs.holders import Holders, ask
from journeyman.logs.segments import names_in
from journeyman.units import DAY_MS, NS_PER_MS

EXECUTED = "executed"
FAILED = "failed"
CUT_OFF = "cut-off"  # the server stopped first: how far the run got is unknown
OUTCOMES = (EXECUTED, FAILED, CUT_OFF)


@dataclass(frozen=True, slots=True)
class RunLine:
    """Times are wall time; ``ended_ns`` is never before ``started_ns``."""

    job: str
    rule: str
    runner: str
    execution_ns: int  # when the job was due
    started_ns: int
    ended_ns: int
    outcome: str
    detail: str = ""  # why it failed
    output: str = ""  # the beginning and the end of the program's or server's answer


_TEXTS = tuple(each.name for each in fields(RunLine) if each.type == "str")
_TIMES = tuple(each.name for each in fields(RunLine) if each.type == "int")
_NAMES = tuple(each.name for each in fields(RunLine))
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def encode_run(run: RunLine) -> bytes:
    """The line, its end included."""
    text = _ENCODER.encode({name: getattr(run, name) for name in _NAMES})
    return text.encode("ascii") + b"\n"


def decode_run(line: bytes) -> RunLine | None:
    """The run of one line; None if it is not such a line. Fields of later versions are ignored."""
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    known = {name: value[name] for name in _NAMES if name in value}
    texts_fit = all(isinstance(known.get(name, ""), str) for name in _TEXTS)
    times_fit = all(type(known.get(name)) is int for name in _TIMES)
    if not texts_fit or not times_fit or not {"job", "outcome"} <= known.keys():
        return None
    return RunLine(**{"rule": "", "runner": ""} | known)


DIRECTORY_SUFFIX = ".runs"
SUFFIX = ".jsonl"

_NAME = re.compile(r"([0-9]{1,18})\.jsonl", re.ASCII)
_PIECE_BYTES = 256 * 1024  # read at a time, from the end


def history_files(names: Iterable[str]) -> list[str]:
    """Names of history files, oldest first."""
    found = ((_NAME.fullmatch(name), name) for name in names)
    return [name for _, name in sorted((int(match[1]), name) for match, name in found if match)]


@dataclass(slots=True)
class RunFiles:
    """The files of one directory, open for appending."""

    disk: Disk
    clock: Clock
    directory: str
    file_bytes: int
    keep_files: int
    keep_days: int  # 0: of any age
    holders: Holders | None = None  # who must have read a file before it goes
    _file: AppendFile | None = field(default=None, init=False)
    _size: int = field(default=0, init=False)
    _begun_ms: int = field(default=0, init=False)

    def append(self, lines: list[bytes]) -> None:
        """Write whole lines. On OSError none of them is there, as far as the disk allows."""
        data = b"".join(lines)
        file = self._file_for(len(data))
        try:
            file.write(data)
        except OSError:
            with suppress(OSError):  # report the first error
                file.truncate(self._size)
            self._leave()
            raise
        self._size += len(data)

    def close(self) -> None:
        """Sync and close. The next append opens again."""
        file = self._file
        if file is not None:
            try:
                file.sync()
            finally:
                self._leave()

    def _leave(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _file_for(self, incoming: int) -> AppendFile:
        now_ms = self.clock.now_ns() // NS_PER_MS
        if self._file is None:
            self._file = self._open_newest()
        full = self._size > 0 and self._size + incoming > self.file_bytes
        if full or (self.keep_days and now_ms - self._begun_ms >= DAY_MS and self._size > 0):
            self.close()
            self._file = self._open(self._fresh_number(now_ms))
            self._prune(now_ms)
        return self._file

    def _open_newest(self) -> AppendFile:
        self.disk.make_dirs(self.directory)
        names = history_files(names_in(self.disk, self.directory))
        if not names:
            return self._open(self._fresh_number(self.clock.now_ns() // NS_PER_MS))
        file = self._open(_number(names[-1]))
        if self._size and self.disk.read_at(file.path, self._size - 1, 1) != b"\n":
            file.write(b"\n")  # ends the line that a crash cut off
            self._size += 1
        return file

    def _open(self, number: int) -> AppendFile:
        file = self.disk.open_append(posixpath.join(self.directory, f"{number}{SUFFIX}"))
        self._size, self._begun_ms = file.size(), number
        return file

    def _fresh_number(self, now_ms: int) -> int:
        """Named by the clock, but above every number in use: a clock may step back."""
        names = history_files(names_in(self.disk, self.directory))
        return max(now_ms, _number(names[-1]) + 1 if names else 0)

    def _prune(self, now_ms: int) -> None:
        names = history_files(names_in(self.disk, self.directory))
        oldest_ms = now_ms - self.keep_days * DAY_MS
        old = []
        for at, name in enumerate(names[:-1]):
            # All runs of a file ended before the next file was begun.
            outdated = self.keep_days and _number(names[at + 1]) < oldest_ms
            if len(names) - at > self.keep_files or outdated:
                old.append(posixpath.join(self.directory, name))
        free = ask(self.holders, self.directory, "", old)
        for path in old[: free.count]:
            self.disk.remove(path)
        free.dropped(old[: free.count])


def _number(name: str) -> int:
    return int(name.removesuffix(SUFFIX))


def last_runs(disk: Disk, directory: str, count: int, *, at_most_bytes: int) -> list[RunLine]:
    """The last runs, oldest first; looks at no more than so many bytes from the end."""
    found = list(islice(runs_from_the_end(disk, directory, at_most_bytes=at_most_bytes), count))
    found.reverse()
    return found


def runs_from_the_end(disk: Disk, directory: str, *, at_most_bytes: int) -> Iterator[RunLine]:
    """The runs, the last one first; looks at no more than so many bytes from the end."""
    lines = _lines_from_the_end(disk, directory, at_most_bytes)
    return (run for run in map(decode_run, lines) if run is not None)


def _lines_from_the_end(disk: Disk, directory: str, at_most_bytes: int) -> Iterator[bytes]:
    for name in reversed(history_files(names_in(disk, directory))):
        path = posixpath.join(directory, name)
        end = disk.size(path)
        rest = b""  # the beginning of a line whose end was seen
        while end > 0:
            if at_most_bytes <= 0:
                return
            begin = max(0, end - min(_PIECE_BYTES, at_most_bytes))
            at_most_bytes -= end - begin
            rest, *lines = (disk.read_at(path, begin, end - begin) + rest).split(b"\n")
            yield from reversed(lines)
            end = begin
        yield rest

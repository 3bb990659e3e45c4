"""The record of a redrive: which jobs were meant to go, and which have gone.

    {"ledger": 1, "run": "<uuid>"}                the first line
    {"intend": [["<key>", <ns>, "<as>"], ...]}    synced before anything is sent
    {"done": [["<key>", <ns>], ...]}              synced behind the answers

So that none goes twice. A job is known by its key and a moment of its life (ztick: identifier and
planned time; workq: id and creation), which stay the same when a log is compacted or copied. ``as``
is what it becomes: for ztick the new planned time, for workq the new id. It is decided once,
written down, and used again should the job have to be sent again.

    crash behind    leaves              the next run
    intend          meant, maybe sent   asks the server, or sends the very same again
    sent            the same            the same
    done            done                leaves it alone

One file of JSON lines, appended to and synced. A last line that a crash cut short is cut off. Only
one redrive at a time: ``PATH.lock`` is held.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import uuid4

from journeyman.disk import AppendFile, Disk, Lock
from journeyman.errors import LogError, LogLocked

_VERSION = 1


class Mark(NamedTuple):
    """A job at a moment of its life."""

    key: str
    ns: int


@dataclass(slots=True)
class _Content:
    run_id: str | None
    intended: dict[Mark, str]
    done: set[Mark]
    whole_bytes: int


class Ledger:
    """A record open for a redrive."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Raises LogLocked when another redrive has it, LogError when it is something else."""
        directory = posixpath.dirname(path) or "."
        disk.make_dirs(directory)
        self._path = path
        self._lock = _take_lock(disk, path)
        try:
            content = _read(disk, path)
            self.intended = content.intended
            self.done = content.done
            self._file = _opened(disk, path, content.whole_bytes)
            if content.run_id is None:
                content.run_id = str(uuid4())
                self._append({"ledger": _VERSION, "run": content.run_id})
                disk.sync_dir(directory)
            self.run_id = content.run_id
        except BaseException:
            self._lock.release()
            raise

    def intend(self, jobs: Iterable[tuple[Mark, str]]) -> None:
        """Durable when this returns: these are about to be sent, as what is said."""
        new = [(mark, becomes) for mark, becomes in jobs if mark not in self.intended]
        if new:
            self._append({"intend": [[mark.key, mark.ns, becomes] for mark, becomes in new]})
            self.intended.update(new)

    def finish(self, marks: Sequence[Mark]) -> None:
        """Durable when this returns: the server has these."""
        if marks:
            self._append({"done": [list(mark) for mark in marks]})
            self.done.update(marks)

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._file.sync()


def read_done(disk: Disk, path: str) -> list[Mark]:
    """The jobs that have gone, without opening the record for a redrive."""
    return sorted(_read(disk, path).done)


def _take_lock(disk: Disk, path: str) -> Lock:
    try:
        return disk.lock(f"{path}.lock")
    except LogLocked as error:
        raise LogLocked(path, "another redrive is writing this record") from error


def _opened(disk: Disk, path: str, whole_bytes: int) -> AppendFile:
    file = disk.open_append(path)
    if file.size() > whole_bytes:
        file.truncate(whole_bytes)
        file.sync()
    return file


def _read(disk: Disk, path: str) -> _Content:
    """All whole lines. Raises LogError for a file that is no record."""
    content = _Content(None, {}, set(), 0)
    data = disk.read_bytes(path) if disk.exists(path) else b""
    *lines, _ = data.split(b"\n")  # what is behind the last line end is not whole
    for number, line in enumerate(lines, 1):
        try:
            _take(content, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LogError(path, f"line {number} is not of a redrive's record") from error
        content.whole_bytes += len(line) + 1
    return content


def _take(content: _Content, line: dict[str, Any]) -> None:
    if content.run_id is None:
        if line["ledger"] != _VERSION:
            raise ValueError("another version")
        content.run_id = str(line["run"])
    for key, ns, becomes in line.get("intend", ()):
        content.intended[Mark(key, ns)] = becomes
    content.done.update(Mark(key, ns) for key, ns in line.get("done", ()))

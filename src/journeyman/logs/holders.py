"""Holders: readers that a log must not outrun. Compaction, cleaning and retention wait for them.

    <directory of the log>/_held/holder.331608479151    written by a stream or a lake, read here
    <directory of the log>/_held/lost.331608479151      written here: what it did not get

    {"version": 1, "who": "lake /lake", "seen_ns": 1794769200000000000,
     "logs": {"logfile": {"name": "logfile", "inode": 71, "end": 4096}}}

A **place** names the oldest file of a log that its holder has not finished, and how many bytes of
it are done. Files before it are done, files after it are not; a log without a place is all unread.
The key of a log is the name of its file or queue, and empty where the directory is the log.

    free = ask(holders, ...)   how many closed files, oldest first, may be changed or removed now
    free.dropped(...)          these were; a holder that had not read them is named in a report,
                               and they are noted in its ``lost``

No holder holds for ever. One that keeps more than ``max_bytes`` of a log loses the oldest of it,
and one that was not seen for ``max_idle_ns`` loses all. A holder file that cannot be read stands
for a holder that has read nothing.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from journeyman.clock import Clock
from journeyman.disk import Disk
from journeyman.logs.publication import HELD_DIRECTORY, put_in_place, write_whole
from journeyman.units import DAY_MS, MIB, NS_PER_MS

MAX_BYTES: Final = 1024 * MIB
MAX_IDLE_DAYS: Final = 7
_HOLDER, _LOST, _TEMPORARY = "holder.", "lost.", "~"
_VERSION = 1
_NUMBER = re.compile(r"([0-9]+)(\.[a-z]+)?$", re.ASCII)


class Place(NamedTuple):
    """Up to where a holder has finished a log."""

    name: str
    inode: int | None
    end: int


class LetGo(NamedTuple):
    """Files of a log that changed or went before a holder had read them, and why."""

    directory: str
    who: str
    files: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Free:
    """``count`` of the files may go; ``losers`` have not read all of these."""

    directory: str
    files: tuple[str, ...]
    count: int
    losers: tuple[tuple[str, str, int, str], ...] = ()  # holder, who, files it has read, reason
    holders: Holders | None = None

    def dropped(self, changed: Iterable[str]) -> None:
        """These files were rewritten or removed."""
        gone = set(changed)
        for holder, who, done, reason in self.losers:
            lost = tuple(path for path in self.files[done:] if path in gone)
            if lost and self.holders is not None:
                self.holders.note_lost(self.directory, holder, lost)
                self.holders.tell(LetGo(self.directory, who, lost, reason))


def ask(
    holders: Holders | None,
    directory: str,
    log: str,
    files: Sequence[str],
    active: str | None = None,
) -> Free:
    """How many of these closed files, oldest first, no holder needs any more.

    ``active``: the file that follows them, if names do not say the order; empty, if none does. It
    counts too: it cannot be closed as long as these are there.
    """
    if holders is None or not files:
        return Free(directory, tuple(files), len(files))
    return holders.free(directory, log, files, active)


def names_of_holders(disk: Disk, directory: str) -> list[str]:
    """Who holds the logs of this directory, in words: ``lake /lake``."""
    found = (_read(disk, directory, holder) for holder in _names(disk, directory))
    return sorted({each[0] for each in found if each is not None})


@dataclass(slots=True)
class Holders:
    """Asked by the logs of a process, from any thread. ``tell`` gets what had to be let go."""

    disk: Disk
    clock: Clock
    max_bytes: int = MAX_BYTES
    max_idle_ns: int = MAX_IDLE_DAYS * DAY_MS * NS_PER_MS
    tell: Callable[[LetGo], None] = lambda _: None
    held_bytes: dict[tuple[str, str], int] = field(default_factory=dict)  # by directory and log

    def free(self, directory: str, log: str, files: Sequence[str], active: str | None) -> Free:
        """See ``ask``."""
        sizes = [self.disk.size(path) for path in files]
        growing = self.disk.size(active) if active and self.disk.exists(active) else 0
        count, losers = len(files), []
        for holder in _names(self.disk, directory):
            if (found := _read(self.disk, directory, holder)) is None:
                continue
            who, seen_ns, places = found
            done = _done(self.disk, places.get(log), files, sizes, active)
            kept, reason = self._kept(sizes, growing, done, seen_ns)
            count = min(count, kept)
            if kept > done:
                losers.append((holder, who, done, reason))
        self.held_bytes[directory, log] = sum(sizes[count:]) + (growing if sizes[count:] else 0)
        return Free(directory, tuple(files), count, tuple(losers), self)

    def _kept(self, sizes: Sequence[int], growing: int, done: int, seen_ns: int) -> tuple[int, str]:
        """Return the first file that is kept for a holder that has ``done`` so many, and why no
        more are."""
        idle_days = (self.clock.now_ns() - seen_ns) // (DAY_MS * NS_PER_MS)
        if self.clock.now_ns() - seen_ns > self.max_idle_ns:
            return len(sizes), f"it was not seen for {idle_days} days"
        kept = done
        while kept < len(sizes) and sum(sizes[kept:]) + growing > self.max_bytes:
            kept += 1
        return kept, f"more than {self.max_bytes} bytes waited for it"

    def note_lost(self, directory: str, holder: str, lost: Iterable[str]) -> None:
        """Note for the holder what it lost. Without the note it only does not learn of records
        cleaned out of a file."""
        names = {*lost_files(self.disk, directory, holder), *map(posixpath.basename, lost)}
        path = posixpath.join(directory, HELD_DIRECTORY, _LOST + holder)
        with suppress(OSError):
            write_whole(self.disk, path + _TEMPORARY, [json.dumps(sorted(names)).encode()])
            put_in_place(self.disk, path + _TEMPORARY, path)


def _done(
    disk: Disk, place: Place | None, files: Sequence[str], sizes: Sequence[int], active: str | None
) -> int:
    """How many of the files a holder has finished."""
    if place is None:
        return 0
    if active is not None:
        inodes = [_inode(disk, path) for path in (*files, active)]
        at = inodes.index(place.inode) if place.inode in inodes else -1
    else:
        numbers = [number_of(path) for path in files]
        number = number_of(place.name)
        at = numbers.index(number) if number in numbers else -1
        if at < 0:
            return sum(each < number for each in numbers)
    return 0 if at < 0 else at + (at < len(files) and place.end >= sizes[at])


def number_of(path: str) -> int:
    """The number in the name of a segment."""
    match = _NUMBER.search(posixpath.basename(path))
    return 0 if match is None else int(match[1])


def _inode(disk: Disk, path: str) -> int | None:
    with suppress(OSError):
        return disk.stat(path).identity
    return None


def _names(disk: Disk, directory: str) -> list[str]:
    where = posixpath.join(directory, HELD_DIRECTORY)
    try:
        names = disk.list_dir(where) if disk.is_dir(where) else []
    except OSError:  # another user's, and closed: what cannot be seen stops no compaction
        return []
    found = (name for name in names if name.startswith(_HOLDER))
    return [name.removeprefix(_HOLDER) for name in found if not name.endswith(_TEMPORARY)]


def _read(disk: Disk, directory: str, holder: str) -> tuple[str, int, dict[str, Place]] | None:
    """Who it is, when it was last seen, and its places; None if it has gone."""
    path = posixpath.join(directory, HELD_DIRECTORY, _HOLDER + holder)
    try:
        found = json.loads(disk.read_bytes(path))
        places = {log: Place(**place) for log, place in found["logs"].items()}
        return str(found["who"]), int(found["seen_ns"]), places
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return holder, _modified_ns(disk, path), {}


def _modified_ns(disk: Disk, path: str) -> int:
    with suppress(OSError):
        return disk.stat(path).modified_ns
    return 0


# ----------------------------------------
# What a holder does.


def register(
    disk: Disk, directory: str, holder: str, who: str, seen_ns: int, logs: Mapping[str, Place]
) -> bool:
    """Say up to where the logs of a directory were read; False if nothing can be written there."""
    path = posixpath.join(directory, HELD_DIRECTORY, _HOLDER + holder)
    places: dict[str, Any] = {log: place._asdict() for log, place in logs.items()}
    content = {"version": _VERSION, "who": who, "seen_ns": seen_ns, "logs": places}
    try:
        disk.make_dirs(posixpath.dirname(path))
        write_whole(disk, path + _TEMPORARY, [json.dumps(content).encode()])
        put_in_place(disk, path + _TEMPORARY, path)
    except OSError:
        return False
    with suppress(OSError):  # the server may be another user
        disk.share(posixpath.dirname(path))
        disk.share(path)
    return True


def is_registered(disk: Disk, directory: str, holder: str) -> bool:
    return disk.exists(posixpath.join(directory, HELD_DIRECTORY, _HOLDER + holder))


def unregister(disk: Disk, directory: str, holder: str) -> None:
    """Keep nothing for this holder any more."""
    for prefix in (_HOLDER, _LOST):
        with suppress(FileNotFoundError):
            disk.remove(posixpath.join(directory, HELD_DIRECTORY, prefix + holder))


def lost_files(disk: Disk, directory: str, holder: str) -> list[str]:
    """Names of files of the directory from which it did not get everything."""
    path = posixpath.join(directory, HELD_DIRECTORY, _LOST + holder)
    try:
        return [str(name) for name in json.loads(disk.read_bytes(path))]
    except (OSError, ValueError, TypeError, RecursionError):
        return []

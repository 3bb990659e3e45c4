"""Notes for streams: which file took the place of one that they may be reading.

    <directory of the log>/_held/became.71    {"inode": 85, "path": ..., "size": 2048, "was": 4096}

A stream (journeyman.spark.streams) knows files by their inode. When a log is compacted or cleaned
offline, another file replaces the one it was reading, and holds nothing that was not in the log
before. The note says so: a stream that has read the first file to its end continues after byte
``size`` of the second. It is written before the file is replaced, unless no stream holds files, so
that there is no directory ``_held``.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

HELD_DIRECTORY = "_held"
_NOTE = "became."


class Identity(NamedTuple):
    """Which file this is, and how long."""

    inode: int
    size: int


class Replacement(NamedTuple):
    """What took the place of a file of ``was`` bytes; its first ``size`` bytes say nothing new."""

    path: str
    inode: int
    size: int
    was: int


def identities(paths: Iterable[str]) -> list[Identity]:
    """Of those of these files that are there."""
    found = []
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            found.append(Identity(status.st_ino, status.st_size))
    return found


def note_replacement(before: Iterable[Identity], staged: str, path: str) -> None:
    """Tell streams of these files that the one at ``staged`` will be at ``path`` instead of them.

    A note that cannot be written does no harm to the log: such a stream stops and says why.
    """
    directory = posixpath.join(posixpath.dirname(path), HELD_DIRECTORY)
    if not os.path.isdir(directory):
        return
    for after in identities([staged]):
        for inode, was in before:
            if inode != after.inode:
                note = Replacement(path, after.inode, after.size, was)
                with suppress(OSError):
                    _write(posixpath.join(directory, f"{_NOTE}{inode}"), note)


def replacement_of(path: str, inode: int) -> Replacement | None:
    """What took the place of the file with this inode, which was at ``path``."""
    parent = posixpath.dirname(path)
    note = posixpath.join(parent, HELD_DIRECTORY, f"{_NOTE}{inode}")
    try:
        with open(note, encoding="utf-8") as file:
            found = Replacement(**json.load(file))
        # The same directory, by the reader's name for it: the writer's may be a relative path.
        return found._replace(path=posixpath.join(parent, posixpath.basename(found.path)))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def forget_replacement(path: str, inode: int) -> None:
    """No stream reads the file with this inode any more."""
    directory = posixpath.join(posixpath.dirname(path), HELD_DIRECTORY)
    with suppress(OSError):
        os.remove(posixpath.join(directory, f"{_NOTE}{inode}"))


def _write(path: str, note: Replacement) -> None:
    temporary = f"{path}~"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(note._asdict(), file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)

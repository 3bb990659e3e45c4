"""Changing many files of a log at once: all of them or none, whatever happens in between.

A single file changes atomically by a rename (see below). Here several do, by a journal that
says what is to be done, and is itself one file:

    <dir>/<staging>/...      the new files, complete and synced, under any names
    <dir>/_publication*.json the journal: which of them get which names in <dir>, and what goes

    step                                                        a crash after it leaves
    1 write and sync the journal under a temporary name         the old log; the rest is litter
    2 rename it to its name, sync the directory                 decided: ``finish`` makes it so
    3 rename each new file to its place                         some old, some new: ``finish``
    4 remove what is to go, sync the directories                the new log, and a journal
    5 remove the journal, sync the directory                    the new log

From step 2 on the publication has happened, and what is left of it can be done by anyone, any
number of times: ``finish`` does it, and is called under the log's lock by the process that writes
it next. Until then a reader that does not know of journals sees files of both logs; so it looks for
one first (``pending``). Nothing here takes a lock: the caller has it.

Paths in the journal are relative to its directory, so that a directory can be moved with it.

A single file takes the place of an old one so that a crash leaves one of them whole.

    write_whole    written to a temporary file, then synced      crash: the old file stands
    rename         the temporary file takes the old one's name   crash: the old or the new one
    put_in_place   the directory is synced, and it returns       crash: the new one stands

Only after ``put_in_place`` may anything go that the new file stands for. Until then the old file
is the truth and the temporary one is litter, which is removed when the log is opened.

Compaction, cleaning and checkpoints differ in what they write; how it gets there is the same.

Notes for streams: which file took the place of one that they may be reading.

    <directory of the log>/_held/became.71    {"inode": 85, "path": ..., "size": 2048, "was": 4096}

A stream (journeyman.spark.streams) knows files by their inode. When a log is compacted or cleaned
offline, another file replaces the one it was reading, and holds nothing that was not in the log
before. The note says so: a stream that has read the first file to its end continues after byte
``size`` of the second. It is written before the file is replaced, unless no stream holds files, so
that there is no directory ``_held``.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from journeyman.disk import Disk, ReadingDisk, is_full
from journeyman.errors import LogError, LogFull
from journeyman.formats.framing import Buffer

WRITE_BYTES = 1024 * 1024  # small pieces are gathered to writes of about this size


def write_whole(disk: Disk, temporary: str, pieces: Iterable[Buffer]) -> int:
    """Write and sync a file that is not in use yet; its size. Nothing is left of it on failure."""
    file = disk.open_append(temporary)
    size = 0
    try:
        try:
            file.truncate(0)
            for piece in gathered_pieces(pieces):
                file.write(piece)
                size += len(piece)
            file.sync()
        finally:
            file.close()
    except OSError as error:
        with suppress(OSError):  # the first error is the one to raise
            disk.remove(temporary)
        if is_full(error):
            raise LogFull(temporary, "the disk is full; nothing was changed") from error
        raise
    return size


def put_in_place(disk: Disk, temporary: str, path: str) -> None:
    """Let the finished file take the name of the old one, for good."""
    disk.rename(temporary, path)
    disk.sync_dir(posixpath.dirname(path) or ".")


def remove_durably(disk: Disk, path: str) -> None:
    """Remove a file so that it does not come back."""
    disk.remove(path)
    disk.sync_dir(posixpath.dirname(path) or ".")


def gathered_pieces(pieces: Iterable[Buffer]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of WRITE_BYTES or a little more, never more than one in
    memory."""
    held = bytearray()
    for piece in pieces:
        for at in range(0, len(piece), WRITE_BYTES):
            held += piece[at : at + WRITE_BYTES]
            if len(held) >= WRITE_BYTES:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)


JOURNAL_PREFIX = "_publication"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Publication:
    """Changes of a directory: staged file -> name, and names to remove. All are relative."""

    renames: Mapping[str, str]
    removes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if both := set(self.renames.values()) & set(self.removes):
            raise ValueError(f"{sorted(both)} would come and go")


def journal_path(directory: str, log: str = "") -> str:
    """The journal of a log; ``log`` distinguishes logs that share a directory."""
    return posixpath.join(directory, f"{JOURNAL_PREFIX}{'-' if log else ''}{log}.json")


def is_journal(name: str) -> bool:
    """Return whether a file of this name says that a change of its directory is under way."""
    return name.startswith(JOURNAL_PREFIX) and name.endswith(".json")


def publish(disk: Disk, journal: str, publication: Publication) -> None:
    """Make all changes. What is staged must be complete and synced; when this returns, all is."""
    directory = posixpath.dirname(journal)
    content = {
        "version": _VERSION,
        "renames": dict(publication.renames),
        "removes": list(publication.removes),
    }
    for staging in _directories(publication.renames):
        path = posixpath.join(directory, staging)
        disk.sync_dir(path)
        disk.sync_dir(posixpath.dirname(path))
    if any("/" not in staged for staged in publication.renames):
        disk.sync_dir(directory)  # else the journal may outlive the names of what it publishes
    temporary = f"{journal}.tmp"
    write_whole(disk, temporary, [json.dumps(content).encode()])
    put_in_place(disk, temporary, journal)
    _apply(disk, journal, publication)


def pending(disk: ReadingDisk, journal: str) -> Publication | None:
    """The publication that was decided on and not carried through, if there is one."""
    return _read(disk, journal) if disk.exists(journal) else None


def paths_after(
    disk: ReadingDisk, directory: str, change: Publication, names: Iterable[str]
) -> list[str]:
    """Where these files of a directory are read, so that they are as the change leaves them."""
    staged = {
        name: place
        for place, name in change.renames.items()
        if disk.exists(posixpath.join(directory, place))
    }
    kept = (name for name in names if name not in change.removes)
    return [posixpath.join(directory, staged.get(name, name)) for name in kept]


def finish(disk: Disk, journal: str) -> bool:
    """Carry through what a crash interrupted; whether there was anything to do.

    Call it with the log's lock held. Raises LogError if the journal or a staged file is damaged or
    gone, which no crash does.
    """
    if disk.exists(f"{journal}.tmp"):
        disk.remove(f"{journal}.tmp")
    publication = pending(disk, journal)
    if publication is not None:
        _apply(disk, journal, publication)
    return publication is not None


def _apply(disk: Disk, journal: str, publication: Publication) -> None:
    directory = posixpath.dirname(journal)
    for staged, name in publication.renames.items():
        source, target = posixpath.join(directory, staged), posixpath.join(directory, name)
        if disk.exists(source):
            disk.rename(source, target)
            if disk.exists(source):  # two names of one file, after a crash: rename does nothing
                disk.remove(source)
        elif not disk.exists(target):
            raise LogError(journal, f"cannot be finished: neither {staged} nor {name} is there")
    for name in publication.removes:
        path = posixpath.join(directory, name)
        if disk.exists(path):
            disk.remove(path)
    # First: else a file may be in neither.
    changed = _directories([*publication.renames.values(), *publication.removes])
    for each in changed:
        if disk.is_dir(place := posixpath.join(directory, each)):
            disk.sync_dir(place)
    disk.sync_dir(directory)
    for staging in _directories(publication.renames):
        if disk.is_dir(posixpath.join(directory, staging)):
            disk.sync_dir(posixpath.join(directory, staging))
    remove_durably(disk, journal)


def _directories(paths: Iterable[str]) -> list[str]:
    return sorted({posixpath.dirname(path) for path in paths} - {""})


def _read(disk: ReadingDisk, journal: str) -> Publication:
    try:
        content = json.loads(disk.read_bytes(journal))
        version, renames, removes = content["version"], content["renames"], content["removes"]
        publication = Publication(dict(renames), tuple(removes))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LogError(journal, f"is not the journal of a publication: {error}") from error
    if version != _VERSION:
        raise LogError(journal, f"is of version {version}, and this program knows {_VERSION}")
    return publication


HELD_DIRECTORY = "_held"
_NOTE = "became."


class Identity(NamedTuple):
    """A file, told from others of the same name, and its length."""

    inode: int
    size: int


class Replacement(NamedTuple):
    """The successor of a file of ``was`` bytes; its first ``size`` bytes say nothing new."""

    path: str
    inode: int
    size: int
    was: int


def file_identities(disk: Disk, paths: Iterable[str]) -> list[Identity]:
    """Return the identities of those of these files that exist."""
    found = []
    for path in paths:
        with suppress(OSError):
            status = disk.stat(path)
            found.append(Identity(status.identity, status.size))
    return found


def note_replacement(disk: Disk, before: Iterable[Identity], staged: str, path: str) -> None:
    """Note for streams of these files that the one at ``staged`` will be at ``path`` instead of
    them.

    A note that cannot be written does no harm to the log: such a stream stops and says why.
    """
    directory = posixpath.join(posixpath.dirname(path), HELD_DIRECTORY)
    if not disk.is_dir(directory):
        return
    for after in file_identities(disk, [staged]):
        for inode, was in before:
            if inode != after.inode:
                note = Replacement(path, after.inode, after.size, was)
                place = posixpath.join(directory, f"{_NOTE}{inode}")
                with suppress(OSError, LogFull):
                    write_whole(disk, f"{place}~", [json.dumps(note._asdict()).encode()])
                    disk.rename(f"{place}~", place)


def replacement_of(disk: Disk, path: str, inode: int) -> Replacement | None:
    """Return what took the place of the file with this inode, which was at ``path``."""
    parent = posixpath.dirname(path)
    note = posixpath.join(parent, HELD_DIRECTORY, f"{_NOTE}{inode}")
    try:
        found = Replacement(**json.loads(disk.read_bytes(note)))
        # The same directory, by the reader's name for it: the writer's may be a relative path.
        return found._replace(path=posixpath.join(parent, posixpath.basename(found.path)))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def forget_replacement(disk: Disk, path: str, inode: int) -> None:
    """No stream reads the file with this inode any more."""
    directory = posixpath.join(posixpath.dirname(path), HELD_DIRECTORY)
    with suppress(OSError):
        disk.remove(posixpath.join(directory, f"{_NOTE}{inode}"))

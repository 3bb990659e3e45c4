"""Part files -> a keyspace: files part-00000.jmkv ..., keys ascending in them and across them.

    no directory yet   the parts become its files; it appears by one rename
    otherwise          the parts take the place of all files that are there, by a journal

A keyspace is a map in order, so nothing can be appended to one that has entries: union the two and
overwrite. That keys ascend across parts was seen when their messages were put in order.
"""

from __future__ import annotations

import posixpath

from journeyman.errors import UsageError
from journeyman.formats.keyspace.file import HEADER
from journeyman.logs.publication import finish, journal_path, write_whole
from journeyman.spark.sinks.commit import Write, locked, make_directory, place_files
from journeyman.spark.sinks.staging import SinkDisk, Stream

SUFFIX = ".jmkv"
_LOCK = "_lock"


def file_name(number: int) -> str:
    return f"part-{number:05d}{SUFFIX}"


def check_free(disk: SinkDisk, path: str) -> None:
    """Raises LogLocked if the keyspace is in use, UsageError if none can be there."""
    if disk.exists(path) and not disk.is_dir(path):
        raise UsageError(f"{path} is a file: a keyspace is written as a directory")
    lock = posixpath.join(path, _LOCK)
    with locked(disk, path, [lock] if disk.exists(lock) else []):
        pass


def commit(write: Write) -> None:
    disk, directory = write.disk, write.options.path
    check_free(disk, directory)
    if not disk.is_dir(directory):
        make_directory(write, _files(write))
        return
    journal = journal_path(directory)
    with locked(disk, directory, [posixpath.join(directory, _LOCK)]):
        finish(disk, journal)
        existing = [name for name in disk.list_dir(directory) if name.endswith(SUFFIX)]
        has_entries = any(disk.size(posixpath.join(directory, n)) > len(HEADER) for n in existing)
        if has_entries and not write.overwrite:
            if not write.streams():
                return
            raise UsageError(
                f"{directory} holds a keyspace, and nothing can be appended to one:"
                " union it with what is new and write that elsewhere, or overwrite"
            )
        place_files(write, journal, _files(write), existing)


def _files(write: Write) -> dict[str, str]:
    paths = [part.path for part in write.parts(Stream())]
    if not paths:
        paths = [write.staged("empty")]
        write_whole(write.disk, paths[0], [HEADER])
    return {path: file_name(number) for number, path in enumerate(paths)}

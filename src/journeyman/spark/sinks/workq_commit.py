"""Part files -> a workq command log: numbered segments, each with its header.

    no directory yet     parts become segments 000000001.log ... of a directory that appears by
                         one rename
    no segment yet       the same in the directory that is there, by a journal
    append               all parts become one segment, of whatever size, behind the last: one rename
    overwrite            parts become segments from 000000001.log on, the old ones go, by a journal

append.lock and read.lock are held, as WorkqLog holds them while it recovers.
"""

from __future__ import annotations

import posixpath

from journeyman.columnar.workq.decode import hop
from journeyman.errors import UsageError
from journeyman.formats.workq import CODEC, HEADER
from journeyman.logs.publication import finish, journal_path, put_in_place, write_whole
from journeyman.logs.segments import (
    APPEND_LOCK,
    READ_LOCK,
    NumberedPlan,
    numbered_name,
    workq_segments,
)
from journeyman.spark.sinks.commit import Write, locked, make_directory, place_files, settle_tail
from journeyman.spark.sinks.staging import SinkDisk, Stream


def _locks(directory: str) -> list[str]:
    return [posixpath.join(directory, name) for name in (APPEND_LOCK, READ_LOCK)]


def check_free(disk: SinkDisk, path: str) -> None:
    """Raises LogLocked if the log is in use, UsageError if no log can be there."""
    if disk.exists(path) and not disk.is_dir(path):
        raise UsageError(f"{path} is a file: a workq log is a directory")
    with locked(disk, path, [lock for lock in _locks(path) if disk.exists(lock)]):
        pass


def commit(write: Write) -> None:
    disk, directory = write.disk, write.options.path
    check_free(disk, directory)
    if not disk.is_dir(directory):
        make_directory(write, _segments(write))
        return
    journal = journal_path(directory)
    with locked(disk, directory, _locks(directory)):
        finish(disk, journal)
        existing = workq_segments(disk.list_dir(directory))
        if existing and not write.overwrite:
            _append(write, posixpath.join(directory, existing[-1]))
        else:
            place_files(write, journal, _segments(write), existing)


def _segments(write: Write) -> dict[str, str]:
    """The parts as segments; a log without records is one segment without any."""
    paths = [part.path for part in write.parts(Stream())]
    if not paths:
        paths = [write.staged("empty")]
        write_whole(write.disk, paths[0], [HEADER])
    return {path: numbered_name(number) for number, path in enumerate(paths, 1)}


def _append(write: Write, last: str) -> None:
    parts = write.parts(Stream())
    if not parts:
        return
    disk, directory = write.disk, posixpath.dirname(last)
    following = NumberedPlan(disk, directory, HEADER, 0).next_path(last)
    settle_tail(disk, CODEC, hop, last)
    segment = write.staged("segment")
    disk.concatenate([(p.path, len(HEADER) if at else 0) for at, p in enumerate(parts)], segment)
    put_in_place(disk, segment, following)

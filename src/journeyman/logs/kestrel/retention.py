"""The segments of a kestrel queue in order, and when one of them may go.

    ids         1..2       3..4       5..6       7
    segment     jobs.10    jobs.20    jobs.30    jobs.40 (active)
    heads                     a: 4       b: 6
    may go      yes        yes        no: a still needs 5

A segment goes once every reader has passed it and a later segment holds an item; QueueView.retired
has the rule. So the newest items always stay, and with them the knowledge of which ids were used.
It is deleted, or moved to an archive as ``archive~<name>``. Without any reader nothing goes, since
one may come later.

The positions of readers come from their checkpoints on disk, not from memory, which is ahead. So
the files alone prove at any moment that no reader needs a removed segment.

The order is that of the first ids inside. File numbers follow it, unless files were renamed.
"""

from __future__ import annotations

import errno
import posixpath

from journeyman.disk import Disk
from journeyman.errors import LogError
from journeyman.formats.kestrel import WRITER
from journeyman.logs.kestrel.index import Segment, load_index, remove_index
from journeyman.logs.publication import remove_durably, write_whole
from journeyman.logs.recovery import CHUNK_BYTES, FileReport, recover_entries
from journeyman.logs.segments import TEMPORARY_MARK, kestrel_archive_name


def recover_segments(
    disk: Disk, paths: list[str], *, thorough: bool = False
) -> tuple[list[Segment], list[FileReport]]:
    """What each segment holds, in the order given. All but the last go if they hold nothing.

    Those that have an index are not read, unless ``thorough``; the last one, which may have been
    cut off, always is.
    """
    segments: list[Segment] = []
    reports: list[FileReport] = []
    for path in paths:
        known = None if thorough or path == paths[-1] else load_index(disk, path)
        if known is not None:
            segments.append(known)
            continue
        segment = Segment(path)
        report = recover_entries(
            disk, WRITER, path, segment.note_entry, each_seal=segment.note_seal
        )
        reports.append(report)
        if not report.gone and not report.records and path != paths[-1]:
            remove_durably(disk, path)
        elif not report.gone:
            segments.append(segment)
    return segments, reports


def retire_segment(disk: Disk, path: str, archive_directory: str | None) -> str | None:
    """Delete a segment, or move it to the archive; where it is then.

    What a crash or a failed sync left half done, the next time finishes.
    """
    target = None
    if archive_directory is not None:
        disk.make_dirs(archive_directory)
        target = posixpath.join(archive_directory, kestrel_archive_name(posixpath.basename(path)))
        if not disk.exists(target):
            _move(disk, path, target)
        elif disk.exists(path) and not _same(disk, path, target):
            raise LogError(target, "the archive holds another segment of this name")
        disk.sync_dir(archive_directory)
    if disk.exists(path):
        disk.remove(path)
    disk.sync_dir(posixpath.dirname(path) or ".")
    remove_index(disk, path)
    return target


def _move(disk: Disk, path: str, target: str) -> None:
    """To a directory that may be on another file system; then the segment is still here too."""
    try:
        disk.rename(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = f"{target}{TEMPORARY_MARK}copying"
        places = range(0, disk.size(path), CHUNK_BYTES)
        write_whole(disk, temporary, (disk.read_at(path, at, CHUNK_BYTES) for at in places))
        disk.rename(temporary, target)


def _same(disk: Disk, path: str, other: str) -> bool:
    size = disk.size(path)
    return disk.size(other) == size and all(
        disk.read_at(path, at, CHUNK_BYTES) == disk.read_at(other, at, CHUNK_BYTES)
        for at in range(0, size, CHUNK_BYTES)
    )

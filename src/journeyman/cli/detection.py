"""Which logs the paths on the command line mean, and in which dialect.

    a file       by its first bytes, then by its name
    a directory  see journeyman.cli.directories

Files of one workq directory, or of one kestrel queue, that are given together are one log, read
in the order of its segments. A ztick path stands for that file alone, as it does for the
original; what reads a whole ztick log (verify, repair, ``dump --compact``) adds the files that
compaction has put beside it.

When nothing fits, nothing is guessed: UsageError says what to give.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from contextlib import suppress

from journeyman.cli.dialects import KESTREL, WORKQ, ZTICK, Log, LogFile
from journeyman.cli.directories import (
    logs_in,
    old_journal_words,
    without_companion,
    ztick_files,
)
from journeyman.disk import Disk
from journeyman.errors import FormatError, IncompleteEntry, UsageError
from journeyman.logs.kestrel.kestrel2_files import is_old_journal
from journeyman.logs.segments import kestrel_number, kestrel_reader, workq_sequence

_PEEK_BYTES = 64 * 1024


def find_logs(
    disk: Disk, paths: Sequence[str], *, dialect: str | None = None, queue: str | None = None
) -> list[Log]:
    """The logs that these paths mean, in the order given."""
    logs: dict[tuple[str, str, str | None], Log] = {}
    for path in paths:
        for log in _at(disk, path, dialect, queue):
            key = (log.dialect, log.where, log.queue)
            logs[key] = _merged(logs[key], log) if key in logs else log
    return list(logs.values())


def _at(disk: Disk, path: str, dialect: str | None, queue: str | None) -> list[Log]:
    if disk.is_dir(path):
        return logs_in(disk, path.rstrip("/") or "/", dialect, queue)
    if disk.exists(path):
        with suppress(FileNotFoundError):  # renamed since, by a compaction
            return [_of_file(disk, path, dialect, queue)]
    if ztick_files(disk, path) and dialect in (None, ZTICK):
        # Between a compaction and the next write the original has no active file.
        return [Log(ZTICK, path, (LogFile(ZTICK, path),), whole=False)]
    raise FileNotFoundError(2, "No such file or directory", path)


def find_whole_logs(
    disk: Disk, path: str, *, dialect: str | None = None, queue: str | None = None
) -> list[Log]:
    """The logs at one path, for commands that change them: a part of a log is refused."""
    logs = find_logs(disk, [path], dialect=dialect, queue=queue)
    for log in logs:
        if log.dialect == ZTICK:
            active = without_companion(log.where)
            if active != log.where and ztick_files(disk, active):
                raise UsageError(f"{log.where} is a part of a log: give {active}")
        elif not log.whole:
            raise UsageError(f"{path} is a part of a log: give its directory, {log.where}")
    return logs


def _of_file(disk: Disk, path: str, dialect: str | None, queue: str | None) -> Log:
    if queue is not None:
        raise UsageError(f"--queue needs a directory of queues, and {path} is a file")
    directory, name = posixpath.split(path)
    directory = directory or "."
    dialect = dialect or _file_dialect(disk, path, name)
    if dialect == ZTICK:
        return Log(ZTICK, path, (LogFile(ZTICK, path),), whole=False)
    if dialect == WORKQ:
        return Log(WORKQ, directory, (LogFile(WORKQ, path),), whole=False)
    return _kestrel_file(disk, path, directory, name)


def _file_dialect(disk: Disk, path: str, name: str) -> str:
    from journeyman.formats import kestrel, workq

    if is_old_journal(disk, path):
        raise UsageError(old_journal_words(path, posixpath.dirname(path) or "."))
    head = disk.read_at(path, 0, _PEEK_BYTES)
    if workq_sequence(name) is not None or head.startswith(workq.HEADER[:4]):
        return WORKQ
    if head.startswith((kestrel.WRITER_MAGIC, kestrel.READER_MAGIC)):
        return KESTREL
    if head and _begins_as_ztick(head):
        return ZTICK
    if _names_kestrel(name):
        return KESTREL
    if not head:
        return ZTICK  # the only one of the three whose empty log is an empty file
    raise UsageError(f"{path} looks like no log of any dialect: say which with --dialect")


def _begins_as_ztick(head: bytes) -> bool:
    """The first frame is right, or goes beyond what was looked at, or a later one is right."""
    from journeyman.formats.ztick import CODEC

    try:
        return CODEC.decode(head, 0) is not None
    except IncompleteEntry:
        return CODEC.is_torn(head, 0) or CODEC.resync(head, 1) is not None
    except FormatError:
        return CODEC.resync(head, 1) is not None


def _names_kestrel(name: str) -> bool:
    queue = name.partition(".")[0]
    return kestrel_number(queue, name) is not None or kestrel_reader(queue, name) is not None


def _kestrel_file(disk: Disk, path: str, directory: str, name: str) -> Log:
    from journeyman.formats.kestrel import READER_MAGIC

    queue = name.partition(".")[0]
    reader = kestrel_reader(queue, name)
    if reader is None and kestrel_number(queue, name) is None:
        # Under a foreign name only the first bytes can tell what kind of file it is.
        reader = name if disk.read_at(path, 0, 4) == READER_MAGIC else None
    return Log(KESTREL, directory, (LogFile(KESTREL, path, reader),), whole=False, queue=queue)


def _merged(first: Log, second: Log) -> Log:
    """Both, as one log, each file once, in reading order."""
    by_path = {os.path.abspath(file.path): file for file in (*second.files, *first.files)}
    files = sorted(by_path.values(), key=_reading_order)
    whole = first.whole or second.whole
    return Log(first.dialect, first.where, tuple(files), whole=whole, queue=first.queue)


def _reading_order(file: LogFile) -> tuple[bool, int, str]:
    number = None
    if file.dialect == WORKQ:
        number = workq_sequence(file.name)
    elif file.reader is None:
        number = kestrel_number(file.name.partition(".")[0], file.name)
    return file.reader is not None, number or 0, file.name

"""Which logs a directory holds, and which files make up each of them now.

    000000001.log ...                    a workq log (an empty one may have only its append.lock)
    <queue>.<number>, <queue>.read.      one kestrel log for each queue
    logfile, or one file that is ztick   that ztick log
    a data directory of the server       all three: schedule.log, workq/ and kestrel/

When more than one dialect fits, or more than one ztick log, nothing is guessed: UsageError says
what to give.
"""

from __future__ import annotations

import posixpath

from journeyman.cli.dialects import KESTREL, WORKQ, ZTICK, Log, LogFile
from journeyman.cli.errors import warn
from journeyman.config.data_directory import KESTREL_DIRECTORY, SCHEDULE_LOG, WORKQ_DIRECTORY
from journeyman.disk import Disk
from journeyman.errors import UsageError
from journeyman.logs.kestrel.kestrel2_files import find_old_journals
from journeyman.logs.segments import (
    APPEND_LOCK,
    ZtickNames,
    kestrel_queues,
    kestrel_readers,
    kestrel_segments,
    workq_segments,
)

DEFAULT_ZTICK_NAME = "logfile"  # of the original
_PEEK_BYTES = 64 * 1024
_ZTICK_COMPANIONS = (".compressed.tmp", ".compressed", ".to_compress", ".lock")


def relisted(disk: Disk, log: Log, *, compacted: bool = False) -> Log:
    """The log with the files it has now, if all of it was asked for.

    ``compacted``: of a ztick log also those that compaction put beside it, in load order.
    """
    if log.dialect == ZTICK:
        if not compacted:
            return log
        files = tuple(LogFile(ZTICK, path) for path in ztick_files(disk, log.where))
        return Log(ZTICK, log.where, files, whole=True)
    if not log.whole:
        return log
    names, _ = _names_in(disk, log.where)
    return _workq(log.where, names) if log.queue is None else _queue(log.where, names, log.queue)


def ztick_files(disk: Disk, active: str) -> list[str]:
    """The files of a ztick log that exist, in load order."""
    names = ZtickNames(active)
    in_order = (names.compressed, names.to_compress, names.active)
    return [path for path in in_order if disk.exists(path)]


def logs_in(disk: Disk, path: str, dialect: str | None, queue: str | None) -> list[Log]:
    """The logs in a directory; ``dialect`` and ``queue`` narrow them down."""
    if queue is not None and dialect is None:
        dialect = KESTREL
    if kept := logs_of_data_directory(disk, path):
        return _narrowed(kept, path, dialect, queue)
    names, old = _names_in(disk, path)
    if old and names == [] and queue is None:
        raise UsageError(old_journal_words(", ".join(old), path))
    if old:
        warn(old_journal_words(", ".join(old), path))
    if dialect is None:
        dialect = _directory_dialect(disk, path, names)
    if dialect == WORKQ:
        if not workq_segments(names) and APPEND_LOCK not in names:
            raise UsageError(f"no workq segment in {path}: give the directory of a log")
        return [_workq(path, names)]
    if dialect == KESTREL:
        return _queues(path, names, queue)
    return [_ztick_in_directory(disk, path, names)]


def logs_of_data_directory(disk: Disk, path: str) -> list[Log]:
    """The logs of a data directory, as `serve --data` has them; none if it is no such directory.

    The subdirectories make it one. A directory with a schedule.log alone is like any other.
    """
    workq = _logs_at(disk, posixpath.join(path, WORKQ_DIRECTORY), WORKQ)
    kestrel = _logs_at(disk, posixpath.join(path, KESTREL_DIRECTORY), KESTREL)
    if not (workq or kestrel):
        return []
    active = posixpath.join(path, SCHEDULE_LOG)
    ztick = [Log(ZTICK, active, (LogFile(ZTICK, active),), whole=True)]
    return [*(ztick if ztick_files(disk, active) else []), *workq, *kestrel]


def _logs_at(disk: Disk, path: str, dialect: str) -> list[Log]:
    if not disk.is_dir(path):
        return []
    names, old = _names_in(disk, path)
    if dialect in _dialects(disk, path, names):
        return logs_in(disk, path, dialect, None)
    if old and dialect == KESTREL:
        warn(old_journal_words(", ".join(old), path))
    return []


def _narrowed(logs: list[Log], path: str, dialect: str | None, queue: str | None) -> list[Log]:
    """Those of the dialect and of the queue, if these are given."""
    found = [log for log in logs if dialect in (None, log.dialect) and queue in (None, log.queue)]
    if not found:
        what = f"queue {queue!r}" if queue is not None else f"{dialect} log"
        raise UsageError(f"no {what} in the data directory {path}")
    return found


def old_journal_words(what: str, directory: str) -> str:
    """What is said of journals that only ``import-kestrel`` reads."""
    return (
        f"{what}: journal of kestrel 1.x or 2.x, not read here: "
        f"`journeyman import-kestrel {directory}` imports it"
    )


def _names_in(disk: Disk, path: str) -> tuple[list[str], list[str]]:
    """The files of a directory, and the queues whose journals are of kestrel 1.x or 2.x."""
    names = [name for name in disk.list_dir(path) if not disk.is_dir(posixpath.join(path, name))]
    found = find_old_journals(disk, path, names)
    old = {name for files in found.values() for name in files.names}
    return [name for name in names if name not in old], list(found)


def _directory_dialect(disk: Disk, path: str, names: list[str]) -> str:
    found = _dialects(disk, path, names)
    if len(found) > 1:
        what = " and of ".join(found)
        raise UsageError(f"{path} holds files of {what}: choose with --dialect")
    if not found:
        raise UsageError(f"no log of any dialect in {path}: give the path of a log")
    return found[0]


def all_logs_in(disk: Disk, path: str) -> list[Log]:
    """Every log in a directory, of whatever dialect; none is no error."""
    names, _ = _names_in(disk, path)
    logs: list[Log] = []
    for dialect in _dialects(disk, path, names):
        if dialect == ZTICK:
            others = _not_of_queues(names, _real_queues(disk, path, names))
            active = [posixpath.join(path, name) for name in _ztick_logs(disk, path, others)]
            logs += [Log(ZTICK, each, (LogFile(ZTICK, each),), whole=True) for each in active]
        else:
            logs += logs_in(disk, path, dialect, None)
    return logs


def _dialects(disk: Disk, path: str, names: list[str]) -> list[str]:
    found = []
    if workq_segments(names) or APPEND_LOCK in names:
        found.append(WORKQ)
    queues = _real_queues(disk, path, names)
    if queues:
        found.append(KESTREL)
    if _ztick_logs(disk, path, _not_of_queues(names, queues)):
        found.append(ZTICK)
    return found


def _not_of_queues(names: list[str], queues: list[str]) -> list[str]:
    return [name for name in names if name.partition(".")[0] not in queues]


def _real_queues(disk: Disk, path: str, names: list[str]) -> list[str]:
    """Queues with at least one file that begins as a journal does, or is too short to tell.

    ``<name>.<number>`` is a common way to keep old files of any kind, so the name alone does not
    make a directory kestrel's.
    """
    from journeyman.formats.kestrel import READER_MAGIC, WRITER_MAGIC

    found = []
    for queue in kestrel_queues(names):
        own = [*kestrel_segments(queue, names), *kestrel_readers(queue, names).values()]
        heads = [disk.read_at(posixpath.join(path, name), 0, 4) for name in own]
        if any(WRITER_MAGIC.startswith(head) or READER_MAGIC.startswith(head) for head in heads):
            found.append(queue)
    return found


def _workq(path: str, names: list[str]) -> Log:
    segments = [posixpath.join(path, name) for name in workq_segments(names)]
    return Log(WORKQ, path, tuple(LogFile(WORKQ, each) for each in segments), whole=True)


def _queues(path: str, names: list[str], queue: str | None) -> list[Log]:
    queues = kestrel_queues(names)
    if not queues:
        raise UsageError(f"no kestrel queue in {path}: give the directory of one")
    if queue is not None:
        if queue not in queues:
            raise UsageError(f"no queue {queue!r} in {path}; its queues: {', '.join(queues)}")
        queues = [queue]
    return [_queue(path, names, each) for each in queues]


def _queue(path: str, names: list[str], queue: str) -> Log:
    segments = [
        LogFile(KESTREL, posixpath.join(path, name)) for name in kestrel_segments(queue, names)
    ]
    readers = [
        LogFile(KESTREL, posixpath.join(path, name), reader)
        for reader, name in kestrel_readers(queue, names).items()
    ]
    return Log(KESTREL, path, (*segments, *readers), whole=True, queue=queue)


def _ztick_in_directory(disk: Disk, path: str, names: list[str]) -> Log:
    logs = _ztick_logs(disk, path, names)
    if not logs:
        raise UsageError(f"no ztick log in {path}: give the path of a log file")
    if len(logs) > 1:
        shown = ", ".join(logs[:5]) + (", ..." if len(logs) > 5 else "")
        raise UsageError(f"several ztick logs in {path} ({shown}): give the path of one")
    active = posixpath.join(path, logs[0])
    return Log(ZTICK, active, (LogFile(ZTICK, active),), whole=True)


def _ztick_logs(disk: Disk, path: str, names: list[str]) -> list[str]:
    """Names of active files; the one with the original's default name alone, if it is there."""
    if DEFAULT_ZTICK_NAME in names:
        return [DEFAULT_ZTICK_NAME]
    active = sorted({without_companion(name) for name in names})
    return [name for name in active if _holds_ztick(disk, posixpath.join(path, name))]


def without_companion(name: str) -> str:
    """The active file that this ztick file belongs to; itself unless it is a companion."""
    for suffix in _ZTICK_COMPANIONS:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _holds_ztick(disk: Disk, active: str) -> bool:
    from journeyman.formats.ztick import CODEC

    heads = (disk.read_at(path, 0, _PEEK_BYTES) for path in ztick_files(disk, active))
    return any(CODEC.resync(head, 0) is not None for head in heads)

"""Detection of the logs that the paths on a command line mean, when no dialect is given.

    a file                                 by its first bytes, then by its name
    000000001.log ...                      a workq log (an empty one may have only its append.lock)
    <queue>.<number>, <queue>.read.        one kestrel log for each queue
    logfile, or one file that is ztick     that ztick log
    000000001.ledger ...                   a ledger (an empty one may have only its ledger.lock)
    a data directory of the server         all of them: schedule.log, workq/, kestrel/ and ledger/

Files of one workq directory, ledger or kestrel queue, that are given together are one log, read
in the order of its segments. A ztick path stands for that file alone, as it does for the
original; what reads a whole ztick log (verify, repair, ``dump --compact``) adds the files that
compaction has put beside it.

When nothing fits, or more than one dialect, or more than one ztick log, nothing is guessed:
UsageError says what to give.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from journeyman.data_directory import (
    KESTREL_DIRECTORY,
    LEDGER_DIRECTORY,
    SCHEDULE_LOG,
    WORKQ_DIRECTORY,
)
from journeyman.disk import ReadingDisk, absolute
from journeyman.errors import FormatError, IncompleteEntry, LogError, UsageError
from journeyman.logs import catalog, segments
from journeyman.logs.indexes import INDEX_DIRECTORY
from journeyman.logs.kestrel.old_journals import find_old_journals, is_old_journal
from journeyman.logs.publication import Publication, journal_path, paths_after, pending

_PEEK_BYTES = 64 * 1024
_ZTICK_COMPANIONS = (".compressed.tmp", ".compressed", ".to_compress", ".lock")


def relist(disk: ReadingDisk, log: catalog.Log, *, compacted: bool = False) -> catalog.Log:
    """The log with the files it has now, if all of it was asked for.

    ``compacted``: of a ztick log also those that compaction put beside it, in load order.
    """
    if log.dialect == catalog.ZTICK:
        if not compacted:
            return log
        paths = segments.ztick_files(disk, log.where)
        files = tuple(catalog.LogFile(catalog.ZTICK, path) for path in paths)
        return catalog.Log(catalog.ZTICK, log.where, files, whole=True)
    if not log.whole:
        return log
    names, _ = _names_in(disk, log.where)
    if log.queue is not None:
        return _queue(log.where, names, log.queue)
    return _numbered(disk, log.dialect, log.where, names)


class LogFinder:
    """Looks for logs on a disk; ``warn`` is called for journals that nothing here reads.

    ``errors`` takes what keeps one of several logs from being looked at; without it, that is
    raised.
    """

    def __init__(
        self, disk: ReadingDisk, warn: Callable[[str], None], errors: list[OSError] | None = None
    ) -> None:
        self._disk = disk
        self._warn = warn
        self._errors = errors

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Around what is done for one log of several."""
        try:
            yield
        except OSError as error:
            if self._errors is None:
                raise
            self._errors.append(error)

    def find(
        self, paths: Sequence[str], *, dialect: str | None = None, queue: str | None = None
    ) -> list[catalog.Log]:
        """The logs that these paths mean, in the order given."""
        logs: dict[tuple[str, str, str | None], catalog.Log] = {}
        for path in paths:
            for log in self._at(path, dialect, queue):
                key = (log.dialect, log.where, log.queue)
                logs[key] = _merged(logs[key], log) if key in logs else log
        return list(logs.values())

    def find_whole(
        self, path: str, *, dialect: str | None = None, queue: str | None = None
    ) -> list[catalog.Log]:
        """The logs at one path, for commands that change them: a part of a log is refused."""
        logs = self.find([path], dialect=dialect, queue=queue)
        for log in logs:
            if log.dialect == catalog.ZTICK:
                active = _without_companion(log.where)
                if active != log.where and segments.ztick_files(self._disk, active):
                    raise UsageError(f"{log.where} is a part of a log: give {active}")
            elif not log.whole:
                raise UsageError(f"{path} is a part of a log: give its directory, {log.where}")
        return logs

    def find_all(self, path: str) -> list[catalog.Log]:
        """Every log in a directory or data directory, of whatever dialect; maybe none."""
        if kept := self._in_data_directory(path):
            return kept
        names, _ = _names_in(self._disk, path)
        logs: list[catalog.Log] = []
        for dialect in self._dialects(path, names):
            if dialect == catalog.ZTICK:
                others = _not_of_queues(names, self._real_queues(path, names))
                logs += [_ztick(path, name) for name in self._ztick_names(path, others)]
            else:
                logs += self._in_directory(path, dialect, None)
        return logs

    def _at(self, path: str, dialect: str | None, queue: str | None) -> list[catalog.Log]:
        if self._disk.is_dir(path):
            return self._in_directory(path.rstrip("/") or "/", dialect, queue)
        if self._disk.exists(path):
            with suppress(FileNotFoundError):  # renamed since, by a compaction
                return [self._of_file(path, dialect, queue)]
        if segments.ztick_files(self._disk, path) and dialect in (None, catalog.ZTICK):
            # Between a compaction and the next write the original has no active file.
            return [catalog.Log(catalog.ZTICK, path, (catalog.LogFile(catalog.ZTICK, path),))]
        raise FileNotFoundError(2, "No such file or directory", path)

    def _of_file(self, path: str, dialect: str | None, queue: str | None) -> catalog.Log:
        if queue is not None:
            raise UsageError(f"--queue needs a directory of queues, and {path} is a file")
        directory, name = posixpath.split(path)
        directory = directory or "."
        dialect = dialect or self._file_dialect(path, name)
        if dialect == catalog.ZTICK:
            return catalog.Log(catalog.ZTICK, path, (catalog.LogFile(catalog.ZTICK, path),))
        if dialect in (catalog.WORKQ, catalog.LEDGER):
            return catalog.Log(dialect, directory, (catalog.LogFile(dialect, path),))
        queue, reader = catalog.kestrel_names(path, self._disk)
        return catalog.Log(
            catalog.KESTREL,
            directory,
            (catalog.LogFile(catalog.KESTREL, path, reader, queue),),
            queue=queue,
        )

    def _file_dialect(self, path: str, name: str) -> str:
        from journeyman.formats import kestrel, ledger, workq

        if is_old_journal(self._disk, path):
            raise UsageError(_old_journal_message(path))
        head = self._disk.read_at(path, 0, _PEEK_BYTES)
        if segments.workq_sequence(name) is not None or head.startswith(workq.HEADER[:4]):
            return catalog.WORKQ
        if segments.ledger_sequence(name) is not None or head.startswith(ledger.HEADER[:4]):
            return catalog.LEDGER
        if head.startswith((kestrel.WRITER_MAGIC, kestrel.READER_MAGIC)):
            return catalog.KESTREL
        if head and _begins_as_ztick(head):
            return catalog.ZTICK
        if segments.is_kestrel_name(name):
            return catalog.KESTREL
        if not head:
            return catalog.ZTICK  # the only one of the three whose empty log is an empty file
        raise UsageError(f"{path} is not recognized as a log: name its dialect with --dialect")

    def _in_directory(self, path: str, dialect: str | None, queue: str | None) -> list[catalog.Log]:
        """The logs in a directory; ``dialect`` and ``queue`` narrow them down."""
        if queue is not None and dialect is None:
            dialect = catalog.KESTREL
        if kept := self._in_data_directory(path):
            return _narrowed(kept, path, dialect, queue)
        names, old = _names_in(self._disk, path)
        indexes = posixpath.join(path, INDEX_DIRECTORY)
        if self._disk.exists(indexes) and not self._disk.is_dir(indexes):
            self._warn(f"{indexes} is not a directory and is ignored; remove it")
        if old and names == [] and queue is None:
            raise UsageError(_old_journal_message(path, *old))
        if old:
            self._warn(_old_journal_message(path, *old))
        if dialect is None:
            dialect = self._only_dialect(path, names)
        if dialect == catalog.WORKQ:
            if not segments.workq_segments(names) and segments.APPEND_LOCK not in names:
                raise UsageError(f"no workq segment in {path}: give the directory of a log")
            return [_numbered(self._disk, catalog.WORKQ, path, names)]
        if dialect == catalog.LEDGER:
            if not segments.ledger_segments(names) and segments.LEDGER_LOCK not in names:
                raise UsageError(f"no segment of a ledger in {path}: give the directory of one")
            return [_numbered(self._disk, catalog.LEDGER, path, names)]
        return (
            _queues(path, names, queue)
            if dialect == catalog.KESTREL
            else [self._only_ztick(path, names)]
        )

    def _in_data_directory(self, path: str) -> list[catalog.Log]:
        """The logs of a data directory, as `serve --data` has them; none if it is not one.

        The subdirectories make it one. A directory with a schedule.log alone is like any other.
        """
        workq = self._subdirectory(posixpath.join(path, WORKQ_DIRECTORY), catalog.WORKQ)
        kestrel = self._subdirectory(posixpath.join(path, KESTREL_DIRECTORY), catalog.KESTREL)
        ledger = self._subdirectory(posixpath.join(path, LEDGER_DIRECTORY), catalog.LEDGER)
        if not (workq or kestrel or ledger):
            return []
        has_schedule = segments.ztick_files(self._disk, posixpath.join(path, SCHEDULE_LOG))
        schedule = [_ztick(path, SCHEDULE_LOG)] if has_schedule else []
        return [*schedule, *workq, *kestrel, *ledger]

    def _subdirectory(self, path: str, dialect: str) -> list[catalog.Log]:
        with self.noting():
            if not self._disk.is_dir(path):
                return []
            names, old = _names_in(self._disk, path)
            if dialect in self._dialects(path, names):
                return self._in_directory(path, dialect, None)
            if old and dialect == catalog.KESTREL:
                self._warn(_old_journal_message(path, *old))
        return []

    def _only_dialect(self, path: str, names: list[str]) -> str:
        found = self._dialects(path, names)
        if len(found) > 1:
            what = " and of ".join(found)
            raise UsageError(f"{path} holds files of {what}: choose with --dialect")
        if not found:
            raise UsageError(f"no log of any dialect in {path}: give the path of a log")
        return found[0]

    def _dialects(self, path: str, names: list[str]) -> list[str]:
        found = []
        if segments.workq_segments(names) or segments.APPEND_LOCK in names:
            found.append(catalog.WORKQ)
        if segments.ledger_segments(names) or segments.LEDGER_LOCK in names:
            found.append(catalog.LEDGER)
        queues = self._real_queues(path, names)
        if queues:
            found.append(catalog.KESTREL)
        if self._ztick_names(path, _not_of_queues(names, queues)):
            found.append(catalog.ZTICK)
        return found

    def _real_queues(self, path: str, names: list[str]) -> list[str]:
        """Queues with at least one file that begins as a journal does, or is too short to tell.

        ``<name>.<number>`` is a common way to keep old files of any kind, so the name alone does
        not make a directory kestrel's.
        """
        from journeyman.formats.kestrel import READER_MAGIC, WRITER_MAGIC

        found = []
        for queue in segments.kestrel_queues(names):
            own = [
                *segments.kestrel_segments(queue, names),
                *segments.kestrel_readers(queue, names).values(),
            ]
            heads = [self._disk.read_at(posixpath.join(path, name), 0, 4) for name in own]
            if any(WRITER_MAGIC.startswith(h) or READER_MAGIC.startswith(h) for h in heads):
                found.append(queue)
        return found

    def _only_ztick(self, path: str, names: list[str]) -> catalog.Log:
        logs = self._ztick_names(path, names)
        if not logs:
            raise UsageError(f"no ztick log in {path}: give the path of a log file")
        if len(logs) > 1:
            shown = ", ".join(logs[:5]) + (", ..." if len(logs) > 5 else "")
            raise UsageError(f"several ztick logs in {path} ({shown}): give the path of one")
        return _ztick(path, logs[0])

    def _ztick_names(self, path: str, names: list[str]) -> list[str]:
        """Names of active files; the one with the original's default name alone, if it is there."""
        if catalog.DEFAULT_ZTICK_NAME in names:
            return [catalog.DEFAULT_ZTICK_NAME]
        active = sorted({_without_companion(name) for name in names})
        return [name for name in active if self._holds_ztick(posixpath.join(path, name))]

    def _holds_ztick(self, active: str) -> bool:
        from journeyman.formats.ztick import CODEC

        paths = segments.ztick_files(self._disk, active)
        heads = (self._disk.read_at(path, 0, _PEEK_BYTES) for path in paths)
        return any(CODEC.resync(head, 0) is not None for head in heads)


def _begins_as_ztick(head: bytes) -> bool:
    """The first frame is right, or goes beyond what was looked at, or a later one is right."""
    from journeyman.formats.ztick import CODEC

    try:
        return CODEC.decode(head, 0) is not None
    except IncompleteEntry:
        return CODEC.is_torn(head, 0) or CODEC.resync(head, 1) is not None
    except FormatError:
        return CODEC.resync(head, 1) is not None


def _without_companion(name: str) -> str:
    """The active file that this ztick file belongs to; itself unless it is a companion."""
    for suffix in _ZTICK_COMPANIONS:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _names_in(disk: ReadingDisk, path: str) -> tuple[list[str], list[str]]:
    """The files of a directory, and the queues whose journals are of kestrel 1.x or 2.x."""
    names = [
        name
        for name in disk.list_dir(path)
        if name != INDEX_DIRECTORY and not disk.is_dir(posixpath.join(path, name))
    ]
    found = find_old_journals(disk, path, names)
    old = {name for files in found.values() for name in files}
    return [name for name in names if name not in old], list(found)


def _not_of_queues(names: list[str], queues: list[str]) -> list[str]:
    return [name for name in names if name.partition(".")[0] not in queues]


def _old_journal_message(path: str, *queues: str) -> str:
    of_queues = f" ({', '.join(queues)})" if queues else ""
    return f"{path}: journal of kestrel 1.x or 2.x{of_queues}: only kestrel 1.x or 2.x reads it"


def _narrowed(
    logs: list[catalog.Log], path: str, dialect: str | None, queue: str | None
) -> list[catalog.Log]:
    """Return the logs of the dialect and of the queue, if these are given."""
    found = [log for log in logs if dialect in (None, log.dialect) and queue in (None, log.queue)]
    if not found:
        what = f"queue {queue!r}" if queue is not None else f"{dialect} log"
        raise UsageError(f"no {what} in the data directory {path}")
    return found


def _ztick(directory: str, name: str) -> catalog.Log:
    active = posixpath.join(directory, name)
    return catalog.Log(catalog.ZTICK, active, (catalog.LogFile(catalog.ZTICK, active),), whole=True)


def _numbered(disk: ReadingDisk, dialect: str, path: str, names: list[str]) -> catalog.Log:
    """A change of its files that was cut short counts as done: the next open carries it through."""
    own = (
        segments.workq_segments(names)
        if dialect == catalog.WORKQ
        else segments.ledger_segments(names)
    )
    change = None
    with suppress(LogError):  # a damaged journal: the next open sets it aside
        change = pending(disk, journal_path(path))
    paths = paths_after(disk, path, change or Publication({}), own)
    return catalog.Log(
        dialect, path, tuple(catalog.LogFile(dialect, each) for each in paths), whole=True
    )


def _queues(path: str, names: list[str], queue: str | None) -> list[catalog.Log]:
    queues = segments.kestrel_queues(names)
    if not queues:
        raise UsageError(f"no kestrel queue in {path}: give the directory of one")
    if queue is not None:
        if queue not in queues:
            raise UsageError(f"no queue {queue!r} in {path}; its queues: {', '.join(queues)}")
        queues = [queue]
    return [_queue(path, names, each) for each in queues]


def _queue(path: str, names: list[str], queue: str) -> catalog.Log:
    own = [(name, None) for name in segments.kestrel_segments(queue, names)]
    readers = [(name, reader) for reader, name in segments.kestrel_readers(queue, names).items()]
    files = [
        catalog.LogFile(catalog.KESTREL, posixpath.join(path, name), reader, queue)
        for name, reader in (*own, *readers)
    ]
    return catalog.Log(catalog.KESTREL, path, tuple(files), whole=True, queue=queue)


def _merged(first: catalog.Log, second: catalog.Log) -> catalog.Log:
    """Both, as one log, each file once, in reading order."""
    by_path = {absolute(file.path): file for file in (*second.files, *first.files)}
    files = tuple(sorted(by_path.values(), key=catalog.reading_order))
    return replace(first, files=files, whole=first.whole or second.whole)

"""The checkpoints of a kestrel queue: how far each reader has come, one small file per reader.

    <queue>.read.<reader>          READ_HEAD, then READ_DONE with ids ascending, always both, sealed
    <queue>.read.<reader>~~<ms>    the next one, being written
    <queue>.read.                  the default reader's; there is none beside named readers
    .index/<queue>                 the names of the readers if there are several, a list in JSON

    step                                       a crash before the next step leaves
    1 write and sync the ~~ file               the old checkpoint; opening removes the ~~ file
    2 rename it over the old, sync directory   the new one

One whose seal does not match, that cannot be read completely, or that has ids no queue can have
reached, is not trusted: it is copied to quarantine/, and its reader starts at the
oldest item. Delivering twice is better than never.

One that is missing although ``.index/<queue>`` names its reader is lost, and its reader starts at
the oldest item too. The list is a hint: where another program has written to the queue since, it
may have dropped the reader, and the list says nothing.

What ``durable`` holds is on disk. Retention uses nothing else.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from journeyman.disk import Disk
from journeyman.errors import LogError
from journeyman.folds.kestrel import DEFAULT_READER, Reader, fold_reader, snapshot_reader
from journeyman.formats.framing import Buffer, Entry
from journeyman.formats.kestrel import READER, SEALS, Record
from journeyman.formats.seals import stamp_of
from journeyman.logs.indexes import index_path
from journeyman.logs.publication import put_in_place, remove_durably, write_whole
from journeyman.logs.recovery import FileReport, copy_aside, inspect_file
from journeyman.logs.sealing import has_seals, sealed
from journeyman.logs.segments import TEMPORARY_MARK, kestrel_reader_name, kestrel_readers


class Checkpoints:
    """The checkpoint files of one queue. Not thread-safe."""

    def __init__(self, disk: Disk, directory: str, queue: str, *, seal: bool = True) -> None:
        self._disk = disk
        self._seal = seal
        self._directory = directory
        self._queue = queue
        self.durable: dict[str, Reader] = {}

    def load(
        self, names: Iterable[str], tail: int, *, is_ours: bool = False
    ) -> tuple[dict[str, Reader | None], list[FileReport]]:
        """Every reader among these file names; None for one whose checkpoint is not trusted.

        ``is_ours``: no other program has written to the segments since this one did.
        """
        readers: dict[str, Reader | None] = {}
        reports: list[FileReport] = []
        for name, file in kestrel_readers(self._queue, names).items():
            path = posixpath.join(self._directory, file)
            entries: list[Entry[Record]] = []
            report = inspect_file(self._disk, READER, path, entries.append)
            reader = fold_reader((entry.record for entry in entries), name=name)
            # Zeros after the last record are not damage, a file of zeros is.
            whole = all(d.kind == "padding" and d.offset > 0 for d in report.damages)
            if whole and reader.is_plausible(tail):
                readers[name] = reader
            else:
                data = self._disk.view(path)
                copy = copy_aside(self._disk, path, data, 0, len(data))
                readers[name] = None
                report = replace(report, quarantined=(copy,))
            reports.append(report)
            is_ours = is_ours and has_seals(SEALS, self._disk.view(path))
        if is_ours:
            lost = self._listed() - readers.keys() - {DEFAULT_READER}
            readers |= dict.fromkeys(sorted(lost))
        return readers, reports

    def save_opened(
        self, read: Mapping[str, Reader | None], opened: Mapping[str, Reader], now_ms: int
    ) -> None:
        """Make the files say what the queue was opened with.

        A reader without a checkpoint it can trust gets one at once: were it left to the first
        checkpoint, a crash before that would start it elsewhere, past items put meanwhile.
        """
        for name, reader in opened.items():
            before = read.get(name)
            if before is None:
                self.write(name, reader, now_ms)
            elif before.head > reader.head:  # it was not believed
                data = self._disk.view(self._path(name))
                copy_aside(self._disk, self._path(name), data, 0, len(data))
                # That its id was given out, should it have been, must still be known.
                self.write(name, Reader(reader.head, {*reader.done, before.head}), now_ms)
                self.durable[name] = _copy(reader)
            else:
                self.durable[name] = _copy(reader)
        for name in read:
            if name not in opened:
                remove_durably(self._disk, self._path(name))
        self._list(self.durable)

    def write(self, name: str, reader: Reader, now_ms: int) -> None:
        """Replace a reader's checkpoint. Durable when this returns."""
        path = self._path(name)
        head, done = snapshot_reader(reader)
        records = (READER.encode(head), READER.encode(done))
        pieces: Iterable[Buffer] = (READER.header, *records)
        if self._seal:
            pieces = sealed(SEALS, READER.header, records, stamp_of(now_ms, path))
        temporary = f"{path}{TEMPORARY_MARK}{now_ms}"
        write_whole(self._disk, temporary, pieces)
        put_in_place(self._disk, temporary, path)
        is_new = name not in self.durable
        self.durable[name] = _copy(reader)
        if is_new:
            self._list(self.durable)

    def rename(self, name: str, new_name: str) -> None:
        """Hand a reader's place over to another name, in one step."""
        old, new = self._path(name), self._path(new_name)
        if self._disk.exists(old):  # else it was done before, and not known to be durable
            self._disk.rename(old, new)
        self._disk.sync_dir(self._directory)
        self.durable[new_name] = self.durable.pop(name)
        self._list(self.durable)

    def drop(self, name: str) -> None:
        """Forget a reader."""
        self._list(self.durable.keys() - {name})  # first: one that is listed and missing is lost
        if self._disk.exists(self._path(name)):
            self._disk.remove(self._path(name))
        self._disk.sync_dir(self._directory)
        del self.durable[name]

    def remove_list(self) -> None:
        """The queue is erased, or has one reader."""
        path = index_path(self._listing)
        if self._disk.exists(path):
            remove_durably(self._disk, path)  # else a crash would bring dropped readers back

    @property
    def _listing(self) -> str:
        return posixpath.join(self._directory, self._queue)

    def _listed(self) -> set[str]:
        try:
            names = json.loads(self._disk.read_bytes(index_path(self._listing)))
        except (OSError, ValueError):
            return set()
        return {str(name) for name in names} if isinstance(names, list) else set()

    def _list(self, names: Iterable[str]) -> None:
        """Write down which readers there are. A hint is not worth an error.

        A single one needs no list: see ``open_queue`` in journeyman.folds.kestrel.
        """
        named = set(names) - {DEFAULT_READER}
        several = named if len(named) > 1 else set()
        if self._listed() == several:
            return
        if not several:
            self.remove_list()
            return
        path = index_path(self._listing)
        with suppress(OSError, LogError):
            self._disk.make_dirs(posixpath.dirname(path))
            write_whole(self._disk, path + TEMPORARY_MARK, [json.dumps(sorted(several)).encode()])
            put_in_place(self._disk, path + TEMPORARY_MARK, path)

    def _path(self, name: str) -> str:
        return posixpath.join(self._directory, kestrel_reader_name(self._queue, name))


def _copy(reader: Reader) -> Reader:
    """The engine changes readers in place; what is on disk does not change with them."""
    return Reader(reader.head, set(reader.done))

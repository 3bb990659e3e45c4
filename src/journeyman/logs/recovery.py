"""After a crash or on a bad disk: read what can be read, say what cannot, repair the file.

    what is found                          what is done with the file
    clean                                  nothing
    damage at the end only                 copied to quarantine/, then cut off
    damage with entries after it           copied to quarantine/, then the file is rewritten without
                                           it (another name, sync, rename)
    bad header with entries after it       the same, with a good header
    no header and no entry                 the whole file is moved to quarantine/
    no byte, or only zeros, for a header   the file is removed

    a batch that is announced, not whole   copied to quarantine/, then cut off
    records of another program after a     the file is rewritten, so that they are sealed
    batch of ours, the log not closed

Zeros are not copied: nothing is lost with them. A sealed file that is rewritten is as it was up to
the first damage, and has new seals from there on: a seal contains its place, and what was kept
has to be proven from now on. Every other byte is afterwards in the file or in quarantine/, and
durable there before it leaves the file, so power may fail at any step and the next recovery has the
same result.
Memory stays small: a file is read through a view, copied in chunks, its entries passed on one by
one.

Opening a log for writing recovers each of its files; ``inspect_file`` only reports.

Where damaged bytes go, so that no repair destroys any.

    <dir>/<file>                              the log
    <dir>/quarantine/<file>.<begin>-<end>     what stood there in the file as it was found
    <dir>/quarantine/<file>.<begin>-<end>.2   the same place, another time, other bytes

A quarantine file is durable, name and all, before these functions return; only then may the
original be cut. Putting the same bytes aside twice (a crash came between) keeps one copy. Nothing
here is ever read again by a log; it is for people.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from journeyman.disk import AppendFile, Disk, is_full
from journeyman.errors import LogFull
from journeyman.formats.framing import Buffer, Codec, Entry
from journeyman.formats.seals import SealFormat, is_marked, next_seal, seal_at, stamp_of
from journeyman.logs.damage import Damage
from journeyman.logs.sealing import BlockLayout, has_seals, read_file, sealed_blocks
from journeyman.logs.segments import QUARANTINE, TEMPORARY_MARK

CHUNK_BYTES = 1024 * 1024  # how much of a file is in memory at once while it is copied

_UNFINISHED = TEMPORARY_MARK + "writing"


def copy_aside(disk: Disk, path: str, data: Buffer, begin: int, end: int) -> str:
    """Copy ``data[begin:end]`` of the file at ``path``; the path of the copy."""
    target, taken = _choose(disk, path, data, begin, end)
    if taken:
        _sync_file(disk, target)  # it may stem from a process that died before it synced
    else:
        _write(disk, target, data, begin, end)
    disk.sync_dir(posixpath.dirname(target))
    return target


def move_aside(disk: Disk, path: str, data: Buffer) -> str:
    """Move the whole file there, ``data`` being its content; its new path."""
    target, taken = _choose(disk, path, data, 0, len(data))
    _sync_file(disk, target if taken else path)
    if not taken:
        disk.rename(path, target)
    disk.sync_dir(posixpath.dirname(target))
    if taken:
        disk.remove(path)
    disk.sync_dir(posixpath.dirname(path) or ".")
    return target


def _choose(disk: Disk, path: str, data: Buffer, begin: int, end: int) -> tuple[str, bool]:
    """The first name that is free, or taken (True) by these very bytes."""
    directory = posixpath.join(posixpath.dirname(path), QUARANTINE)
    disk.make_dirs(directory)
    name = posixpath.join(directory, f"{posixpath.basename(path)}.{begin}-{end}")
    target = name
    for number in count(2):
        if not disk.exists(target):
            return target, False
        if _holds(disk, target, data, begin, end):
            break
        target = f"{name}.{number}"
    return target, True


def _holds(disk: Disk, path: str, data: Buffer, begin: int, end: int) -> bool:
    if disk.size(path) != end - begin:
        return False
    return all(
        disk.read_at(path, at - begin, CHUNK_BYTES) == bytes(data[at : min(at + CHUNK_BYTES, end)])
        for at in range(begin, end, CHUNK_BYTES)
    )


def _write(disk: Disk, target: str, data: Buffer, begin: int, end: int) -> None:
    """Under another name first: a name without the mark always holds all of its bytes."""
    unfinished = target + _UNFINISHED
    file = disk.open_append(unfinished)
    try:
        file.truncate(0)
        for at in range(begin, end, CHUNK_BYTES):
            file.write(bytes(data[at : min(at + CHUNK_BYTES, end)]))
        file.sync()
        file.close()
    except OSError:
        with suppress(OSError):  # report the first error
            file.close()
            disk.remove(unfinished)
        raise
    disk.rename(unfinished, target)


def _sync_file(disk: Disk, path: str) -> None:
    file = disk.open_append(path)
    try:
        file.sync()
    finally:
        file.close()


# A file damaged in more places than this is copied aside whole, not in pieces.
MAX_STRETCHES = 256
# A report lists no more than this; ``damage_count`` counts all damages.
MAX_LISTED_DAMAGES = 1000

_REWRITTEN = TEMPORARY_MARK + "recovering"

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FileReport:
    """The findings of recovery in one file, and its repairs."""

    file: str
    size: int  # as found
    records: int
    saved_after_damage: int  # those among ``records`` that follow the first damage
    lost_at_least: int  # records; a torn tail is none
    damages: tuple[Damage, ...] = ()
    damage_count: int = 0
    quarantined: tuple[str, ...] = ()  # where the damaged bytes are now
    gone: bool = False  # the file held nothing of this log and was removed
    sealed_again: int = 0  # records of another program, and those of ours that it had read

    @property
    def clean(self) -> bool:
        return self.damage_count == 0

    def as_dict(self) -> dict[str, object]:
        return {
            "file": self.file,
            "size": self.size,
            "clean": self.clean,
            "records": self.records,
            "saved_after_damage": self.saved_after_damage,
            "lost_at_least": self.lost_at_least,
            "damage_count": self.damage_count,
            "damages": [damage.as_dict() for damage in self.damages],
            "quarantined": list(self.quarantined),
            "gone": self.gone,
            "sealed_again": self.sealed_again,
        }


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The findings of recovery in all files of a log."""

    files: tuple[FileReport, ...] = ()

    @property
    def clean(self) -> bool:
        return all(file.clean for file in self.files)

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def saved_after_damage(self) -> int:
        return sum(file.saved_after_damage for file in self.files)

    @property
    def lost_at_least(self) -> int:
        return sum(file.lost_at_least for file in self.files)

    @property
    def damages(self) -> tuple[Damage, ...]:
        return tuple(damage for file in self.files for damage in file.damages)

    def as_dict(self) -> dict[str, object]:
        return {
            "clean": self.clean,
            "records": self.records,
            "saved_after_damage": self.saved_after_damage,
            "lost_at_least": self.lost_at_least,
            "files": [file.as_dict() for file in self.files],
        }


def recover_file(disk: Disk, codec: Codec[R], path: str) -> tuple[list[Entry[R]], FileReport]:
    """Repair a file if it needs it; its entries, and what was found. All entries are in memory."""
    entries: list[Entry[R]] = []
    report = recover_entries(disk, codec, path, entries.append)
    return entries, report


def recover_entries(
    disk: Disk,
    codec: Codec[R],
    path: str,
    on_entry: Callable[[Entry[R]], object] | None = None,
    *,
    on_seal: Callable[[Entry[R]], object] | None = None,
) -> FileReport:
    """Repair a file if it needs it, handing each entry on as it is read, and each seal.

    Offsets are those in the repaired file. Raises LogFull when there is no room to put damaged
    bytes aside; the file is then as it was.
    """
    rewritten = path + _REWRITTEN
    if disk.exists(rewritten):
        # A recovery that was cut short left it; the file itself is still whole.
        disk.remove(rewritten)
    data = disk.view(path)
    survey = _Survey(path, len(data), codec, has_seals=is_sealed(codec, data))
    is_seal = _seal_test(codec, data)
    for item in read_file(codec, data, file=path, seals=True):
        if isinstance(item, Damage):
            survey.note_damage(item)
        elif is_seal(item):
            survey.note_seal(data, item)
            if on_seal is not None and survey.layout is None:
                on_seal(item)
        else:
            offset, seal = survey.note_entry(item)
            if on_seal is not None and seal is not None:
                on_seal(Entry(seal, _size_of_seal(codec), item.record))
            if on_entry is not None:
                is_moved = offset != item.offset
                on_entry(Entry(offset, item.length, item.record) if is_moved else item)
    if not survey.damage_count and not survey.sealed_again:
        return survey.report()
    try:
        quarantined = _put_aside(disk, path, data, survey)
        if survey.holds_nothing:
            return survey.report(quarantined, is_removed=True)
        if survey.header_is_good and not survey.saved and not survey.sealed_again:
            _cut(disk, path, survey.damages[0].offset)
        else:
            _rewrite(disk, path, rewritten, _repaired(codec, data, survey))
    except OSError as error:
        if is_full(error):
            raise LogFull(path, "the disk is full: damaged bytes cannot be quarantined") from error
        raise
    return survey.report(quarantined)


def inspect_file(
    disk: Disk,
    codec: Codec[R],
    path: str,
    on_entry: Callable[[Entry[R]], object] | None = None,
) -> FileReport:
    """Report what recovery would find, without changing anything."""
    data = disk.view(path)
    survey = _Survey(path, len(data), codec, has_seals=is_sealed(codec, data))
    is_seal = _seal_test(codec, data)
    for item in read_file(codec, data, file=path, seals=True):
        if isinstance(item, Damage):
            survey.note_damage(item)
        elif is_seal(item):
            survey.note_seal(data, item)
        else:
            survey.note_entry(item)
            if on_entry is not None:
                on_entry(item)
    return survey.report()


@dataclass(slots=True)
class _Survey:
    """Facts about a file, gathered in file order."""

    path: str
    size: int
    codec: Codec[Any]
    has_seals: bool
    records: int = 0
    saved: int = 0
    lost: int = 0
    shift: int = 0  # from an offset in the file as found to one in the repaired file
    damage_count: int = 0
    damages: list[Damage] = field(default_factory=list)
    stretches: list[tuple[int, int]] = field(default_factory=list)  # to be put aside
    header_is_good: bool = True
    sealed_again: int = 0
    block_end: int | None = None  # where the last block of an open stretch ends
    kept_to: int = 0  # the repaired file is as it was up to here
    layout: BlockLayout | None = None  # seals that are made again in the repaired file

    def note_seal(self, data: Buffer, entry: Entry[Any]) -> None:
        seal = seal_at(self.codec.seals, data, entry.offset) if self.codec.seals else None
        if seal is not None:
            self.block_end = entry.end + seal.length if seal.opens else None

    def note_entry(self, entry: Entry[Any]) -> tuple[int, int | None]:
        """Where the entry will stand, and the seal before it if that is a new one."""
        self.records += 1
        self.saved += self.damage_count > 0
        if self.block_end is not None and entry.offset >= self.block_end:
            self.sealed_again += 1
            self._keep_to(entry.offset)
        if self.layout is not None:
            return self.layout.add(entry.length)
        return entry.offset + self.shift, None

    def note_damage(self, damage: Damage) -> None:
        header_bytes = len(self.codec.header)
        self.damage_count += 1
        if len(self.damages) < MAX_LISTED_DAMAGES:
            self.damages.append(damage)
        self.shift -= damage.length
        if damage.offset == 0 and header_bytes:
            self.header_is_good = False
            self.shift += header_bytes
            self.lost += damage.kind == "bad-header" and damage.length > header_bytes
        else:
            in_the_middle = damage.end < self.size
            self.lost += damage.kind == "corrupt" or (damage.kind == "padding" and in_the_middle)
        self._keep_to(damage.offset)
        if damage.length and damage.kind != "padding" and len(self.stretches) <= MAX_STRETCHES:
            if self.stretches and self.stretches[-1][1] == damage.offset:
                self.stretches[-1] = (self.stretches[-1][0], damage.end)
            else:
                self.stretches.append((damage.offset, damage.end))

    def _keep_to(self, offset: int) -> None:
        """Let the repaired file differ from the old one from here on, if anything more is to be
        kept."""
        if self.has_seals and self.layout is None:
            assert self.codec.seals is not None
            self.kept_to = offset
            begin = offset if self.header_is_good else len(self.codec.header)
            self.layout = BlockLayout(self.codec.seals, begin)

    @property
    def holds_nothing(self) -> bool:
        return not self.records and not self.header_is_good

    def report(self, quarantined: tuple[str, ...] = (), *, is_removed: bool = False) -> FileReport:
        return FileReport(
            file=self.path,
            size=self.size,
            records=self.records,
            saved_after_damage=self.saved,
            lost_at_least=self.lost,
            damages=tuple(self.damages),
            damage_count=self.damage_count,
            quarantined=quarantined,
            gone=is_removed,
            sealed_again=self.sealed_again,
        )


def _put_aside(disk: Disk, path: str, data: Buffer, survey: _Survey) -> tuple[str, ...]:
    """Everything the repaired file will not hold, durably in quarantine/."""
    if survey.holds_nothing:
        if survey.stretches:
            return (move_aside(disk, path, data),)
        disk.remove(path)
        disk.sync_dir(posixpath.dirname(path) or ".")
        return ()
    if len(survey.stretches) > MAX_STRETCHES:
        return (copy_aside(disk, path, data, 0, survey.size),)
    return tuple(copy_aside(disk, path, data, begin, end) for begin, end in survey.stretches)


def _cut(disk: Disk, path: str, size: int) -> None:
    file = disk.open_append(path)
    try:
        file.truncate(size)
        file.sync()
    finally:
        file.close()


def is_sealed(codec: Codec[R], data: Buffer) -> bool:
    """True if a file has seals."""
    return codec.seals is not None and has_seals(codec.seals, data)


def _repaired(codec: Codec[R], data: Buffer, survey: _Survey) -> Iterator[Buffer]:
    """The contents of the repaired file, in chunks; read again rather than kept in memory."""
    if not survey.header_is_good:
        yield codec.header
    if not survey.has_seals:
        begin = 0
        for item in read_file(codec, data):
            if isinstance(item, Damage):
                yield from _chunks(data, begin, item.offset)
                begin = item.end
        yield from _chunks(data, begin, len(data))
        return
    assert codec.seals is not None
    yield from _chunks(data, 0, survey.kept_to)
    entries = (
        data[item.offset : item.end]
        for item in read_file(codec, data)
        if not isinstance(item, Damage) and item.offset >= survey.kept_to
    )
    begin = survey.kept_to if survey.header_is_good else len(codec.header)
    yield from sealed_blocks(codec.seals, begin, entries, _stamp_in(codec.seals, data, survey))


def _stamp_in(format_: SealFormat, data: Buffer, survey: _Survey) -> int:
    """That of any seal that fits: a client knows none of them."""
    place = next_seal(format_, data, 0, None)
    seal = None if place is None else seal_at(format_, data, place)
    return stamp_of(survey.size, survey.path) if seal is None else seal.stamp


def _seal_test(codec: Codec[R], data: Buffer) -> Callable[[Entry[R]], bool]:
    """Return whether an entry of these data is a seal."""
    format_ = codec.seals
    if format_ is None:
        return lambda _: False
    size = format_.size
    return lambda entry: entry.length == size and is_marked(format_, data, entry.offset)


def _size_of_seal(codec: Codec[R]) -> int:
    return 0 if codec.seals is None else codec.seals.size


def _chunks(data: Buffer, begin: int, end: int) -> Iterator[Buffer]:
    for at in range(begin, end, CHUNK_BYTES):
        yield data[at : min(at + CHUNK_BYTES, end)]


def _rewrite(disk: Disk, path: str, rewritten: str, stretches: Iterator[Buffer]) -> None:
    """Replace the file in one step by one that holds only these stretches."""
    file = disk.open_append(rewritten)
    try:
        _fill(file, stretches)
    except OSError:
        with suppress(OSError):  # report the first error
            disk.remove(rewritten)
        raise
    disk.rename(rewritten, path)
    disk.sync_dir(posixpath.dirname(path) or ".")


def _fill(file: AppendFile, stretches: Iterator[Buffer]) -> None:
    try:
        for stretch in stretches:
            file.write(bytes(stretch))
        file.sync()
    finally:
        file.close()

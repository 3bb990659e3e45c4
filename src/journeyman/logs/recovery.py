"""After a crash or on a bad disk: read what can be read, say what cannot, repair the file.

    what is found                          what is done with the file
    clean                                  nothing
    damage at the end only                 copied to quarantine/, then cut off
    damage with entries after it           copied to quarantine/, then the file is rewritten without
                                           it (another name, sync, rename)
    bad header with entries after it       the same, with a good header
    no header and no entry                 the whole file is moved to quarantine/
    no byte, or only zeros, for a header   the file is removed

    unsealed bytes after the last seal     copied to quarantine/, then cut off

Zeros are not copied: nothing is lost with them. A rewritten file has new seals, because a seal
contains its place. Every other byte is afterwards in the file or in quarantine/, and durable there
before it leaves the file, so power may fail at any step and the next recovery has the same result.
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
from typing import TypeVar

from journeyman.disk import AppendFile, Disk, is_full
from journeyman.errors import LogFull
from journeyman.formats.framing import Buffer, Codec, Entry
from journeyman.formats.seals import SealFormat, fits, make_seal
from journeyman.logs.damage import Damage
from journeyman.logs.sealing import read_file
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
# And no more than this are listed in a report; ``damage_count`` counts them all.
MAX_LISTED_DAMAGES = 1000

_REWRITTEN = TEMPORARY_MARK + "recovering"

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FileReport:
    """What recovery found in one file, and what it did."""

    file: str
    size: int  # as found
    records: int
    saved_after_damage: int  # of these, after the first damage
    lost_at_least: int  # records; a torn tail is none, it was never acknowledged
    damages: tuple[Damage, ...] = ()
    damage_count: int = 0
    quarantined: tuple[str, ...] = ()  # where the damaged bytes are now
    gone: bool = False  # the file held nothing of this log and was removed

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
        }


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found in all files of a log."""

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
    each: Callable[[Entry[R]], object] | None = None,
    *,
    each_seal: Callable[[Entry[R]], object] | None = None,
) -> FileReport:
    """Repair a file if it needs it, handing each entry on as it is read, and each seal.

    Offsets are those in the repaired file. Raises LogFull when there is no room to put damaged
    bytes aside; the file is then as it was.
    """
    rewritten = path + _REWRITTEN
    if disk.exists(rewritten):
        disk.remove(rewritten)  # of a recovery that was cut short; the file itself is still whole
    data = disk.view(path)
    survey = _Survey(path, len(data), header_bytes=len(codec.header))
    is_seal = _seal_test(codec, data)
    for item in read_file(codec, data, file=path, seals=True):
        if isinstance(item, Damage):
            survey.note_damage(item)
        elif is_seal(item):
            if each_seal is not None:
                each_seal(Entry(item.offset + survey.shift, item.length, item.record))
        else:
            survey.note_entry()
            if each is not None:
                shift = survey.shift
                each(Entry(item.offset + shift, item.length, item.record) if shift else item)
    if not survey.damage_count:
        return survey.report()
    try:
        quarantined = _put_aside(disk, path, data, survey)
        if survey.holds_nothing:
            return survey.report(quarantined, gone=True)
        if survey.header_is_good and not survey.saved:
            _cut(disk, path, survey.damages[0].offset)
        else:
            good = _good_stretches(codec, data)
            _rewrite(disk, path, rewritten, b"" if survey.header_is_good else codec.header, good)
    except OSError as error:
        if is_full(error):
            raise LogFull(path, "the disk is full: damaged bytes cannot be quarantined") from error
        raise
    return survey.report(quarantined)


def inspect_file(
    disk: Disk,
    codec: Codec[R],
    path: str,
    each: Callable[[Entry[R]], object] | None = None,
) -> FileReport:
    """Report what recovery would find, without changing anything."""
    data = disk.view(path)
    survey = _Survey(path, len(data), header_bytes=len(codec.header))
    for item in read_file(codec, data, file=path):
        if isinstance(item, Damage):
            survey.note_damage(item)
        else:
            survey.note_entry()
            if each is not None:
                each(item)
    return survey.report()


@dataclass(slots=True)
class _Survey:
    """Facts about a file, gathered in file order."""

    path: str
    size: int
    header_bytes: int
    records: int = 0
    saved: int = 0
    lost: int = 0
    shift: int = 0  # from an offset in the file as found to one in the repaired file
    damage_count: int = 0
    damages: list[Damage] = field(default_factory=list)
    stretches: list[tuple[int, int]] = field(default_factory=list)  # to be put aside
    header_is_good: bool = True

    def note_entry(self) -> None:
        self.records += 1
        self.saved += self.damage_count > 0

    def note_damage(self, damage: Damage) -> None:
        self.damage_count += 1
        if len(self.damages) < MAX_LISTED_DAMAGES:
            self.damages.append(damage)
        self.shift -= damage.length
        if damage.offset == 0 and self.header_bytes:
            self.header_is_good = False
            self.shift += self.header_bytes
            self.lost += damage.kind == "bad-header" and damage.length > self.header_bytes
        else:
            in_the_middle = damage.end < self.size
            self.lost += damage.kind == "corrupt" or (damage.kind == "padding" and in_the_middle)
        if damage.length and damage.kind != "padding" and len(self.stretches) <= MAX_STRETCHES:
            if self.stretches and self.stretches[-1][1] == damage.offset:
                self.stretches[-1] = (self.stretches[-1][0], damage.end)
            else:
                self.stretches.append((damage.offset, damage.end))

    @property
    def holds_nothing(self) -> bool:
        return not self.records and not self.header_is_good

    def report(self, quarantined: tuple[str, ...] = (), *, gone: bool = False) -> FileReport:
        return FileReport(
            file=self.path,
            size=self.size,
            records=self.records,
            saved_after_damage=self.saved,
            lost_at_least=self.lost,
            damages=tuple(self.damages),
            damage_count=self.damage_count,
            quarantined=quarantined,
            gone=gone,
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


def _good_stretches(codec: Codec[R], data: Buffer) -> Iterator[Buffer]:
    """The contents of the repaired file, in chunks; read again rather than kept in memory."""
    is_seal = _seal_test(codec, data)
    begin = 0
    shift = 0
    kept: list[tuple[int, int]] = []  # stretches since the last seal
    for item in read_file(codec, data, seals=True):
        if isinstance(item, Damage):
            yield from _chunks(data, begin, item.offset)
            kept.append((begin, item.offset))
            begin = item.end
            shift -= item.length
            if item.offset == 0:
                shift += len(codec.header)
        elif is_seal(item):
            assert codec.seals is not None
            yield from _chunks(data, begin, item.offset)
            kept.append((begin, item.offset))
            yield _moved_seal(codec.seals, data, item.offset, shift, kept)
            kept.clear()
            begin = item.end
    yield from _chunks(data, begin, len(data))


def _seal_test(codec: Codec[R], data: Buffer) -> Callable[[Entry[R]], bool]:
    """Whether an entry of these data is a seal."""
    format_ = codec.seals
    if format_ is None:
        return lambda _: False
    size = format_.size
    return lambda entry: entry.length == size and format_.is_like_seal(data, entry.offset)


def _moved_seal(
    format_: SealFormat, data: Buffer, offset: int, shift: int, kept: list[tuple[int, int]]
) -> bytes:
    """The seal at ``offset`` as it must be ``shift`` bytes later, after what was kept."""
    seal = format_.parse(data, offset)
    if seal is None or not fits(format_, seal, data, offset):
        return bytes(data[offset : offset + format_.size])  # it proves nothing, here or there
    block = b"".join(bytes(data[max(begin, seal.begin) : end]) for begin, end in kept)
    return make_seal(format_, seal.kind, seal.stamp, offset + shift - len(block), block)


def _chunks(data: Buffer, begin: int, end: int) -> Iterator[Buffer]:
    for at in range(begin, end, CHUNK_BYTES):
        yield data[at : min(at + CHUNK_BYTES, end)]


def _rewrite(
    disk: Disk, path: str, rewritten: str, header: bytes, stretches: Iterator[Buffer]
) -> None:
    """Replace the file in one step by one that holds only these stretches."""
    file = disk.open_append(rewritten)
    try:
        _fill(file, header, stretches)
    except OSError:
        with suppress(OSError):  # report the first error
            disk.remove(rewritten)
        raise
    disk.rename(rewritten, path)
    disk.sync_dir(posixpath.dirname(path) or ".")


def _fill(file: AppendFile, header: bytes, stretches: Iterator[Buffer]) -> None:
    try:
        if header:
            file.write(header)
        for stretch in stretches:
            file.write(bytes(stretch))
        file.sync()
    finally:
        file.close()

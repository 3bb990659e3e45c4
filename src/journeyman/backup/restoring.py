"""From a vault back to a data directory, as of a backup or any moment; checking old backups.

    restore        every chunk is checked; the directory has its name only when it is whole
    restore_at     the directory as of any moment, not only as of a backup
    check_backups  every byte of every backup, read and compared with its name
    keep_newest    older manifests first, then the chunks that none of the others needs

    backup A        moment M        backup B       A is the newest up to M, B a later one
    -----|-------------|---------------|------>
    log  [..........................]              as B has it
    log  [.............]                           cut at M, never before the end that A has

Logs only grow, and a log cut after any record is one that `kill -9` could have left. When a record
was written is known:

    work queue, ledger   every record says so
    fan-out queues       every item says so; a sealed batch stays or goes as a whole
    schedule             the ledger has marks of its log; without a ledger it is as A has it

If a log was compacted or cleaned between A and B, B has no longer what was there at M: then all of
it is as of A. Checkpoints of readers, the history of runs and a store are always as of A. Marks of
the schedule are in the ledger a second after its records: so B is one that was taken a little after
M, if there is such a one.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from journeyman.backup import vault as vaults
from journeyman.backup.taking import CHUNKS, chunk_name
from journeyman.data_directory import (
    KESTREL_DIRECTORY,
    LEDGER_DIRECTORY,
    SCHEDULE_LOG,
    WORKQ_DIRECTORY,
)
from journeyman.disk import Disk, disk_of, is_database
from journeyman.errors import JourneymanError, LogError, UsageError
from journeyman.formats import kestrel, ledger, workq
from journeyman.formats.framing import Codec
from journeyman.formats.seals import seal_at
from journeyman.logs.damage import Damage
from journeyman.logs.ledger import times_of
from journeyman.logs.sealing import read_file
from journeyman.logs.segments import kestrel_number, ledger_sequence, workq_sequence
from journeyman.units import NS_PER_MS, NS_PER_S

_UNFINISHED = ".restoring"


def choose(vault: vaults.Vault, at_ns: int | None) -> vaults.Manifest:
    """The newest backup, or the newest that was taken at this moment or before it."""
    names = vaults.list_backups(vault)
    if not names:
        raise UsageError(f"{vault.where} has no backup")
    if at_ns is None:
        return vaults.read_manifest(vault, names[-1])
    for name in reversed(names):
        manifest = vaults.read_manifest(vault, name)
        if manifest.taken_ns <= at_ns:
            return manifest
    raise UsageError(f"{vault.where}: the oldest backup, {names[0]}, was taken after that time")


def restore(
    vault: vaults.Vault,
    directory: str,
    *,
    at_ns: int | None = None,
    manifest: vaults.Manifest | None = None,
    finish: Callable[[str], None] = lambda _: None,
) -> vaults.Manifest:
    """Into a directory that is missing or empty. UsageError, LogError.

    ``manifest``: this one. ``finish`` may change the directory before it gets its name.
    """
    disk, place = disk_of(directory), directory.rstrip("/")
    if disk.exists(place):
        there = disk.list_dir(place) if disk.is_dir(place) else [place]
        if set(there) - {_UNFINISHED}:
            raise UsageError(f"{directory} is not empty: restore into a new directory")
    manifest = manifest or choose(vault, at_ns)
    unfinished = f"{place}/{_UNFINISHED}" if is_database(place) else place + _UNFINISHED
    _remove_files(disk, unfinished)  # left by a restore that was cut short
    disk.make_dirs(unfinished)
    parents = {unfinished}
    for file in manifest.files:
        path = _inside(unfinished, file.path)
        parents.add(os.path.dirname(path))
        disk.make_dirs(os.path.dirname(path))
        _write_file(vault, file, path, disk)
    finish(unfinished)
    for parent in parents:
        disk.sync_dir(parent)
    disk.rename(unfinished, place)  # in the place of an empty directory
    if not is_database(place):
        disk.sync_dir(os.path.dirname(os.path.abspath(place)))
    return manifest


def _remove_files(disk: Disk, directory: str) -> None:
    if not disk.is_dir(directory):
        return
    for name, facts in disk.scan(directory).items():
        if facts.is_dir:
            _remove_files(disk, f"{directory}/{name}")
        else:
            disk.remove(f"{directory}/{name}")


def _inside(directory: str, path: str) -> str:
    """A manifest comes from elsewhere: it must not name a file outside of the directory."""
    parts = path.split("/")
    if posixpath.isabs(path) or any(part in ("", ".", "..") for part in parts):
        raise LogError(directory, f"the backup names a file outside of it: {path!r}")
    return os.path.join(directory, *parts)


def _write_file(vault: vaults.Vault, file: vaults.StoredFile, path: str, disk: Disk) -> None:
    written = disk.open_append(path)
    size = written.size()  # more than 0 if the manifest names a file twice
    try:
        for data in _checked_chunks(vault, file):
            size += len(data)
            if size > file.size:  # a hostile manifest may repeat its chunks without end
                raise LogError(path, f"the backup has more than {file.size} bytes of it")
            written.write(data)
        if size != file.size:
            raise LogError(path, f"the backup has {size} bytes of {file.size}")
        written.sync()
    finally:
        written.close()


def _checked_chunks(vault: vaults.Vault, file: vaults.StoredFile) -> Iterator[bytes]:
    for name in file.chunks:
        data = vault.read(CHUNKS, name)
        if chunk_name(data) != name:
            where = f"{vault.where}/{CHUNKS}/{name}"
            raise LogError(where, f"this part of {file.path} is damaged; use another backup")
        yield data


def check_backups(vault: vaults.Vault) -> Iterator[str]:
    """Yield what is wrong, a line each."""
    good: set[str] = set()
    for name in vaults.list_backups(vault):
        try:
            for file in vaults.read_manifest(vault, name).files:
                for chunk in file.chunks:
                    if chunk not in good:
                        list(
                            _checked_chunks(
                                vault, vaults.StoredFile(file.path, 0, (0, 0, 0), (chunk,))
                            )
                        )
                        good.add(chunk)
        except JourneymanError as error:
            yield f"backup {name}: {error}"


def keep_newest(vault: vaults.Vault, count: int) -> int:
    """How many older backups were removed."""
    names = vaults.list_backups(vault)
    old = names[:-count]
    if old:
        needed = {
            chunk for name in names[-count:] for chunk in vaults.read_manifest(vault, name).chunks
        }
        for name in old:
            vaults.remove_manifest(vault, name)
        for chunk in set(vault.names(CHUNKS)) - needed:
            vault.remove(CHUNKS, chunk)
    return len(old)


MARKS_NS: Final = 3 * NS_PER_S  # after which marks of the schedule are in the ledger for certain


@dataclass(frozen=True, slots=True)
class RestoredMoment:
    """``base`` is A. ``until_ns``: as of when the logs are; the time of A, if B was of no use."""

    base: vaults.Manifest
    until_ns: int
    why_not: str = ""  # the moment itself


def restore_at(vault: vaults.Vault, directory: str, at_ns: int) -> RestoredMoment:
    """Into a directory that is missing or empty. UsageError, LogError."""
    base = choose(vault, at_ns)
    later = _later(vault, base, at_ns)
    if later is None:
        restore(vault, directory, manifest=base)
        return RestoredMoment(base, base.taken_ns, "no later backup was taken")
    grown = _grown(base, later)
    if grown is None:
        restore(vault, directory, manifest=base)
        why = "a log was compacted or cleaned before the next backup"
        return RestoredMoment(base, base.taken_ns, why)
    before = {file.path: file.size for file in base.files}
    restore(
        vault,
        directory,
        manifest=replace(later, files=grown),
        finish=lambda unfinished: _cut_all(unfinished, grown, before, at_ns),
    )
    return RestoredMoment(base, at_ns)


def _later(vault: vaults.Vault, base: vaults.Manifest, at_ns: int) -> vaults.Manifest | None:
    after = [name for name in vaults.list_backups(vault) if name > base.name]
    found = None
    for name in after:
        found = vaults.read_manifest(vault, name)
        if found.taken_ns >= at_ns + MARKS_NS:
            break
    return found


def _grown(base: vaults.Manifest, later: vaults.Manifest) -> tuple[vaults.StoredFile, ...] | None:
    """The files to restore; None: a log did not only grow between the two."""
    after = {file.path: file for file in later.files}
    files = []
    for file in base.files:
        if not _is_log(file.path):
            files.append(file)
            continue
        now = after.get(file.path)
        if now is None or now.identity[0] != file.identity[0] or now.size < file.size:
            return None
        files.append(now)
    known = {file.path for file in base.files}
    new = (file for file in later.files if file.path not in known and _is_log(file.path))
    return (*files, *new)


def _is_log(path: str) -> bool:
    """Return whether it is a file of a log that only grows."""
    folder, _, name = path.partition("/")
    if folder == LEDGER_DIRECTORY:
        return ledger_sequence(name) is not None
    if folder == WORKQ_DIRECTORY:
        return workq_sequence(name) is not None
    if folder == KESTREL_DIRECTORY:
        return kestrel_number(name.partition(".")[0], name) is not None
    return path.startswith(SCHEDULE_LOG) and "/" not in path


# -- cutting --


def _cut_all(
    directory: str, files: tuple[vaults.StoredFile, ...], before: dict[str, int], at_ns: int
) -> None:
    """The schedule first: the ledger, which has its times, is cut too."""
    disk = disk_of(directory)
    cuts: dict[str, int] = {}
    for file in files:
        if file.size > before.get(file.path, 0) and _is_log(file.path):
            path = os.path.join(directory, file.path)
            end = _end_by(disk, directory, file.path, path, at_ns)
            cuts[path] = max(before.get(file.path, 0), file.size if end is None else end)
    for path, end in cuts.items():
        written = disk.open_append(path)
        written.truncate(end)
        written.sync()
        written.close()


def _end_by(disk: Disk, directory: str, name: str, path: str, at_ns: int) -> int | None:
    """How much of a file was there at the moment; None: all of it."""
    folder = name.partition("/")[0]
    if folder == SCHEDULE_LOG or "/" not in name:
        times = times_of(disk, os.path.join(directory, LEDGER_DIRECTORY), [path]).get(path)
        return 0 if times is None else times.end_by(at_ns)
    view = disk.view(path)
    try:
        return next(_ends(_CODECS[folder], view, at_ns), None)
    finally:
        view.release()


_CODECS: Final[dict[str, Codec[Any]]] = {
    WORKQ_DIRECTORY: workq.CODEC,
    KESTREL_DIRECTORY: kestrel.WRITER,
    LEDGER_DIRECTORY: ledger.CODEC,
}


def _ends(codec: Codec[Any], view: memoryview, at_ns: int) -> Iterator[int]:
    """Where the first record after the moment begins, or the sealed batch that it is in."""
    batch = batch_end = 0  # where the last announced one stands
    for item in read_file(codec, view, seals=True):
        if isinstance(item, Damage):
            continue
        time_ns = _time_ns(item.record)
        if time_ns is not None and time_ns > at_ns:
            yield batch if item.offset < batch_end else item.offset
            return
        seals = codec.seals
        if seals is not None and item.length == seals.size:
            seal = seal_at(seals, view, item.offset)
            if seal is not None:
                batch, batch_end = item.offset, item.end + seal.length


def _time_ns(record: Any) -> int | None:
    logged = getattr(record, "logged", None)
    if logged is not None:
        return int(logged.unix_ns)
    added_ms = getattr(record, "add_time_ms", None)
    return None if added_ms is None else int(added_ms) * NS_PER_MS

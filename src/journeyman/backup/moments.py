"""A data directory as of any moment, not only as of a backup.

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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from journeyman.backup.manifest import Manifest, StoredFile, list_backups, read_manifest
from journeyman.backup.restoring import choose, restore
from journeyman.backup.vault import Vault
from journeyman.data_directory import (
    KESTREL_DIRECTORY,
    LEDGER_DIRECTORY,
    SCHEDULE_LOG,
    WORKQ_DIRECTORY,
)
from journeyman.disk import RealDisk
from journeyman.formats import kestrel, ledger, workq
from journeyman.formats.framing import Codec
from journeyman.logs.damage import Damage
from journeyman.logs.ledger import times_of
from journeyman.logs.sealing import read_file
from journeyman.logs.segments import kestrel_number, ledger_sequence, workq_sequence
from journeyman.units import NS_PER_MS, NS_PER_S

MARKS_NS: Final = 3 * NS_PER_S  # after which marks of the schedule are in the ledger for certain


@dataclass(frozen=True, slots=True)
class RestoredMoment:
    """``base`` is A. ``until_ns``: as of when the logs are; the time of A, if B was of no use."""

    base: Manifest
    until_ns: int
    why_not: str = ""  # the moment itself


def restore_at(vault: Vault, directory: str, at_ns: int) -> RestoredMoment:
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


def _later(vault: Vault, base: Manifest, at_ns: int) -> Manifest | None:
    after = [name for name in list_backups(vault) if name > base.name]
    found = None
    for name in after:
        found = read_manifest(vault, name)
        if found.taken_ns >= at_ns + MARKS_NS:
            break
    return found


def _grown(base: Manifest, later: Manifest) -> tuple[StoredFile, ...] | None:
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
    """Whether it is a file of a log that only grows."""
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
    directory: str, files: tuple[StoredFile, ...], before: dict[str, int], at_ns: int
) -> None:
    """The schedule first: the ledger, which has its times, is cut too."""
    disk = RealDisk()
    cuts: dict[str, int] = {}
    for file in files:
        if file.size > before.get(file.path, 0) and _is_log(file.path):
            path = os.path.join(directory, file.path)
            end = _end_by(disk, directory, file.path, path, at_ns)
            cuts[path] = max(before.get(file.path, 0), file.size if end is None else end)
    for path, end in cuts.items():
        os.truncate(path, end)
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _end_by(disk: RealDisk, directory: str, name: str, path: str, at_ns: int) -> int | None:
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
    batch = None  # where the present one begins, in a sealed stretch
    for item in read_file(codec, view, seals=True):
        if isinstance(item, Damage):
            continue
        time_ns = _time_ns(item.record)
        if time_ns is not None and time_ns > at_ns:
            yield item.offset if batch is None else batch
            return
        seals = codec.seals
        if seals is not None and item.length == seals.size:
            seal = seals.parse(view, item.offset)
            if seal is not None:
                batch = item.end if seal.opens else None


def _time_ns(record: Any) -> int | None:
    logged = getattr(record, "logged", None)
    if logged is not None:
        return int(logged.unix_ns)
    added_ms = getattr(record, "add_time_ms", None)
    return None if added_ms is None else int(added_ms) * NS_PER_MS

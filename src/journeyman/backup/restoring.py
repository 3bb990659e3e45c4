"""From a vault back to a data directory; and what else is done with backups that are there.

restore        every chunk is checked; the directory has its name only when it is whole
check_backups  every byte of every backup, read and compared with its name
keep_newest    older manifests first, then the chunks that none of the others needs
"""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Callable, Iterator

from journeyman.backup.manifest import (
    Manifest,
    StoredFile,
    list_backups,
    read_manifest,
    remove_manifest,
)
from journeyman.backup.taking import CHUNKS, chunk_name
from journeyman.backup.vault import Vault
from journeyman.disk import RealDisk
from journeyman.errors import JourneymanError, LogError, UsageError

_UNFINISHED = ".restoring"


def choose(vault: Vault, at_ns: int | None) -> Manifest:
    """The newest backup, or the newest that was taken at this moment or before it."""
    names = list_backups(vault)
    if not names:
        raise UsageError(f"{vault.where} has no backup")
    if at_ns is None:
        return read_manifest(vault, names[-1])
    for name in reversed(names):
        manifest = read_manifest(vault, name)
        if manifest.taken_ns <= at_ns:
            return manifest
    raise UsageError(f"{vault.where}: the oldest backup, {names[0]}, was taken after that time")


def restore(
    vault: Vault,
    directory: str,
    *,
    at_ns: int | None = None,
    manifest: Manifest | None = None,
    finish: Callable[[str], None] = lambda _: None,
) -> Manifest:
    """Into a directory that is missing or empty. UsageError, LogError.

    ``manifest``: this one. ``finish`` may change the directory before it gets its name.
    """
    disk = RealDisk()
    if os.path.lexists(directory) and (not os.path.isdir(directory) or os.listdir(directory)):
        raise UsageError(f"{directory} is not empty: restore into a new directory")
    manifest = manifest or choose(vault, at_ns)
    unfinished = directory.rstrip("/") + _UNFINISHED
    if os.path.lexists(unfinished):  # of a restore that was cut short
        shutil.rmtree(unfinished)
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
    if os.path.isdir(directory):
        os.rmdir(directory)
    disk.rename(unfinished, directory)
    disk.sync_dir(os.path.dirname(os.path.abspath(directory)))
    return manifest


def _inside(directory: str, path: str) -> str:
    """A manifest comes from elsewhere: it must not name a file outside of the directory."""
    parts = path.split("/")
    if posixpath.isabs(path) or any(part in ("", ".", "..") for part in parts):
        raise LogError(directory, f"the backup names a file outside of it: {path!r}")
    return os.path.join(directory, *parts)


def _write_file(vault: Vault, file: StoredFile, path: str, disk: RealDisk) -> None:
    written = disk.open_append(path)
    try:
        for data in _checked_chunks(vault, file):
            written.write(data)
        if written.size() != file.size:
            raise LogError(path, f"the backup has {written.size()} bytes of {file.size}")
        written.sync()
    finally:
        written.close()


def _checked_chunks(vault: Vault, file: StoredFile) -> Iterator[bytes]:
    for name in file.chunks:
        data = vault.read(CHUNKS, name)
        if chunk_name(data) != name:
            where = f"{vault.where}/{CHUNKS}/{name}"
            raise LogError(where, f"this part of {file.path} is damaged; use another backup")
        yield data


def check_backups(vault: Vault) -> Iterator[str]:
    """What is wrong, a line each."""
    good: set[str] = set()
    for name in list_backups(vault):
        try:
            for file in read_manifest(vault, name).files:
                for chunk in file.chunks:
                    if chunk not in good:
                        list(_checked_chunks(vault, StoredFile(file.path, 0, (0, 0, 0), (chunk,))))
                        good.add(chunk)
        except JourneymanError as error:
            yield f"backup {name}: {error}"


def keep_newest(vault: Vault, count: int) -> int:
    """How many older backups were removed."""
    names = list_backups(vault)
    old = names[:-count]
    if old:
        needed = {chunk for name in names[-count:] for chunk in read_manifest(vault, name).chunks}
        for name in old:
            remove_manifest(vault, name)
        for chunk in set(vault.names(CHUNKS)) - needed:
            vault.remove(CHUNKS, chunk)
    return len(old)

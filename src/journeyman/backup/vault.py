"""Where backups are kept: whole small objects under names, in a directory or in an object store.

    /mnt/backups            DirectoryVault   a file each; synced before a manifest names it
    s3://bucket/journeyman  UriVault         fsspec, with the library of the scheme (s3fs, ...), or
                                             by way of pyarrow

Names have the form ``folder/name``. An object is written once and never changed; writing it again
writes the same bytes. Logs hold payloads and credentials: a directory is made for its owner alone.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol

from journeyman.disk import RealDisk
from journeyman.errors import LogError, UsageError

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")
_UNFINISHED = ".tmp"


class Vault(Protocol):
    where: str

    def names(self, folder: str) -> Iterator[str]:
        """Of the objects in a folder, in any order; none if there is no such folder."""

    def read(self, folder: str, name: str) -> bytes:
        """LogError if it is not there."""

    def write(self, folder: str, name: str, data: bytes) -> None: ...

    def remove(self, folder: str, name: str) -> None: ...

    def settle(self) -> None:
        """What was written is durable when this returns."""


class DirectoryVault:
    def __init__(self, directory: str) -> None:
        self.where = directory
        self._disk = RealDisk()
        self._unsynced: set[str] = set()

    def names(self, folder: str) -> Iterator[str]:
        top = os.path.join(self.where, folder)
        for _, _, names in os.walk(top):
            yield from (name for name in names if not name.endswith(_UNFINISHED))

    def read(self, folder: str, name: str) -> bytes:
        path = self._path(folder, name)
        try:
            return self._disk.read_bytes(path)
        except FileNotFoundError:
            raise LogError(path, "this part of a backup is missing") from None

    def write(self, folder: str, name: str, data: bytes) -> None:
        path = self._path(folder, name)
        parent = os.path.dirname(path)
        self._disk.make_dirs(parent)
        unfinished = f"{path}.{secrets.token_hex(4)}{_UNFINISHED}"
        file = self._disk.open_append(unfinished)
        try:
            file.write(data)
            file.sync()
        finally:
            file.close()
        self._disk.rename(unfinished, path)
        self._unsynced.add(parent)

    def remove(self, folder: str, name: str) -> None:
        self._disk.remove(self._path(folder, name))

    def settle(self) -> None:
        for directory in self._unsynced:
            self._disk.sync_dir(directory)
        self._unsynced.clear()

    def _path(self, folder: str, name: str) -> str:
        """In one of 256 folders, since a large backup has a hundred thousand chunks."""
        return os.path.join(self.where, folder, name[:2], name)


class UriVault:
    def __init__(self, uri: str, filesystem: Any, root: str) -> None:
        self.where = uri
        self._filesystem = filesystem
        self._root = root.rstrip("/")

    def names(self, folder: str) -> Iterator[str]:
        self._filesystem.invalidate_cache()
        for path in self._filesystem.find(f"{self._root}/{folder}"):
            yield str(path).rpartition("/")[2]

    def read(self, folder: str, name: str) -> bytes:
        try:
            return bytes(self._filesystem.cat_file(self._path(folder, name)))
        except FileNotFoundError:
            where = f"{self.where}/{folder}/{name}"
            raise LogError(where, "this part of a backup is missing") from None

    def write(self, folder: str, name: str, data: bytes) -> None:
        self._filesystem.pipe_file(self._path(folder, name), data)

    def remove(self, folder: str, name: str) -> None:
        self._filesystem.rm_file(self._path(folder, name))

    def settle(self) -> None:
        """An object store has what it acknowledged."""

    def _path(self, folder: str, name: str) -> str:
        return f"{self._root}/{folder}/{name}"


def open_vault(where: str) -> Vault:
    """A path or a URI. UsageError if its scheme cannot be opened."""
    if _URI.match(where) is None:
        return DirectoryVault(os.path.abspath(where))
    try:
        filesystem, root = _opened(where)
    except (ImportError, ValueError) as error:
        said = (
            f"{where} cannot be opened: {error}; pip install fsspec, and pyarrow or the library of "
            "the scheme, s3fs for s3://"
        )
        raise UsageError(said) from None
    return UriVault(where.rstrip("/"), filesystem, root)


def _opened(uri: str) -> tuple[Any, str]:
    """ImportError or ValueError: nothing that is installed knows the scheme."""
    core: Any = import_module("fsspec.core")
    try:
        filesystem, root = core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        try:
            fs: Any = import_module("pyarrow.fs")
            known, root = fs.FileSystem.from_uri(uri)
        except (ImportError, ValueError, RuntimeError):  # the errors of pyarrow are such
            raise error from None
        wrapper: Any = import_module("fsspec.implementations.arrow")
        filesystem = wrapper.ArrowFSWrapper(known)
    return filesystem, str(root)

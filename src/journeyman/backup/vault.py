"""Where backups are kept, and what one is: when it was taken, its files, and the chunks they have.

    /mnt/backups            DirectoryVault   a file each; synced before a manifest names it
    s3://bucket/journeyman  UriVault         fsspec, with the library of the scheme (s3fs, ...), or
                                             by way of pyarrow

A vault holds whole small objects under names of the form ``folder/name``. An object is written once
and never changed; writing it again writes the same bytes. Logs hold payloads and credentials: a
directory is made for its owner alone.

    manifests/20261117T053000123456789Z.json
        {"format": 1, "taken_ns": ..., "exact": true, "files": [{"path": ..., "chunks": [...]}],
         "digest": SHA-256 of all the rest}

``identity`` is what the source file was when it was read: inode, size and time of its last change.
A file that still is the same need not be read again, and of one that grew only what is new.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Protocol

from journeyman.disk import RealDisk
from journeyman.errors import LogError, UsageError
from journeyman.units import NS_PER_S

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+://")
_UNFINISHED = ".tmp"
_CHUNK_NAME = re.compile(r"[0-9a-f]{64}")


class Vault(Protocol):
    where: str

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of the objects in a folder, in any order; none without such a folder."""

    def read(self, folder: str, name: str) -> bytes:
        """LogError if it is not there."""

    def write(self, folder: str, name: str, data: bytes) -> None: ...

    def remove(self, folder: str, name: str) -> None: ...

    def make_durable(self) -> None:
        """Make everything durable that was written."""


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

    def make_durable(self) -> None:
        for directory in self._unsynced:
            self._disk.sync_dir(directory)
        self._unsynced.clear()

    def _path(self, folder: str, name: str) -> str:
        """Return the path of a chunk in one of 256 folders, since a large backup has a hundred
        thousand chunks."""
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

    def make_durable(self) -> None:
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


FOLDER = "manifests"
FORMAT = 1
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """``path`` is relative to the data directory, with slashes."""

    path: str
    size: int
    identity: tuple[int, int, int]
    chunks: tuple[str, ...]
    sizes: tuple[int, ...] = ()  # one for each chunk; none in backups of earlier versions


@dataclass(frozen=True, slots=True)
class Manifest:
    """``exact``: all files are as they were at one moment; else each log is, in causal order."""

    taken_ns: int
    source: str
    version: str
    exact: bool
    files: tuple[StoredFile, ...]

    @property
    def name(self) -> str:
        """The moment, so that names are in the order of time."""
        seconds, ns = divmod(self.taken_ns, NS_PER_S)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}{ns:09d}Z"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def chunks(self) -> set[str]:
        return {chunk for file in self.files for chunk in file.chunks}

    def write(self, vault: Vault) -> None:
        body = {"format": FORMAT, **asdict(self)}
        data = json.dumps({**body, "digest": _digest(body)}, indent=1).encode()
        vault.write(FOLDER, self.name + _SUFFIX, data)
        vault.make_durable()


def read_manifest(vault: Vault, name: str) -> Manifest:
    """LogError if it is missing, damaged, or of a newer version."""
    where = f"{vault.where}/{FOLDER}/{name}{_SUFFIX}"
    try:
        body: dict[str, Any] = json.loads(vault.read(FOLDER, name + _SUFFIX))
        digest = body.pop("digest")
        if body["format"] != FORMAT:
            raise LogError(where, f"format {body['format']}: a newer version made this backup")
        if digest != _digest(body):
            raise LogError(where, "the manifest is damaged: its digest does not match")
        del body["format"]
        manifest = Manifest(files=tuple(map(_stored_file, body.pop("files"))), **body)
        if not _is_count(manifest.taken_ns):
            raise ValueError("taken_ns is not a time")
        return manifest
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise LogError(where, f"the manifest is damaged: {error}") from None


def _stored_file(entry: dict[str, Any]) -> StoredFile:
    """ValueError, KeyError or TypeError: a digest proves nothing of a hostile manifest."""
    path: object = entry["path"]
    chunks: tuple[object, ...] = tuple(entry["chunks"])
    size, sizes = entry["size"], tuple(entry.get("sizes", ()))
    if not isinstance(path, str) or b"\0" in os.fsencode(path):
        raise ValueError("path is not a path")
    if not all(map(_is_count, (size, *sizes))):
        raise ValueError(f"a size of {path!r} is not a number of bytes")
    names = tuple(name for name in chunks if isinstance(name, str) and _CHUNK_NAME.fullmatch(name))
    if len(names) < len(chunks):
        raise ValueError(f"a chunk of {path!r} is not named by its digest")
    return StoredFile(path, size, tuple(entry["identity"]), names, sizes)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def list_backups(vault: Vault) -> list[str]:
    """The names of all backups, oldest first."""
    return sorted(
        name.removesuffix(_SUFFIX) for name in vault.names(FOLDER) if name.endswith(_SUFFIX)
    )


def remove_manifest(vault: Vault, name: str) -> None:
    vault.remove(FOLDER, name + _SUFFIX)


def _digest(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

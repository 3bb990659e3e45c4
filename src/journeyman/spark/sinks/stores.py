"""Part files wherever they are: on the local file system, or where pyarrow or fsspec can write.

A local part file is synced when it is closed. Elsewhere closing it is all there is: an object
store shows a file when it is closed, whole, and not before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, BinaryIO, Protocol, cast

from journeyman.errors import UsageError
from journeyman.formats.framing import Buffer

_ROOT = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^/]*")
_COPY_BYTES = 4 * 1024 * 1024


class PartFile:
    """A new file being written."""

    def __init__(self, path: str, file: Any, *, is_local: bool) -> None:
        self.path = path
        self.size = 0
        self._file = file
        self._is_local = is_local

    def write(self, data: Buffer) -> None:
        left = memoryview(data)
        self.size += len(left)
        while left:
            left = left[self._file.write(left) or len(left) :]

    def close(self) -> None:
        """The file is whole; on a local disk it is also durable."""
        if self._is_local:
            os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        """Nobody will ask for this file."""
        self._file.close()
        if self._is_local:
            with suppress(FileNotFoundError):
                os.remove(self.path)


class Store(Protocol):
    """Where part files go."""

    def create(self, path: str) -> PartFile:
        """A new file; the directory above it is made."""
        ...


class _LocalStore:
    def create(self, path: str) -> PartFile:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return PartFile(path, open(path, "xb", buffering=0), is_local=True)


class RemoteStore:
    """A filesystem of pyarrow, or of fsspec by way of it."""

    def __init__(self, root: str) -> None:
        from pyarrow import fs

        self._root = root + "/"
        self._filesystem, inner = _open(root + "/_", fs)
        self._inner_root = inner.removesuffix("_")

    def create(self, path: str) -> PartFile:
        inner = self._inner(path)
        if above := inner.rpartition("/")[0]:
            self._filesystem.create_dir(above, recursive=True)
        return PartFile(path, self._filesystem.open_output_stream(inner), is_local=False)

    def read(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """The file from ``offset`` on, in pieces."""
        with self._filesystem.open_input_file(self._inner(path)) as opened:
            file = cast("BinaryIO", opened)
            file.seek(offset)
            while piece := file.read(_COPY_BYTES):
                yield piece

    def names(self, directory: str) -> list[str]:
        """Names of the files in a directory; none if it is not there."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(self._inner(directory), allow_not_found=True)
        infos = self._filesystem.get_file_info(selector)
        return sorted(info.base_name for info in infos if info.type == FileType.File)

    def exists(self, path: str) -> bool:
        from pyarrow.fs import FileType

        return bool(self._filesystem.get_file_info(self._inner(path)).type != FileType.NotFound)

    def write_whole(self, path: str, pieces: Iterable[Buffer]) -> None:
        file = self.create(path)
        for piece in pieces:
            file.write(piece)
        file.close()

    def remove(self, path: str) -> None:
        self._filesystem.delete_file(self._inner(path))

    def remove_tree(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_dir(self._inner(path))

    def _inner(self, path: str) -> str:
        return self._inner_root + path.removeprefix(self._root)


def store_of(path: str) -> Store:
    """Where an absolute path is."""
    return RemoteStore(root_of(path)) if "://" in path else _LocalStore()


def root_of(path: str) -> str:
    """Scheme and authority of a URI: ``s3://bucket``."""
    match = _ROOT.match(path)
    if match is None:
        raise UsageError(f"{path} is no URI")
    return match[0]


def _open(uri: str, fs: Any) -> tuple[Any, str]:
    import pyarrow as pa

    try:
        filesystem, inner = fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as refused:
        try:
            other, inner = import_module("fsspec.core").url_to_fs(uri)
        except (ImportError, ValueError) as error:
            raise UsageError(f"{uri} cannot be written: {refused}; fsspec: {error}") from None
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(other))
    return filesystem, inner

"""Files wherever they are: local ones by the operating system, others by pyarrow or fsspec.

    /var/log/ztick/logfile, file:///var/...     local
    s3://bucket/logs, gs://, hdfs://, ...       pyarrow.fs.FileSystem.from_uri
    memory://, sftp://, abfs://, ...            fsspec, where it is installed

A path keeps its scheme everywhere outside of this module, so that a worker on another machine can
open what the planner found. Files are opened as plain seekable binary files: the only calls made
are ``seek`` and ``readinto``, so a part of a file is read without the rest of it.

Globs are Hadoop's, as in Spark: ``*``, ``?``, ``[ab]``, ``[^a]``, ``{a,b}``; never across a ``/``.
"""

from __future__ import annotations

import io
import mmap
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import IO, Any, BinaryIO, Protocol, cast

from journeyman.errors import LogError, UsageError
from journeyman.formats.framing import Buffer

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://([^/]*)")
_GLOB_CHARACTERS = frozenset("*?[]{}")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file or directory as it was found. ``identity`` tells a replaced file, where known."""

    path: str
    is_dir: bool
    size: int
    modified_ns: int | None
    identity: int | None = None

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]


class Filesystem(Protocol):
    """What reading logs needs of a place where files are."""

    def find(self, path: str) -> FoundFile | None:
        """What is at ``path``; None when nothing is."""
        ...

    def list_dir(self, path: str) -> list[FoundFile]:
        """What is in a directory, by name."""
        ...

    def open(self, path: str) -> BinaryIO:
        """Seekable and unbuffered. Raises FileNotFoundError."""
        ...


class _Local:
    def find(self, path: str) -> FoundFile | None:
        try:
            return _found(path, os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list_dir(self, path: str) -> list[FoundFile]:
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    found.append(_found(entry.path, entry.stat()))
                except FileNotFoundError:
                    continue  # removed while we looked
        return sorted(found, key=lambda each: each.path)

    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", open(path, "rb", buffering=0))


def _found(path: str, status: os.stat_result) -> FoundFile:
    is_dir = stat.S_ISDIR(status.st_mode)
    return FoundFile(path, is_dir, status.st_size, status.st_mtime_ns, status.st_ino)


class _Arrow:
    """A filesystem of pyarrow, whose own paths lack the beginning of ours.

    ``ours`` and ``theirs`` are what we and it call the same root: ``s3://bucket`` and ``bucket``;
    ``hdfs://name`` and the empty string, its paths beginning with a slash; None, theirs do not.
    """

    def __init__(self, filesystem: Any, ours: str, theirs: str | None) -> None:
        self._filesystem = filesystem
        self._ours = ours
        self._theirs = theirs

    def find(self, path: str) -> FoundFile | None:
        return self._found(self._filesystem.get_file_info(self._inner(path)))

    def list_dir(self, path: str) -> list[FoundFile]:
        from pyarrow.fs import FileSelector

        infos = self._filesystem.get_file_info(FileSelector(self._inner(path)))
        found = [each for info in infos if (each := self._found(info)) is not None]
        return sorted(found, key=lambda each: each.path)

    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", self._filesystem.open_input_file(self._inner(path)))

    def _found(self, info: Any) -> FoundFile | None:
        from pyarrow.fs import FileType

        if info.type == FileType.NotFound:
            return None
        is_dir = info.type == FileType.Directory
        return FoundFile(self._outer(info.path), is_dir, info.size or 0, info.mtime_ns)

    def _inner(self, path: str) -> str:
        below = path.removeprefix(self._ours).strip("/")
        return f"{self._theirs}/{below}".rstrip("/") if self._theirs is not None else below

    def _outer(self, path: str) -> str:
        return f"{self._ours}/{path.removeprefix(self._theirs or '').strip('/')}"


_LOCAL = _Local()


def filesystem_of(path: str) -> Filesystem:
    """The filesystem that this absolute path is on."""
    match = _SCHEME.match(path)
    return _LOCAL if match is None else _remote(match[0])


@lru_cache(maxsize=64)
def _remote(root: str) -> Filesystem:
    """``root`` is scheme and authority: ``s3://bucket``."""
    import pyarrow as pa
    from pyarrow import fs

    try:
        # With a name behind it, since not every filesystem takes its bare root.
        filesystem, inner = fs.FileSystem.from_uri(root + "/_")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return _fsspec(root, error)
    return _Arrow(filesystem, root, _root_of(inner))


def _fsspec(root: str, refused: Exception) -> Filesystem:
    from pyarrow import fs

    try:
        core: Any = import_module("fsspec.core")  # installed by those who need it
        filesystem, inner = core.url_to_fs(root + "/_")
    except (ImportError, ValueError) as error:
        raise UsageError(f"{root} cannot be opened: {refused}; fsspec: {error}") from None
    handler: Any = fs.FSSpecHandler  # its stub calls it abstract
    return _Arrow(fs.PyFileSystem(handler(filesystem)), root, _root_of(inner))


def _root_of(inner: str) -> str | None:
    """What a filesystem calls the root, given what it calls ``_`` in it."""
    return inner.removesuffix("/_") if inner != "_" else None


def read_range(path: str, offset: int, length: int) -> bytes:
    """At most ``length`` bytes of a file from ``offset`` on. Raises FileNotFoundError."""
    with filesystem_of(path).open(path) as file:
        file.seek(offset)
        return file.read(length)


def absolute(path: str) -> str:
    """The path as it is meant on every machine: with a scheme, or from the root of local files."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return path if _SCHEME.match(path) else os.path.abspath(path)


# -- globs ---------------------------------------------------------------------------------------


def has_glob(path: str) -> bool:
    return not _GLOB_CHARACTERS.isdisjoint(path)


def expand(path: str) -> Iterator[FoundFile]:
    """What an absolute path or glob stands for, in order of the names; nothing if nothing is."""
    parts = path.split("/")
    first = next((at for at, part in enumerate(parts) if has_glob(part)), None)
    filesystem = filesystem_of(path)
    if first is None:
        if (found := filesystem.find(path)) is not None:
            yield found
        return
    yield from _matches(filesystem, "/".join(parts[:first]) or "/", [p for p in parts[first:] if p])


def _matches(filesystem: Filesystem, base: str, parts: list[str]) -> Iterator[FoundFile]:
    pattern = glob_pattern(parts[0])
    root = filesystem.find(base)
    if root is None or not root.is_dir:
        return
    for found in filesystem.list_dir(base):
        if pattern.fullmatch(found.name) is None:
            continue
        if len(parts) == 1:
            yield found
        elif found.is_dir:
            yield from _below(filesystem, found, parts[1:])


def _below(filesystem: Filesystem, directory: FoundFile, parts: list[str]) -> Iterator[FoundFile]:
    if has_glob(parts[0]):
        yield from _matches(filesystem, directory.path, parts)
        return
    found = filesystem.find(directory.path.rstrip("/") + "/" + parts[0])
    if found is None:
        return
    if len(parts) == 1:
        yield found
    elif found.is_dir:
        yield from _below(filesystem, found, parts[1:])


@lru_cache(maxsize=256)
def glob_pattern(glob: str) -> re.Pattern[str]:
    """A glob over one name, as a regular expression. Raises UsageError."""
    pieces: list[str] = []
    depth, at = 0, 0
    while at < len(glob):
        character = glob[at]
        at += 1
        if character == "*":
            pieces.append("[^/]*")
        elif character == "?":
            pieces.append("[^/]")
        elif character == "[" and (end := glob.find("]", at + 1)) > 0:
            inside = glob[at:end].replace("\\", "\\\\")
            pieces.append(f"[^{inside[1:]}]" if inside[0] in "!^" else f"[{inside}]")
            at = end + 1
        elif character == "{":
            pieces.append("(?:")
            depth += 1
        elif character == "}" and depth:
            pieces.append(")")
            depth -= 1
        elif character == "," and depth:
            pieces.append("|")
        else:
            pieces.append(re.escape(character))
    try:
        return re.compile("".join(pieces), re.DOTALL)
    except re.error:
        raise UsageError(f"{glob!r} is no glob: a bracket or brace is not closed") from None


# ----------------------------------------
# A moving view of a file: a few MiB of it in memory, wherever the file is.
#
#     file     |=========================|
#     window           [------]               begin, data
#
# ``move`` fills the window anew from a given offset. The memory is used again, so whoever keeps
# bytes of a window copies them. ``rest`` is for the rare look at everything up to the end of the
# file, when the extent of a damage is judged: a local file is mapped for that, of any other a copy
# in an unnamed temporary file. Mapped bytes are not a copy; they are only asked how far damage
# goes.

_COPY_BYTES = 8 * 1024 * 1024


class Window:
    """``data`` are the bytes from ``begin`` on of a file of ``size`` bytes."""

    def __init__(self, file: BinaryIO, path: str, size: int, usual_bytes: int) -> None:
        self._file = file
        self._path = path
        self._usual_bytes = usual_bytes
        self._room = bytearray()
        self._rest: tuple[int, memoryview] | None = None
        self.size = size
        self.begin = 0
        self.data: Buffer = b""

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def move(self, begin: int, end: int, at_least: int = 0) -> None:
        """Begin at ``begin`` and end at ``end``, or before it after the usual number of bytes.

        ``at_least`` so many bytes, beyond ``end`` too, as far as the file goes.
        """
        wanted = max(min(end - begin, self._usual_bytes), at_least)
        length = min(wanted, self.size - begin)
        if len(self._room) < length:
            self._room = bytearray(length)
        view = memoryview(self._room)[:length]
        self._fill(view, begin)
        self.begin, self.data = begin, view

    def peek(self, begin: int, end: int) -> bytes:
        """These bytes of the file, wherever the window is."""
        view = memoryview(bytearray(end - begin))
        self._fill(view, begin)
        return bytes(view)

    def rest(self, begin: int) -> Buffer:
        """Everything from ``begin`` to the end of the file."""
        if self._rest is None or begin < self._rest[0]:
            self._rest = begin, self._mapped(begin)
        start, mapped = self._rest
        return mapped[begin - start :]

    def _fill(self, view: memoryview, begin: int) -> None:
        self._file.seek(begin)
        filled = 0
        while filled < len(view):
            count = cast("io.RawIOBase", self._file).readinto(view[filled:])
            if not count:
                reason = f"has become shorter while it was read: {begin + filled} of {self.size}"
                raise LogError(self._path, f"{reason} bytes are left; load it again")
            filled += count

    def _mapped(self, begin: int) -> memoryview:
        length = self.size - begin
        if length <= self._usual_bytes:
            view = memoryview(bytearray(length))
            self._fill(view, begin)
            return view
        if isinstance(self._file, io.FileIO):
            return memoryview(_mapping(self._file, self.size))[begin:]
        with tempfile.TemporaryFile() as copy:
            piece = memoryview(bytearray(_COPY_BYTES))
            for at in range(begin, self.size, _COPY_BYTES):
                part = piece[: min(_COPY_BYTES, self.size - at)]
                self._fill(part, at)
                copy.write(part)
            copy.flush()
            return memoryview(_mapping(copy, length))


def _mapping(file: io.FileIO | IO[bytes], length: int) -> mmap.mmap:
    return mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)

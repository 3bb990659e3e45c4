"""Files wherever they are, to read and to write: the one place that opens a path or a URI.

    /var/log/ztick/logfile, file:///var/...     local
    postgresql://user@host/database/workq       logs in PostgreSQL (journeyman.disk), to read only
    s3://bucket/logs, gs://, hdfs://, ...       pyarrow.fs.FileSystem.from_uri; s3a:// is s3://
    memory://, sftp://, abfs://, ...            fsspec, where it is installed

A path keeps its scheme everywhere outside of this module, so that a worker on another machine can
open what the planner found. Files are opened as plain seekable binary files: the only calls made
are ``seek`` and ``readinto``, so a part of a file is read without the rest of it.

A new local file is synced when it is closed. Elsewhere closing it is all there is: an object store
shows a file when it is closed, whole, and not before.

A replay carries positions instead of payloads. What it needs of the bytes behind them is read once
more, by place: see ``read_spans``.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import posixpath
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import IO, Any, BinaryIO, Final, NamedTuple, Protocol, cast

from journeyman.disk import FileStatus, ReadingDisk, disk_of, is_database, open_regular
from journeyman.errors import FormatError, LogError, UsageError
from journeyman.formats.framing import Buffer, Codec
from journeyman.logs import catalog
from journeyman.logs.catalog import FoundFile
from journeyman.units import NS_PER_MS

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://([^/]*)")
_COPY_BYTES = 4 * 1024 * 1024
_MAX_GAP_BYTES: Final = 64 * 1024  # read and thrown away rather than skipped
_MAX_READ_BYTES: Final = 8 * 1024 * 1024


class NewFile:
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


class Filesystem(catalog.Files, Protocol):
    """A place where files are: found, listed, read and made."""

    def open(self, path: str) -> BinaryIO:
        """Seekable and unbuffered. Raises FileNotFoundError."""
        ...

    def create(self, path: str) -> NewFile:
        """A new file; the directory above it is made."""
        ...


class _Local:
    def find(self, path: str) -> FoundFile | None:
        try:
            return _found_file(path, os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list_dir(self, path: str) -> list[FoundFile]:
        found = []
        with os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed while we looked
                    found.append(_found_file(entry.path, entry.stat()))
        return sorted(found, key=lambda each: each.path)

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        return _read(self.open(path), offset, length)

    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", open(path, "rb", buffering=0, opener=open_regular))

    def create(self, path: str) -> NewFile:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return NewFile(path, open(path, "xb", buffering=0), is_local=True)


def _found_file(path: str, status: os.stat_result) -> FoundFile:
    is_dir = stat.S_ISDIR(status.st_mode)
    return FoundFile(path, is_dir, status.st_size, status.st_mtime_ns, status.st_ino)


class _Database:
    """Logs in PostgreSQL. Their server writes them; here they are read."""

    def find(self, path: str) -> FoundFile | None:
        try:
            return _found_there(path, disk_of(path).stat(path))
        except FileNotFoundError:
            return None

    def list_dir(self, path: str) -> list[FoundFile]:
        found = disk_of(path).scan(path)
        return [_found_there(posixpath.join(path, name), facts) for name, facts in found.items()]

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        return disk_of(path).read_at(path, offset, length)

    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", DatabaseFile(path))

    def create(self, path: str) -> NewFile:
        raise UsageError(f"{path}: logs in PostgreSQL are written by their server alone")


class DatabaseFile(io.RawIOBase):
    """A file in PostgreSQL as a seekable binary file."""

    def __init__(self, path: str) -> None:
        disk = disk_of(path)
        self.identity = disk.stat(path).identity
        self._file = disk.open_read(path)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begins = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}
        begin = self._file.size() if whence == os.SEEK_END else begins[whence]
        self._at = begin + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer).cast("B")
        data = self._file.read_at(self._at, min(len(room), _MAX_READ_BYTES))
        room[: len(data)] = data
        self._at += len(data)
        return len(data)


def identity_of(file: BinaryIO) -> int:
    """Return the identity of an open file that is local or in a database."""
    if isinstance(file, DatabaseFile):
        return file.identity
    return os.fstat(file.fileno()).st_ino


def _found_there(path: str, facts: FileStatus) -> FoundFile:
    return FoundFile(path, facts.is_dir, facts.size, facts.modified_ns, facts.identity)


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    with file:
        file.seek(offset)
        return file.read(length)


class Remote:
    """A filesystem of pyarrow, or of fsspec by way of it, whose own paths lack the beginning of
    ours.

    ``ours`` and ``theirs`` are what we and it call the same root: ``s3://bucket`` and ``bucket``;
    ``hdfs://name`` and the empty string, its paths beginning with a slash; None, theirs do not.
    """

    def __init__(self, filesystem: Any, ours: str, inner: str | None) -> None:
        self._filesystem = filesystem
        self._ours = ours
        self._theirs = inner

    def find(self, path: str) -> FoundFile | None:
        return self._found_file(self._filesystem.get_file_info(self._inner(path)))

    def list_dir(self, path: str) -> list[FoundFile]:
        return self._list(path, allow_not_found=False)

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        return _read(self.open(path), offset, length)

    def open(self, path: str) -> BinaryIO:
        return cast("BinaryIO", self._filesystem.open_input_file(self._inner(path)))

    def create(self, path: str) -> NewFile:
        inner = self._inner(path)
        if above := inner.rpartition("/")[0]:
            self._filesystem.create_dir(above, recursive=True)
        return NewFile(path, self._filesystem.open_output_stream(inner), is_local=False)

    def sizes_below(self, directory: str) -> dict[str, int]:
        """Bytes of every file in a directory and those in it, by path; none if it is not there."""
        found = self._list(directory, allow_not_found=True, recursive=True)
        return {each.path: each.size for each in found if not each.is_dir}

    def arrow(self, path: str) -> tuple[Any, str]:
        """Filesystem and path as the functions of pyarrow take them."""
        return self._filesystem, self._inner(path)

    def remove(self, path: str) -> None:
        self._filesystem.delete_file(self._inner(path))

    def _list(
        self, path: str, *, allow_not_found: bool, recursive: bool = False
    ) -> list[FoundFile]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(self._inner(path), allow_not_found, recursive)
        infos = self._filesystem.get_file_info(selector)
        found = [each for info in infos if (each := self._found_file(info)) is not None]
        return sorted(found, key=lambda each: each.path)

    def _found_file(self, info: Any) -> FoundFile | None:
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


class Addresses:
    """Files at any address as one disk, to read only.

    A file that a listing has shown is not asked for again: an object store answers each question
    by a request of its own.
    """

    def __init__(self) -> None:
        self._listed: dict[str, FoundFile] = {}

    def read_bytes(self, path: str) -> bytes:
        with filesystem_of(path).open(path) as file:
            return file.read()

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        return filesystem_of(path).read_at(path, offset, length)

    def view(self, path: str) -> memoryview:
        return memoryview(self.read_bytes(path))

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_dir(self, path: str) -> bool:
        found = self._find(path)
        return found is not None and found.is_dir

    def size(self, path: str) -> int:
        found = self._find(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found.size

    def list_dir(self, path: str) -> list[str]:
        found = filesystem_of(path).list_dir(path)
        self._listed |= {each.path.rstrip("/"): each for each in found}
        return sorted(each.name for each in found)

    def _find(self, path: str) -> FoundFile | None:
        return self._listed.get(path) or filesystem_of(path).find(path)


def disk_at(path: str) -> ReadingDisk:
    """The disk to read this path from, wherever it is."""
    return disk_of(path) if is_database(path) or not is_uri(path) else Addresses()


def staging_name(now_ns: int) -> str:
    """A new directory for files that are not yet what they will be; readers pass over it."""
    return f"_temporary-{now_ns // NS_PER_MS}-{secrets.token_hex(6)}"


_LOCAL, _DATABASE = _Local(), _Database()


def filesystem_of(path: str) -> Filesystem:
    """The filesystem that this absolute path is on."""
    if is_database(path):
        return _DATABASE
    return remote_of(path) if is_uri(path) else _LOCAL


def is_uri(path: str) -> bool:
    """Return whether an absolute path is of a filesystem that is not local."""
    return _SCHEME.match(path) is not None


def refuse_uri(path: str) -> None:
    """Raises UsageError unless a log can be written or changed at this absolute path."""
    if is_database(path):
        raise UsageError(f"{path}: logs in PostgreSQL are written by their server alone")
    if is_uri(path):
        raise UsageError(
            f"{path}: logs are written to local paths only, because an object store has no locks "
            "and cannot change several files at once; write the log locally and copy it"
        )


def arrow_path(path: str) -> tuple[Any, str]:
    """The filesystem of an absolute path, None for a local one, and what pyarrow calls it there."""
    return remote_of(path).arrow(path) if is_uri(path) else (None, path)


def remote_of(uri: str) -> Remote:
    """The filesystem of a URI. Raises UsageError."""
    match = _SCHEME.match(uri)
    if match is None:
        raise UsageError(f"{uri} is not a URI")
    return _remote(match[0])


@lru_cache(maxsize=64)
def _remote(root: str) -> Remote:
    """``root`` is scheme and authority: ``s3://bucket``."""
    import pyarrow as pa
    from pyarrow import fs

    # With a name after it, since not every filesystem takes its bare root.
    try:
        filesystem, inner = _from_uri(fs.FileSystem, root.replace("s3a://", "s3://", 1))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as refused:
        try:
            core: Any = import_module("fsspec.core")  # installed by those who need it
            other, inner = core.url_to_fs(root + "/_")
        except (ImportError, ValueError) as error:
            raise UsageError(f"{root} cannot be opened: {refused}; fsspec: {error}") from None
        handler: Any = fs.FSSpecHandler  # its stub calls it abstract
        filesystem = fs.PyFileSystem(handler(other))
    return Remote(filesystem, root, inner.removesuffix("/_") if inner != "_" else None)


def _from_uri(filesystems: Any, root: str) -> tuple[Any, str]:
    if root.startswith("s3://"):
        with suppress(ValueError):  # an option of newer versions: a small file is one request
            filesystem, inner = filesystems.from_uri(root + "/_?allow_delayed_open=true")
            return filesystem, inner
    filesystem, inner = filesystems.from_uri(root + "/_")
    return filesystem, inner


def absolute(path: str) -> str:
    """The path as it is meant on every machine: with a scheme, or from the root of local files."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return path if _SCHEME.match(path) else os.path.abspath(path)


def find_source_logs(options: catalog.LogQuery) -> list[catalog.Log]:
    """The logs that the options of a read stand for. Raises UsageError when there are none."""
    return catalog.find_logs(options, map(absolute, options.paths), filesystem_of)


def lines_of(path: str) -> Iterator[bytes]:
    """The lines of a file, without their ends."""
    rest = b""
    with filesystem_of(path).open(path) as file:
        while piece := file.read(_COPY_BYTES):
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole
    if rest:
        yield rest


class Window:
    """A moving view of a file: ``data`` are the bytes from ``begin`` on of ``size`` bytes.

        file     |=========================|
        window           [------]               begin, data

    ``move`` fills the window from a given offset. The memory is used again, so a caller that keeps
    bytes of a window copies them. ``rest`` is for the rare look at everything up to the end of the
    file, when the extent of a damage is judged: a local file is mapped for that, any other is
    copied to an unnamed temporary file first.
    """

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
                reason = f"was truncated while it was read: {begin + filled} of {self.size}"
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


class Span(NamedTuple):
    """Where a record is."""

    file: str
    offset: int
    length: int


def read_spans(spans: Sequence[Span]) -> list[bytes]:
    """The bytes of each span, in few reads: the spans are sorted, and neighbours joined.

    A file must still be what it was when it was first read: raises LogError when it ends before a
    span does. A log that was compacted or cleaned meanwhile is also noticed, since callers compare
    what stands in a place with what was read there.
    """
    found: list[bytes] = [b""] * len(spans)
    order = sorted(range(len(spans)), key=spans.__getitem__)
    file: BinaryIO | None = None
    path = None
    try:
        for run in _runs([spans[place] for place in order]):
            if run.file != path or file is None:
                if file is not None:
                    file.close()
                file, path = _opened(run.file), run.file
            data = _bytes_of_run(file, run)
            while order and run.file == spans[order[0]].file and _inside(spans[order[0]], run):
                place = order.pop(0)
                start = spans[place].offset - run.offset
                found[place] = data[start : start + spans[place].length]
    finally:
        if file is not None:
            file.close()
    return found


def read_records(codec: Codec[Any], spans: Sequence[Span]) -> list[Any]:
    """The records of these spans, as the codec reads them."""
    records = []
    for span, data in zip(spans, read_spans(spans), strict=True):
        try:
            entry = codec.decode(data, 0)
        except FormatError:
            entry = None
        if entry is None or entry.length != span.length:
            raise changed(span.file)
        records.append(entry.record)
    return records


def _runs(spans: Sequence[Span]) -> Iterator[Span]:
    """Sorted spans joined to longer ones, as far as little lies between them."""
    run: Span | None = None
    for span in spans:
        end = span.offset + span.length
        if (
            run is not None
            and span.file == run.file
            and span.offset - (run.offset + run.length) <= _MAX_GAP_BYTES
            and end - run.offset <= _MAX_READ_BYTES
        ):
            run = run._replace(length=max(run.length, end - run.offset))
            continue
        if run is not None:
            yield run
        run = span
    if run is not None:
        yield run


def _inside(span: Span, run: Span) -> bool:
    return run.offset <= span.offset and span.offset + span.length <= run.offset + run.length


def _opened(path: str) -> BinaryIO:
    try:
        return filesystem_of(path).open(path)
    except FileNotFoundError:
        raise changed(path) from None


def _bytes_of_run(file: BinaryIO, run: Span) -> bytes:
    file.seek(run.offset)
    data = file.read(run.length)
    if len(data) < run.length:
        raise changed(run.file)
    return data


def changed(path: str) -> LogError:
    """Return the error for a place whose contents have changed since a replay read it."""
    return LogError(path, "was changed during the replay; try again")

"""Loading of logs: in bulk if a log is large and whole, else record by record.

    small or damaged log     formats: one record after another, past damage, which is repaired
    large and clean log      columnar, where it is installed: a million jobs in about a second

Both give the same engine. The fast way only reads a log that is whole to its last byte; at the
first oddity in the bytes the log is read the careful way from the beginning.

A server has it done by a helper process, because numpy, Arrow and the compiled kernels take about
250 MB that no call gives back. The helper decodes; what it sends are plain bytes and numbers, as
pieces for the server's loader. It reads the next chunk while the server loads the last one, and it
has ended when the server listens. Its imports take longer than to read a million rows. So a server
that finds a large log starts it before its own imports (``prepare``); it reads nothing until it is
asked, for by then the log is locked.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from journeyman.disk import Disk, disk_of
from journeyman.formats.framing import Codec
from journeyman.logs.recovery import FileReport, RecoveryReport
from journeyman.servers.core.helper_process import Helper, HelperFailed, end, parts_of

# Below this, importing the libraries takes longer than reading with the formats.
BULK_BYTES = 8 * 1024 * 1024

ZTICK_READER = "journeyman.servers.ztick.bulk"
WORKQ_READER = "journeyman.servers.workq.bulk"

# A path: pieces of this file follow | offsets of records to be added one by one | a method of the
# loader and its arguments | a FileReport.
FILE, RECORDS, CALL, REPORT = range(4)
Piece: TypeAlias = tuple[int, Any]

_prepared: dict[str, subprocess.Popen[bytes]] = {}  # by reader; not asked yet


class ViewedFiles(Protocol):
    """A disk, as far as a bulk reader needs one."""

    def view(self, path: str) -> memoryview: ...


class LoadedFiles(ViewedFiles, Protocol):
    """A disk, as far as loading needs one."""

    @property
    def is_shared(self) -> bool: ...

    def size(self, path: str) -> int: ...


class Loader(Protocol):
    """Takes the records of a log; besides ``add`` it has the methods that its bulk reader calls."""

    @property
    def bulk_arguments(self) -> tuple[Any, ...]:
        """Arguments for the bulk reader, besides the files."""
        ...

    def add(self, record: Any) -> None: ...


L = TypeVar("L", bound=Loader)


class LogLoading(Generic[L]):
    """Gives a log to a loader, all at once if that is worth it and works, else record by record."""

    def __init__(
        self,
        disk: LoadedFiles,
        codec: Codec[Any],
        reader: str,
        make_loader: Callable[[], L],
        bulk_bytes: int = BULK_BYTES,
    ) -> None:
        self._disk = disk
        self._codec = codec
        self._reader = reader
        self._make_loader = make_loader
        self._bulk_bytes = bulk_bytes
        self._loader: L | None = None
        self.was_in_bulk = False

    @property
    def loader(self) -> L:
        """It is made when it is first needed: then the log is locked."""
        if self._loader is None:
            self._loader = self._make_loader()
        return self._loader

    def add(self, record: Any) -> None:
        self.loader.add(record)

    def add_all(self, files: list[str]) -> RecoveryReport | None:
        """Load all files in a helper. None: they are too small, that is not possible here, or the
        log needs care."""
        if sum(map(self._disk.size, files)) < self._bulk_bytes:
            return None
        try:
            reports = self._add_pieces(self._pieces(files))
        except (HelperFailed, ImportError):
            reports = None
        if reports is None:
            self._loader = None  # the records that it has will come again
            return None
        self.was_in_bulk = True
        return RecoveryReport(tuple(reports))

    def _pieces(self, files: list[str]) -> Iterator[Piece | None]:
        arguments = self.loader.bulk_arguments
        if can_use(self._disk):
            return read(self._reader, files, *arguments)
        pieces: Iterator[Piece | None] = import_module(self._reader).read_pieces(
            self._disk, files, *arguments
        )
        return pieces

    def _add_pieces(self, pieces: Iterable[Piece | None]) -> list[FileReport] | None:
        reports: list[FileReport] = []
        view = memoryview(b"")
        for piece in pieces:
            if piece is None:
                return None
            kind, value = piece
            if kind == FILE:
                view = self._disk.view(value)
            elif kind == REPORT:
                reports.append(value)
            elif kind == CALL:
                method, arguments = value
                getattr(self.loader, method)(*arguments)
            else:
                for offset in value:
                    entry = self._codec.decode(view, offset)
                    assert entry is not None
                    self.loader.add(entry.record)
        return reports


def can_use(disk: LoadedFiles) -> bool:
    """True if another process sees the same files, and there is what it needs."""
    is_seen = disk.is_shared and bool(sys.executable)
    return is_seen and all(map(importlib.util.find_spec, ("numpy", "pyarrow", "numba")))


def prepare_reader(reader: str, path: str) -> None:
    """Start the helper with this reader if the file or directory is large."""
    try:
        disk: Disk = disk_of(path)
        files = disk.scan(path).values() if disk.is_dir(path) else [disk.stat(path)]
        if sum(file.size for file in files) >= BULK_BYTES and can_use(disk):
            _prepared[reader] = Helper(reader).start()
    except OSError:
        return  # opening the log will say what is wrong


def end_idle_helpers() -> None:
    """End the helpers that were prepared and not asked."""
    while _prepared:
        end(_prepared.popitem()[1])


def read(reader: str, files: list[str], *arguments: Any) -> Iterator[Piece | None]:
    """The pieces of these files from the reader, in a helper."""
    try:
        helper = _prepared.pop(reader, None) or Helper(reader).start()
    except OSError as error:
        raise HelperFailed(str(error)) from error
    try:
        yield from parts_of(helper, "pieces_of", files, *arguments)
    finally:
        end(helper)

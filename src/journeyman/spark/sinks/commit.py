"""The driver's side of a write: what all dialects share on the way from part files to a log.

    a directory yet to be made    built beside its place, then one rename: all files or none
    one file of a log             one rename
    several files of a log        a journal (journeyman.logs.publication): all files or none

Parts of a format with seals are sealed on the way, unless the options say otherwise.
Everything here is done under the lock of the log, on a Disk, so that a test can cut the power at
every step. What each dialect makes of its parts is in dialects.py.

Where part files wait:

    <directory>/_temporary-<ms>-<hex>/part-...      part files of one write, and what is built there
    <directory>/_temporary-<ms>-<hex>.new/          a directory about to become the log

The directory is that of the log, or the one above it while the log is yet to be made: renames never
leave the file system. Hidden names are no part of any log, so readers never see them. A write that
ends, well or badly, removes its staging directory. One that was killed cannot; what it leaves is
removed by a later write to the same directory, once it is a day old: a younger one may belong to a
write that is still running.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from journeyman.clock import Clock
from journeyman.columnar.seals import KERNELS, is_proven
from journeyman.disk import Disk, RealDisk
from journeyman.errors import FormatError, LogError, LogLocked, UsageError
from journeyman.formats.framing import Buffer, Codec
from journeyman.formats.seals import BLOCK_BYTES, stamp_of
from journeyman.logs.publication import Publication, publish, put_in_place, write_whole
from journeyman.logs.recovery import recover_file
from journeyman.logs.sealing import close_file, sealed
from journeyman.spark.sinks.log_options import SinkOptions
from journeyman.spark.sinks.parts import PartFile, PartsWritten, StagedStream
from journeyman.units import NS_PER_MS

LOCK_TIMEOUT_S = 1.0
STALE_AFTER_S = 24 * 3600
_NAME = re.compile(r"_temporary-([0-9]{1,15})-[0-9a-f]{12}(?:\.new)?")
Hop = Callable[[Buffer, int, int], int]


class SinkDisk(Disk, Protocol):
    """A disk on which directories too can be renamed and removed."""

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        ...


@dataclass(frozen=True, slots=True)
class Write:
    """One write whose tasks have all succeeded; ``messages`` are in the order of the log."""

    disk: SinkDisk
    clock: Clock
    options: SinkOptions
    overwrite: bool
    staging: str
    messages: Sequence[PartsWritten]

    def streams(self) -> list[StagedStream]:
        """Every stream that has rows, in the order in which they appear."""
        parts = (part for message in self.messages for part in message.parts)
        return list(dict.fromkeys(part.stream for part in parts))

    def parts(self, stream: StagedStream) -> list[PartFile]:
        """The parts of a stream in order."""
        return [p for message in self.messages for p in message.parts if p.stream == stream]

    def staged(self, name: str) -> str:
        """Where the driver may build a file; the staging directory is there then."""
        self.disk.make_dirs(self.staging)
        return posixpath.join(self.staging, name)

    def check(self) -> None:
        """Raises if the parts are not all there, or not of one log where that matters."""
        for message in self.messages:
            for part in message.parts:
                if not self.disk.exists(part.path) or self.disk.size(part.path) != part.size:
                    raise LogError(
                        part.path,
                        "is not there as it was written: the driver and all executors must share"
                        " the file system of the target, and only one write may go on at a time",
                    )
        self._check_logs()

    def _check_logs(self) -> None:
        logs: dict[StagedStream, set[str]] = {}
        for message in self.messages:
            for stream, log in message.logs:
                logs.setdefault(stream, set()).add(log)
        for found in logs.values():
            if len(found) > 1:
                raise UsageError(
                    f"rows of {len(found)} logs ({', '.join(sorted(found)[:3])} ...), and _position"
                    " is an order inside one log: say orderBy, or write them one by one"
                )


def join_parts(
    write: Write,
    codec: Codec[Any],
    hop: Hop,
    parts: Sequence[str],
    name: str,
    *,
    before: str | None = None,
) -> str:
    """One staged file of all parts, sealed if that is asked for; its path.

    Each part begins with the header of the format. ``before``: a settled file, of which the new
    one begins with a copy.
    """
    disk, start, whole = write.disk, len(codec.header), write.staged(name)
    if codec.seals is None or not write.options.seals:
        concatenate(disk, parts if before is None else [before, *parts], whole, start)
        return whole
    head = codec.header if before is None else disk.view(before)
    pieces = (piece for path in parts for piece in _blocks(disk, codec, hop, path))
    stamp = stamp_of(write.clock.now_ns(), whole)
    write_whole(disk, whole, sealed(codec.seals, head, pieces, stamp))
    return whole


def concatenate(disk: SinkDisk, paths: Sequence[str], target: str, header_bytes: int) -> None:
    """Write these files end to end into a new one, synced, all but the first without a header."""
    pieces = (disk.view(path)[header_bytes if at else 0 :] for at, path in enumerate(paths))
    write_whole(disk, target, pieces)


def _blocks(disk: SinkDisk, codec: Codec[Any], hop: Hop, path: str) -> Iterator[Buffer]:
    """The entries of a part, about a block of them at a time."""
    view, at = disk.view(path), len(codec.header)
    if KERNELS[codec.name].next_seal(view, at, 0, True) < len(view):
        # It would be taken for the seal of a block, which it does not fit.
        raise UsageError(
            "a row removes a job whose identifier begins with journeyman.seal., which the log"
            " itself uses: leave such rows out"
        )
    while at < len(view):
        end = hop(view, at, min(at + BLOCK_BYTES, len(view)))
        yield view[at:end]
        at = end


@contextmanager
def locked(disk: SinkDisk, log: str, paths: Iterable[str]) -> Iterator[None]:
    """Hold these lock files; LogLocked says that ``log`` is in use."""
    with ExitStack() as stack:
        for path in paths:
            try:
                lock = disk.lock(path, timeout_s=LOCK_TIMEOUT_S)
            except LogLocked as error:
                raise LogLocked(log, "is in use: another process has it open") from error
            stack.callback(lock.release)
        yield


def make_directory(write: Write, names: Mapping[str, str]) -> None:
    """A new log: files (path -> name) in a directory that is not there yet."""
    disk, directory = write.disk, write.options.path
    disk.make_dirs(posixpath.dirname(directory))
    building = f"{write.staging}.new"
    disk.make_dirs(building)
    for path, name in names.items():
        disk.rename(path, posixpath.join(building, name))
    disk.sync_dir(building)
    try:
        put_in_place(disk, building, directory)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise LogError(
            directory, "was created by another process during the write: write again"
        ) from error


def place_files(
    write: Write, journal: str, names: Mapping[str, str], removes: Iterable[str] = ()
) -> None:
    """Files (path -> name) into the directory of ``journal``, and others out of it."""
    disk, directory = write.disk, posixpath.dirname(journal)
    goes = tuple(name for name in removes if name not in names.values())
    if len(names) == 1 and not goes:
        ((path, name),) = names.items()
        put_in_place(disk, path, posixpath.join(directory, name))
    elif names or goes:
        staged = {posixpath.relpath(path, directory): name for path, name in names.items()}
        publish(disk, journal, Publication(staged, goes))


def settle_tail(disk: SinkDisk, codec: Codec[Any], hop: Hop, path: str) -> None:
    """Repair a file that does not end with a whole entry, as opening the log would.

    Records written behind a torn one could not be read. Zeros at the end do no harm in a log of
    several files, and of a single one they are no entry either, so they are cut as well. A sealed
    file is closed: what follows has no seals.
    """
    view = disk.view(path)
    try:
        start = codec.check_header(view)
    except FormatError:
        ends_well = False
    else:
        ends_well = hop(view, start, len(view)) == len(view)
        ends_well = ends_well and (codec.seals is None or is_proven(codec, view))
    del view  # the file may now be cut
    if not ends_well:
        recover_file(disk, codec, path)
    if codec.seals is not None and disk.exists(path):
        close_file(disk, codec.seals, path)


def remove_staging(disk: SinkDisk, staging: str) -> None:
    """Remove a staging directory with all that is in it."""
    for directory in (staging, f"{staging}.new"):
        _remove_directory(disk, directory)


def remove_stale(disk: SinkDisk, directory: str, now_ns: int) -> None:
    """Remove what writes that were killed a day ago or earlier left behind."""
    for name in disk.list_dir(directory) if disk.is_dir(directory) else ():
        match = _NAME.fullmatch(name)
        if match and now_ns // NS_PER_MS - int(match[1]) > STALE_AFTER_S * 1000:
            _remove_directory(disk, posixpath.join(directory, name))


def _remove_directory(disk: SinkDisk, directory: str) -> None:
    if not disk.is_dir(directory):
        return
    # Another writer may be at the same work.
    with suppress(FileNotFoundError):
        for path in (posixpath.join(directory, name) for name in disk.list_dir(directory)):
            with suppress(FileNotFoundError):
                _remove_directory(disk, path) if disk.is_dir(path) else disk.remove(path)
        disk.remove_dir(directory)


class LocalDisk(RealDisk):
    """The machine's file system."""

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

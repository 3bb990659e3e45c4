"""Reading the entries of a log for dump: only what is proven, unless asked to guess.

    ztick     frame by frame, by their lengths alone, as ``ztick dump`` walks; a frame whose content
              is bad is left out with a warning, a partial frame ends the file with a warning
    workq     every record whose checksum fits, also behind damage
    kestrel   up to the first damage
    salvage   all dialects: whatever plausible entries can be found behind damage, too

Entries are made one at a time, so the size of a log does not matter. Every stretch that was passed
over is a warning on stderr.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from journeyman.cli.complaints import warn
from journeyman.cli.dialects import KESTREL, ZTICK, LogFile
from journeyman.cli.mapping import MappedLog
from journeyman.cli.progress import Advance
from journeyman.errors import FormatError
from journeyman.formats.framing import Buffer, Entry
from journeyman.logs.damage import Damage, read_past_damage

__all__ = ["Source", "is_end_mark"]

_ADVANCE_EVERY = 4096  # entries
_LENGTH_PREFIX_BYTES = 4
_NS_PER_MS = 1_000_000


class Source:
    """Reads the files of one log, up to the moment asked for, and knows what was damaged."""

    def __init__(
        self, mapped: MappedLog, *, as_of_ns: int | None, salvage: bool, advance: Advance
    ) -> None:
        self._views = mapped.views
        self._as_of_ns = as_of_ns
        self._salvage = salvage
        self._advance = advance
        self._done = 0
        self.damaged: set[str] = set()  # paths

    def read(self, files: Iterable[LogFile]) -> Iterator[tuple[LogFile, Entry[Any]]]:
        """The entries of these files, one file after the other."""
        for file in files:
            data = self._views[file.path]
            for number, entry in enumerate(self._entries(file, data)):
                if number % _ADVANCE_EVERY == 0:
                    self._advance(self._done + entry.offset)
                if self._as_of_ns is None or _recorded_ns(file, entry.record) <= self._as_of_ns:
                    yield file, entry
            self._done += len(data)

    def _entries(self, file: LogFile, data: Buffer) -> Iterator[Entry[Any]]:
        by_frames = file.dialect == ZTICK and not self._salvage
        for found in _ztick_frames(data) if by_frames else self._past_damage(file, data):
            if isinstance(found, str):
                self.damaged.add(file.path)
                warn(found)
            else:
                yield found

    def _past_damage(self, file: LogFile, data: Buffer) -> Iterator[Entry[Any] | str]:
        for found in read_past_damage(file.codec, data, file=file.path, guess=self._salvage):
            if not isinstance(found, Damage):
                yield found
            elif not is_end_mark(file, data, found):
                yield (
                    f"{file.path}: {found.length} bytes at offset {found.offset} left out: "
                    f"{found.kind}, {found.reason}"
                )


def _ztick_frames(data: Buffer) -> Iterator[Entry[Any] | str]:
    """Entries, and warnings in the words of the original."""
    from journeyman.formats.ztick import decode_payload, frames

    end = 0
    for index, (offset, payload) in enumerate(frames(data)):
        end = offset + _LENGTH_PREFIX_BYTES + len(payload)
        try:
            record = decode_payload(payload, offset)
        except FormatError:
            yield f"failed to decode frame {index}: error.InvalidData"
        else:
            yield Entry(offset, end - offset, record)
    if end < len(data):
        yield f"partial trailing frame ({len(data) - end} bytes) ignored"


def is_end_mark(file: LogFile, data: Buffer, damage: Damage) -> bool:
    """Whether this is how a kestrel file says that it ends: a zero byte, whatever follows it."""
    at_end = damage.end == len(data) and damage.kind != "bad-header"
    begins_zero = data[damage.offset : damage.offset + 1] == b"\0"
    return file.dialect == KESTREL and at_end and begins_zero


def _recorded_ns(file: LogFile, record: Any) -> int:
    """When the record came into being. A checkpoint bears no time and counts as always there."""
    if file.dialect == KESTREL:
        return int(record.add_time_ms) * _NS_PER_MS if hasattr(record, "add_time_ms") else 0
    return int(record.logged.unix_ns)

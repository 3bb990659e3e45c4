"""Reading the entries of a log for dump: by the one rule for damaged logs, or asked for more.

    all       the records that a server would load: journeyman.logs.damage says how reading goes on
              behind damage
    salvage   also what stands alone between damages, or in a torn tail, and looks like a record
    seals     the seals of the log too, as the records that they are for other programs

Entries are made one at a time, so the size of a log does not matter. Every stretch that was passed
over is a warning on stderr; of a ztick log in the words of ``ztick dump`` where that says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from journeyman.cli.dialects import KESTREL, ZTICK, LogFile
from journeyman.cli.errors import warn
from journeyman.cli.mapping import MappedLog
from journeyman.cli.progress import Advance
from journeyman.formats.framing import Buffer, Entry
from journeyman.logs.damage import Damage
from journeyman.logs.sealed_reading import is_in_flight, read_file

_ADVANCE_EVERY = 4096  # entries
_LENGTH_PREFIX_BYTES = 4
_NS_PER_MS = 1_000_000


class LogReading:
    """Reads the files of one log, up to the moment asked for, and knows what was damaged."""

    def __init__(
        self,
        mapped: MappedLog,
        *,
        as_of_ns: int | None,
        salvage: bool,
        advance: Advance,
        seals: bool = False,
    ) -> None:
        self._views = mapped.views
        self._as_of_ns = as_of_ns
        self._salvage = salvage
        self._seals = seals
        self._advance = advance
        self._done = 0
        self._told: set[tuple[str, int]] = set()
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
        found_all = read_file(
            file.codec, data, file=file.path, salvage=self._salvage, seals=self._seals
        )
        for frames, found in enumerate(found_all):
            if not isinstance(found, Damage):
                yield found
            elif not is_end(file, data, found):
                self.damaged.add(file.path)
                if (file.path, found.offset) in self._told:
                    continue  # the file is read once more
                self._told.add((file.path, found.offset))
                warn(_warning(file, data, found, frames))


def _warning(file: LogFile, data: Buffer, damage: Damage, frames: int) -> str:
    """What was left out; ``frames`` stand before it in its file."""
    if file.dialect == ZTICK and damage.kind == "torn" and damage.end == len(data):
        return f"partial trailing frame ({damage.length} bytes) ignored"
    prefix = bytes(data[damage.offset : damage.offset + _LENGTH_PREFIX_BYTES])
    length = int.from_bytes(prefix, "big") + _LENGTH_PREFIX_BYTES
    if file.dialect == ZTICK and damage.kind == "corrupt" and damage.length == length:
        return f"failed to decode frame {frames}: error.InvalidData"
    return (
        f"{file.path}: {damage.length} bytes at offset {damage.offset} left out: "
        f"{damage.kind}, {damage.reason}"
    )


def is_end(file: LogFile, data: Buffer, damage: Damage) -> bool:
    """Whether this is no damage but the end of a file: its end mark, or a batch on its way.

    A checkpoint is written whole, so nothing is ever on its way there.
    """
    is_on_its_way = is_in_flight(damage) and file.reader is None
    return is_on_its_way or is_end_mark(file, data, damage)


def is_end_mark(file: LogFile, data: Buffer, damage: Damage) -> bool:
    """Whether this is how a kestrel file ends: a zero byte, and then no data that counts.

    Behind the zero byte of a segment there may be a PUT whose first byte was to be written last.
    A checkpoint is replaced as a whole, so nothing but zeros may follow its last record.
    """
    if file.dialect != KESTREL or damage.end != len(data) or damage.offset == 0:
        return False
    begins_zero = data[damage.offset] == 0
    return damage.kind == "padding" or (file.reader is None and begins_zero)


def _recorded_ns(file: LogFile, record: Any) -> int:
    """When the record came into being. A checkpoint bears no time and counts as always there."""
    if file.dialect == KESTREL:
        return int(record.add_time_ms) * _NS_PER_MS if hasattr(record, "add_time_ms") else 0
    return int(record.logged.unix_ns)

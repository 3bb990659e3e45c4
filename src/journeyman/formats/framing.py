"""The vocabulary that all log formats share: entry, codec, ending.

    bytes --codec.decode--> Entry(offset, length, record)   until an Ending

A codec decodes one entry at an offset. It answers with one of three things, never confused:

    Entry            a whole record
    None             the end of the data is here (no byte left; for kestrel also a zero byte)
    FormatError      IncompleteEntry: the buffer ends inside the entry
                     any other:       corruption

``scan`` reads a whole buffer and stops at the first fault. Reading on after damage is recovery,
not format: see journeyman.logs.recovery.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeAlias, TypeVar

from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats.seals import SealFormat

# Decoders accept anything indexable by byte whose slices bytes() copies.
Buffer: TypeAlias = bytes | bytearray | memoryview

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Entry(Generic[R_co]):
    """A record and where it stands: ``length`` bytes from ``offset``, framing included."""

    offset: int
    length: int
    record: R_co

    @property
    def end(self) -> int:
        return self.offset + self.length


class Stop(Enum):
    """Why reading stopped. The values are the words used in reports."""

    EOF = "eof"  # records fill the buffer
    ZERO_BYTE = "zero-byte"  # kestrel: a zero command byte says "end of data here"
    TORN = "torn"  # the buffer ends inside an entry
    CORRUPT = "corrupt"
    BAD_HEADER = "bad-header"  # absent, cut short or foreign


@dataclass(frozen=True, slots=True)
class Ending:
    """Where reading stopped and why; ``error`` unless the stop is EOF or ZERO_BYTE."""

    stop: Stop
    offset: int
    error: FormatError | None = None

    @property
    def clean(self) -> bool:
        return self.error is None


class Codec(Protocol[R]):
    """One log format. Implementations are stateless."""

    @property
    def name(self) -> str:
        """The dialect's name, e.g. ``ztick``."""
        ...

    @property
    def header(self) -> bytes:
        """The first bytes of a file; empty if the format has no header."""
        ...

    @property
    def has_checksum(self) -> bool:
        """Return whether a decoded entry is proven, and not merely plausible."""
        ...

    @property
    def seals(self) -> SealFormat | None:
        """How blocks of a file are sealed; None for a format with a checksum of its own."""
        ...

    def encode(self, record: R) -> bytes:
        """The bytes of one record. Raises EncodeError before anything is produced."""
        ...

    def check_header(self, data: Buffer) -> int:
        """Offset of the first entry. Raises BadHeader, or IncompleteEntry when cut short."""
        ...

    def decode(self, data: Buffer, offset: int) -> Entry[R] | None:
        """The entry at ``offset``, or None where the data ends. Raises FormatError."""
        ...

    def is_torn(self, data: Buffer, offset: int) -> bool:
        """Return whether the bytes from ``offset`` to the end could be a write cut short.

        True when they are a proper prefix of some entry this format can hold, or only zeros
        (a file system may extend a file before its data arrive). Such a tail is not corruption.
        """
        ...

    def skip(self, data: Buffer, offset: int) -> int | None:
        """Where the next entry begins if only the content of this one is bad, not its frame.

        None when the frame itself cannot be trusted; then only ``resync`` helps.
        """
        ...

    def resync(self, data: Buffer, offset: int, *, lone: bool = False) -> int | None:
        """The first place at or after ``offset`` where an entry seems to begin.

        With a checksum that is proof; without one it takes a chain of plausible entries, or, if
        ``lone``, a single one.
        """
        ...


def iter_entries(codec: Codec[R], data: Buffer, offset: int = 0) -> Iterator[Entry[R]]:
    """Entries from ``offset`` on; raises the FormatError at which reading stops."""
    while (entry := codec.decode(data, offset)) is not None:
        yield entry
        offset = entry.offset + entry.length


def scan(codec: Codec[R], data: Buffer) -> tuple[list[Entry[R]], Ending]:
    """All entries of a whole file up to its end or its first fault."""
    entries: list[Entry[R]] = []
    try:
        offset = codec.check_header(data)
    except FormatError as error:
        return entries, Ending(Stop.BAD_HEADER, 0, error)
    try:
        for entry in iter_entries(codec, data, offset):
            entries.append(entry)
            offset = entry.end
    except IncompleteEntry as error:
        return entries, Ending(Stop.TORN, offset, error)
    except FormatError as error:
        return entries, Ending(Stop.CORRUPT, offset, error)
    return entries, Ending(Stop.EOF if offset == len(data) else Stop.ZERO_BYTE, offset)


class DecodedRecords(Collection[R]):
    """Records of which some were encoded already, decoded as far as they are read."""

    def __init__(self, codec: Codec[R], records: Sequence[R | bytes]) -> None:
        self._codec = codec
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, record: object) -> bool:
        return any(each == record for each in self)

    def __iter__(self) -> Iterator[R]:
        for each in self._records:
            if not isinstance(each, bytes):
                yield each
            elif (entry := self._codec.decode(each, 0)) is not None:
                yield entry.record

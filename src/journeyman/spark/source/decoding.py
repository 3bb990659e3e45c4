"""Bytes of a file -> chunks: the decoders of each dialect, and sealed stretches in bulk.

    [o][block][b][block][b][## bad block ##][b][block][b][c]

What is an item elsewhere is a block in a sealed stretch. A run of blocks is checked by a kernel,
and then decoded at one go; a block that no seal fits is damage as a whole: the rule of the server,
see journeyman.logs.sealing.

The decoders bring numba with them, which takes a while to import; that happens when the first byte
is decoded, in the tasks, and never for the planning of small logs.
"""

from __future__ import annotations

import io
import mmap
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from journeyman.columnar.chunks import MAX_RECORDS, Chunk
from journeyman.errors import FormatError, LogError
from journeyman.formats.framing import Buffer, Codec, Ending
from journeyman.formats.seals import BLOCK_BYTES, MAX_BLOCK_BYTES, fits
from journeyman.logs.damage import Damage
from journeyman.logs.sealing import bad_block, is_in_flight
from journeyman.spark.source.options import KESTREL, KEYSPACE, ZTICK, SourceOptions
from journeyman.spark.source.splits import Piece, Stretch

if TYPE_CHECKING:
    from journeyman.columnar.arrays import Column
    from journeyman.columnar.seals import SealKernels


# ----------------------------------------
# A moving view of a file: a few MiB of it in memory, wherever the file is.
#
#     file     |=========================|
#     window           [------]               begin, data
#
# ``move`` fills the window from a given offset. The memory is used again, so a caller that keeps
# bytes of a window copies them. ``rest`` is for the rare look at everything up to the end of the
# file, when the extent of a damage is judged: a local file is mapped for that, any other is copied
# to an unnamed temporary file first.

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


FEW = 512  # records
_SMALL_ENTRY_BYTES = 8  # most entries are larger

BulkDecoder: TypeAlias = Callable[..., Chunk]  # data and offset -> chunk
Walk: TypeAlias = Callable[[Buffer, int, int], int]
# Items; in the end where reading goes on, and the stamp if what is there is sealed.
Items: TypeAlias = Generator[Chunk | Damage | Stretch, None, tuple[int, int | None]]


class DecodeStep(NamedTuple):
    """How far good entries led, what they were if that was asked, and why no further."""

    chunk: Chunk | None
    next_offset: int
    ending: Ending | None  # None: there may be more in the window


def bulk_decoder(dialect: str, codec: Codec[Any], *, payloads: bool) -> BulkDecoder:
    """``decode`` of the dialect in journeyman.columnar, with its settings."""
    decode = _decoding(dialect).decode
    if dialect == KESTREL:
        return partial(decode, payloads=payloads, codec=codec)
    return partial(decode, payloads=payloads)


def no_records(dialect: str) -> Chunk:
    """A chunk of this dialect without rows."""
    schema = _decoding(dialect).SCHEMA
    return Chunk(pa.RecordBatch.from_pylist([], schema=schema), 0, None)


def walk_of(dialect: str) -> Walk | None:
    """How to get from boundary to boundary without making rows, where there is a way."""
    from journeyman.columnar.kernels.boundaries import WALKS

    return WALKS.get(dialect)


def seals_of(dialect: str) -> SealKernels | None:
    """How to check seals in bulk, where a dialect has any."""
    if dialect not in (ZTICK, KESTREL):
        return None
    from journeyman.columnar.seals import KERNELS

    return KERNELS[dialect]


def _decoding(dialect: str) -> Any:
    module = "file" if dialect == KEYSPACE else "decode"
    return import_module(f"journeyman.columnar.{dialect}.{module}")


class SealedReading:
    """A file being read, as far as its seals go; all offsets are those in the file."""

    def __init__(self, window: Window, piece: Piece, options: SourceOptions) -> None:
        self._window = window
        self._codec = piece.file.codec
        self._bulk = bulk_decoder(options.dialect, self._codec, payloads=options.payloads)
        self._format = self._codec.seals
        self._seals = seals_of(options.dialect)
        self._no_seal = (0, 0)  # from the first place to the second there is none
        self._cut = piece.cut
        self._path = piece.file.path
        self._salvages = options.salvage

    def _sealed_items(
        self, offset: int, end: int, stamp: int, *, rows: bool, stretches: bool
    ) -> Items:
        """Blocks that begin before ``end``, up to a closing seal. Without ``rows`` only damages."""
        window, format_, kernels = self._window, self._format, self._seals
        assert format_ is not None
        assert kernels is not None
        at_least = 0
        while offset < end:
            window.move(offset, end + 2 * BLOCK_BYTES, at_least)
            proven, is_open = kernels.run(window.data, 0, end - offset, stamp, offset)
            if proven:
                if rows:
                    yield from self._proven_items(offset, offset + proven, stretches=stretches)
                offset, at_least = offset + proven, 0
                if not is_open:
                    return offset, None
            elif window.end < window.size and len(window.data) < MAX_BLOCK_BYTES:
                at_least = min(4 * len(window.data), MAX_BLOCK_BYTES)
            else:
                rest = window.rest(offset)
                damage = bad_block(format_, rest, 0, stamp, file=self._path, base=offset)
                if self._salvages and is_in_flight(damage):
                    return offset, None
                yield damage
                offset, at_least = damage.end, 0
        return offset, stamp

    def _proven_items(
        self, offset: int, end: int, *, stretches: bool
    ) -> Iterator[Chunk | Damage | Stretch]:
        """The entries of proven blocks, all of them in the window."""
        window = self._window
        stop = end if self._cut is None else min(end, self._cut)
        while offset < stop:
            max_records = MAX_RECORDS
            if stretches:
                stretch = self._stretch(offset, stop)
                yield stretch
                if stretch.reached is not None:
                    max_records = FEW
                    if stretch.reached > stretch.begin:
                        offset = window.begin + stretch.reached
                        continue
            chunk, reached, _ = self._decode(offset, stop, max_records, limit=end)
            if reached > offset:
                assert chunk is not None
                yield chunk
                offset = reached
                continue
            damage = self._undecodable(offset)
            yield damage
            offset = damage.end

    def _undecodable(self, offset: int) -> Damage:
        """An entry that was written as it stands here, but that nobody can read."""
        assert self._format is not None
        at = offset - self._window.begin
        frame_end = self._format.frame_end(self._window.data, at)
        assert frame_end is not None
        try:
            self._codec.decode(self._window.data, at)
        except FormatError as error:
            return Damage(self._path, offset, frame_end - at, "corrupt", error.reason)
        raise AssertionError(f"decoder and codec disagree at {offset}")

    def _stamp_before(self, offset: int) -> int | None:
        """The stamp of the sealed stretch that goes on at ``offset``; None if none does."""
        format_ = self._format
        if format_ is None or offset < format_.size:
            return None
        at = offset - format_.size
        seal = format_.parse(self._window.peek(at, offset), 0)
        if seal is None or not seal.opens or not 0 <= seal.begin <= at:
            return None
        if at - seal.begin > MAX_BLOCK_BYTES:
            return None
        block = self._window.peek(seal.begin, offset)
        return seal.stamp if fits(format_, seal, block, at - seal.begin, seal.begin) else None

    def seal_at(self, offset: int) -> bool:
        """Whether something that is marked as a seal stands in the window at ``offset``."""
        at, format_, data = offset - self._window.begin, self._format, self._window.data
        return (
            format_ is not None
            and at + format_.size <= len(data)
            and format_.is_like_seal(data, at)
        )

    def opening_stamp(self, offset: int) -> int | None:
        """The stamp of what follows, if the seal at ``offset`` fits and does not close."""
        assert self._format is not None
        return self._stamp_before(offset + self._format.size)

    @property
    def seal_bytes(self) -> int:
        return 0 if self._format is None else self._format.size

    def _limit(self, offset: int) -> int:
        """Where the next seal stands in the window, or its end."""
        window = self._window
        if self._seals is None:
            return window.end
        begin, end = self._no_seal
        if not begin <= offset < end:
            end = window.begin + self._seals.next_seal(window.data, offset - window.begin)
            self._no_seal = offset, end
        return end if self.seal_at(end) else window.end

    def _stretch(self, offset: int, end: int) -> Stretch:
        window = self._window
        return Stretch(window.data, offset - window.begin, end - window.begin, window.begin)

    def _decode(self, offset: int, end: int, max_records: int, *, limit: int) -> DecodeStep:
        window = self._window
        data = window.data[: limit - window.begin]
        enough = (end - offset) // _SMALL_ENTRY_BYTES + 1  # rows from ``end`` on would be dropped
        local = self._bulk(data, offset - window.begin, max_records=min(max_records, enough))
        chunk = _shifted(local, window.begin)
        if chunk.next_offset > end:
            chunk = _before(chunk, end)
        return DecodeStep(chunk, chunk.next_offset, chunk.ending)


def _shifted(chunk: Chunk, by: int) -> Chunk:
    """The chunk with offsets counted from ``by`` bytes earlier."""
    if by == 0:
        return chunk
    from journeyman.columnar.arrays import numbers

    batch = chunk.batch
    at = batch.schema.get_field_index("offset")
    batch = batch.set_column(at, "offset", numbers(raw_numbers(batch.column(at)) + by))
    return Chunk(batch, chunk.next_offset + by, chunk.ending)


def _before(chunk: Chunk, end: int) -> Chunk:
    """Only the rows that begin before ``end``."""
    offsets = raw_numbers(chunk.batch.column("offset"))
    rows = int(np.searchsorted(offsets, end))
    if rows == len(offsets):
        return chunk
    return Chunk(chunk.batch.slice(0, rows), int(offsets[rows]), chunk.ending)


def raw_numbers(column: Column) -> npt.NDArray[Any]:
    """The numbers of a column, without importing pandas; where it is null, what columnar put: 0."""
    values = column.buffers()[1]
    kind = np.dtype(column.type.to_pandas_dtype())  # in spite of its name, a type of numpy
    raw = np.frombuffer(b"" if values is None else memoryview(values), kind)
    return raw[column.offset : column.offset + len(column)]

"""A moving view of a file: a few MiB of it in memory, wherever the file is.

    file     |=========================|
    window           [------]               begin, data

``move`` fills the window from a given offset. The memory is used again, so a caller that keeps
bytes of a window copies them. ``rest`` is for the rare look at everything up to the end of the
file, when the extent of a damage is judged: a local file is mapped for that, any other is copied to
an unnamed temporary file first.
"""

from __future__ import annotations

import io
import mmap
import tempfile
from typing import IO, BinaryIO, cast

from journeyman.errors import LogError
from journeyman.formats.framing import Buffer

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

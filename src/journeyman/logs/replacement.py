"""Putting a new file in the place of an old one, so that a crash leaves one of them whole.

    temporary   ####------   write_whole: written, then synced        crash: the old file stands
    rename      temporary -> path                                     crash: the old or the new one
    directory   synced       put_in_place returns                     crash: the new one stands

Only after ``put_in_place`` may anything go that the new file stands for. Until then the old file
is the truth and the temporary one is litter, which whoever opens the log removes.

Compaction, cleaning and checkpoints differ in what they write; how it gets there is the same.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from contextlib import suppress

from journeyman.disk import Disk, is_full
from journeyman.errors import LogFull
from journeyman.formats.framing import Buffer

WRITE_BYTES = 1024 * 1024  # small pieces are gathered to writes of about this size


def write_whole(disk: Disk, temporary: str, pieces: Iterable[Buffer]) -> int:
    """Write and sync a file that is not in use yet; its size. Nothing is left of it on failure."""
    file = disk.open_append(temporary)
    size = 0
    try:
        try:
            file.truncate(0)
            for piece in gathered(pieces):
                file.write(piece)
                size += len(piece)
            file.sync()
        finally:
            file.close()
    except OSError as error:
        with suppress(OSError):  # the first error is the one to tell
            disk.remove(temporary)
        if is_full(error):
            raise LogFull(temporary, "no room to write the file; nothing was changed") from error
        raise
    return size


def put_in_place(disk: Disk, temporary: str, path: str) -> None:
    """Let the finished file take the name of the old one, for good."""
    disk.rename(temporary, path)
    disk.sync_dir(posixpath.dirname(path) or ".")


def remove_durably(disk: Disk, path: str) -> None:
    """Remove a file so that it does not come back."""
    disk.remove(path)
    disk.sync_dir(posixpath.dirname(path) or ".")


def gathered(pieces: Iterable[Buffer]) -> Iterator[bytes]:
    """The same bytes in pieces of WRITE_BYTES or a little more, never more than one in memory."""
    held = bytearray()
    for piece in pieces:
        for at in range(0, len(piece), WRITE_BYTES):
            held += piece[at : at + WRITE_BYTES]
            if len(held) >= WRITE_BYTES:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)

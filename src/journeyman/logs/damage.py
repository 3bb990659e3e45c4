"""Reading on behind damage: every entry that can still be read, and every stretch that cannot.

    [header][entry][entry][#### damage ####][entry][entry][torn]

A file is entries and damages, end to end, in this order and without gaps. Kinds of damage:

    torn         the end of the file is the beginning of an entry: a write that a crash cut short;
                 or an entry cut short earlier, so that later ones begin inside it
    padding      zeros: a file system or a mapping made the file longer than its data
    corrupt      anything else that does not decode
    bad-header   the file does not begin as its format begins

How reading finds its way again, the surest way first:

    skip         the entry's frame is sound, only its content is bad
    checksum     the first place from which an entry's checksum fits
    guess        formats without a checksum: the first place where plausible entries follow one
                 another; ``guess=False`` leaves this out, and the rest of the file is damage

A torn tail is never searched. It may hold whole records inside a payload, and then these were
never records of this log: any prefix of a log gives exactly the whole records in it.

An entry cut short with others glued on (a writer that did not cut a torn tail before it went on)
decodes if it swallows the beginning of the next one, and so does an entry whose length was made
larger by damage; reading then goes astray and fails somewhat later. So where a format has no
checksum, the last few entries are held back, and at a fault the search begins *inside* them: if
entries found there run across the fault and on, these are the truth, and what swallowed them is
the damage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats.framing import Buffer, Codec, Entry

__all__ = ["Damage", "DamageKind", "read_past_damage"]

DamageKind: TypeAlias = Literal["torn", "corrupt", "bad-header", "padding", "unsealed"]

R = TypeVar("R")

# No entry of any format begins with more zero bytes than this (ztick: a length below 256).
_MAX_LEADING_ZEROS = 3
# How much of what was read may still turn out to have been read astray.
_MAX_HELD_ENTRIES = 64
_MAX_HELD_BYTES = 1024 * 1024  # behind the first one
# A file made to lead astray again and again must not keep recovery busy for ever.
_MAX_REREADINGS = 4
_FIRST_ZERO_CHUNK = 64
_MAX_ZERO_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Damage:
    """``length`` bytes from ``offset`` of ``file`` that are no entries, and why."""

    file: str
    offset: int
    length: int
    kind: DamageKind
    reason: str

    @property
    def end(self) -> int:
        return self.offset + self.length

    def as_dict(self) -> dict[str, object]:
        return {
            "file": self.file,
            "offset": self.offset,
            "length": self.length,
            "kind": self.kind,
            "reason": self.reason,
        }


def read_past_damage(
    codec: Codec[R], data: Buffer, *, file: str = "", guess: bool = True
) -> Iterator[Entry[R] | Damage]:
    """Entries and damages in file order. Never raises FormatError."""
    offset, damage = _read_header(codec, data, file, guess)
    if damage is not None:
        yield damage
    decode = codec.decode
    held: deque[Entry[R]] = deque()
    hold_back = _MAX_HELD_ENTRIES if guess and not codec.has_checksum else 0
    may_reread = _MAX_REREADINGS * len(data)
    while True:
        fault: FormatError | None = None
        try:
            while (entry := decode(data, offset)) is not None:
                offset = entry.offset + entry.length
                held.append(entry)
                if len(held) > hold_back or offset - held[0].end > _MAX_HELD_BYTES:
                    yield held.popleft()
        except FormatError as error:
            fault = error
        if offset >= len(data):
            break
        damage = _assess(codec, data, offset, fault, held, file, guess)
        yield from (entry for entry in held if entry.end <= damage.offset)
        held.clear()
        may_reread -= max(0, offset - damage.end)
        if may_reread < 0:
            hold_back = 0
        yield damage
        offset = damage.end
    yield from held


def _read_header(
    codec: Codec[R], data: Buffer, file: str, guess: bool
) -> tuple[int, Damage | None]:
    """Where entries begin, and the damage before that."""
    try:
        return codec.check_header(data), None
    except IncompleteEntry as error:
        return len(data), Damage(file, 0, len(data), "torn", error.reason)
    except FormatError as error:
        if _first_nonzero(data, 0) == len(data):
            return len(data), Damage(file, 0, len(data), "padding", "nothing but zeros")
        start = codec.resync(data, 0) if guess or codec.has_checksum else None
        end = len(data) if start is None else start
        return end, Damage(file, 0, end, "bad-header", error.reason)


def _assess(
    codec: Codec[R],
    data: Buffer,
    offset: int,
    fault: FormatError | None,
    held: deque[Entry[R]],
    file: str,
    guess: bool,
) -> Damage:
    """How far the damage at ``offset`` goes. ``fault`` is None where the data say they end."""
    nonzero = _first_nonzero(data, offset)
    if nonzero == len(data):
        return Damage(file, offset, len(data) - offset, "padding", "zeros to the end of the file")
    reason = fault.reason if fault is not None else "data behind the end mark"
    if codec.is_torn(data, offset):
        return Damage(file, offset, len(data) - offset, "torn", reason)

    start = codec.skip(data, offset) if fault is not None else None
    if start is None and held:
        inside = _search_inside(codec, data, held, offset)
        if inside is not None:
            begin = next(entry.offset for entry in held if entry.end > inside)
            reason = "later entries begin inside this one"
            return Damage(file, begin, inside - begin, "torn", reason)
    if start is None and (guess or codec.has_checksum):
        start = codec.resync(data, max(offset + 1, nonzero - _MAX_LEADING_ZEROS))
    if start is None:
        return Damage(file, offset, len(data) - offset, "corrupt", reason)
    if nonzero >= start:
        return Damage(file, offset, start - offset, "padding", "zeros where an entry should be")
    return Damage(file, offset, start - offset, "corrupt", reason)


def _search_inside(codec: Codec[R], data: Buffer, held: deque[Entry[R]], fault: int) -> int | None:
    """Where entries begin inside one of those read, given that some run across ``fault``."""
    known = {entry.offset for entry in held}
    search = held[0].offset + 1
    while (start := codec.resync(data, search)) is not None and start < fault:
        if start in known:
            search = start + 1  # this is the reading that led to the fault
            continue
        stop = _run(codec, data, start, fault)
        if stop > fault and _goes_on(codec, data, stop):
            swallower = next(entry for entry in held if entry.end > start)
            return codec.resync(data, swallower.offset + 1)
        # Whatever begins between here and ``stop`` leads to ``stop`` as well.
        search = max(start + 1, min(stop, fault))
    return None


def _run(codec: Codec[R], data: Buffer, offset: int, past: int) -> int:
    """Follow entries from ``offset`` until one reaches ``past`` or does not decode."""
    try:
        while offset < past and (entry := codec.decode(data, offset)) is not None:
            offset = entry.end
    except FormatError:
        pass  # the run ends here, which is all that was asked
    return offset


def _goes_on(codec: Codec[R], data: Buffer, offset: int) -> bool:
    return (
        offset == len(data) or codec.is_torn(data, offset) or codec.resync(data, offset) == offset
    )


def _first_nonzero(data: Buffer, offset: int) -> int:
    """Offset of the first byte that is not zero; the length of the data if there is none."""
    chunk = _FIRST_ZERO_CHUNK
    while offset < len(data):
        piece = bytes(data[offset : offset + chunk])
        if rest := piece.lstrip(b"\0"):
            return offset + len(piece) - len(rest)
        offset += len(piece)
        chunk = min(2 * chunk, _MAX_ZERO_CHUNK)
    return offset

"""Reading on after damage: every entry that can still be read, and every stretch that cannot.

    [header][entry][entry][#### damage ####][entry][entry][torn]

A file is entries and damages, end to end, in this order and without gaps. Kinds of damage:

    torn         the end of the file is the beginning of an entry: a write that a crash cut short;
                 or an entry cut short earlier, so that later ones begin inside it
    padding      zeros: a file system or a mapping made the file longer than its data
    corrupt      anything else that does not decode
    bad-header   the file does not begin as its format begins
    unsealed     in a sealed file: an announced batch that is not whole (journeyman.logs.sealing)
    unannounced  in a sealed file: a tail that begins neither with a seal nor with a whole entry

How reading finds its way again, the surest way first:

    skip         the entry's frame is sound, only its content is bad
    inside       formats without a checksum: later entries begin inside one that was read
    resync       the first place where a checksum matches; without one, the first place where
                 plausible entries follow one another

This is the one rule for damaged logs. The server, ``verify``, ``repair``, ``dump`` and Spark all
read by it, so all of them find the same records. ``dump`` and Spark can be asked for more with
``salvage``: it also accepts a plausible entry that stands alone, and searches a torn tail.

A torn tail is otherwise never searched. It may hold whole records inside a payload, and then these
were never records of this log: any prefix of a log gives exactly the whole records in it.

An entry cut short with others appended to it (by a writer that did not cut a torn tail first)
decodes if it swallows the beginning of the next one, and so does an entry whose length was made
larger by damage; reading then goes astray and fails somewhat later. So where a format has no
checksum, the last few entries are held back, and at a fault the search begins *inside* them: if
entries found there run across the fault and on, these are the truth, and what swallowed them is
the damage. An entry is held for at most HELD_BYTES, so what is read does not depend on anything
farther away than that, and a file can be read from the middle
(journeyman.spark.source.piece_reader).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Literal, TypeAlias, TypeVar

from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats.framing import Buffer, Codec, Entry, iter_entries
from journeyman.formats.seals import is_seal_beginning

DamageKind: TypeAlias = Literal[
    "torn", "corrupt", "bad-header", "padding", "unsealed", "unannounced"
]

R = TypeVar("R")

# No entry of any format begins with more zero bytes than this (ztick: a length below 256).
_MAX_LEADING_ZEROS = 3
# How much of what was read may still turn out to have been read astray.
HELD_ENTRIES = 64
HELD_BYTES = 256 * 1024  # after the first one
# A file made to lead astray again and again must not keep recovery busy for ever. So many bytes may
# be read again at once, and so many for each byte by which reading has come farther since.
MAX_REREAD_BYTES = 1024 * 1024
_REREAD_PER_BYTE = 4
_FIRST_ZERO_CHUNK = 64
_MAX_ZERO_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Damage:
    """``length`` bytes from ``offset`` of ``file`` that are not entries, and why."""

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
    codec: Codec[R], data: Buffer, *, file: str = "", salvage: bool = False
) -> Iterator[Entry[R] | Damage]:
    """Entries and damages in file order. Never raises FormatError."""
    judge = Judge(codec, file=file, salvage=salvage)
    offset, damage = judge.header(data)
    if damage is not None:
        yield damage
    decode = codec.decode
    held: deque[Entry[R]] = deque()
    hold_back = HELD_ENTRIES if judge.holds_back else 0
    while True:
        fault: FormatError | None = None
        try:
            while (entry := decode(data, offset)) is not None:
                offset = entry.offset + entry.length
                held.append(entry)
                if len(held) > hold_back or offset - held[0].end > HELD_BYTES:
                    yield held.popleft()
        except FormatError as error:
            fault = error
        if offset >= len(data):
            break
        damage = judge.damage(data, offset, fault, held)
        yield from (entry for entry in held if entry.end <= damage.offset)
        held.clear()
        yield damage
        offset = damage.end
    yield from held


class Judge(Generic[R]):
    """Says how far each damage of one file goes. Ask about its faults in their order.

    Offsets are those in the data given. ``base`` is where these begin in the file: it counts for
    the place of a damage and for how far reading has come.
    """

    def __init__(self, codec: Codec[R], *, file: str = "", salvage: bool = False) -> None:
        self._codec = codec
        self._file = file
        self._salvage = salvage
        self._may_reread = MAX_REREAD_BYTES
        self._last_fault = 0

    @property
    def holds_back(self) -> bool:
        """Return whether entries that were read may turn out to be damage."""
        return not self._codec.has_checksum

    def is_settled_at(self, offset: int) -> bool:
        """Return whether reading from this boundary finds the same as reading from before it."""
        return self._may_reread == MAX_REREAD_BYTES and self._last_fault <= offset

    def header(self, data: Buffer) -> tuple[int, Damage | None]:
        """Where entries begin, and the damage before that."""
        codec = self._codec
        try:
            return codec.check_header(data), None
        except IncompleteEntry as error:
            return len(data), Damage(self._file, 0, len(data), "torn", error.reason)
        except FormatError as error:
            if _first_nonzero(data, 0) == len(data):
                return len(data), self._padding(0, len(data), "nothing but zeros")
            start = codec.resync(data, 0, lone=self._salvage)
            end = len(data) if start is None else start
            return end, Damage(self._file, 0, end, "bad-header", error.reason)

    def damage(
        self,
        data: Buffer,
        offset: int,
        fault: FormatError | None,
        held_back: Iterable[Entry[R]] = (),
        *,
        base: int = 0,
    ) -> Damage:
        """Return what is damaged at ``offset``, where reading met ``fault``: None if the data end
        there.

        ``held_back`` are the last entries before it, which nobody has been given yet.
        """
        codec = self._codec
        cut_seal = _cut_seal(codec, data, _trim(held_back, offset), offset)
        if cut_seal is not None:
            begin, end = cut_seal
            return Damage(self._file, base + begin, end - begin, "torn", "a seal cut short")
        nonzero = _first_nonzero(data, offset)
        if nonzero == len(data):
            return self._padding(base + offset, len(data) - offset, "zeros to the end of the file")
        reason = fault.reason if fault is not None else "data after the end mark"
        is_torn = codec.is_torn(data, offset)
        if is_torn and not self._salvage:
            return Damage(self._file, base + offset, len(data) - offset, "torn", reason)

        start = codec.skip(data, offset) if fault is not None and not is_torn else None
        entries = _trim(held_back, offset) if start is None else []
        if entries and self._may_search(base + entries[0].offset, base + offset):
            inside = _search_inside(codec, data, entries, offset)
            if inside is not None:
                begin = next(entry.offset for entry in entries if entry.end > inside)
                reason = "later entries begin inside this one"
                return Damage(self._file, base + begin, inside - begin, "torn", reason)
        if start is None:
            search = max(offset + 1, nonzero - _MAX_LEADING_ZEROS)
            start = codec.resync(data, search, lone=self._salvage)
        if start is None:
            kind: DamageKind = "torn" if is_torn else "corrupt"
            return Damage(self._file, base + offset, len(data) - offset, kind, reason)
        if nonzero >= start:
            return self._padding(base + offset, start - offset, "zeros where an entry should be")
        return Damage(self._file, base + offset, start - offset, "corrupt", reason)

    def _padding(self, offset: int, length: int, reason: str) -> Damage:
        return Damage(self._file, offset, length, "padding", reason)

    def _may_search(self, begin: int, fault: int) -> bool:
        """Return whether to search from ``begin`` on. What lies before the last fault is read
        again.
        """
        progress = max(0, fault - self._last_fault)
        gained = self._may_reread + _REREAD_PER_BYTE * progress
        self._may_reread = min(MAX_REREAD_BYTES, gained)
        cost = max(0, self._last_fault - begin)
        self._last_fault = max(self._last_fault, fault)
        if cost > self._may_reread:
            return False
        self._may_reread -= cost
        return True


def _trim(entries_before: Iterable[Entry[R]], offset: int) -> list[Entry[R]]:
    """Return the entries up to ``offset`` that are held back."""
    entries = list(entries_before)[-HELD_ENTRIES:]
    return [entry for entry in entries if offset - entry.end <= HELD_BYTES]


def _search_inside(
    codec: Codec[R], data: Buffer, held_back: list[Entry[R]], fault: int
) -> int | None:
    """Where entries begin inside one of those read, given that some run across ``fault``."""
    known = {entry.offset for entry in held_back}
    search = held_back[0].offset + 1
    while (start := codec.resync(data, search)) is not None and start < fault:
        if start in known:
            search = start + 1  # this is the reading that led to the fault
            continue
        stop = _run(codec, data, start, fault)
        if stop > fault and _goes_on(codec, data, stop):
            swallower = next(entry for entry in held_back if entry.end > start)
            return codec.resync(data, swallower.offset + 1)
        # Whatever begins between here and ``stop`` leads to ``stop`` as well.
        search = max(start + 1, min(stop, fault))
    return None


def _cut_seal(
    codec: Codec[R], data: Buffer, held_back: list[Entry[R]], fault: int
) -> tuple[int, int] | None:
    """Begin and end of a seal that was cut short and swallows what was appended to it.

    No entry of a client begins like one; so entries that lead from inside it to the end of the data
    are sure.
    """
    if codec.seals is None:
        return None
    for begin in (*(entry.offset for entry in held_back), fault):
        if not is_seal_beginning(codec.seals, data, begin):
            continue
        search = begin + 1
        while (start := codec.resync(data, search)) is not None:
            stop = _run(codec, data, start, len(data))
            if stop == len(data):
                return begin, start
            search = max(start + 1, stop)
    return None


def follow_entries(codec: Codec[R], data: Buffer, offset: int) -> Iterator[Entry[R]]:
    """Entries from ``offset`` on up to the first that does not decode."""
    with suppress(FormatError):
        yield from iter_entries(codec, data, offset)


def _run(codec: Codec[R], data: Buffer, offset: int, past: int) -> int:
    """Follow entries from ``offset`` until one reaches ``past`` or does not decode."""
    for entry in follow_entries(codec, data, offset):
        if offset >= past:
            break
        offset = entry.end
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

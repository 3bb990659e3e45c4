"""Running ahead of the rows, to find out which entries are sure.

    file     |-entry-|-entry-|-entry-|-entry-|-entry-|-entry-|##
    rows     ===============>|                                        up to what is sure
    scout    --------------------------------------------------->|    to the fault

Without a checksum a fault may show that entries in front of it, as far as HELD_BYTES, are damage
(journeyman.logs.damage). So the scout looks at entries, without making rows, until so much follows
what is handed on. An opening seal ends its way: what follows is proven otherwise.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from journeyman.columnar.chunks import Chunk
from journeyman.formats.framing import Ending
from journeyman.logs.damage import HELD_BYTES, Damage

FEW = 512  # records
_MARK_BYTES = 64 * 1024  # from one remembered boundary to the next


class Step(NamedTuple):
    """How far good entries led, what they were if that was asked, and why no further."""

    chunk: Chunk | None
    next_offset: int
    ending: Ending | None  # None: there may be more in the window


class Scouted(Protocol):
    """The file that a scout runs through, as journeyman.spark.source.piece_reader has it open."""

    def walk(self, offset: int, end: int, _: int) -> Step: ...

    def is_cut_by_window(self, ending: Ending) -> bool: ...

    def needed(self, ending: Ending) -> int: ...

    def window_end(self) -> int: ...

    def file_size(self) -> int: ...

    def damage_at(self, offset: int, boundary: int) -> tuple[Damage, int | None]: ...

    def seal_at(self, offset: int) -> bool: ...

    def opening_stamp(self, offset: int) -> int | None: ...

    @property
    def seal_bytes(self) -> int: ...


class Scout:
    """Runs ahead of the rows over good entries, to the next fault or as far as the window goes.

    ``sure`` is a boundary up to which no fault can change anything any more. ``marks`` are
    boundaries, the first of them in front of every entry that a fault might still unseat.
    """

    def __init__(self, reading: Scouted, begin: int) -> None:
        self._reading = reading
        self._marks = [begin]
        self._past: int | None = None  # the first boundary at or behind the end
        self._damage: Damage | None = None
        self.stamp: int | None = None  # of what is sealed behind the seal, or the damage, met
        self.reached = self.sure = begin
        self.needed = 0  # bytes from ``reached`` on that the window has to hold
        self.is_at_fault = False

    def run(self, end: int) -> None:
        """Go on until all that begins before ``end`` is sure, to a fault, or through the window."""
        reading = self._reading
        self.needed = 0
        while not self._is_done(end):
            if self.reached == reading.window_end():
                self.needed = 1
                break
            if reading.seal_at(self.reached):
                self.stamp = reading.opening_stamp(self.reached)
                if self.stamp is not None:
                    self.sure = self.reached if self._past is None else self._past
                    return
                self._move(self.reached + reading.seal_bytes)
                continue
            step = reading.walk(self.reached, self._target(end), FEW)
            if step.next_offset > self.reached:
                self._move(step.next_offset)
            elif step.ending is not None and reading.is_cut_by_window(step.ending):
                self.needed = reading.needed(step.ending)
                break
            else:
                self._meet_fault()
                return
        # What is followed by this much is held no longer; what begins behind the end is not asked.
        last = self.reached if self._past is None else self._past
        marks = [mark for mark in self._marks if self.reached - mark > HELD_BYTES and mark <= last]
        self.sure = max([self.sure, *marks])
        self._marks = [mark for mark in self._marks if mark >= self.sure]

    @property
    def damage(self) -> Damage:
        """What the fault is about."""
        assert self._damage is not None
        return self._damage

    def _is_done(self, end: int) -> bool:
        if self._past is None and self.reached >= end:
            self._past = self.reached
        at_end = self.reached == self._reading.file_size()
        if self._past is not None and (at_end or self.reached - self._past > HELD_BYTES):
            self.sure = self._past
            return True
        return False

    def _target(self, end: int) -> int:
        far = self.reached + _MARK_BYTES
        return min(far, end) if self.reached < end else far

    def _move(self, boundary: int) -> None:
        self.reached = boundary
        self._marks.append(boundary)

    def _meet_fault(self) -> None:
        held = [mark for mark in self._marks if self.reached - mark > HELD_BYTES]
        self.is_at_fault = True
        boundary = held[-1] if held else self._marks[0]
        self._damage, self.stamp = self._reading.damage_at(self.reached, boundary)
        self.sure = self._damage.offset
        if self._past is not None and self._past <= self.sure:
            self.sure = self._past

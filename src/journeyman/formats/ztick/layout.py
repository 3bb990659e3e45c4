r"""The shape of a ztick entry: its numbers, and what they say about bytes that do not decode.

    u32be length | type | ...                      length counts what follows it
    \___ LENGTH __/
    \____________ HEAD: length, type, length of the id ___/ the same in all four types

The format has no checksum and no header. What it has is arithmetic: the length of a job or a
removal follows from the length of its id, and the strings of a rule fill their entry to the byte.
On it rest the three answers that recovery needs:

    is_cut_short   could these last bytes be the beginning of an entry?  Exact: true for every
                   proper prefix of every possible entry, and for nothing else but zeros
    skip           is only the content of this frame bad, so that the next one is where it says?
    resync         where does an entry begin again?

A frame is skipped when its length leads to an entry, or to more frames with bad content and then
to an entry, as a writer of a newer version leaves them (a rule with a runner that is not known
here). A start is believed when a chain begins there: two entries in a row, or one that reaches the
end of the data or a torn tail; if ``lone``, one entry is enough.

    ...damage...|entry|entry|          yes        ...damage...|entry|garbage     no
    ...damage...|entry|  (end)         yes        ...damage...|entry|ent (end)   yes

Work is bounded: every string looked at and every byte decoded is paid from an allowance in
proportion to the data, so made-up bytes cannot make the search quadratic.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from struct import Struct
from typing import Final, TypeAlias

from journeyman.errors import FormatError
from journeyman.formats.framing import Buffer

MAX_STRING_BYTES: Final = 65_535
MAX_LIST_ITEMS: Final = 65_535  # args of direct, inputs of awf, flags of queue
# These two count the bytes after the length field. The upper one is an extension: the original
# takes lines of 4 KiB and HTTP bodies of 1 MiB, so no real log comes near it.
MAX_ENTRY_BYTES: Final = 16 * 1024 * 1024
MIN_ENTRY_BYTES: Final = 3  # the removal of an empty id

JOB, RULE, JOB_REMOVAL, RULE_REMOVAL = range(4)

# By runner byte: the strings of shell, amqp, direct, awf, http, redis, and of queue and journal,
# which are extensions.
RUNNER_STRINGS: Final = (
    ("command",),
    ("dsn", "exchange", "routing_key"),
    ("executable",),
    ("workflow",),
    ("method", "url"),
    ("url", "command", "key"),
    ("name",),
    ("queue",),
)
# These end with u16be count, then so many strings.
LIST_RUNNERS: Final = {2: "args", 3: "inputs", 6: "flags"}

LENGTH: Final = Struct(">I")
HEAD: Final = Struct(">IBH")  # length, type, length of the id
U16: Final = Struct(">H")
JOB_TAIL: Final = Struct(">qB")  # execution, status

REMOVAL_EXTRA: Final = HEAD.size - LENGTH.size  # bytes of a removal besides its id
JOB_EXTRA: Final = REMOVAL_EXTRA + JOB_TAIL.size  # bytes of a job besides its id
RULE_EXTRA: Final = REMOVAL_EXTRA + 5  # likewise, at the least: pattern, runner, one string


# The most that a search may cost, in bytes for each byte searched; honest logs stay below 3.
SEARCH_ALLOWANCE: Final = 16
_STRING_COST = 16  # looking at one string length, in bytes decoded
_LONGEST_STRING = 2 + MAX_STRING_BYTES
_ZERO_CHUNK = 65_536
_MAX_BAD_FRAMES = 64  # in a row, by whose lengths alone reading goes on
_HIGHEST_TYPE = 15  # the highest entry type in any version
_MAX_TRIES_INSIDE = 4

# A length between 1 and the limit, a type, and the length of an id; the rest is arithmetic.
_START = re.compile(rb"(?:\x00(?!\x00\x00\x00).{3}|\x01\x00\x00\x00)[\x00-\x03].{2}", re.DOTALL)

# Decodes the entry at an offset and says where it ends; raises FormatError.
EndOfEntry: TypeAlias = Callable[[Buffer, int], int]


# -- where does reading go on --------------------------------------------------------------------


def skip(data: Buffer, offset: int, end_of_entry: EndOfEntry) -> int | None:
    """The end of the frame at ``offset``, if what follows shows that its length was right."""
    if len(data) - offset < LENGTH.size:
        return None
    length: int = LENGTH.unpack_from(data, offset)[0]
    first: int = offset + LENGTH.size + length
    if not MIN_ENTRY_BYTES <= length <= MAX_ENTRY_BYTES or first > len(data):
        return None
    end = first
    for _ in range(_MAX_BAD_FRAMES):
        if _goes_on(data, end, end_of_entry):
            return None if _hides_entries(data, offset, first, end_of_entry) else first
        behind = _end_of_bad_frame(data, end)
        if behind is None:
            break
        end = behind
    return None


def _end_of_bad_frame(data: Buffer, offset: int) -> int | None:
    """The end of what has at least the head of an entry, if perhaps of a newer type."""
    if len(data) - offset < HEAD.size:
        return None
    length, kind, id_length = HEAD.unpack_from(data, offset)
    end: int = offset + LENGTH.size + length
    is_like_an_entry = kind <= _HIGHEST_TYPE and id_length + REMOVAL_EXTRA <= length
    return end if is_like_an_entry and length <= MAX_ENTRY_BYTES and end <= len(data) else None


def _hides_entries(data: Buffer, offset: int, end: int, end_of_entry: EndOfEntry) -> bool:
    """Return whether entries inside this frame lead to its end: then its length is what was
    damaged.
    """
    search = offset + 1
    for _ in range(_MAX_TRIES_INSIDE):
        start = resync(memoryview(data)[:end], search, end_of_entry)
        if start is None:
            return False
        at = start
        with suppress(FormatError):
            while at < end:
                at = end_of_entry(data, at)
        if at == end:
            return True
        search = start + 1
    return False


def resync(
    data: Buffer, offset: int, end_of_entry: EndOfEntry, *, lone: bool = False
) -> int | None:
    """The first place from ``offset`` on where a chain begins; None when there is none."""
    for start in _plausible_starts(data, offset, lone=lone):
        try:
            end = end_of_entry(data, start)
        except FormatError:
            continue
        if lone or _goes_on(data, end, end_of_entry):
            return start
    return None


def _goes_on(data: Buffer, offset: int, end_of_entry: EndOfEntry) -> bool:
    """Return whether the data end here, or an entry or a torn tail begins here."""
    if offset == len(data):
        return True
    try:
        return end_of_entry(data, offset) > offset
    except FormatError:
        return is_cut_short(data, offset)


def _plausible_starts(data: Buffer, offset: int, *, lone: bool) -> Iterator[int]:
    """Places where the strings fill a frame to the byte, and, unless ``lone``, another follows."""
    allowance = SEARCH_ALLOWANCE * (len(data) - offset) + MAX_ENTRY_BYTES
    while (match := _START.search(data, offset)) is not None:
        start = match.start()
        offset = start + 1
        fits, cost = _fits_frame(data, start)
        if fits:
            end = start + LENGTH.size + LENGTH.unpack_from(data, start)[0]
            follows, more = (True, 0) if lone else _may_follow(data, end)
            cost += more
            if follows:
                cost += end - start
                yield start
        allowance -= cost
        if allowance < 0:
            return


def _may_follow(data: Buffer, start: int) -> tuple[bool, int]:
    """Return whether decoding or ``is_cut_short`` has a chance here, and what trying may cost."""
    left = len(data) - start
    if left < HEAD.size:
        return True, left
    length = LENGTH.unpack_from(data, start)[0]
    if length == 0:  # perhaps zeros up to the end
        return True, left
    if LENGTH.size + length > left:  # perhaps a torn tail
        agrees = _head_agrees(data, start)
        return agrees, left if agrees else 0
    fits, cost = _fits_frame(data, start)
    return fits, cost + length if fits else cost


def _head_agrees(data: Buffer, start: int) -> bool:
    """Return whether the type is known, and the two lengths agree with it and with the limit."""
    length, kind, id_length = HEAD.unpack_from(data, start)
    if kind == RULE:
        return bool(id_length + RULE_EXTRA <= length <= MAX_ENTRY_BYTES)
    extra = JOB_EXTRA if kind == JOB else REMOVAL_EXTRA
    return kind <= RULE_REMOVAL and bool(length == id_length + extra)


def _fits_frame(data: Buffer, start: int) -> tuple[bool, int]:
    """Return whether the frame at ``start`` is all there and its strings fill it; what it cost to
    look.
    """
    if not _head_agrees(data, start):
        return False, 0
    length, kind, id_length = HEAD.unpack_from(data, start)
    end = start + LENGTH.size + length
    if end > len(data):
        return False, 0
    return _fits_rule(data, start + HEAD.size + id_length, end) if kind == RULE else (True, 0)


def _fits_rule(data: Buffer, at: int, end: int) -> tuple[bool, int]:
    """Check a rule as ``_fits_frame`` does, from its pattern on."""
    at = _end_of_strings(data, at, end, 1)
    if at >= end or data[at] >= len(RUNNER_STRINGS):
        return False, _STRING_COST
    runner = data[at]
    at = _end_of_strings(data, at + 1, end, len(RUNNER_STRINGS[runner]))
    if runner not in LIST_RUNNERS:
        return at == end, _STRING_COST
    if at + 2 > end:
        return False, _STRING_COST
    count = U16.unpack_from(data, at)[0]
    if 2 * count > end - at - 2:
        return False, _STRING_COST
    return _end_of_strings(data, at + 2, end, count) == end, _STRING_COST * (1 + count)


def _end_of_strings(data: Buffer, at: int, end: int, count: int) -> int:
    """Where ``count`` strings end; more than ``end`` when they do not fit."""
    for _ in range(count):
        if at + 2 > end:
            return end + 1
        at += 2 + U16.unpack_from(data, at)[0]
    return at


# -- could these bytes be a write cut short ------------------------------------------------------


def is_cut_short(data: Buffer, offset: int) -> bool:
    """Return whether the bytes from ``offset`` to the end are a proper prefix of a possible entry.

    Zeros alone count too: a file system may extend a file before its data arrive.
    """
    left = len(data) - offset
    if left <= 0:
        return False
    if data[offset] == 0 and _only_zeros(data, offset):
        return True
    if left < LENGTH.size:  # the unknown bytes are zero at the least
        known = bytes(data[offset:]).ljust(LENGTH.size, b"\0")
        return bool(LENGTH.unpack(known)[0] <= MAX_ENTRY_BYTES)
    length = LENGTH.unpack_from(data, offset)[0]
    if not MIN_ENTRY_BYTES <= length <= MAX_ENTRY_BYTES or left - LENGTH.size >= length:
        return False
    return _Prefix(bytes(data[offset + LENGTH.size :]), length).is_possible()


def _only_zeros(data: Buffer, offset: int) -> bool:
    for start in range(offset, len(data), _ZERO_CHUNK):
        chunk = bytes(data[start : start + _ZERO_CHUNK])
        if chunk.count(0) != len(chunk):
            return False
    return True


class _RanOutError(Exception):
    """The known bytes end here, and nothing spoke against them."""


class _ImpossibleError(Exception):
    """No entry goes on like this."""


class _Prefix:
    """Walks the known part of an entry whose declared ``length`` goes beyond it.

    ``at`` is where the walk stands in the known part, ``left`` what the declared length leaves.
    """

    def __init__(self, data: bytes, length: int) -> None:
        self.data = data
        self.at = 0
        self.left = length

    def is_possible(self) -> bool:
        try:
            self._walk(self._byte(RULE_REMOVAL))
        except _RanOutError:
            return True
        except _ImpossibleError:
            return False
        return self.left > 0  # the fixed end of a job is missing in part

    def _walk(self, kind: int) -> None:
        if kind == JOB:
            self._string(JOB_TAIL.size, JOB_TAIL.size)
        elif kind == RULE:
            self._string(5, MAX_ENTRY_BYTES)  # pattern, runner, and at least one string
            self._string(3, MAX_ENTRY_BYTES)
            self._runner(self._byte(len(RUNNER_STRINGS) - 1))
        else:
            self._string(0, 0)

    def _runner(self, runner: int) -> None:
        strings = len(RUNNER_STRINGS[runner])
        if runner not in LIST_RUNNERS:
            self._strings(strings)
            return
        self._string(2, MAX_ENTRY_BYTES, but_not=3)  # a count and one byte is not a list
        high = self._byte(0xFF)
        if self.at == len(self.data):
            self._check_list(high << 8, high << 8 | 0xFF, self.left - 1)
            raise _RanOutError
        count = high << 8 | self._byte(0xFF)
        self._check_list(count, count, self.left)
        self._strings(count)

    def _check_list(self, fewest: int, most: int, size: int) -> None:
        if not 2 * fewest <= size <= _LONGEST_STRING * most:
            raise _ImpossibleError

    def _byte(self, highest: int) -> int:
        if self.at == len(self.data):
            raise _RanOutError
        value = self.data[self.at]
        if value > highest:
            raise _ImpossibleError
        self._advance(1)
        return value

    def _strings(self, count: int) -> None:
        for following in range(count - 1, -1, -1):
            self._string(2 * following, _LONGEST_STRING * following)

    def _string(self, after_min: int, after_max: int, but_not: int = -1) -> None:
        """A string that must leave between ``after_min`` and ``after_max`` bytes after it."""
        have = len(self.data) - self.at
        if have < 2:  # any length its unknown bytes allow
            shortest = self.data[self.at] << 8 if have else 0
            longest = shortest | (0xFF if have else 0xFFFF)
            after = self.left - 2
            if after - longest > after_max or after - shortest < after_min:
                raise _ImpossibleError
            raise _RanOutError
        length = U16.unpack_from(self.data, self.at)[0]
        after = self.left - 2 - length
        if not after_min <= after <= after_max or after == but_not:
            raise _ImpossibleError
        if not _is_utf8_so_far(self.data[self.at + 2 : self.at + 2 + length], length):
            raise _ImpossibleError
        if have < 2 + length:
            raise _RanOutError
        self._advance(2 + length)

    def _advance(self, count: int) -> None:
        self.at += count
        self.left -= count


def _is_utf8_so_far(data: bytes, length: int) -> bool:
    """Return whether ``data`` can grow into ``length`` bytes of valid UTF-8."""
    try:
        _, complete = codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return False
    if complete == len(data):
        return True
    lead = data[complete]  # the first byte of an incomplete character
    width = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    return complete + width <= length

"""Retries in the log, written so that the original, which has none, loads them.

**The delay** before a retry is in the number that holds the max-fails of an add:

    MAX_FAILS (uvarint)   delay_ms << 16 | max_fails        bits 8 to 15 are 0

The original knows no delay. It reads this number and keeps its lowest 8 bits, so a log with delays
loads there and is only without them. The delay is written in one step with its job, and whatever
copies records keeps it. Codec, fold and tables show the number as it stands in the log; a number
of at most 255 is one without a delay.

**A fail that is retried** is final to the original, which then refuses the next attempt. So it is
hidden from it: it has the form of an add that expired in the year 1, which is stepped over there.

    type 1 | id | NAME_LEN NAME 0 0 0 0 0 | RESULT_LEN RESULT | HIDDEN_TAIL

NAME is one that no job can have; the zeros are TTR, TTL, priority, max-attempts and max-fails; the
tail is a missing time, and creation in the year 1. The timeout-attempt that follows puts the job
back into its queue, there as here. If the job was not leased it is in its queue there, and must not
be put into it twice; then the timeout-attempt is hidden too, in the same way, with an empty result.
"""

from __future__ import annotations

from typing import Final

from journeyman.formats.workq import frame as varint

_DELAY_SHIFT = 16
_FAILS_MASK = (1 << _DELAY_SHIFT) - 1
_NO_TIME: Final = bytes.fromhex("01 0000000000000000 00000000 ffff")


def _head(name: bytes) -> bytes:
    """Name and numbers of an add that stands for something else. No job has a name with a colon."""
    return bytes((len(name),)) + name + bytes(5)


HIDDEN_FAIL: Final = _head(b"journeyman:fail")
HIDDEN_TIMEOUT: Final = _head(b"journeyman:timeout")
HIDDEN_TAIL: Final = _NO_TIME * 2


def pack(max_fails: int, delay_ms: int) -> int:
    assert max_fails <= _FAILS_MASK
    return delay_ms << _DELAY_SHIFT | max_fails


def max_fails_of(number: int) -> int:
    """Over 255 if the number is none that a server wrote."""
    return number & _FAILS_MASK


def delay_ms_of(number: int) -> int:
    return number >> _DELAY_SHIFT


def read_hidden(frame: bytes, at: int, limit: int) -> tuple[bool, bytes] | None:
    """Whether the fields of an add stand for a fail, else for a timeout-attempt; and the result.

    None: it is a real add.
    """
    is_fail = frame.startswith(HIDDEN_FAIL, at)
    if not is_fail and not frame.startswith(HIDDEN_TIMEOUT, at):
        return None
    at += len(HIDDEN_FAIL if is_fail else HIDDEN_TIMEOUT)
    end = len(frame) - len(HIDDEN_TAIL)
    size, begin = varint.read(frame, at, len(frame))
    if begin < 0 or begin + size != end or size > limit or frame[end:] != HIDDEN_TAIL:
        return None
    return (is_fail, frame[begin:end]) if is_fail or not size else None


def write_hidden(head: bytes, result: bytes) -> bytes:
    """The fields of the add that stands for a record with this result."""
    return b"".join((head, varint.write(len(result)), result, HIDDEN_TAIL))

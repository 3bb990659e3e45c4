"""Where an add keeps the delay before a retry: in the number that holds its max-fails.

    MAX_FAILS (uvarint)   delay_ms << 16 | max_fails        bits 8 to 15 are 0

The original knows no delay. It reads this number and keeps its lowest 8 bits, so a log with delays
loads there and is only without them. The delay is written in one step with its job, and whatever
copies records keeps it. Codec, fold and tables show the number as it stands in the log; a number
of at most 255 is one without a delay.
"""

from __future__ import annotations

__all__ = ["delay_ms_of", "max_fails_of", "pack"]

_DELAY_SHIFT = 16
_FAILS_MASK = (1 << _DELAY_SHIFT) - 1


def pack(max_fails: int, delay_ms: int) -> int:
    assert max_fails <= _FAILS_MASK
    return delay_ms << _DELAY_SHIFT | max_fails


def max_fails_of(number: int) -> int:
    """Over 255 if the number is none that a server wrote."""
    return number & _FAILS_MASK


def delay_ms_of(number: int) -> int:
    return number >> _DELAY_SHIFT

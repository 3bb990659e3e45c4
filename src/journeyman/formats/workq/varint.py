"""Variable-length integers as the workq log writes them: seven bits a byte, lowest group first.

    300 = 0b10_0101100   ->   10101100 00000010   =  ac 02
                              ^        ^
                              more     last

A number of 64 bits takes at most ten bytes, and the tenth may hold only its lowest bit. Signed
numbers are folded onto unsigned ones first (zigzag: 0, -1, 1, -2 ... -> 0, 1, 2, 3 ...).

Reading accepts numbers padded with empty groups (``80 00`` is 0), as the original does; writing
always uses the fewest bytes. What a number that cannot be read means is the caller's to say, so
``read`` reports it in place of the next position instead of raising.
"""

from __future__ import annotations

from functools import lru_cache

from journeyman.formats.framing import Buffer

MAX_BYTES = 10

# Both are below every real position.
CUT_SHORT = -1  # no last byte before the stop
OVER_64_BITS = -2  # more than ten bytes, or more than 64 bits in them


def read(data: Buffer, at: int, stop: int) -> tuple[int, int]:
    """The number at ``at`` and the position behind it, or CUT_SHORT or OVER_64_BITS as position."""
    value = 0
    shift = 0
    while at < stop:
        byte = data[at]
        at += 1
        if shift == 63 and byte > 1:
            return 0, OVER_64_BITS
        if byte < 0x80:
            return value | byte << shift, at
        value |= (byte & 0x7F) << shift
        shift += 7
    return 0, CUT_SHORT


@lru_cache(maxsize=4096)  # the numbers of a log are mostly the same few
def write(value: int) -> bytes:
    """The shortest form of a number that is not negative."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fold_sign(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def unfold_sign(value: int) -> int:
    return value >> 1 if not value & 1 else -(value >> 1) - 1

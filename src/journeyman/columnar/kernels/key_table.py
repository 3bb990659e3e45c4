"""Byte strings -> numbers 0, 1, 2 ..., in the order in which they first appear.

    keys of a batch    b"mail.1"  b"sync.7"  b"mail.1"  b"mail.2"
    numbers                0         1          0          2

What groups the rows of a log by key before anything is folded. Open addressing with linear probing:

    slots    hash | length, number + 1 | the first 16 bytes of the key     a power of two, half full
    arena    mail.1sync.7mail.2                                            all keys, end to end
    ends           6     12    18

A hash alone proves nothing: where two are equal, all bytes of the keys are compared. As most keys
end within the slot, a look-up touches one line of memory. The lines of some hundred rows are
touched beforehand, in a loop without branches, so that they are fetched at the same time.

The hash is fixed, the same in every process: its upper bits also say which bucket a key belongs to.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import Bytes, Ints, any_i64, u8

# ----------------------------------------
# Keys, for the kernels that look them up: their hash, their first bytes, whether two are equal.
#
# The hash is fixed, the same in every process: its upper bits also say which bucket a key belongs
# to.
#
# CRC-32C (Castagnoli) for kernels, eight bytes a step.
#
# ``TABLES[k][b]`` is what byte ``b`` does to the CRC when ``k`` more bytes follow it within the
# same step (slicing-by-8). The tables are made at import, from the polynomial, and are built into
# the compiled code. The processor's own CRC instruction would be faster, but it is another one on
# every architecture; the tables are the same everywhere.

POLYNOMIAL = 0x82F63B78  # reflected
_STEP = 8


def _make_tables(polynomial: int) -> npt.NDArray[np.uint32]:
    tables = np.zeros((_STEP, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, _STEP):
        before = tables[k - 1]
        tables[k] = before >> 8 ^ tables[0][before & 0xFF]
    return tables


TABLES = _make_tables(POLYNOMIAL)
_ZLIB_TABLE = _make_tables(0xEDB88320)[0]


@kernel
def crc32c(data: Bytes, at: int, end: int) -> int:
    """The CRC of ``data[at:end]``, which must lie inside the data."""
    crc = np.uint32(0xFFFFFFFF)
    while end - at >= _STEP:
        crc = (
            TABLES[7, data[at] ^ (crc & 0xFF)]
            ^ TABLES[6, data[at + 1] ^ (crc >> 8 & 0xFF)]
            ^ TABLES[5, data[at + 2] ^ (crc >> 16 & 0xFF)]
            ^ TABLES[4, data[at + 3] ^ (crc >> 24)]
            ^ TABLES[3, data[at + 4]]
            ^ TABLES[2, data[at + 5]]
            ^ TABLES[1, data[at + 6]]
            ^ TABLES[0, data[at + 7]]
        )
        at += _STEP
    for i in range(at, end):
        crc = TABLES[0, (data[i] ^ crc) & 0xFF] ^ np.uint32(crc >> 8)
    return int(np.int64(crc ^ np.uint32(0xFFFFFFFF)))


@kernel
def crc32c_after(crc: int, number: int) -> int:
    """The CRC of what has this one, and of the eight bytes of a number after it, lowest first."""
    state = np.uint32(crc) ^ np.uint32(0xFFFFFFFF)
    for i in range(8):
        byte = np.uint32(number >> 8 * i & 0xFF)
        state = TABLES[0, (byte ^ state) & 0xFF] ^ np.uint32(state >> 8)
    return int(np.int64(state ^ np.uint32(0xFFFFFFFF)))


def zlib_crcs(data: Bytes, starts: Ints, lengths: Ints) -> npt.NDArray[np.int64]:
    """``zlib.crc32`` of each span, which must lie inside the data."""
    crcs = np.empty(len(starts), np.int64)
    _zlib_crcs(data, starts, lengths, crcs)
    return crcs


@kernel
def _zlib_crcs(data: Bytes, starts: Ints, lengths: Ints, crcs: Ints) -> None:
    for row in range(crcs.size):
        crc = np.uint32(0xFFFFFFFF)
        for i in range(starts[row], starts[row] + lengths[row]):
            crc = _ZLIB_TABLE[(data[i] ^ crc) & 0xFF] ^ np.uint32(crc >> 8)
        crcs[row] = np.int64(crc ^ np.uint32(0xFFFFFFFF))


INLINE_BYTES = 16  # the slots of a table hold so many bytes of a key

_NONE = np.uint64(0)
_ONE = np.uint64(1)

# The constants of MurmurHash3 (x64), which is in the public domain.
_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_F1, _F2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_FIVE, _MIX = np.uint64(5), np.uint64(0x52DCE729)
_R27, _R31, _R33, _R37 = np.uint64(27), np.uint64(31), np.uint64(33), np.uint64(37)


@kernel
def hash_of(data: Bytes, start: int, end: int) -> np.uint64:
    value = np.uint64(end - start)
    while start + 8 <= end:
        word = np.uint64(any_i64(data, start)) * _C1
        value ^= (word << _R31 | word >> _R33) * _C2
        value = (value << _R27 | value >> _R37) * _FIVE + _MIX
        start += 8
    word = _some_bytes(data, start, end - start) * _C1
    value ^= (word << _R31 | word >> _R33) * _C2
    value = (value ^ value >> _R33) * _F1
    value = (value ^ value >> _R33) * _F2
    return value ^ value >> _R33


@kernel
def first_bytes(data: Bytes, start: int, length: int) -> tuple[np.uint64, np.uint64]:
    """The first 16 bytes of a key as two words, zeros behind its end."""
    if length >= INLINE_BYTES:
        return np.uint64(any_i64(data, start)), np.uint64(any_i64(data, start + 8))
    if length >= 8:
        return np.uint64(any_i64(data, start)), _some_bytes(data, start + 8, length - 8)
    return _some_bytes(data, start, length), _NONE


@kernel
def equal_bytes(first: Bytes, at: int, second: Bytes, start: int, length: int) -> bool:
    for i in range(length):  # noqa: SIM110 - numba has no generators here
        if first[at + i] != second[start + i]:
            return False
    return True


@kernel
def _some_bytes(data: Bytes, start: int, length: int) -> np.uint64:
    """Less than eight bytes as one word, the first the lowest; 0 where there are none."""
    if start + 8 <= data.size:
        # Read too far, which is faster than byte by byte, and cut off what was not asked for.
        return np.uint64(any_i64(data, start)) & ((_ONE << np.uint64(8 * length)) - _ONE)
    word = _NONE
    for i in range(length):
        word |= np.uint64(u8(data, start + i)) << np.uint64(8 * i)
    return word


Hashes = npt.NDArray[np.uint64]
W = TypeVar("W", bound=np.generic)

_FIRST_SLOTS = 1 << 10
_FIRST_ARENA_BYTES = 1 << 14
_TOUCHED_ROWS = 256

# The fields of a slot.
_HASH, _LENGTH_AND_NUMBER, _KEY_LOW, _KEY_HIGH = range(4)
_SLOT_WORDS = 4
_LENGTH_SHIFT = np.uint64(32)
_NUMBER_MASK = np.uint64(0xFFFF_FFFF)


class KeyTable:
    """Numbers for the keys of any number of batches."""

    def __init__(self) -> None:
        self._slots = np.zeros((_FIRST_SLOTS, _SLOT_WORDS), np.uint64)
        self._hashes = np.empty(_FIRST_SLOTS // 2, np.uint64)
        self._ends = np.zeros(_FIRST_SLOTS // 2 + 1, np.int64)
        self._arena = np.empty(_FIRST_ARENA_BYTES, np.uint8)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def key_bytes(self) -> int:
        """The bytes of all keys together."""
        return int(self._ends[self._count])

    @property
    def hashes(self) -> Hashes:
        """The hash of each key, by number."""
        return self._hashes[: self._count]

    def keys(self) -> tuple[Ints, Bytes]:
        """Offsets and bytes of all keys, by number, as Arrow lays them out."""
        return self._ends[: self._count + 1].astype(np.int32), self._arena[: self.key_bytes]

    def numbers_of(self, offsets: Ints, values: Bytes) -> Ints:
        """The number of each key; key i is ``values[offsets[i]:offsets[i + 1]]``."""
        rows = len(offsets) - 1
        hashes, numbers = hashes_of(offsets, values), np.empty(rows, np.int64)
        done = 0
        while True:
            done, self._count, _ = _number_keys(
                offsets,
                values,
                hashes,
                done,
                self._slots,
                self._hashes,
                self._ends,
                self._arena,
                self._count,
                numbers,
            )
            if done == rows:
                return numbers
            self._make_room(int(offsets[done + 1] - offsets[done]))

    def _make_room(self, more_bytes: int) -> None:
        if self.key_bytes + more_bytes > self._arena.size:
            self._arena = _longer(self._arena, 2 * self._arena.size + more_bytes)
        if self._count == len(self._hashes):
            slots = np.zeros((2 * len(self._slots), _SLOT_WORDS), np.uint64)
            _place_again(self._slots, slots)
            self._slots = slots
            self._hashes = _longer(self._hashes, len(slots) // 2)
            self._ends = _longer(self._ends, len(slots) // 2 + 1)


def hashes_of(offsets: Ints, values: Bytes) -> Hashes:
    """The hash of each key; key i is ``values[offsets[i]:offsets[i + 1]]``."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    _hash_keys(offsets, values, hashes)
    return hashes


def buckets_of(hashes: Hashes, buckets: int) -> Ints:
    """The bucket of each hash; ``buckets`` is a power of two."""
    bits = buckets.bit_length() - 1
    if bits == 0:
        return np.zeros(len(hashes), np.int64)
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


def _longer(array: npt.NDArray[W], size: int) -> npt.NDArray[W]:
    longer: npt.NDArray[W] = np.empty(size, array.dtype)
    longer[: array.size] = array
    return longer


@kernel
def _hash_keys(offsets: Ints, values: Bytes, hashes: Hashes) -> None:
    for row in range(hashes.size):
        hashes[row] = hash_of(values, int(offsets[row]), int(offsets[row + 1]))


@kernel
def _touch(hashes: Hashes, first: int, slots: Hashes) -> np.uint64:
    """Have the slots of the next rows fetched."""
    mask = np.uint64(slots.shape[0] - 1)
    seen = _NONE
    for row in range(first, min(first + _TOUCHED_ROWS, hashes.size)):
        seen ^= slots[np.int64(hashes[row] & mask), _LENGTH_AND_NUMBER]
    return seen


@kernel
def _number_keys(
    offsets: Ints,
    values: Bytes,
    hashes: Hashes,
    row: int,
    slots: Hashes,
    key_hashes: Hashes,
    ends: Ints,
    arena: Bytes,
    count: int,
    numbers: Ints,
) -> tuple[int, int, np.uint64]:
    """Number the rows from ``row`` on; (the first row without room, keys known now, what was seen).

    What ``_touch`` saw is of use to nobody, but keeps the compiler from leaving its loads out.
    """
    mask = np.int64(slots.shape[0] - 1)
    touch_at, seen = row, _NONE
    while row < hashes.size:
        if row == touch_at:
            seen ^= _touch(hashes, row, slots)
            touch_at += _TOUCHED_ROWS
        start = int(offsets[row])
        length = int(offsets[row + 1]) - start
        code = hashes[row]
        low, high = first_bytes(values, start, length)
        slot = np.int64(code & np.uint64(mask))
        while True:
            mark = slots[slot, _LENGTH_AND_NUMBER]
            if mark == _NONE:
                number = -1
                break
            if (
                slots[slot, _HASH] == code
                and mark >> _LENGTH_SHIFT == np.uint64(length)
                and slots[slot, _KEY_LOW] == low
                and slots[slot, _KEY_HIGH] == high
            ):
                number = int(mark & _NUMBER_MASK) - 1
                rest = length - INLINE_BYTES
                if rest <= 0:
                    break
                at = ends[number] + INLINE_BYTES
                if equal_bytes(arena, at, values, start + INLINE_BYTES, rest):
                    break
            slot = (slot + 1) & mask
        if number < 0:
            at = ends[count]
            if count == key_hashes.size or at + length > arena.size:
                return row, count, seen
            for i in range(length):
                arena[at + i] = values[start + i]
            ends[count + 1] = at + length
            key_hashes[count] = code
            slots[slot, _HASH] = code
            slots[slot, _LENGTH_AND_NUMBER] = np.uint64(length) << _LENGTH_SHIFT | np.uint64(
                count + 1
            )
            slots[slot, _KEY_LOW] = low
            slots[slot, _KEY_HIGH] = high
            number = count
            count += 1
        numbers[row] = number
        row += 1
    return row, count, seen


@kernel
def _place_again(old: Hashes, new: Hashes) -> None:
    mask = np.int64(new.shape[0] - 1)
    for i in range(old.shape[0]):
        if old[i, _LENGTH_AND_NUMBER] != _NONE:
            slot = np.int64(old[i, _HASH] & np.uint64(mask))
            while new[slot, _LENGTH_AND_NUMBER] != _NONE:
                slot = (slot + 1) & mask
            for word in range(_SLOT_WORDS):
                new[slot, word] = old[i, word]

"""Further keys over the jobs of an Overhop keyspace: what a listing by queue and status reads.

    v1:q_status_fifo:<length><queue>:<status>:<place>          a job of a queue and status -> 01
    v1:q_status_rank:<level><length><queue>:<status>:<place>   how many jobs follow        -> u64be

    <length>  u16 big endian, of the queue name in bytes: no name is the beginning of another
    <place>   ms 8 bytes | ns 4 bytes | uuid 16 bytes            oldest first; ns is what the
                                                                 millisecond leaves, so jobs of one
                                                                 millisecond stay in their order
    <level>   one byte, 1 to 3; under 0 and no place stand the first and the last place of a listing

Ranks answer "the 700,000th job" without counting to it. Some places are marks: of about every 32
one is of level 1, of those about every 32 one of level 2, and so on; a hash of the place decides.
A mark's key holds how many jobs there are from it up to the next mark of its level. The jobs before
the first mark stand under the empty place.

    level 2   ''=300                                       M=400 ...
    level 1   ''=120        B=180                          M=90         R=310 ...
    jobs      a b c ...     B b b b ...                    M m m ...    R r r ...

Which places are marks depends on the places alone, so one set of jobs has one set of ranks,
whatever happened on the way to it: it can be checked, and made again.

The prefixes do not begin with those of journeyman.formats.keyspace, nor those with these. Keys of
both are derived: programs that do not know them may drop them (docs/adr/0009-listing-index.md).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final
from uuid import UUID
from zlib import crc32

from journeyman.errors import InvalidData
from journeyman.formats.keyspace import (
    KeyRange,
    ordered_number,
    queue_bytes,
    status_bytes,
)
from journeyman.units import NS_PER_MS

LISTINGS: Final = b"v1:q_status_fifo:"
RANKS: Final = b"v1:q_status_rank:"
BOUNDS_LEVEL: Final = 0
LEVELS: Final = (1, 2, 3)
PLACE_BYTES: Final = 28

_MARK_BITS = 5
_TOP_BIT = 1 << 63
_TIME = Struct(">QI")
_LENGTH = Struct(">H")
_COLON = b":"
_UUID_BYTES = 16


@lru_cache(4096)
def listing(queue: str, status: str) -> bytes:
    """What all keys of the jobs of a queue and status begin with; a place follows."""
    return LISTINGS + _name(queue, status)


@lru_cache(4096)
def rank_listing(queue: str, status: str, level: int) -> bytes:
    """What all ranks of a level begin with; a place, or nothing, follows."""
    return RANKS + bytes([level]) + _name(queue, status)


def _name(queue: str, status: str) -> bytes:
    raw = queue_bytes(queue)
    return _LENGTH.pack(len(raw)) + raw + _COLON + status_bytes(status) + _COLON


def whole(beginning: bytes) -> KeyRange:
    """All keys of a listing, or of its ranks of a level."""
    return KeyRange(beginning, beginning[:-1] + b";")  # ; comes right after :


def place_of(created_at_ns: int, job_uuid: UUID) -> bytes:
    """Where a job stands among those of its queue and status."""
    ms, ns = divmod(created_at_ns, NS_PER_MS)
    return _TIME.pack(ms + _TOP_BIT, ns) + job_uuid.bytes


def created_ns_of(place: bytes) -> int:
    """When the job at a place was created."""
    return ordered_number(place[:8]) * NS_PER_MS + int.from_bytes(place[8:12], "big")


def bounds_key(queue: str, status: str) -> bytes:
    """Where the first and the last place of a listing are kept."""
    return rank_listing(queue, status, BOUNDS_LEVEL)


def uuid_of_place(place: bytes) -> UUID:
    return UUID(bytes=place[-_UUID_BYTES:])


def is_mark(place: bytes, level: int) -> bool:
    return crc32(place) & ((1 << _MARK_BITS * level) - 1) == 0


def listing_of(key: bytes) -> tuple[str, str, int, UUID]:
    """Queue, status, creation time in ns and uuid of a listing key. Raises InvalidData."""
    place = key[-PLACE_BYTES:]
    name = key[len(LISTINGS) : -PLACE_BYTES]
    length = int.from_bytes(name[: _LENGTH.size], "big")
    queue, status = name[_LENGTH.size : _LENGTH.size + length], name[_LENGTH.size + length :]
    if not key.startswith(LISTINGS) or len(status) < 3 or status[:1] + status[-1:] != b"::":
        raise InvalidData("an invalid listing key", 0)
    try:
        words = queue.decode(), status[1:-1].decode("ascii")
    except UnicodeDecodeError:
        raise InvalidData("a listing key whose names are not text", 0) from None
    return *words, created_ns_of(place), uuid_of_place(place)

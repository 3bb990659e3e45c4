"""Damage of every kind that disks, crashes and newer writers leave."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from unittest import mock

from click.testing import CliRunner

from journeyman.cli import journeyman
from journeyman.logs import damage as damage_module
from journeyman.logs.damage import Damage
from journeyman.spark.source import piece_reader
from tests.support.spark.pieces import Item

Wound = Callable[[bytearray, list[int], Random], None]  # the log, where records begin, chance


def adjacent_bad_frames(data: bytearray, starts: list[int], random: Random) -> None:
    """The content of 2 to 4 records in a row is bad, their frames are not."""
    count = random.randrange(2, 5)
    first = random.randrange(1, len(starts) - count - 1)
    for start, end in zip(starts[first:], starts[first + 1 : first + count + 1], strict=False):
        data[start + 4] = 0xEE  # ztick: the type; workq, kestrel: inside the header
        data[end - 1] ^= 0xFF


def hole_of_zeros(data: bytearray, starts: list[int], random: Random) -> None:
    """A page that was never written, over several records."""
    begin = random.randrange(starts[1], starts[-1])
    end = min(begin + random.randrange(1, 300), starts[-1])
    data[begin:end] = bytes(end - begin)


def torn_frame(data: bytearray, starts: list[int], random: Random) -> None:
    """A record cut short, and the next one written right behind it."""
    which = random.randrange(1, len(starts) - 2)
    cut = random.randrange(starts[which] + 1, starts[which + 1])
    del data[cut : starts[which + 1]]


def torn_tail(data: bytearray, _: list[int], random: Random) -> None:
    del data[len(data) - random.randrange(1, 40) :]


def bit_flips(data: bytearray, starts: list[int], random: Random) -> None:
    for _ in range(random.randrange(1, 6)):
        data[random.randrange(starts[0], len(data))] ^= 1 << random.randrange(8)


def bad_header(data: bytearray, starts: list[int], random: Random) -> None:
    if starts[0]:
        data[random.randrange(starts[0])] ^= 1


def noise(data: bytearray, starts: list[int], random: Random) -> None:
    begin = random.randrange(starts[0], len(data))
    data[begin : begin + random.randrange(80)] = random.randbytes(random.randrange(80))


WOUNDS: list[Wound] = [
    adjacent_bad_frames,
    hole_of_zeros,
    torn_frame,
    torn_tail,
    bit_flips,
    bad_header,
    noise,
]


def several(data: bytearray, starts: list[int], random: Random) -> None:
    """More than one wound; ``starts`` then fit roughly, which does not matter."""
    for wound in random.sample(WOUNDS, 3):
        wound(data, [start for start in starts if start < len(data) - 400], random)


def short_memory(held_bytes: int) -> ExitStack:
    """Less is held back than a log is long, so that much of it is sure before it ends."""
    stack = ExitStack()
    for module in (damage_module, piece_reader):
        stack.enter_context(mock.patch.object(module, "HELD_BYTES", held_bytes))
    return stack


def borders(data: bytes, found: list[Item], random: Random) -> list[int]:
    """Cuts beside a few damages, and some anywhere."""
    damages = [item for item in found if isinstance(item, Damage)]
    chosen = random.sample(damages, min(2, len(damages)))
    near = [at + by for each in chosen for at in (each.offset, each.end) for by in (-1, 0, 1)]
    return [*near, *(random.randrange(len(data) + 1) for _ in range(3))]


def run(*args: object) -> str:
    return CliRunner().invoke(journeyman, [str(arg) for arg in args]).stdout

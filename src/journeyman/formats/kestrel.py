"""The kestrel journal: writer files hold the items of a queue, reader files one checkpoint each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

WRITER_MAGIC = bytes.fromhex("27642603")
READER_MAGIC = bytes.fromhex("263c2603")
MAX_DATA_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ItemPut:
    """An item was added to the queue."""

    item_id: int
    add_time_ms: int
    expire_time_ms: int | None
    error_count: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ReadHead:
    """A reader is done with every id up to and including this one."""

    item_id: int


@dataclass(frozen=True, slots=True)
class ReadDone:
    """A reader finished these ids, all beyond its head, out of order."""

    item_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command of another version: kept byte for byte, meaning nothing."""

    command_byte: int
    header: bytes  # all header words, the size word included
    data: bytes


Record: TypeAlias = ItemPut | ReadHead | ReadDone | UnknownCommand

"""Journals of kestrel 1.x and 2.x -> queues in libkestrel's format, in the same directory.

    orders            items for the plain name  \\      orders.<number>        each item once
    orders+audit      a copy for a reader        } -->  orders.read.audit      where each reader
    orders+billing    another one               /       orders.read.billing    stands

    step, for each queue                                a crash behind it leaves
    1 write new files as <name>~~importing              the old journals; run it again
    2 publish: old files to .imported-kestrel/<ms>/,    decided: whoever opens the queue next, or
      new ones to their names                           runs it again, carries it through

Readers of 2.x have copies of the items, with the same times; copies that come in the same order
are stored once. What a reader does not have, its checkpoint says it has finished.

A queue with named readers has no plain one. What the plain name still had is given to a reader of
its own. Nothing is overwritten, and no byte of the old journals is removed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from journeyman.clock import Clock
from journeyman.disk import Disk
from journeyman.errors import LogLocked, UsageError
from journeyman.folds.kestrel import DEFAULT_READER, Reader, snapshot_reader
from journeyman.folds.kestrel2 import OldItem
from journeyman.formats.framing import Buffer
from journeyman.formats.kestrel import MAX_DATA_BYTES, READER, WRITER, ItemPut
from journeyman.logs.kestrel.kestrel2_files import OldFiles, Replayed, replay
from journeyman.logs.publication import Publication, journal_path, publish, write_whole
from journeyman.logs.segments import (
    TEMPORARY_MARK,
    check_reader_name,
    is_queue_name,
    kestrel_lock_name,
    kestrel_number,
    kestrel_reader_name,
    kestrel_readers,
    kestrel_segment_name,
    kestrel_segments,
)
from journeyman.units import NS_PER_MS

KEPT_DIRECTORY = ".imported-kestrel"
PLAIN_READER = "default"
STAGED = f"{TEMPORARY_MARK}importing"
SEGMENT_BYTES = 16 * 1024 * 1024
MAX_ITEM_BYTES = SEGMENT_BYTES - 4 - 33  # what fits a segment of the original
MAX_FINISHED_IDS = MAX_DATA_BYTES // 8  # of one checkpoint


@dataclass(slots=True)
class Imported:
    """What became of one queue."""

    queue: str
    items: int = 0  # that were stored
    readers: dict[str, int] = field(default_factory=dict)  # how many items each has left
    opened: int = 0  # open reads that went back to the head
    plain_reader: str | None = None  # the reader that has what the plain name had
    too_large: int = 0  # items that no segment takes
    replayed: list[Replayed] = field(default_factory=list)
    refused: str = ""  # why nothing was imported

    @property
    def is_whole(self) -> bool:
        """Whether everything that was there is imported."""
        damaged = any(each.damages for each in self.replayed)
        return not (self.refused or self.too_large or damaged)


@dataclass(slots=True)
class _Shared:
    """An item, and the readers that have it."""

    item: OldItem[Buffer]
    readers: set[str]


def import_queue(
    disk: Disk,
    clock: Clock,
    directory: str,
    queue: str,
    members: Sequence[OldFiles],
    *,
    kept: str,
    plain_reader: str = PLAIN_READER,
    dry_run: bool = False,
) -> Imported:
    """Import one queue with its readers.

    ``kept`` is where its files go, below the directory.
    """
    outcome = Imported(queue)
    if not is_queue_name(queue):
        outcome.refused = "a queue of this name cannot be served: rename its files"
        return outcome
    try:
        lock = disk.lock(posixpath.join(directory, kestrel_lock_name(queue)))
    except LogLocked:
        outcome.refused = "a server has it open: stop the server first"
        return outcome
    try:
        names = disk.list_dir(directory)
        old = {name for files in members for name in files.names}
        outcome.refused = _why_not(queue, members, names, old)
        if not outcome.refused:
            lists = _lists(disk, directory, members, outcome, plain_reader)
            merged = _merged(lists)
            readers = {name: _place(name, merged) for name in lists}
            if any(len(reader.done) > MAX_FINISHED_IDS for reader in readers.values()):
                outcome.refused = "its readers have too many items that others do not have"
            elif not dry_run:
                _write(disk, clock, directory, queue, merged, readers, names, sorted(old), kept)
            outcome.items = len(merged)
    finally:
        lock.release()
    return outcome


def _why_not(queue: str, members: Sequence[OldFiles], names: Sequence[str], old: set[str]) -> str:
    if {*kestrel_segments(queue, names), *kestrel_readers(queue, names).values()} - old:
        return "it has a journal of this server already: move one of them to another directory"
    for files in members:
        try:
            check_reader_name(files.reader)
        except UsageError as error:
            return str(error)
    return ""


def _lists(
    disk: Disk,
    directory: str,
    members: Sequence[OldFiles],
    outcome: Imported,
    plain_reader: str,
) -> dict[str, list[OldItem[Buffer]]]:
    """What each reader still has to be given."""
    lists: dict[str, list[OldItem[Buffer]]] = {}
    for files in members:
        replayed = replay(disk, directory, files)
        outcome.replayed.append(replayed)
        outcome.opened += replayed.opened
        items = [item for item in replayed.items if len(item.content) <= MAX_ITEM_BYTES]
        outcome.too_large += len(replayed.items) - len(items)
        lists[files.reader] = items
    if len(lists) > 1 and DEFAULT_READER in lists:
        plain = lists.pop(DEFAULT_READER)
        if plain:
            while plain_reader in lists:
                plain_reader += "_"
            lists[plain_reader] = plain
            outcome.plain_reader = plain_reader
    outcome.readers = {name: len(items) for name, items in lists.items()}
    return lists


def _merged(lists: Mapping[str, list[OldItem[Buffer]]]) -> list[_Shared]:
    """All items, in an order that is that of every list; copies of one item come together.

    From the back: what was put last, all readers still have.
    """
    merged: list[_Shared] = []
    for reader, items in lists.items():
        backwards: list[_Shared] = []
        at = len(merged) - 1
        for item in reversed(items):
            while at >= 0 and not _is_copy(merged[at].item, item) and _is_later(merged[at], item):
                backwards.append(merged[at])
                at -= 1
            if at >= 0 and _is_copy(merged[at].item, item):
                merged[at].readers.add(reader)
                backwards.append(merged[at])
                at -= 1
            else:
                backwards.append(_Shared(item, {reader}))
        backwards.extend(merged[at::-1] if at >= 0 else ())
        merged = backwards[::-1]
    return merged


def _is_copy(item: OldItem[Buffer], other: OldItem[Buffer]) -> bool:
    times = (item.add_time_ms, item.expire_time_ms) == (other.add_time_ms, other.expire_time_ms)
    return times and item.content == other.content


def _is_later(shared: _Shared, item: OldItem[Buffer]) -> bool:
    return (shared.item.add_time_ms or 0) >= (item.add_time_ms or 0)


def _place(reader: str, merged: Sequence[_Shared]) -> Reader:
    """Everything that the reader does not have counts as finished."""
    has = [reader in shared.readers for shared in merged]
    head = has.index(True) if any(has) else len(has)
    return Reader(head, {place + 1 for place in range(head, len(has)) if not has[place]})


def _write(
    disk: Disk,
    clock: Clock,
    directory: str,
    queue: str,
    merged: Sequence[_Shared],
    readers: Mapping[str, Reader],
    names: Sequence[str],
    old: Sequence[str],
    kept: str,
) -> None:
    now_ms = clock.now_ns() // NS_PER_MS
    for name in names:
        if name.startswith(f"{queue}.") and name.endswith(STAGED):
            disk.remove(posixpath.join(directory, name))
    number = max([now_ms, *(kestrel_number(queue, n) or 0 for n in kestrel_segments(queue, names))])
    renames = {name: posixpath.join(kept, name) for name in old}
    for segment in _segments(merged, now_ms):
        number += 1
        renames |= _staged(disk, directory, kestrel_segment_name(queue, number), segment)
    for name, reader in readers.items():
        head, done = snapshot_reader(reader)
        pieces = [READER.header, READER.encode(head), READER.encode(done)]
        renames |= _staged(disk, directory, kestrel_reader_name(queue, name), pieces)
    disk.make_dirs(posixpath.join(directory, kept))
    disk.sync_dir(directory)
    publish(disk, journal_path(directory), Publication(renames))


def _staged(disk: Disk, directory: str, name: str, pieces: Sequence[bytes]) -> dict[str, str]:
    write_whole(disk, posixpath.join(directory, name + STAGED), pieces)
    return {name + STAGED: name}


def _segments(merged: Sequence[_Shared], now_ms: int) -> Iterator[list[bytes]]:
    """The pieces of each segment. A queue without items has none: its checkpoints are enough."""
    pieces: list[bytes] = []
    size = 0
    for item_id, shared in enumerate(merged, 1):
        item = shared.item
        added = now_ms if item.add_time_ms is None else item.add_time_ms
        put = ItemPut(item_id, added, item.expire_time_ms, 0, bytes(item.content))
        encoded = WRITER.encode(put)
        if pieces and size + len(encoded) > SEGMENT_BYTES:
            yield pieces
            pieces = []
        if not pieces:
            pieces, size = [WRITER.header], len(WRITER.header)
        pieces.append(encoded)
        size += len(encoded)
    if pieces:
        yield pieces

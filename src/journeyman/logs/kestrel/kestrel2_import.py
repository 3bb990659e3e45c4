"""Journals of kestrel 1.x and 2.x -> queues in libkestrel's format, in the same directory.

    <queue>              the newest file
    <queue>.<ms>         older ones, replayed before it in the order of their numbers
    <queue>.<ms>.pack    stands for every <queue>.<n> with n <= ms
    <queue>~~<ms>        unfinished; not looked at

Segments of libkestrel have names like those of older files, so the content decides: see
formats/kestrel/kestrel2. A fan-out reader is a queue of its own, called ``queue+reader``:

    orders            items for the plain name  \\      orders.<number>        each item once
    orders+audit      a copy for a reader        } -->  orders.read.audit      where each reader
    orders+billing    another one               /       orders.read.billing    stands

    step, for each queue                                a crash after it leaves
    1 write new files as <name>~~importing              the old journals; run it again
    2 publish: old files to .imported-kestrel/<ms>/,    decided: the next open of the queue, or
      new ones to their names                           the next import, finishes it

Readers of 2.x have copies of the items, with the same times; copies that come in the same order
are stored once. What a reader does not have, its checkpoint says it has finished.

A queue with named readers has no plain one. What the plain name still had goes to an extra
reader. Nothing is overwritten, and no byte of the old journals is removed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from journeyman.clock import Clock
from journeyman.disk import Disk
from journeyman.errors import LogLocked, UsageError
from journeyman.folds.kestrel import DEFAULT_READER, Reader, snapshot_reader
from journeyman.folds.kestrel2 import OldItem, OldQueue
from journeyman.formats.framing import Buffer
from journeyman.formats.kestrel import MAX_DATA_BYTES, READER, WRITER, ItemPut
from journeyman.formats.kestrel2 import (
    CODEC,
    LAST_OPCODE,
    AddItem,
    AddWithXid,
    Continue,
    OldAdd,
    begins_as_journal,
)
from journeyman.logs.damage import Damage, read_past_damage
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

FAN_OUT_MARK = "+"
_NAME = re.compile(r"([^.~/]+)(?:\.([0-9]{1,18})(\.pack)?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class OldFiles:
    """The files of one queue, by name, in the order of their operations."""

    queue: str
    replayed: tuple[str, ...]
    replaced: tuple[str, ...] = ()  # a pack stands for them

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.replaced, *self.replayed)

    @property
    def parent(self) -> str:
        return self.queue.partition(FAN_OUT_MARK)[0]

    @property
    def reader(self) -> str:
        return self.queue.partition(FAN_OUT_MARK)[2]


@dataclass(slots=True)
class Replayed:
    """What is left of a queue. The content of an item are the bytes of its data, in the file."""

    queue: str
    items: list[OldItem[Buffer]] = field(default_factory=list)
    opened: int = 0  # how many of them were open: they are the first
    records: int = 0
    strays: int = 0
    kept: int = 0  # removals after damage, which were not done
    damages: list[Damage] = field(default_factory=list)


def is_old_journal(disk: Disk, path: str) -> bool:
    """Whether this file is a journal of kestrel 1.x or 2.x."""
    head = disk.read_at(path, 0, 1)
    return head != b"" and head[0] <= LAST_OPCODE and begins_as_journal(disk.view(path))


def find_old_journals(disk: Disk, directory: str, names: Iterable[str]) -> dict[str, OldFiles]:
    """By queue. A file without a byte counts as the newest of a queue where other files of the
    directory are such journals, and as an older one beside others of its queue."""
    numbered: dict[str, list[tuple[int, bool, str]]] = {}
    newest: dict[str, str] = {}
    certain: set[str] = set()
    for name in names:
        match = _NAME.fullmatch(name)
        path = posixpath.join(directory, name)
        if match is None or disk.is_dir(path):
            continue
        queue, number, pack = match.groups()
        is_empty = disk.size(path) == 0
        if not is_empty and not is_old_journal(disk, path):
            continue
        if not is_empty:
            certain.add(queue)
        if number is None:
            newest[queue] = name
        else:
            numbered.setdefault(queue, []).append((int(number), bool(pack), name))
    if not certain:
        return {}
    return {
        queue: _in_order(queue, numbered.get(queue, ()), newest.get(queue))
        for queue in sorted({*certain, *newest})
    }


def _in_order(
    queue: str, numbered: Iterable[tuple[int, bool, str]], newest: str | None
) -> OldFiles:
    ordered = sorted(numbered)  # of one number the pack comes last
    packs = [place for place, (_, is_pack, _) in enumerate(ordered) if is_pack]
    first = packs[-1] if packs else 0
    files = [name for _, _, name in ordered]
    last = () if newest is None else (newest,)
    return OldFiles(queue, (*files[first:], *last), tuple(files[:first]))


def replay(disk: Disk, directory: str, files: OldFiles) -> Replayed:
    """What is left in a queue. Damage is stepped over; see folds/kestrel2 for what follows it."""
    state: OldQueue[Buffer] = OldQueue()
    replayed = Replayed(files.queue)
    lost = False  # somewhere before what is read now
    for name in files.replayed:
        path = posixpath.join(directory, name)
        data = disk.view(path)
        for found in read_past_damage(CODEC, data, file=path):
            if isinstance(found, Damage):
                replayed.damages.append(found)
                lost = True
                continue
            if lost:
                state.damaged()
            replayed.records += 1
            content: Buffer = b""
            if isinstance(found.record, OldAdd | AddItem | AddWithXid | Continue):
                content = data[found.end - len(found.record.data) : found.end]
            state.apply(found.record, content)
    replayed.items = state.left()
    replayed.opened = len(state.open)
    replayed.strays, replayed.kept = state.strays, state.kept
    return replayed


def by_parent(found: Mapping[str, OldFiles]) -> dict[str, list[OldFiles]]:
    """The queues whose readers these are, each with its own files and those of its readers."""
    parents: dict[str, list[OldFiles]] = {}
    for files in found.values():
        parents.setdefault(files.parent, []).append(files)
    return parents


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
        renames |= _stage(disk, directory, kestrel_segment_name(queue, number), segment)
    for name, reader in readers.items():
        head, done = snapshot_reader(reader)
        pieces = [READER.header, READER.encode(head), READER.encode(done)]
        renames |= _stage(disk, directory, kestrel_reader_name(queue, name), pieces)
    disk.make_dirs(posixpath.join(directory, kept))
    disk.sync_dir(directory)
    publish(disk, journal_path(directory), Publication(renames))


def _stage(disk: Disk, directory: str, name: str, pieces: Sequence[bytes]) -> dict[str, str]:
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

"""Journals of kestrel 1.x and 2.x in a directory: which exist, and what is left in each.

    <queue>              the newest file
    <queue>.<ms>         older ones, replayed before it in the order of their numbers
    <queue>.<ms>.pack    stands for every <queue>.<n> with n <= ms
    <queue>~~<ms>        unfinished; ignored

A fan-out reader is a queue of its own, called ``queue+reader``. Segments of libkestrel have names
like those of older files, so the content decides: see formats/kestrel2. Nothing here changes a
file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from journeyman.disk import Disk
from journeyman.folds.kestrel2 import OldItem, OldQueue
from journeyman.formats.framing import Buffer
from journeyman.formats.kestrel.kestrel2 import (
    CODEC,
    LAST_OPCODE,
    Add,
    AddWithXid,
    Continue,
    OldAdd,
    begins_as_journal,
)
from journeyman.logs.damage import Damage, read_past_damage

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
    kept: int = 0  # removals after damage, which were not applied
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
            if isinstance(found.record, OldAdd | Add | AddWithXid | Continue):
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

"""Journals of kestrel 1.x and 2.x: laws of the codec, the import against a model server."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from journeyman.errors import FormatError, IncompleteEntry
from journeyman.folds.kestrel2 import OldQueue
from journeyman.formats.framing import Stop, scan
from journeyman.formats.kestrel2 import (
    CODEC,
    AddItem,
    AddWithXid,
    ConfirmRemove,
    Continue,
    OldAdd,
    Record,
    RemoveItem,
    RemoveTentative,
    SaveXid,
    Unremove,
    begins_as_journal,
)
from journeyman.logs.kestrel.kestrel2_import import by_parent, find_old_journals, import_queue
from journeyman.logs.kestrel.log import finish_publication
from journeyman.testing import ManualClock, SimulatedDisk
from journeyman.testing.simulated_disk import PowerCut
from tests.support.fanout_world import SPOOL, FanOutWorld

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
DATA = st.binary(max_size=60)
RECORDS: st.SearchStrategy[Record] = (
    st.builds(OldAdd, I32, DATA)
    | st.builds(AddItem, I64, I64, DATA)
    | st.builds(AddWithXid, I32, I64, I64, DATA)
    | st.builds(Continue, I32, I64, I64, DATA)
    | st.builds(RemoveItem)
    | st.builds(RemoveTentative, st.none() | I32)
    | st.builds(SaveXid, I32)
    | st.builds(Unremove, I32)
    | st.builds(ConfirmRemove, I32)
)
FILES = st.lists(RECORDS, max_size=8)
NOW_MS = 1_700_000_000_000


def written(records: list[Record]) -> bytes:
    return b"".join(map(CODEC.encode, records))


@given(FILES)
def test_what_is_written_is_read(records: list[Record]):
    entries, ending = scan(CODEC, written(records))
    assert [entry.record for entry in entries] == records
    assert ending.stop is Stop.EOF


@given(FILES, st.data())
def test_any_prefix_gives_exactly_the_whole_records_in_it(records: list[Record], data: Any):
    whole = written(records)
    cut = data.draw(st.integers(0, len(whole)))
    entries, ending = scan(CODEC, whole[:cut])
    assert [entry.record for entry in entries] == records[: len(entries)]
    assert ending.stop is (Stop.EOF if ending.offset == cut else Stop.TORN)
    assert CODEC.is_torn(whole[:cut], ending.offset) == (ending.offset < cut)
    if isinstance(ending.error, IncompleteEntry):
        assert ending.error.needed > cut - ending.offset


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_format_error(data: bytes):
    entries, ending = scan(CODEC, data)
    assert written([entry.record for entry in entries]) == data[: ending.offset]
    assert ending.error is None or isinstance(ending.error, FormatError)
    begins_as_journal(data)
    start = CODEC.resync(data, 0)
    assert start is None or CODEC.decode(data, start) is not None


@given(st.lists(RECORDS, max_size=20))
def test_the_fold_takes_any_operations_and_loses_no_item_that_was_not_removed(
    records: list[Record],
):
    queue: OldQueue[int] = OldQueue()
    for number, record in enumerate(records):
        queue.apply(record, number)
    left = [item.content for item in queue.left()]
    added = [
        n for n, r in enumerate(records) if isinstance(r, OldAdd | AddItem | AddWithXid | Continue)
    ]
    gone = [r for r in records if isinstance(r, RemoveItem | ConfirmRemove | Continue)]
    assert len(left) == len(set(left))
    assert set(left) <= set(added)
    assert len(left) >= len(added) - len(gone)


# -- a model of the server ---------------------------------------------------------------------


@dataclass
class ModelQueue:
    """A queue of kestrel 2.x: what it holds, and the files it writes."""

    items: list[tuple[int, int, bytes]] = field(default_factory=list)
    open: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)
    last_xid: int = 0
    rotated: list[bytes] = field(default_factory=list)
    journal: bytes = b""

    def note(self, record: Record) -> None:
        self.journal += CODEC.encode(record)

    def put(self, item: tuple[int, int, bytes]) -> None:
        self.items.append(item)
        self.note(AddItem(*item))

    def get(self, *, opens: bool, old: bool) -> None:
        if not self.items:
            return
        item = self.items.pop(0)
        if not opens:
            self.note(RemoveItem())
            return
        self.last_xid += 1
        while self.last_xid in self.open:
            self.last_xid += 1
        self.open[self.last_xid] = item
        self.note(RemoveTentative(None if old else self.last_xid))

    def end(self, which: int, how: str, item: tuple[int, int, bytes]) -> None:
        if not self.open:
            return
        xid = sorted(self.open)[which % len(self.open)]
        ended = self.open.pop(xid)
        if how == "confirm":
            self.note(ConfirmRemove(xid))
        elif how == "abort":
            self.items.insert(0, ended)
            self.note(Unremove(xid))
        else:
            self.items.append(item)
            self.note(Continue(xid, *item))

    def rotate(self) -> None:
        self.rotated.append(self.journal)
        self.journal = b""

    def pack(self) -> None:
        """All that there is, as one file; what is open under its ids."""
        records: list[Record] = []
        for xid, item in sorted(self.open.items()):
            records += [AddItem(*item), RemoveTentative(xid)]
        records += [SaveXid(self.last_xid), *(AddItem(*item) for item in self.items)]
        self.rotated, self.journal = [written(records)], b""

    def left(self) -> list[tuple[int, int, bytes]]:
        return [*(self.open[xid] for xid in sorted(self.open)), *self.items]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "get", "open", "open_old", "confirm", "abort"])
        | st.sampled_from(["continue", "rotate", "pack", "join"]),
        st.integers(0, 3),  # which reader
        st.integers(0, 5),
        st.sampled_from([b"", b"a", b"b", b"\x02" * 40]),
    ),
    max_size=40,
)


def lived(steps: list[tuple[str, int, int, bytes]]) -> dict[str, ModelQueue]:
    """Queue ``q`` and its readers after these steps."""
    queues = {"q": ModelQueue()}
    now_ms = NOW_MS
    for what, reader, number, data in steps:
        now_ms += number % 2  # some have the same time
        item = (now_ms, 0 if number else now_ms + 10**9, data)
        name = list(queues)[reader % len(queues)]
        queue = queues[name]
        if what == "put":
            for each in queues.values():
                each.put(item)
        elif what == "join":
            queues.setdefault(f"q+r{reader}", ModelQueue())
        elif what in ("get", "open", "open_old"):
            queue.get(opens=what != "get", old=what == "open_old")
        elif what == "rotate":
            queue.rotate()
        elif what == "pack":
            queue.pack()
        else:
            queue.end(number, what, item)
    return queues


def planted(queues: dict[str, ModelQueue]) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs(SPOOL)
    for name, queue in queues.items():
        for number, data in enumerate(queue.rotated, 7):  # not in the order of their letters
            disk.plant(f"{SPOOL}/{name}.{number}", data)
        disk.plant(f"{SPOOL}/{name}", queue.journal)
    return disk


def import_all(disk: SimulatedDisk) -> None:
    found = find_old_journals(disk, SPOOL, disk.list_dir(SPOOL))
    for queue, members in by_parent(found).items():
        outcome = import_queue(disk, ManualClock(), SPOOL, queue, members, kept=".kept/1")
        assert outcome.is_whole
        assert sum(each.strays for each in outcome.replayed) == 0


def readers_of(queues: dict[str, ModelQueue]) -> dict[str, list[tuple[int, int, bytes]]]:
    left = {name.partition("+")[2]: queue.left() for name, queue in queues.items()}
    if len(left) > 1:
        plain = left.pop("")
        left |= {"default": plain} if plain else {}
    return left


def imported(disk: SimulatedDisk) -> dict[str, list[tuple[int, int, bytes]]]:
    """What each reader of ``q`` would be given now."""
    world = FanOutWorld(disk)
    journal = world.opened["q"]
    items = {item.item_id: item for item in journal.items()}
    return {
        name: [
            (items[i].add_time_ms, items[i].expire_time_ms or 0, items[i].data)
            for i in place.undelivered(sorted(items))
        ]
        for name, place in journal.readers.items()
    }


@given(STEPS)
def test_every_reader_has_after_the_import_what_the_server_had_for_it(steps: Any):
    queues = lived(steps)
    disk = planted(queues)
    assume(any(queue.journal or b"".join(queue.rotated) for queue in queues.values()))
    import_all(disk)
    assert imported(disk) == readers_of(queues)


@pytest.mark.parametrize("cut", range(60))
def test_an_import_cut_off_anywhere_can_be_run_again(cut: int):
    steps = [("join", 1, 1, b""), *[("put", 0, n, b"a") for n in range(6)], ("rotate", 1, 0, b"")]
    steps += [("join", 2, 1, b""), ("put", 0, 1, b"last"), ("get", 1, 1, b""), ("open", 0, 1, b"")]
    queues = lived(steps)
    disk = planted(queues)
    old = sorted(disk.files().values())
    disk.cut_power_at(cut + 1)
    with suppress(PowerCut):
        import_all(disk)
    for survival in ("lose_all_unsynced", "keep_all_unsynced", *range(20)):
        after = disk.after_crash(survival)
        finish_publication(after, SPOOL)
        import_all(after)
        assert imported(after) == readers_of(queues)
        assert set(old) <= set(after.files().values())

"""Journals of kestrel 1.x and 2.x, built byte by byte: decoded, imported, served."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from journeyman.formats.framing import Stop, scan
from journeyman.formats.kestrel2 import CODEC, begins_as_journal
from journeyman.logs.kestrel.kestrel2_import import by_parent, find_old_journals, import_queue
from journeyman.testing import ManualClock, SimulatedDisk
from tests.support.fanout_world import SPOOL, FanOutWorld

DATA = Path(__file__).parent / "data" / "kestrel2"
CASES = sorted(path.parent.name for path in DATA.glob("*/case.json"))
FILES = [
    path
    for path in sorted(DATA.glob("*/*"))
    if path.name != "case.json" and "~~" not in path.name and path.stat().st_size
]


def planted(case: str) -> SimulatedDisk:
    disk = SimulatedDisk()
    for path in (DATA / case).iterdir():
        if path.name != "case.json":
            disk.plant(f"{SPOOL}/{path.name}", path.read_bytes())
    return disk


def case_of(name: str) -> Any:
    return json.loads((DATA / name / "case.json").read_text())


def import_all(disk: SimulatedDisk, **options: Any) -> list[Any]:
    found = find_old_journals(disk, SPOOL, disk.list_dir(SPOOL))
    return [
        import_queue(disk, ManualClock(), SPOOL, queue, members, kept=".kept/1", **options)
        for queue, members in by_parent(found).items()
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_is_decoded_is_encoded_to_the_same_bytes(path: Path):
    data = path.read_bytes()
    entries, ending = scan(CODEC, data)
    assert b"".join(CODEC.encode(entry.record) for entry in entries) == data[: ending.offset]
    assert (ending.stop is Stop.EOF) == (not case_of(path.parent.name)["damaged"])
    assert begins_as_journal(data)


@pytest.mark.parametrize("name", CASES)
def test_every_reader_is_given_what_was_left_for_it(name: str):
    disk, case = planted(name), case_of(name)
    before = {path: data for path, data in disk.files().items() if "~~" not in path}
    outcomes = import_all(disk)
    assert all(not outcome.refused for outcome in outcomes)
    assert all(outcome.is_whole for outcome in outcomes) == (not case["damaged"])
    after = disk.after_crash("lose_all_unsynced")
    kept = {path.replace("/.kept/1/", "/"): data for path, data in after.files().items()}
    assert kept.items() >= before.items()  # no byte of the old files is gone
    world = FanOutWorld(after)
    assert set(world.engine.queues) == set(case["expect"])
    for queue, readers in case["expect"].items():
        assert set(world.engine.queues[queue].readers) == set(readers)
        stored = {item.item_id: item for item in world.opened[queue].items()}
        for reader, expected in readers.items():
            place = world.opened[queue].readers[reader]
            items = [stored[item_id] for item_id in place.undelivered(sorted(stored))]
            now_ms = ManualClock().now_ns() // 1_000_000
            assert [(i.data.decode(), i.add_time_ms, i.expire_time_ms) for i in items] == [
                (data, now_ms if added is None else added, expires)
                for data, added, expires in expected
            ]
            live = [data.encode() for data, _, expires in expected if expires is None]
            assert world.drained(queue, reader) == live  # the others are too old by now
    assert world.journals.old_journals == {}


@pytest.mark.parametrize("name", CASES)
def test_a_start_leaves_them_alone_and_takes_nothing_for_their_queues(name: str):
    disk = planted(name)
    before = disk.files()
    world = FanOutWorld(disk)
    found = {files.parent for files in world.journals.old_journals.values()}
    assert found == set(case_of(name)["expect"])
    assert world.engine.queues == {}
    world.close()
    assert disk.files() == before


def test_the_example_in_the_documentation_is_right():
    page = Path(__file__).parents[2] / "docs" / "formats" / "kestrel2.md"
    example = page.read_text().split("\n## Example\n")[1].split("\n## ")[0]
    lines = re.findall(r"^ {4}((?:[0-9a-f]{2,} ?)+)  ", example, re.MULTILINE)
    assert bytes.fromhex(" ".join(lines)) == (DATA / "simple" / "orders").read_bytes()

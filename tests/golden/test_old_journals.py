"""Journals of kestrel 1.x and 2.x: recognized, named in one message, and left as they are."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from journeyman.logs.kestrel.old_journals import begins_as_old_journal, find_old_journals
from tests.support.cli_commands import run
from tests.support.fanout_world import SPOOL, FanOutWorld
from tests.support.simulated_disk import SimulatedDisk

DATA = Path(__file__).parent / "data" / "kestrel2"
CASES = sorted(path.parent.name for path in DATA.glob("*/case.json"))
FILES = [
    path
    for path in sorted(DATA.glob("*/*"))
    if path.name != "case.json" and "~~" not in path.name and path.stat().st_size
]
OTHER_FILES = [
    path
    for dialect in ("ztick", "workq", "kestrel")
    for path in sorted((DATA.parent / dialect).rglob("*"))
    if path.is_file()
]


def copied(case: str, target: Path) -> Path:
    shutil.copytree(DATA / case, target / case)
    (target / case / "case.json").unlink()
    return target / case


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_journal_is_recognized_by_its_content(path: Path):
    data = path.read_bytes()
    assert begins_as_old_journal(data)
    # A prefix of a journal is one too as soon as it holds the head of one item.
    assert all(begins_as_old_journal(data[:cut]) for cut in range(26, len(data)))


def test_files_of_this_server_are_not_taken_for_such_journals():
    assert len(OTHER_FILES) > 20
    assert [str(path) for path in OTHER_FILES if begins_as_old_journal(path.read_bytes())] == []


@pytest.mark.parametrize("name", CASES)
def test_a_start_leaves_them_alone_and_takes_nothing_for_their_queues(name: str):
    disk = SimulatedDisk()
    for path in (DATA / name).iterdir():
        if path.name != "case.json":
            disk.plant(f"{SPOOL}/{path.name}", path.read_bytes())
    before = disk.files()
    world = FanOutWorld(disk)
    found = {queue.partition("+")[0] for queue in world.journals.old_journals}
    assert found == set(json.loads((DATA / name / "case.json").read_text())["expect"])
    assert world.engine.queues == {}
    world.close()
    assert disk.files() == before


def test_an_empty_file_is_a_journal_only_beside_others():
    disk = SimulatedDisk()
    disk.plant(f"{SPOOL}/empty", b"")
    disk.plant(f"{SPOOL}/other.5", b"")
    names = disk.list_dir(SPOOL)
    assert find_old_journals(disk, SPOOL, names) == {}
    disk.plant(f"{SPOOL}/orders", (DATA / "simple" / "orders").read_bytes())
    disk.plant(f"{SPOOL}/orders.5", b"")
    found = find_old_journals(disk, SPOOL, sorted(disk.list_dir(SPOOL)))
    assert found == {"empty": ["empty"], "orders": ["orders", "orders.5"]}


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_dump_and_verify_say_what_such_a_file_is(tmp_path, command):
    folder = copied("rotated", tmp_path)
    for path in (folder, folder / "q", folder / "q.9"):
        result = run(command, path)
        assert result.exit_code == 2
        assert "journal of kestrel 1.x or 2.x" in result.stderr
    assert sorted(os.listdir(folder)) == ["q", "q.10", "q.9", "q~~11"]


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_the_other_logs_of_a_data_directory_are_read(tmp_path, command):
    folder = copied("fanout_and_plain", tmp_path).rename(tmp_path / "kestrel")
    message = f"{folder}: journal of kestrel 1.x or 2.x (orders, orders+audit)"
    only = run(command, tmp_path)
    assert only.exit_code == 2
    assert message in only.stderr
    run("generate", "workq", tmp_path / "workq", "--records", "5", "-q")
    result = run(command, tmp_path)
    assert result.exit_code == 0
    assert message in result.stderr

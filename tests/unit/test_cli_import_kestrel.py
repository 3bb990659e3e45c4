"""``import-kestrel``: its summary, what it refuses and leaves out; dump and verify before it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from journeyman.disk import RealDisk
from journeyman.formats.kestrel2 import CODEC, AddItem, RemoveTentative
from journeyman.logs.kestrel import kestrel2_import
from tests.support.cli_commands import run

DATA = Path(__file__).parents[1] / "golden" / "data" / "kestrel2"
NOW_MS = 1_700_000_000_000


def copied(case: str, target: Path) -> Path:
    shutil.copytree(DATA / case, target / case)
    (target / case / "case.json").unlink()
    return target / case


def journal(*items: bytes) -> bytes:
    return b"".join(CODEC.encode(AddItem(NOW_MS, 0, item)) for item in items)


def test_summary_names_queues_readers_and_where_the_old_files_are(tmp_path):
    folder = copied("fanout_and_plain", tmp_path)
    result = run("import-kestrel", folder)
    assert result.exit_code == 0
    first, last = result.stdout.splitlines()
    assert first == "orders: 2 items; readers audit (2), default (1)"
    kept = Path(last.rpartition(" ")[2])
    assert last == f"imported 1 queue; the old files are in {kept}"
    assert sorted(os.listdir(kept)) == ["orders", "orders+audit"]
    assert "its own 1 item can be read as orders+default" in result.stderr
    verified = run("verify", folder)
    assert verified.exit_code == 0
    assert "orders.read.audit" in verified.stdout


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_old_journals_in_a_data_directory_are_named(tmp_path, command):
    folder = copied("fanout_and_plain", tmp_path).rename(tmp_path / "kestrel")
    hint = f"`journeyman import-kestrel {folder}` imports it"
    alone = run(command, tmp_path)
    assert alone.exit_code == 2
    assert hint in alone.stderr
    run("generate", "workq", tmp_path / "workq", "--records", "5", "-q")
    result = run(command, tmp_path)
    assert result.exit_code == 0
    assert hint in result.stderr


def test_a_data_directory_is_taken_too(tmp_path):
    folder = copied("fanout_and_plain", tmp_path).rename(tmp_path / "kestrel")
    result = run("import-kestrel", tmp_path)
    assert result.exit_code == 0
    assert f"imported 1 queue; the old files are in {folder}" in result.stdout
    assert "orders.read.audit" in run("verify", folder).stdout


def test_a_second_run_finds_nothing_and_changes_nothing(tmp_path):
    folder = copied("fanout", tmp_path)
    assert run("import-kestrel", folder).exit_code == 0
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    result = run("import-kestrel", folder)
    assert result.exit_code == 0
    assert result.stdout == "nothing to import: no journal of kestrel 1.x or 2.x\n"
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_dry_run_writes_nothing(tmp_path):
    folder = copied("transactions", tmp_path)
    before = {p: p.read_bytes() for p in folder.iterdir()}
    result = run("import-kestrel", "--dry-run", "--json", folder)
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert (told["queue"], told["items"], told["open_reads"]) == ("jobs", 3, 1)
    after = {p: p.read_bytes() for p in folder.iterdir() if p.name != "jobs.lock"}
    assert after == before


def test_a_queue_of_this_server_is_not_overwritten(tmp_path):
    folder = copied("fanout", tmp_path)
    (folder / "fresh").write_bytes(journal(b"a"))
    run("import-kestrel", folder)
    (folder / "orders").write_bytes(journal(b"more"))  # kestrel was started once more
    (folder / "later").write_bytes(journal(b"b"))
    before = {p: p.read_bytes() for p in folder.glob("orders.*")}
    result = run("import-kestrel", folder)
    assert result.exit_code == 1
    assert "orders: not imported: it has a journal of this server already" in result.stdout
    assert "later: 1 item" in result.stdout
    assert (folder / "orders").exists()
    assert {p: p.read_bytes() for p in folder.glob("orders.*")} == before


@pytest.mark.parametrize("name", ["två", "with space", "q+a b\x7f"])
def test_names_that_no_client_can_say_are_refused_or_kept(tmp_path, name):
    (tmp_path / name).write_bytes(journal(b"a"))
    result = run("import-kestrel", tmp_path)
    if "+" in name:
        assert result.exit_code == 0
    else:
        assert result.exit_code == 1
        assert "cannot be served" in result.stdout
        assert (tmp_path / name).exists()


def test_damage_is_told_and_makes_the_exit_code_1(tmp_path):
    result = run("import-kestrel", copied("damaged", tmp_path))
    assert result.exit_code == 1
    assert "9 bytes at offset 22 left out: corrupt" in result.stderr
    assert "1 removal after the damage not applied" in result.stderr


def test_an_item_that_no_segment_takes_is_left_out_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(kestrel2_import, "MAX_ITEM_BYTES", 3)
    (tmp_path / "q").write_bytes(journal(b"abc", b"abcd"))
    result = run("import-kestrel", tmp_path)
    assert result.exit_code == 1
    assert "1 item left out, larger than 16 MiB" in result.stderr
    assert "q: 1 item" in result.stdout


def test_large_queues_go_into_segments_that_the_original_can_open(tmp_path, monkeypatch):
    monkeypatch.setattr(kestrel2_import, "SEGMENT_BYTES", 100)
    (tmp_path / "q").write_bytes(journal(*(b"item %d" % n for n in range(20))))
    assert run("import-kestrel", tmp_path).exit_code == 0
    sizes = [path.stat().st_size for path in tmp_path.glob("q.[0-9]*")]
    assert len(sizes) > 5
    assert max(sizes) <= 100
    dumped = run("dump", "--json", tmp_path)
    items = [json.loads(line) for line in dumped.stdout.splitlines()]
    assert [i["item_id"] for i in items if i["command"] == "PUT"] == list(range(1, 21))


def test_a_queue_that_a_server_has_open_is_left_alone(tmp_path):
    folder = copied("simple", tmp_path)
    lock = RealDisk().lock(str(folder / "orders.lock"))
    result = run("import-kestrel", folder)
    lock.release()
    assert result.exit_code == 1
    assert "orders: not imported: a server has it open" in result.stdout
    assert (folder / "orders").exists()
    assert list(folder.glob("orders.[0-9]*")) == []


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_dump_and_verify_say_what_such_a_file_is(tmp_path, command):
    folder = copied("rotated", tmp_path)
    for path in (folder, folder / "q", folder / "q.9"):
        result = run(command, path)
        assert result.exit_code == 2
        assert "journal of kestrel 1.x or 2.x" in result.stderr
        assert f"`journeyman import-kestrel {folder}` imports it" in result.stderr
    assert sorted(os.listdir(folder)) == ["q", "q.10", "q.9", "q~~11"]


def test_dump_and_verify_read_the_other_queues_of_the_folder(tmp_path):
    folder = copied("simple", tmp_path)
    run("import-kestrel", folder)
    (folder / "late.5").write_bytes(journal(b"x"))
    for command in ("dump", "verify"):
        result = run(command, folder)
        assert result.exit_code == 0
        assert "late: journal of kestrel 1.x or 2.x" in result.stderr


def test_a_journal_of_open_reads_alone_is_one(tmp_path):
    (tmp_path / "q").write_bytes(CODEC.encode(RemoveTentative(4)) * 3)
    assert run("import-kestrel", tmp_path).stdout.startswith("q: 0 items")

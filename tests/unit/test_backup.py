"""Backups without a server: what is stored, what is found again, and what is refused."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from journeyman.backup import (
    Vault,
    check_backups,
    keep_newest,
    list_backups,
    open_vault,
    restore,
    take,
    taking,
)
from journeyman.backup.restoring import choose
from journeyman.backup.vault import Manifest, StoredFile, read_manifest
from journeyman.clock import SystemClock
from journeyman.disk import RealAppendFile, RealDisk
from journeyman.errors import LogError, UsageError
from journeyman.formats.keyspace.values import JobRecord
from journeyman.servers.core.namespace_secret import load_namespaces
from journeyman.storage import Storage
from journeyman.storage.checking import find_problems
from journeyman.storage.opening import copy_store
from tests.support.cli_commands import run

CLOCK = SystemClock()


@pytest.fixture(params=["directory", "uri"])
def vault(request: pytest.FixtureRequest, tmp_path: Path) -> Vault:
    return open_vault(
        str(tmp_path / "vault") if request.param == "directory" else f"memory://{uuid4()}/backups"
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    (directory / "workq").mkdir(parents=True)
    (directory / "schedule.log").write_bytes(b"jobs")
    (directory / "workq" / "000000001.log").write_bytes(bytes(range(256)) * 40_000)  # three chunks
    (directory / "workq" / "append.lock").write_bytes(b"")
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_part_of_a_backup_is_durable_before_it_has_its_name(data, tmp_path, monkeypatch):
    synced: set[int] = set()
    named: list[tuple[str, bool]] = []
    sync, rename = RealAppendFile.sync, RealDisk.rename

    def watched_sync(file: RealAppendFile) -> None:
        sync(file)
        synced.add(os.stat(file.path).st_ino)

    def watched_rename(disk: RealDisk, source: str, target: str) -> None:
        named.append((target, os.stat(source).st_ino in synced))
        rename(disk, source, target)

    monkeypatch.setattr(RealAppendFile, "sync", watched_sync)
    monkeypatch.setattr(RealDisk, "rename", watched_rename)
    take(str(data), open_vault(str(tmp_path / "vault")), CLOCK)
    assert len(named) >= 4  # the chunks of two files, and the manifest
    assert [target for target, was_synced in named if not was_synced] == []


def test_what_is_restored_is_what_was_there(data, vault, tmp_path):
    taken = take(str(data), vault, CLOCK)
    assert taken.manifest.exact
    restore(vault, str(tmp_path / "again"))
    assert contents(tmp_path / "again") == contents(data)
    assert not (tmp_path / "again" / "workq" / "append.lock").exists()


def test_the_secret_of_namespaces_is_part_of_a_backup(data, vault, tmp_path):
    messages: Any = None  # there is nothing to say
    known = load_namespaces(RealDisk(), str(data), messages, {"a."}, has_records=False)
    take(str(data), vault, CLOCK)
    restored = str(tmp_path / "again")
    restore(vault, restored)
    assert load_namespaces(RealDisk(), restored, messages, set(), has_records=True) == known


def test_the_next_backup_stores_only_what_is_new(data, vault, tmp_path):
    first = take(str(data), vault, CLOCK)
    assert first.new_bytes == first.manifest.size - taking.CHUNK_BYTES  # two chunks are the same
    assert take(str(data), vault, CLOCK).new_bytes == 0
    with (data / "schedule.log").open("ab") as log:
        log.write(b" and more")
    third = take(str(data), vault, CLOCK)
    assert third.new_bytes == len(b" and more")
    assert take(str(data), vault, CLOCK, full=True).new_bytes == len(b"jobs and more")
    restore(vault, str(tmp_path / "first"), at_ns=first.manifest.taken_ns)
    assert (tmp_path / "first" / "schedule.log").read_bytes() == b"jobs"


def test_a_file_that_has_not_changed_is_not_read_again(data, vault, monkeypatch):
    take(str(data), vault, CLOCK)
    opened: list[str] = []
    monkeypatch.setattr(RealDisk, "open_read", lambda _, path: opened.append(path))
    assert take(str(data), vault, CLOCK).new_bytes == 0
    assert opened == []


def test_a_backup_of_a_moment_is_the_newest_before_it(data, vault):
    names = [take(str(data), vault, CLOCK).manifest for _ in range(3)]
    assert list_backups(vault) == [each.name for each in names]
    assert choose(vault, None) == names[2]
    assert choose(vault, names[1].taken_ns + 1) == names[1]
    with pytest.raises(UsageError, match="was taken after that time"):
        choose(vault, names[0].taken_ns - 1)


def test_files_that_are_replaced_meanwhile_are_looked_at_again(data, vault, monkeypatch):
    hold, moves = taking._hold, iter(range(3))

    def hold_and_move(disk, directory, path, identity, opened):
        held = hold(disk, directory, path, identity, opened)
        if path == "schedule.log" and (number := next(moves, None)) is not None:
            os.rename(data / "schedule.log", data / f"schedule.log.{number}")
            (data / "schedule.log").write_bytes(b"new %d" % number)
        return held

    monkeypatch.setattr(taking, "_hold", hold_and_move)
    manifest = take(str(data), vault, CLOCK).manifest
    assert {file.path for file in manifest.files} == set(contents(data))


def test_every_cut_is_in_the_order_of_causes(data, vault):
    """A writer records each number in the ledger, then on a queue, then in the schedule's log."""
    (data / "ledger").mkdir()
    (data / "kestrel").mkdir()
    order = [data / "ledger" / "000000001.log", data / "kestrel" / "q.1", data / "schedule.log"]
    for path in order:
        path.write_bytes(b"")
    stopping = threading.Event()

    def write() -> None:
        files = [path.open("ab", buffering=0) for path in order]
        while not stopping.is_set():
            for file in files:
                file.write(b"x")
        for file in files:
            file.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            manifest = take(str(data), vault, CLOCK).manifest
            sizes = {file.path: file.size for file in manifest.files}
            found = [sizes[str(path.relative_to(data))] for path in order]
            assert found == sorted(found, reverse=True)
            assert not manifest.exact or found[0] - found[2] <= 1
    finally:
        stopping.set()
        writer.join()


class FailingVault:
    """Fails at one of the writes, as a process that is killed or a store that goes away."""

    def __init__(self, vault: Vault, at: int) -> None:
        self._vault, self._left = vault, at
        self.where, self.names, self.read = vault.where, vault.names, vault.read
        self.remove, self.make_durable = vault.remove, vault.make_durable

    def write(self, folder: str, name: str, data: bytes) -> None:
        if self._left == 0:
            raise OSError("away")
        self._left -= 1
        self._vault.write(folder, name, data)


@pytest.mark.parametrize("at", range(3))
def test_a_backup_that_is_cut_short_is_none_and_the_next_goes_on(data, vault, tmp_path, at):
    with pytest.raises(OSError, match="away"):
        take(str(data), FailingVault(vault, at), CLOCK)
    assert list_backups(vault) == []
    take(str(data), vault, CLOCK)
    assert list(check_backups(vault)) == []
    restore(vault, str(tmp_path / "again"))
    assert contents(tmp_path / "again") == contents(data)


def test_a_damaged_part_is_found_and_not_restored(data, vault, tmp_path):
    manifest = take(str(data), vault, CLOCK).manifest
    chunk = manifest.files[0].chunks[0]
    vault.write("chunks", chunk, b"jobz")
    assert [line for line in check_backups(vault) if "is damaged" in line]
    with pytest.raises(LogError, match=r"this part of schedule\.log is damaged"):
        restore(vault, str(tmp_path / "again"))
    vault.remove("chunks", chunk)
    with pytest.raises(LogError, match="missing"):
        restore(vault, str(tmp_path / "again"))
    assert not (tmp_path / "again").exists()
    vault.write("chunks", chunk, b"jobs")
    restore(vault, str(tmp_path / "again"))


def test_a_damaged_manifest_is_refused_and_does_not_stop_the_next_backup(data, vault):
    name = take(str(data), vault, CLOCK).manifest.name
    body = json.loads(vault.read("manifests", f"{name}.json"))
    deep = b"[" * 1_000_000
    for damaged in (b"{", json.dumps(body | {"exact": False}).encode(), b"[]", b"\xff", deep):
        vault.write("manifests", f"{name}.json", damaged)
        with pytest.raises(LogError, match="damaged"):
            read_manifest(vault, name)
    assert take(str(data), vault, CLOCK).new_bytes == 0


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a/../../evil", "a//b", ""])
def test_no_manifest_writes_outside_of_the_directory(vault, tmp_path, path):
    Manifest(1, "/", "0", True, (StoredFile(path, 0, (0, 0, 0), ()),)).write(vault)
    with pytest.raises(LogError, match="outside"):
        restore(vault, str(tmp_path / "again"))


@pytest.mark.parametrize(
    "file",
    [
        StoredFile("a\0b", 0, (0, 0, 0), ()),
        StoredFile("a", 0, (0, 0, 0), ("../../outside",)),
        StoredFile("a", 0, (0, 0, 0), ("\0",)),
        StoredFile("a", "0", (0, 0, 0), ()),  # type: ignore[arg-type]
        StoredFile("a", -1, (0, 0, 0), ()),
        StoredFile(7, 0, (0, 0, 0), ()),  # type: ignore[arg-type]
        StoredFile("a", 0, (0, 0, 0), (7,)),  # type: ignore[arg-type]
        StoredFile("a", 0, (0, 0, 0), ("a" * 64,), ("x",)),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_manifest_whose_digest_is_right_is_checked_all_the_same(vault, tmp_path, file):
    name = "20200101T000000000000000Z"
    Manifest(1_577_836_800_000_000_000, "/", "0", True, (file,)).write(vault)
    with pytest.raises(LogError, match=r"damaged|outside"):
        restore(vault, str(tmp_path / "again"))
    assert [line for line in check_backups(vault) if name in line]


def test_a_file_is_not_written_beyond_its_size(vault, tmp_path):
    data = bytes(1000)
    chunk = taking.chunk_name(data)
    vault.write("chunks", chunk, data)
    Manifest(1, "/", "0", True, (StoredFile("a", 1500, (0, 0, 0), (chunk,) * 1000),)).write(vault)
    with pytest.raises(LogError, match="has more than 1500 bytes of it"):
        restore(vault, str(tmp_path / "again"))
    assert (tmp_path / "again.restoring" / "a").stat().st_size == 1000


def test_old_backups_go_and_the_others_stay_whole(data, vault, tmp_path):
    for number in range(4):
        (data / "schedule.log").write_bytes(b"%d" % number * 100)
        take(str(data), vault, CLOCK)
    before = set(vault.names("chunks"))
    assert keep_newest(vault, 2) == 2
    assert len(list_backups(vault)) == 2
    assert len(before - set(vault.names("chunks"))) == 2
    assert list(check_backups(vault)) == []
    assert keep_newest(vault, 2) == 0
    restore(vault, str(tmp_path / "again"))
    assert contents(tmp_path / "again") == contents(data)


def test_only_an_empty_place_is_restored_into(data, vault, tmp_path):
    take(str(data), vault, CLOCK)
    with pytest.raises(UsageError, match="is not empty"):
        restore(vault, str(data))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.restoring").mkdir()  # of a restore that was killed
    (tmp_path / "empty.restoring" / "half").touch()
    restore(vault, str(tmp_path / "empty"))
    assert contents(tmp_path / "empty") == contents(data)
    with pytest.raises(UsageError, match="has no backup"):
        restore(open_vault(str(tmp_path / "nothing")), str(tmp_path / "x"))


def test_files_are_for_their_owner_alone(data, tmp_path):
    vault = open_vault(str(tmp_path / "vault"))
    take(str(data), vault, CLOCK)
    restore(vault, str(tmp_path / "again"))
    for path in (*(tmp_path / "vault").rglob("*"), *(tmp_path / "again").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


# -- the store --


def job(number: int) -> JobRecord:
    return JobRecord(UUID(int=number), f"q:{number}", "q", "new", number, number)


@pytest.fixture(params=["rocksdb", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with Storage.open(request.param, str(tmp_path / "data" / "store")) as storage:
        yield storage


def test_a_store_in_use_is_copied_as_it_was_at_one_moment(store, data, vault, tmp_path, request):
    engine = request.node.callspec.params["store"]
    stopping = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not stopping.is_set():
            store.upsert_job_record(job(written))
            written += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            before = written
            take(str(data), vault, CLOCK)
            after = written
            target = tmp_path / f"again{number}"
            restore(vault, str(target))
            with Storage.open(engine, str(target / "store")) as copy:
                assert before <= copy.count("q", "new") <= after + 1
                with copy.backend.view() as view:
                    assert list(find_problems(view)) == []
    finally:
        stopping.set()
        writer.join()


def test_the_copy_of_nothing_is_an_empty_directory(tmp_path):
    (tmp_path / "store").mkdir()
    copy_store(str(tmp_path / "store"), str(tmp_path / "copy"))
    assert list((tmp_path / "copy").iterdir()) == []


# -- the command line --


def test_the_commands_say_what_they_did(tmp_path):
    data, target = tmp_path / "data", tmp_path / "vault"
    data.mkdir()
    made = run("generate", "ztick", data / "schedule.log", "--records", "50", "--quiet")
    assert made.exit_code == 0
    taken = run("backup", target, "--data", data, "--keep", "1")
    assert taken.exit_code == 0, taken.stderr
    assert ": 1 file, " in taken.stdout
    assert " 0 of them new" in run("backup", target, "--data", data, "--keep", "1").stdout
    listed = run("backup", target, "--list")
    assert len(listed.stdout.splitlines()) == 1
    assert str(data) in listed.stdout
    assert "every byte is as it was written" in run("backup", target, "--check").stdout
    restored = run("restore", target, "--data", tmp_path / "again")
    assert restored.exit_code == 0, restored.output
    assert contents(tmp_path / "again") == contents(data)
    again = run("restore", target, "--data", tmp_path / "again")
    assert again.exit_code == 2
    assert "is not empty" in str(again.exception) + again.stderr


def test_a_log_that_was_damaged_before_is_restored_as_it_was_and_named(tmp_path):
    data, target = tmp_path / "data", tmp_path / "vault"
    data.mkdir()
    log = data / "schedule.log"
    assert run("generate", "ztick", log, "--records", "50", "--quiet").exit_code == 0
    damaged = bytearray(log.read_bytes())
    damaged[100] ^= 0xFF
    log.write_bytes(damaged)
    assert run("backup", target, "--data", data).exit_code == 0
    restored = run("restore", target, "--data", tmp_path / "again")
    assert restored.exit_code == 1
    assert "damaged when the backup was taken" in restored.stdout
    assert (tmp_path / "again" / "schedule.log").read_bytes() == damaged


def test_a_target_that_is_away_for_a_while_does_not_end_the_repetition(data, tmp_path, monkeypatch):
    target, naps = tmp_path / "vault", []
    target.write_text("not a directory yet")

    def nap(_: float) -> None:
        naps.append(target.is_dir() and len(list_backups(open_vault(str(target)))))
        if len(naps) == 1:
            target.unlink()
        elif len(naps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("journeyman.cli.backup.time.sleep", nap)
    done = run("backup", target, "--data", data, "--every", "1")
    assert naps == [False, 1, 2]
    assert "no backup: " in done.stderr


def test_data_outside_of_the_directory_is_not_forgotten(tmp_path):
    arguments = ("--data", tmp_path, "--set", f"workq.cmdlog_path={tmp_path.parent / 'cmdlog'}")
    refused = run("backup", tmp_path / "vault", *arguments)
    assert refused.exit_code == 2
    assert "workq.cmdlog_path" in str(refused.exception) + refused.stderr
    elsewhere = run("backup", "nowhere://x/y", "--data", tmp_path)
    assert elsewhere.exit_code == 2

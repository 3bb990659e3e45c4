"""A data directory as of a moment between two backups; and `backup --follow`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import google_crc32c
import pytest

from journeyman.backup import (
    Memory,
    Vault,
    check_backups,
    is_changed,
    keep_newest,
    list_backups,
    open_vault,
    restore,
    restore_at,
    take,
    taking,
)
from journeyman.clock import SystemClock
from journeyman.formats import kestrel, ledger, workq, ztick
from journeyman.formats.ledger import QueuePaused
from journeyman.formats.seals import SealKind, make_seal
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobEvent
from journeyman.logs.damage import Damage
from journeyman.logs.ledger import FileHead, TimeMark, encode_marks
from journeyman.logs.sealing import read_file
from journeyman.units import NS_PER_S
from tests.support.cli_commands import run


class AtSecond(SystemClock):
    second = 0

    def now_ns(self) -> int:
        return self.second * NS_PER_S


class World:
    """A data directory with a record in each log for each second."""

    def __init__(self, directory: Path, vault: Vault) -> None:
        self.directory = directory
        self.vault = vault
        self.clock = AtSecond()
        self._ztick_end = 0

    def live(self, seconds: range) -> None:
        for second in seconds:
            self._append("workq/000000001.log", workq.HEADER, workq.CODEC.encode(event(second)))
            self._append("kestrel/orders.1", kestrel.WRITER.header, item(second))
            entry = ztick.CODEC.encode(ztick.JobSet(f"job.{second}", second, ztick.Status.PLANNED))
            self._append("schedule.log", b"", entry)
            path = self.directory / "schedule.log"
            mark = TimeMark(path.stat().st_size, second * NS_PER_S)
            head = path.read_bytes()[:10]
            marks = encode_marks(FileHead(10, google_crc32c.value(head)), [mark])
            noted: list[ledger.Record] = [
                marks,
                QueuePaused(Instant(second * NS_PER_S), f"q{second}"),
            ]
            self._append(
                "ledger/000000001.ledger", ledger.HEADER, b"".join(map(ledger.CODEC.encode, noted))
            )

    def _append(self, name: str, header: bytes, data: bytes) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(data if path.stat().st_size else header + data)

    def take(self, second: int) -> None:
        self.clock.second = second
        take(str(self.directory), self.vault, self.clock)


def event(second: int) -> JobEvent:
    return JobEvent(Instant(second * NS_PER_S), second.to_bytes(16), Command.DELETE)


def item(second: int) -> bytes:
    put = kestrel.ItemPut(second, second * 1000, None, 0, b"data")
    return kestrel.WRITER.encode(put)


def records(path: Path, codec: Any) -> list[Any]:
    found = list(read_file(codec, path.read_bytes()))
    assert not [each for each in found if isinstance(each, Damage)]
    return [each.record for each in found if not isinstance(each, Damage)]


def seconds_in(directory: Path) -> dict[str, list[int]]:
    """Of which seconds each log has records."""
    events = records(directory / "workq/000000001.log", workq.CODEC)
    items = records(directory / "kestrel/orders.1", kestrel.WRITER)
    pauses = records(directory / "ledger/000000001.ledger", ledger.CODEC)
    return {
        "workq": [each.logged.unix_ns // NS_PER_S for each in events],
        "kestrel": [each.item_id for each in items],
        "ztick": [each.execution_ns for each in records(directory / "schedule.log", ztick.CODEC)],
        "ledger": [p.logged.unix_ns // NS_PER_S for p in pauses if isinstance(p, QueuePaused)],
    }


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "data", open_vault(f"memory://{uuid4()}/backups"))
    world.live(range(1, 11))
    world.take(10)
    world.live(range(11, 30))
    return world


@pytest.mark.parametrize("moment", [10, 15, 29])
def test_logs_are_cut_at_the_moment(world, tmp_path, moment):
    world.take(35)
    found = restore_at(world.vault, str(tmp_path / "again"), moment * NS_PER_S)
    assert (found.until_ns, found.why_not) == (moment * NS_PER_S, "")
    expected = list(range(1, moment + 1))
    assert seconds_in(tmp_path / "again") == dict.fromkeys(
        ("workq", "kestrel", "ztick", "ledger"), expected
    )


def test_backup_of_a_later_moment_is_not_needed(world, tmp_path):
    found = restore_at(world.vault, str(tmp_path / "again"), 15 * NS_PER_S)
    assert found.until_ns == 10 * NS_PER_S
    assert "no later backup" in found.why_not
    assert seconds_in(tmp_path / "again")["ztick"] == list(range(1, 11))


def test_new_segments_are_cut_and_other_files_stay_as_they_were(world, tmp_path):
    (world.directory / "notes").write_bytes(b"before")
    (world.directory / "kestrel" / "orders.read.x").write_bytes(b"before")
    world.take(11)
    (world.directory / "notes").write_bytes(b"after")
    (world.directory / "new").write_bytes(b"after")
    (world.directory / "kestrel" / "orders.read.x").write_bytes(b"after")
    late = b"".join(workq.CODEC.encode(event(second)) for second in range(13, 20))
    (world.directory / "workq" / "000000002.log").write_bytes(workq.HEADER + late)
    world.take(40)
    restore_at(world.vault, str(tmp_path / "again"), 15 * NS_PER_S)
    new = records(tmp_path / "again/workq/000000002.log", workq.CODEC)
    assert [each.logged.unix_ns // NS_PER_S for each in new] == [13, 14, 15]
    assert (tmp_path / "again" / "notes").read_bytes() == b"before"
    assert (tmp_path / "again" / "kestrel" / "orders.read.x").read_bytes() == b"before"
    assert not (tmp_path / "again" / "new").exists()


def replaced(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes() + b"")
    os.replace(other, path)


@pytest.mark.parametrize("change", [replaced, Path.unlink], ids=["compacted", "removed"])
def test_log_that_was_compacted_in_between_is_as_of_the_backup(
    world, tmp_path, change: Callable[[Path], None]
):
    change(world.directory / "schedule.log")
    world.take(30)
    found = restore_at(world.vault, str(tmp_path / "again"), 15 * NS_PER_S)
    assert found.until_ns == 10 * NS_PER_S
    assert "compacted or cleaned" in found.why_not
    assert seconds_in(tmp_path / "again")["workq"] == list(range(1, 11))


def test_sealed_batch_stays_or_goes_as_a_whole(tmp_path):
    world = World(tmp_path / "data", open_vault(str(tmp_path / "vault")))
    journal = world.directory / "kestrel" / "orders.1"
    journal.parent.mkdir(parents=True)
    data = sealed_journal([[1, 2]])
    journal.write_bytes(data)
    world.take(10)
    with journal.open("ab") as file:
        file.write(sealed_journal([[1, 2], [14, 15, 16], [17]])[len(data) :])
    world.take(40)
    for moment, expected in ((13, [1, 2]), (15, [1, 2]), (16, [1, 2, 14, 15, 16]), (30, None)):
        target = tmp_path / f"at {moment}"
        restore_at(world.vault, str(target), moment * NS_PER_S)
        found = records(target / "kestrel" / "orders.1", kestrel.WRITER)
        assert [each.item_id for each in found] == (expected or [1, 2, 14, 15, 16, 17])


def sealed_journal(batches: list[list[int]]) -> bytes:
    seals, data = kestrel.WRITER.seals, kestrel.WRITER.header
    assert seals is not None
    data += make_seal(seals, SealKind.OPENING, 7, len(data))
    for batch in batches:
        block = b"".join(map(item, batch))
        data += make_seal(seals, SealKind.BLOCK, 7, len(data), block) + block
    return data


def test_schedule_without_a_ledger_is_as_of_the_backup(world, tmp_path):
    (world.directory / "ledger" / "000000001.ledger").unlink()
    world.take(30)
    world.live(range(31, 33))
    (world.directory / "ledger" / "000000001.ledger").unlink()
    world.take(40)
    restore_at(world.vault, str(tmp_path / "again"), 31 * NS_PER_S)
    found = records(tmp_path / "again" / "schedule.log", ztick.CODEC)
    assert [each.execution_ns for each in found] == list(range(1, 30))


# -- following --


def test_of_a_file_that_grew_only_what_is_new_is_stored(world, tmp_path, monkeypatch):
    monkeypatch.setattr(taking, "SMALL_CHUNKS", 5)
    memory, log = Memory(), world.directory / "schedule.log"
    take(str(world.directory), world.vault, world.clock, memory=memory)
    for number in range(12):
        assert not is_changed(str(world.directory), memory.last)
        with log.open("ab") as file:
            file.write(b"%04d" % number)
        assert is_changed(str(world.directory), memory.last)
        world.clock.second = 100 + number
        taken = take(str(world.directory), world.vault, world.clock, memory=memory)
        stored = next(file for file in taken.manifest.files if file.path == "schedule.log")
        assert taken.new_bytes == (4 if len(stored.chunks) > 1 else stored.size)
        assert len(stored.chunks) <= 6
    restore(world.vault, str(tmp_path / "again"))
    assert (tmp_path / "again" / "schedule.log").read_bytes() == log.read_bytes()
    assert list(check_backups(world.vault)) == []


def test_file_whose_end_was_cut_and_grew_again_is_read_anew(world, tmp_path):
    memory, log = Memory(), world.directory / "schedule.log"
    take(str(world.directory), world.vault, world.clock, memory=memory)
    os.truncate(log, log.stat().st_size - 3)
    with log.open("ab") as file:
        file.write(b"other bytes")
    world.clock.second = 50
    take(str(world.directory), world.vault, world.clock, memory=memory)
    restore(world.vault, str(tmp_path / "again"))
    assert (tmp_path / "again" / "schedule.log").read_bytes() == log.read_bytes()


def test_follow_ships_what_is_new_and_says_how_far_behind_it_is(world, tmp_path, monkeypatch):
    target, naps = tmp_path / "vault", 0
    monkeypatch.setattr("journeyman.cli.backup.THIN_S", 0.0)

    def nap(_: float) -> None:
        nonlocal naps
        naps += 1
        if naps == 2:  # the first nap brings nothing new
            world.live(range(30, 40))
        elif naps == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("journeyman.cli.backup.time.sleep", nap)
    done = run("backup", target, "--data", world.directory, "--follow", "--keep", 1)
    first, *shipped = done.stdout.splitlines()
    assert "if this machine is lost, so is what was acknowledged in that time" in first
    assert len(shipped) == 2
    assert all(" s behind" in line for line in shipped)
    vault = open_vault(str(target))
    assert len(list_backups(vault)) == 1
    restore(vault, str(tmp_path / "again"))
    assert seconds_in(tmp_path / "again")["workq"] == list(range(1, 40))


def test_follow_refuses_what_it_cannot_ship_in_parts(world, tmp_path):
    refused = run("backup", tmp_path / "vault", "--data", world.directory, "--follow", "--full")
    assert (refused.exit_code, "use one of them" in refused.stderr) == (2, True)
    (world.directory / "store").mkdir()
    refused = run("backup", tmp_path / "vault", "--data", world.directory, "--follow")
    assert (refused.exit_code, "copied as a whole: use --every" in refused.stderr) == (2, True)


def test_restore_says_as_of_when_it_is(world, tmp_path):
    target = str(tmp_path / "vault")
    world.vault = open_vault(target)
    world.take(29)
    world.live(range(30, 40))
    world.take(60)
    done = run("restore", target, "--data", tmp_path / "again", "--at", "1970-01-01T00:00:33Z")
    assert done.exit_code == 0, done.output
    assert "cut at that moment" in done.stdout
    assert "as of 19700101T000033000000000Z" in done.stdout
    assert seconds_in(tmp_path / "again")["ledger"] == list(range(1, 34))
    late = run("restore", target, "--data", tmp_path / "late", "--at", "1970-01-02T00:00:00Z")
    assert "no later backup was taken" in late.stdout
    assert keep_newest(world.vault, 1) == 1

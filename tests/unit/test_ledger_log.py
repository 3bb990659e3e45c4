"""The ledger on disk: appends together with another log, damage, compaction, locks."""

from __future__ import annotations

import threading

import pytest

from journeyman.disk import Disk
from journeyman.errors import InvalidData, LogClosed, LogError, LogFull, LogLocked, LogPoisoned
from journeyman.formats.ledger import (
    HEADER,
    ActionAudited,
    NewerRecord,
    QueuePaused,
    QueueResumed,
    Record,
    TimetableSet,
)
from journeyman.formats.timed_frame import Instant
from journeyman.logs import ledger as module
from journeyman.logs.ledger import LedgerLog
from journeyman.logs.segments import LEDGER_LOCK
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk

NOW = Instant(1_700_000_000_000_000_000)
FIRST = "ledger/000000001.ledger"


def open_ledger(disk: Disk, segment_bytes: int = 10_000) -> LedgerLog:
    return LedgerLog.open(disk, ManualClock(), "ledger", segment_bytes=segment_bytes)


def paused(disk: Disk) -> list[str]:
    """What another process would find."""
    with open_ledger(disk) as log:
        return [key for family, key in log.states if family == "queue-pause"]


def damage(disk: SimulatedDisk, found: bytes) -> None:
    data = disk.read_bytes(FIRST)
    disk.plant(FIRST, data.replace(found, bytes(len(found))))


def pauses(*names: str) -> list[Record]:
    return [QueuePaused(NOW, name) for name in names]


def test_what_was_appended_is_there_after_a_start():
    disk = SimulatedDisk()
    with open_ledger(disk) as log:
        log.append(pauses("a", "b"))
        log.append([QueueResumed(NOW, "a")])
    assert paused(disk) == ["b"]


def test_an_append_is_durable_when_it_returns():
    disk = SimulatedDisk()
    open_ledger(disk).append(pauses("a"))
    assert paused(disk.after_crash("lose_all_unsynced")) == ["a"]


def test_without_a_sync_only_a_power_cut_loses_it():
    disk = SimulatedDisk()
    log = open_ledger(disk)
    log.append(pauses("a"), sync=False)
    assert paused(disk.after_crash("keep_all_unsynced")) == ["a"]
    assert paused(disk.after_crash("lose_all_unsynced")) == []


def test_the_other_log_is_written_after_the_ledger_is_durable():
    disk = SimulatedDisk()
    seen: list[list[str]] = []
    log = open_ledger(disk)
    log.append(pauses("a"), then=lambda: seen.append(paused(disk.after_crash("lose_all_unsynced"))))
    assert seen == [["a"]]


@pytest.mark.parametrize("error", [LogFull("x", "no room"), LogError("x", "bad"), OSError(5, "io")])
def test_what_the_other_log_refuses_is_taken_back_for_good(error: Exception):
    disk = SimulatedDisk()
    log = open_ledger(disk)
    log.append(pauses("a"))

    def refuse() -> None:
        raise error

    with pytest.raises(LogError):
        log.append(pauses("b"), then=refuse)
    assert paused(disk.after_crash("lose_all_unsynced")) == ["a"]
    assert paused(disk.after_crash("keep_all_unsynced")) == ["a"]
    log.append(pauses("c"))
    log.close()
    assert paused(disk) == ["a", "c"]


def test_what_the_other_log_refuses_is_taken_back_out_of_two_segments():
    disk = SimulatedDisk()
    log = open_ledger(disk, segment_bytes=60)
    log.append(pauses("a"))

    def refuse() -> None:
        raise LogFull("x", "no room")

    with pytest.raises(LogFull):
        log.append(pauses("b"), then=refuse)
    log.close()
    assert paused(disk) == ["a"]


def test_a_full_disk_refuses_the_append_and_the_other_log_is_not_written():
    disk = SimulatedDisk()
    log = open_ledger(disk)
    disk.capacity = disk.used + 3
    written: list[int] = []
    with pytest.raises(LogFull):
        log.append(pauses("a"), then=lambda: written.append(1))
    assert written == []
    disk.capacity = None
    log.append(pauses("b"), then=lambda: written.append(2))
    assert written == [2]
    log.close()
    assert paused(disk) == ["b"]


def test_a_failed_sync_is_final():
    disk = SimulatedDisk()
    log = open_ledger(disk)
    disk.fail_next_sync()
    with pytest.raises(LogPoisoned):
        log.append(pauses("a"))
    with pytest.raises(LogPoisoned):
        log.append(pauses("b"))
    log.close()


def test_damage_is_put_aside_and_the_rest_is_read():
    disk = SimulatedDisk()
    with open_ledger(disk) as log:
        log.append(pauses("a", "b", "c"))
    damage(disk, b'"b"')
    with open_ledger(disk) as log:
        assert [key for _, key in log.states] == ["a", "c"]
        assert not log.recovery.clean
    assert disk.list_dir("ledger/quarantine")
    assert paused(disk) == ["a", "c"]


def test_a_lost_ledger_is_an_empty_one():
    disk = SimulatedDisk()
    with open_ledger(disk) as log:
        log.append(pauses("a"))
    disk.remove(FIRST)
    assert paused(disk) == []


def test_it_is_opened_once(monkeypatch: pytest.MonkeyPatch):
    disk = SimulatedDisk()
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.0)
    with open_ledger(disk), pytest.raises(LogLocked, match="another process"):
        open_ledger(disk)


def test_a_lock_that_is_let_go_of_soon_is_waited_for():
    """A program that a killed server was about to start holds its files until it runs."""
    disk = SimulatedDisk()
    open_ledger(disk).close()
    held = disk.lock(f"ledger/{LEDGER_LOCK}")
    threading.Timer(0.1, held.release).start()
    open_ledger(disk).close()


def test_compaction_keeps_the_state_and_what_is_not_known():
    disk = SimulatedDisk()
    newer = NewerRecord(NOW, 2, "moon-phase", b'{"v":2,"kind":"moon-phase"}')
    audit = ActionAudited(NOW, "me", "http", "pause", "a", "done")
    table = TimetableSet(NOW, "t", {"cron": "@daily"})
    log = open_ledger(disk, segment_bytes=100)
    log.append([*pauses("a"), newer, audit, TimetableSet(NOW, "t", {}), table])
    log.append([QueueResumed(NOW, "a"), *pauses("b")])
    log.compact()
    log.append(pauses("c"))
    assert list(log.records()) == [newer, audit, table, *pauses("b", "c")]
    log.close()
    with open_ledger(disk) as again:
        assert list(again.records()) == [newer, audit, table, *pauses("b", "c")]
        assert list(again.states.values()) == [table, *pauses("b", "c")]  # histories stay on disk


def test_compaction_drops_what_is_not_wanted_any_more():
    disk = SimulatedDisk()
    log = open_ledger(disk)
    log.append(pauses("a", "b"))
    log.compact(lambda record: record != QueuePaused(NOW, "a"))
    log.close()
    assert paused(disk) == ["b"]


def test_compaction_does_not_replace_a_segment_that_was_damaged_meanwhile():
    disk = SimulatedDisk()
    log = open_ledger(disk)
    log.append(pauses("a", "b"))
    damage(disk, b'"a"')
    with pytest.raises(InvalidData):
        log.compact()
    log.append(pauses("c"))
    log.close()
    assert paused(disk) == ["b", "c"]


def test_a_ledger_is_bloated_when_most_of_it_is_dead(monkeypatch):
    monkeypatch.setattr(module, "SLACK_BYTES", 100)
    disk = SimulatedDisk()
    log = open_ledger(disk)
    seen = [log.is_bloated]
    for _ in range(10):
        log.append(pauses("a"))
    seen.append(log.is_bloated)
    log.compact()
    seen.append(log.is_bloated)
    assert seen == [False, True, False]
    log.append(pauses("a"))
    log.close()
    with open_ledger(disk) as again:
        assert not again.is_bloated
    assert disk.read_bytes(FIRST).startswith(HEADER)


def test_a_closed_ledger_is_not_compacted():
    log = open_ledger(SimulatedDisk())
    log.close()
    with pytest.raises(LogClosed):
        log.compact()


def test_a_reader_sees_a_compaction_that_was_cut_short_as_done():
    """Else what was removed would come back, as long as nobody opens the ledger."""
    disk = SimulatedDisk()
    log = open_ledger(disk, segment_bytes=60)
    log.append(pauses("a"))
    log.append([QueueResumed(NOW, "a")])
    log.append(pauses("b"))
    disk.fail("remove", times=100)
    with pytest.raises(OSError, match="error"):
        log.compact()
    disk.heal()
    assert list(module.peek(disk, "ledger")) == [("queue-pause", "b")]
    disk.remove("ledger/000000002.ledger")  # as if the removals had come in another order
    assert list(module.peek(disk, "ledger")) == [("queue-pause", "b")]


def test_a_reader_of_no_ledger_finds_nothing():
    assert module.peek(SimulatedDisk(), "ledger") == {}


@pytest.mark.parametrize("journal", [b"", b"{", b'{"version":9,"renames":{},"removes":[]}'])
def test_a_damaged_journal_of_a_compaction_does_not_stop_a_start(journal: bytes):
    disk = SimulatedDisk()
    with open_ledger(disk) as log:
        log.append(pauses("a"))
    disk.plant("ledger/_publication.json", journal)
    with open_ledger(disk) as log:
        assert [key for _, key in log.states] == ["a"]
        assert not log.recovery.clean
        log.compact()
    assert paused(disk) == ["a"]
    assert disk.list_dir("ledger/quarantine")

"""The schedule and the ledger in a store: loaded, they are what the folds of their logs say."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.errors import LogFull, LogPoisoned, StorageError, StorageFull
from journeyman.folds import ledger as ledger_fold
from journeyman.folds import ztick as ztick_fold
from journeyman.formats.ledger import ActionAudited, QueuePaused, QueueResumed
from journeyman.formats.timed_frame import Instant
from journeyman.formats.ztick import JobRemoved, JobSet, Status
from journeyman.servers.core.store import ScheduleRecorder, StoredLedger
from journeyman.storage import PutEntries, Storage
from journeyman.storage.folded import (
    SCHEDULE_PREFIX,
    folded_ledger,
    folded_schedule,
)
from journeyman.storage.memory import MemoryBackend
from tests.support import drawn_ledger, drawn_ztick

NOTHING_TOLD = dict[bytes, str]().__setitem__


def in_memory() -> Storage:
    return Storage(MemoryBackend(), "memory")


def loaded(folded: Any) -> list[Any]:
    found: list[Any] = []
    assert folded.load(found.append, NOTHING_TOLD) == len(found)
    return found


FAMILIES: dict[str, tuple[Any, Any, Any]] = {
    "schedule": (folded_schedule, drawn_ztick.records, ztick_fold),
    "ledger": (folded_ledger, drawn_ledger.RECORDS, ledger_fold),
}


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
def test_any_batches_load_as_their_fold(family, data):
    make, records, fold = FAMILIES[family]
    storage, folded, written = in_memory(), None, []
    for batch in data.draw(st.lists(st.lists(records, max_size=4), max_size=4)):
        folded = make(storage)  # as after a restart: numbers continue
        loaded(folded)
        storage.apply([PutEntries(folded.changes(batch))])
        written += batch
    assert loaded(make(storage)) == list(fold.replay(written).values())
    found = loaded(make(storage))
    assert make(storage).records() == found
    for name in {fold.key_of(record)[0] for record in found} - {""}:
        own = [record for record in found if fold.key_of(record)[0] == name]
        assert make(storage).records(name) == own


def test_long_names_are_told_apart():
    storage = in_memory()
    folded = folded_schedule(storage)
    names = ["x" * 5000, "x" * 5000 + "y", "x" * 1000, "#" + "x" * 31]
    jobs = [JobSet(name, 1, Status.PLANNED) for name in names]
    storage.apply([PutEntries(folded.changes([*jobs, JobRemoved(names[1])]))])
    assert loaded(folded) == [jobs[0], jobs[2], jobs[3]]


def test_what_cannot_be_read_is_told_and_the_rest_is_loaded():
    storage = in_memory()
    folded = folded_schedule(storage)
    jobs = [JobSet(f"job {n}", n, Status.PLANNED) for n in range(3)]
    storage.apply([PutEntries(folded.changes(jobs))])
    storage.backend.put(SCHEDULE_PREFIX + b"job:=job 1", bytes(8) + b"\xff" * 5)
    storage.backend.put(SCHEDULE_PREFIX + b"job:=short", b"abc")
    told: dict[bytes, str] = {}
    found: list[Any] = []
    folded.load(found.append, told.__setitem__)
    assert found == [jobs[0], jobs[2]]
    assert set(told) == {SCHEDULE_PREFIX + b"job:=job 1", SCHEDULE_PREFIX + b"job:=short"}


class Refusing(MemoryBackend):
    """Says no, as an engine does."""

    error: StorageError | None = None

    def turn(self):
        if self.error is not None:
            raise self.error
        return super().turn()


def test_records_and_what_the_ledger_says_of_them_are_one_commit():
    backend = Refusing()
    storage = Storage(backend, "memory")
    ledger = folded_ledger(storage)
    recorder = ScheduleRecorder(storage, folded_schedule(storage), ledger)
    job, paused = JobSet("a", 1, Status.PLANNED), QueuePaused(Instant(1), "q")
    for error, heard in (
        (StorageFull("here", "no room"), LogFull),
        (StorageError("here", "broken"), LogPoisoned),
    ):
        backend.error = error
        with pytest.raises(heard):
            recorder.write([job], [paused])
    backend.error = None
    assert loaded(ledger) == []
    recorder.write([job], [paused])
    assert (loaded(folded_schedule(storage)), loaded(ledger)) == ([job], [paused])


class Absorbing:
    unparsed_kinds: Collection[str] = ()
    live_records = 0

    def absorb(self, record):
        return isinstance(record, ActionAudited)


def test_ledger_in_a_store_takes_back_what_its_log_refused():
    """For a service whose log is a file: the ledger first, and neither if the log cannot."""
    storage = in_memory()
    ledger = StoredLedger(storage, Absorbing(), NOTHING_TOLD)
    before = QueuePaused(Instant(1), "kept")
    ledger.append([before])

    def refuse() -> None:
        raise LogFull("log", "no room")

    with pytest.raises(LogFull):
        ledger.append([QueueResumed(Instant(2), "kept"), QueuePaused(Instant(2), "q")], then=refuse)
    assert list(ledger.records()) == [before]
    done: list[int] = []
    ledger.append([QueueResumed(Instant(3), "kept")], then=lambda: done.append(1))
    assert (list(ledger.records()), done) == ([], [1])


def test_audits_that_are_too_old_leave_the_ledger(monkeypatch):
    monkeypatch.setattr("journeyman.servers.core.store.HISTORIES_TO_LOOK", 2)
    ledger = StoredLedger(in_memory(), Absorbing(), NOTHING_TOLD)
    audits = [ActionAudited(Instant(n), "me", "http", "did", f"{n}", "ok") for n in range(3)]
    ledger.append(audits[:1])
    ledger.append(audits[1:])
    was_bloated = ledger.is_bloated
    ledger.compact(lambda record: record.logged.unix_ns > 0)
    assert list(ledger.records()) == audits[1:]
    assert (was_bloated, ledger.is_bloated) == (True, False)

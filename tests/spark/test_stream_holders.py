"""Streams as holders: compaction, cleaning and retention wait for them, within limits.

Each log is driven as a server drives it, each stream as Spark does; no session is needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.folds.kestrel import Reader
from journeyman.formats.ledger import ActionAudited
from journeyman.formats.timed_frame import Instant
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.holders import Holders, LetGo, Place, register, unregister
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.ledger import LedgerLog
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.units import DAY_MS, NS_PER_MS
from tests.support.spark.stream_driver import Query, job_names, keys, put_items, set_jobs
from tests.support.workq_logs import added, as_of, deleted, job_id

DAY_NS = DAY_MS * NS_PER_MS
LIMITLESS = 1 << 40


class Kept:
    """Holders, and what they had to let go."""

    def __init__(self, max_bytes: int = LIMITLESS, max_idle_ns: int = DAY_NS) -> None:
        self.let_go: list[LetGo] = []
        self.holders = Holders(
            RealDisk(), SystemClock(), max_bytes, max_idle_ns, tell=self.let_go.append
        )

    @property
    def held_bytes(self) -> int:
        return sum(self.holders.held_bytes.values())

    def ztick(self, path: Path) -> ZtickLog:
        disk, clock = RealDisk(), SystemClock()
        return ZtickLog.open(disk, clock, str(path), sync=SyncPolicy.OS, holders=self.holders)

    def workq(self, path: Path) -> WorkqLog:
        return WorkqLog.open(
            RealDisk(),
            SystemClock(),
            str(path),
            sync=SyncPolicy.OS,
            segment_bytes=400,
            holders=self.holders,
        )

    def kestrel(self, path: Path) -> KestrelLog:
        return KestrelLog.open(
            RealDisk(),
            SystemClock(),
            str(path),
            "jobs",
            sync=SyncPolicy.OS,
            segment_bytes=200,
            holders=self.holders,
        )


def lost(rows: list[dict[str, Any]]) -> list[str]:
    return [row["_damage"] for row in rows if row["kind"] == "damage"]


# --- ztick ---


def test_compactions_between_two_looks_leave_everything_for_the_stream(tmp_path):
    kept = Kept()
    with kept.ztick(tmp_path / "logfile") as log:
        query = Query("ztick", tmp_path / "logfile")
        set_jobs(log, 1)
        assert keys(query.poll()) == job_names(1)
        for number in range(2, 6):  # of one key: all but the last would go
            set_jobs(log, 1, number)
            log.compact()
        assert kept.held_bytes > 0
        expected = [name for number in range(2, 6) for name in job_names(1, number)]
        assert keys(query.poll()) == expected
        assert log.compact() is not None  # now that it was read
        assert query.poll() == []
    assert kept.let_go == []
    with kept.ztick(tmp_path / "logfile") as log:  # what it left opens as usual
        assert len(list(log.entries())) > 0


def test_a_compaction_that_a_holder_keeps_waiting_is_not_done_at_the_next_start_either(tmp_path):
    kept = Kept()
    with kept.ztick(tmp_path / "logfile") as log:
        query = Query("ztick", tmp_path / "logfile")
        set_jobs(log, 1)
        query.poll()
        set_jobs(log, 1, 2)
        log.compact()
    with kept.ztick(tmp_path / "logfile") as log:
        set_jobs(log, 3)
        assert keys(query.poll()) == job_names(1, 2, 3)


def test_beyond_its_bytes_a_holder_loses_what_it_has_not_read_and_that_is_said(tmp_path):
    kept = Kept(max_bytes=50)
    with kept.ztick(tmp_path / "logfile") as log:
        query = Query("ztick", tmp_path / "logfile", onLostHistory="continue", holder="lake /l")
        set_jobs(log, 1)
        query.poll()
        for number in (2, 3):
            set_jobs(log, *range(10 * number, 10 * number + 5))
            assert log.compact() is not None
        assert [(each.who, Path(each.files[0]).name) for each in kept.let_go] == [
            ("lake /l", "logfile.to_compress"),
            ("lake /l", "logfile.to_compress"),
        ]
        assert "more than 50 bytes" in kept.let_go[0].reason
        (row,) = lost(query.poll())
        assert row.startswith("lost: ")


# --- workq ---


def test_cleaning_leaves_segments_that_a_stream_has_not_read(tmp_path):
    kept = Kept()
    with kept.workq(tmp_path) as log:
        query = Query("workq", tmp_path)
        log.append([added(1)])
        query.poll()
        for number in range(2, 9):
            log.append([added(number), deleted(number, 1)])
        assert len(list(tmp_path.glob("*.log"))) > 2
        assert log.clean(as_of(10_000), thorough=True).records_dropped == 0
        assert keys(query.poll()) == [
            str_id(number) for number in range(2, 9) for _ in ("add", "delete")
        ]
        query.plan()  # a look tells the log how far the last batch came
        assert log.clean(as_of(10_000), thorough=True).records_dropped > 0
        assert query.poll() == []
    assert kept.let_go == []


def test_records_cleaned_out_of_unread_segments_are_missed(tmp_path):
    kept = Kept(max_bytes=0)
    with kept.workq(tmp_path) as log:
        query = Query("workq", tmp_path, onLostHistory="continue")
        log.append([added(1)])
        query.poll()
        log.append([added(2), added(3), deleted(2, 1)])  # the segment stays, with less in it
        log.append([added(number) for number in range(4, 9)])
        log.append([deleted(number, 1) for number in (5, 7)])
        log.append([added(9)])
        report = log.clean(as_of(500), thorough=True)  # deleted ones go, others have not expired
        assert report.rewritten > 0
        assert set(kept.let_go[0].files) <= set(report.changed)
        (row,) = lost(query.poll())
        assert "cleaned unread" in row or "removed unread" in row


def str_id(number: int) -> str:
    return str(UUID(bytes=job_id(number)))


# --- kestrel ---


def test_retention_leaves_segments_that_a_stream_has_not_read(tmp_path):
    kept = Kept()
    with kept.kestrel(tmp_path) as journal:
        query = Query("kestrel", tmp_path)
        put_items(journal, 1)
        query.poll()
        put_items(journal, *range(2, 30))
        journal.checkpoint("", Reader(29))
        assert (journal.retain(), journal.is_held) == ([], True)
        assert [row["item_id"] for row in query.poll() if row["kind"] == "PUT"] == [*range(2, 30)]
        query.plan()
        assert len(journal.retain()) > 1
        assert journal.is_held is False
    assert kept.let_go == []


# --- ledger ---


def test_a_ledger_is_compacted_up_to_where_its_holder_is(tmp_path):
    kept = Kept()
    directory = str(tmp_path)
    with LedgerLog.open(RealDisk(), SystemClock(), directory, holders=kept.holders) as ledger:
        audits = [ActionAudited(Instant(n), "me", "api", "pause", "q", "ok") for n in range(1, 9)]
        register(RealDisk(), directory, "me", "lake /l", SystemClock().now_ns(), {})
        ledger.append(audits[:4])
        ledger.compact(lambda _: False)
        ledger.compact(lambda _: False)
        assert len(list(tmp_path.glob("*.ledger"))) == 2  # one was closed, and waits
        assert list(ledger.records()) == audits[:4]
        ledger.append(audits[4:])
        at = Place("000000002.ledger", None, 0)
        register(RealDisk(), directory, "me", "lake /l", SystemClock().now_ns(), {"": at})
        ledger.compact(lambda _: False)
        assert list(ledger.records()) == audits[4:]
        unregister(RealDisk(), directory, "me")
        ledger.compact(lambda _: False)
        assert list(ledger.records()) == []
    assert kept.let_go == []


# --- limits ---


def test_a_holder_that_vanished_holds_for_days_and_no_longer(tmp_path):
    kept = Kept(max_idle_ns=7 * DAY_NS)
    now_ns = SystemClock().now_ns()
    with kept.ztick(tmp_path / "logfile") as log:
        register(RealDisk(), str(tmp_path), "gone", "lake /l", now_ns - 6 * DAY_NS, {})
        set_jobs(log, 1)
        assert log.compact() is None
        register(RealDisk(), str(tmp_path), "gone", "lake /l", now_ns - 8 * DAY_NS, {})
        assert log.compact() is not None
    assert [each.reason for each in kept.let_go] == ["it was not seen for 8 days"]


def test_of_two_holders_the_slower_one_counts(tmp_path):
    kept = Kept()
    now_ns = SystemClock().now_ns()
    with kept.workq(tmp_path) as log:
        for number in range(1, 9):
            log.append([added(number), deleted(number, 1)])
        for name, at in (("fast", "000000003.log"), ("slow", "000000002.log")):
            register(RealDisk(), str(tmp_path), name, name, now_ns, {"": Place(at, None, 0)})
        report = log.clean(as_of(10_000), thorough=True)
        assert [Path(path).name for path in report.changed] == ["000000001.log"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"who": 1}', b"\xff"])
def test_a_holder_file_that_cannot_be_read_holds_everything(tmp_path, content):
    kept = Kept()
    with kept.ztick(tmp_path / "logfile") as log:
        (tmp_path / "_held").mkdir()
        (tmp_path / "_held" / "holder.odd").write_bytes(content)
        set_jobs(log, 1)
        assert log.compact() is None


def test_a_server_of_another_user_can_read_who_holds(tmp_path):
    register(RealDisk(), str(tmp_path), "me", "lake /l", 1, {})
    assert (tmp_path / "_held").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "_held" / "holder.me").stat().st_mode & 0o777 == 0o644


def test_a_stream_says_who_it_is_and_how_far_it_came(tmp_path):
    with Kept().ztick(tmp_path / "logfile") as log:
        set_jobs(log, 1)
        query = Query("ztick", tmp_path / "logfile", holder="lake /l")
        query.poll()
        (path,) = (tmp_path / "_held").glob("holder.*")
        found = json.loads(path.read_text())
        size = (tmp_path / "logfile").stat().st_size
        inode = (tmp_path / "logfile").stat().st_ino
        assert found["who"] == "lake /l"
        assert found["logs"] == {"logfile": {"name": "logfile", "inode": inode, "end": size}}

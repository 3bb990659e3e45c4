"""Logs that ztick itself wrote, as the server loads them: carefully and in bulk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.engines.ztick.messages import RuleListing
from journeyman.formats.ztick import Status
from journeyman.logs.appender import SyncPolicy
from journeyman.protocols.ztick.commands import ListRules, Query
from journeyman.protocols.ztick.grammar import rule_line
from journeyman.servers.core import bulk_loading
from journeyman.servers.ztick import bulk
from journeyman.servers.ztick.persistence import OpenedZtick, open_log
from tests.support.bulk_here import read_here

DATA = Path(__file__).parent / "data" / "ztick"
LOGS = sorted(DATA.glob("*.log"))
IN_A_PROCESS = LOGS[0]  # as a server does it; the others in this one, which has its libraries
# What the original holds after these is a mistake of its own (README.md there): rows that ran
# again, that were glued to a torn entry, or that it left in files it never reads.
LOADED_ALIKE = sorted(
    path
    for path in DATA.glob("*.loaded.txt")
    if path.name.startswith(("a_", "b_")) or "same_id" in path.name
)


def load(path: Path, directory: Path, *, bulk_bytes: int) -> OpenedZtick:
    shutil.copy(path, directory / "logfile")
    opened = open_log(
        RealDisk(),
        SystemClock(),
        str(directory / "logfile"),
        sync=SyncPolicy.OS,
        max_runs=1,
        bulk_bytes=bulk_bytes,
    )
    opened.log.close()
    return opened


def jobs_of(schedule: ZtickEngine) -> list[tuple[str, Status, int]]:
    listing = schedule.decide(Query(b"q", ""), 0).reply
    return sorted(row for rows in listing for row in rows)  # type: ignore[union-attr]


def rules_of(schedule: ZtickEngine) -> list[bytes]:
    listing = schedule.decide(ListRules(b"q"), 0).reply
    assert isinstance(listing, RuleListing)
    return sorted(rule_line(b"q", r.identifier, r.pattern, r.runner) for r in listing.rules)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_both_ways_of_loading_agree(tmp_path, monkeypatch, path):
    if path != IN_A_PROCESS:
        monkeypatch.setattr(bulk_loading, "read", read_here)
        monkeypatch.setattr(bulk, "CHUNK_ROWS", 2)  # with many borders between chunks
    (tmp_path / "careful").mkdir()
    (tmp_path / "bulk").mkdir()
    careful = load(path, tmp_path / "careful", bulk_bytes=1 << 60)
    quick = load(path, tmp_path / "bulk", bulk_bytes=0)
    assert not careful.in_bulk
    assert quick.in_bulk == careful.log.recovery.clean
    assert jobs_of(quick.schedule) == jobs_of(careful.schedule)
    assert rules_of(quick.schedule) == rules_of(careful.schedule)
    assert quick.schedule.stats() == careful.schedule.stats()
    assert quick.schedule.next_due_ns() == careful.schedule.next_due_ns()


@pytest.mark.parametrize("path", LOADED_ALIKE, ids=lambda path: path.name)
def test_what_the_original_holds_is_held_here(tmp_path, path):
    opened = load(DATA / path.name.replace(".loaded.txt", ".log"), tmp_path, bulk_bytes=1 << 60)
    expected = [
        line[2:]
        for line in path.read_text().split("-- LISTRULES")[0].splitlines()
        if line.startswith("q ") and line != "q OK"
    ]
    assert expected
    held = [f"{name} {status.word} {ns}" for name, status, ns in jobs_of(opened.schedule)]
    assert held == expected

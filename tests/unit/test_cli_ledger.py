"""The ledger on the command line: found, dumped, verified, repaired, compacted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from journeyman.formats.ledger import CODEC, HEADER, QueuePaused, QueueResumed, Record
from journeyman.formats.timed_frame import Instant
from tests.support.cli_commands import GOLDEN, assert_one_line_error, job, rows, run, write_ztick

NOW = Instant(1_795_000_000_000_000_000)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return write(tmp_path / "ledger", QueuePaused(NOW, "a"), QueuePaused(NOW, "b"))


def write(directory: Path, *records: Record) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    data = HEADER + b"".join(CODEC.encode(record) for record in records)
    (directory / "000000001.ledger").write_bytes(data)
    return directory


def test_records_are_lines(ledger: Path):
    result = run("dump", ledger)
    assert result.stdout.splitlines() == [
        '000000001.ledger:8 2026-11-18T11:06:40Z queue-paused {"queue":"a"}',
        '000000001.ledger:69 2026-11-18T11:06:40Z queue-paused {"queue":"b"}',
    ]
    (first, _) = rows(run("dump", "--json", ledger / "000000001.ledger"))
    assert first == {
        "segment": "000000001.ledger",
        "offset": 8,
        "length": 61,
        "logged_ns": NOW.unix_ns,
        "payload": {"v": 1, "kind": "queue-paused", "queue": "a"},
    }


def test_a_record_of_a_newer_version_is_shown_as_it_is():
    lines = run("dump", GOLDEN / "ledger" / "all-kinds").stdout.splitlines()
    assert "queue-paused (version 2, unknown)" in lines[-2]
    assert '{"queue":"mail","until":null}' in lines[-2]


def test_the_state_is_what_was_not_removed(tmp_path: Path):
    directory = write(
        tmp_path, QueuePaused(NOW, "a"), QueuePaused(NOW, "b"), QueueResumed(NOW, "a")
    )
    (row,) = rows(run("dump", "--compact", "--json", directory))
    assert (row["family"], row["key"]) == ("queue-pause", "b")
    (line,) = run("dump", "--compact", directory).stdout.splitlines()
    assert line == '2026-11-18T11:06:40Z queue-paused {"queue":"b"}'


def test_the_state_as_of_a_time(tmp_path: Path):
    later = Instant(NOW.unix_ns + 1)
    directory = write(tmp_path, QueuePaused(NOW, "a"), QueueResumed(later, "a"))
    assert len(rows(run("dump", "--compact", "--json", "--as-of", NOW.unix_ns, directory))) == 1
    assert rows(run("dump", "--compact", "--json", directory)) == []


def test_verify_counts_kinds_and_live_bytes(tmp_path: Path):
    directory = write(tmp_path, QueuePaused(NOW, "a"), QueueResumed(NOW, "a"))
    (row,) = rows(run("verify", "--json", directory))
    (log,) = row["logs"]
    assert log["dialect"] == "ledger"
    assert log["kinds"] == {"queue-paused": 1, "queue-resumed": 1}
    assert log["live_bytes"] == 0
    assert log["anomalies"] == {}
    assert run("verify", directory).exit_code == 0


def test_damage_is_found_and_repaired(tmp_path: Path):
    directory = tmp_path / "ledger"
    shutil.copytree(GOLDEN / "ledger" / "damaged", directory)
    (directory / "description.json").unlink()
    assert run("verify", directory).exit_code == 1
    assert run("repair", "--dry-run", directory).exit_code == 1
    repaired = run("repair", directory)
    assert repaired.exit_code == 0, repaired.output
    assert run("verify", directory).exit_code == 0
    shown = [row["payload"]["queue"] for row in rows(run("dump", "--json", directory))]
    assert shown == ["a", "c", "e"]
    assert len(list((directory / "quarantine").iterdir())) == 3
    nothing = directory / "quarantine" / "nothing"
    nothing.write_bytes(b"")
    assert_one_line_error(run("repair", directory, "--take-back", nothing), 2, "checksum")


def test_compaction_keeps_the_state(tmp_path: Path):
    directory = write(tmp_path, QueuePaused(NOW, "a"), *[QueuePaused(NOW, "b")] * 5)
    before = run("dump", "--compact", directory).stdout
    (row,) = rows(run("compact", "--json", directory))
    assert row["bytes_kept"] < row["bytes_read"]
    assert run("dump", "--compact", directory).stdout == before
    assert len(rows(run("dump", "--json", directory))) == 2


def test_it_is_found_in_a_data_directory(ledger: Path):
    data = ledger.parent
    write_ztick(data / "schedule.log", job("nightly"))
    dialects = [log["dialect"] for log in json.loads(run("verify", "--json", data).stdout)["logs"]]
    assert dialects == ["ztick", "ledger"]
    shown = run("dump", data).stdout
    assert "SET nightly" in shown
    assert "queue-paused" in shown
    assert "SET nightly" not in run("dump", "--dialect", "ledger", data).stdout


def test_an_empty_one_is_told_by_its_lock(tmp_path: Path):
    (tmp_path / "ledger.lock").touch()
    assert rows(run("dump", "--json", tmp_path)) == []
    (tmp_path / "ledger.lock").unlink()
    assert_one_line_error(run("dump", tmp_path), 2, "no log of any dialect")
    assert_one_line_error(run("dump", "--dialect", "ledger", tmp_path), 2, "no segment of a ledger")


def test_a_segment_is_told_under_any_name(ledger: Path):
    (ledger / "000000001.ledger").rename(ledger / "old")
    assert len(rows(run("dump", "--json", ledger / "old"))) == 2


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_compaction_that_was_cut_short_is_read_as_it_will_end(tmp_path: Path, removed: int):
    """The snapshot has taken the place of the last segment, and older ones are still there."""
    directory = write(tmp_path, QueuePaused(NOW, "a"), QueuePaused(NOW, "b"))
    later: tuple[Record, ...] = (QueuePaused(NOW, "c"), QueueResumed(NOW, "a"))
    for number, record in enumerate(later, 2):
        data = HEADER + CODEC.encode(record)
        (directory / f"00000000{number}.ledger").write_bytes(data)
    before = run("dump", "--compact", directory).stdout
    staged = directory / "_compacting" / "000000003.ledger"
    staged.parent.mkdir()
    kept = (QueuePaused(NOW, "b"), QueuePaused(NOW, "c"))
    staged.write_bytes(HEADER + b"".join(CODEC.encode(record) for record in kept))
    change = {
        "version": 1,
        "renames": {"_compacting/000000003.ledger": "000000003.ledger"},
        "removes": ["000000001.ledger", "000000002.ledger"],
    }
    (directory / "_publication.json").write_text(json.dumps(change))
    assert run("dump", "--compact", directory).stdout == before
    staged.rename(directory / "000000003.ledger")
    for number in range(removed):
        (directory / change["removes"][number]).unlink()  # type: ignore[index]
    assert run("dump", "--compact", directory).stdout == before
    (row,) = rows(run("verify", "--json", directory))
    assert row["logs"][0]["kinds"] == {"queue-paused": 2}

"""``generate``: the same bytes for the same seed, the bytes a codec would write, clean logs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from journeyman.disk import RealDisk
from journeyman.folds import workq as workq_fold
from journeyman.folds import ztick as ztick_fold
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.framing import Codec, Stop, scan
from tests.support.cli_commands import DISK, assert_one_line_error, job, run, write_ztick

START_NS = 1_767_225_600_000_000_000  # 2026-01-01


def generate(dialect: str, path: Path, records: int, *options: object) -> dict[str, Any]:
    result = run("generate", dialect, path, "--records", records, "--json", *options)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def read(codec: Codec[Any], path: Path) -> list[Any]:
    """All records, having made sure that they are what the codec itself would write."""
    data = path.read_bytes()
    entries, ending = scan(codec, data)
    assert ending.stop is Stop.EOF
    assert codec.header + b"".join(codec.encode(entry.record) for entry in entries) == data
    return [entry.record for entry in entries]


def read_workq(directory: Path) -> list[workq.Record]:
    return [r for path in sorted(directory.glob("*.log")) for r in read(workq.CODEC, path)]


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("dialect", ["ztick", "workq", "kestrel"])
@pytest.mark.parametrize("records", [0, 1, 2, 1500])
def test_generated_logs_are_clean_and_have_the_records_asked_for(dialect, records, tmp_path):
    path = tmp_path / "log"

    report = generate(dialect, path, records)

    result = run("verify", "--json", "--dialect", dialect, path)
    assert result.exit_code == 0
    (log,) = json.loads(result.stdout)["logs"]
    found = log["kinds"].get("PUT", 0) if dialect == "kestrel" else log["records"]
    assert found == report["records"] == records
    assert log["anomalies"] == {}
    assert log["size"] == report["size"] == sum(file["size"] for file in report["files"])


@pytest.mark.parametrize("dialect", ["ztick", "workq", "kestrel"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(dialect, tmp_path):
    for name, seed in [("a", 7), ("b", 7), ("c", 8)]:
        generate(dialect, tmp_path / name, 300, "--seed", seed)

    first, same, other = (list(contents(tmp_path / name).values()) for name in "abc")
    assert first == same
    assert first != other


# --- ztick ---


def test_ztick_entries_are_those_of_the_codec(tmp_path):
    generate("ztick", tmp_path / "log", 5000)

    records = read(ztick.CODEC, tmp_path / "log")

    assert len(records) == 5000
    assert {type(record) for record in records} == {ztick.JobSet, ztick.RuleSet, ztick.JobRemoved}
    assert {r.status for r in records if isinstance(r, ztick.JobSet)} >= {
        ztick.Status.PLANNED,
        ztick.Status.EXECUTED,
        ztick.Status.FAILED,
    }


def test_ztick_rules_come_first_and_use_every_runner(tmp_path):
    generate("ztick", tmp_path / "log", 50, "--rules", 8)

    records = read(ztick.CODEC, tmp_path / "log")

    rules = [record for record in records if isinstance(record, ztick.RuleSet)]
    assert records[:8] == rules
    assert {type(rule.runner) for rule in rules} == {
        ztick.Shell,
        ztick.Amqp,
        ztick.Direct,
        ztick.Awf,
        ztick.Http,
        ztick.Redis,
        ztick.WorkQueueRunner,
        ztick.FanOutRunner,
    }
    assert len({rule.identifier for rule in rules}) == len({rule.pattern for rule in rules}) == 8


def test_ztick_ids_and_removals_are_as_asked_for(tmp_path):
    generate("ztick", tmp_path / "log", 5000, "--ids", 40, "--removals", 0.3, "--rules", 0)

    records = read(ztick.CODEC, tmp_path / "log")

    assert len({record.identifier for record in records}) == 40
    removals = sum(isinstance(record, ztick.JobRemoved) for record in records)
    assert 0.25 < removals / 5000 < 0.35
    states = ztick_fold.replay(records)
    assert all(key[0] == "job" for key in states)


def test_ztick_jobs_match_the_patterns_of_the_rules(tmp_path):
    generate("ztick", tmp_path / "log", 500, "--rules", 6)

    schedule = ztick_fold.schedule(ztick_fold.replay(read(ztick.CODEC, tmp_path / "log")))

    patterns = tuple(rule.pattern for rule in schedule.rules.values())
    assert all(name.startswith(patterns) for name in schedule.jobs)


def test_nothing_is_removed_when_nothing_shall_be(tmp_path):
    generate("ztick", tmp_path / "log", 500, "--removals", 0)

    assert not any(isinstance(r, ztick.JobRemoved) for r in read(ztick.CODEC, tmp_path / "log"))


# --- workq ---


def test_workq_records_are_those_of_the_codec(tmp_path):
    generate("workq", tmp_path / "log", 6000, "--segment-bytes", 100_000, "--payload-bytes", 200)

    records = read_workq(tmp_path / "log")

    assert len(records) == 6000
    # Parks and wakes are in no log of the original, which these logs resemble.
    others = {workq.Command.EXPIRE, workq.Command.PARK, workq.Command.WAKE}
    assert {record.command for record in records} >= set(workq.Command) - others
    assert {len(r.payload) for r in records if isinstance(r, workq.JobAdded)} == {200}
    times = [record.logged.unix_ns for record in records]
    assert times == sorted(times)
    assert times[0] >= START_NS


def test_workq_segments_end_at_the_size_asked_for(tmp_path):
    generate("workq", tmp_path / "log", 2000, "--segment-bytes", 20_000)

    sizes = [path.stat().st_size for path in sorted((tmp_path / "log").glob("*.log"))]
    assert len(sizes) > 5
    assert all(20_000 <= size < 20_400 for size in sizes[:-1])


def test_workq_jobs_are_as_many_as_asked_for_and_their_ids_are_used_again(tmp_path):
    generate("workq", tmp_path / "log", 2000, "--ids", 25)

    records = read_workq(tmp_path / "log")

    assert len({record.job_id for record in records}) == 25
    assert sum(isinstance(record, workq.JobAdded) for record in records) > 100


@pytest.mark.parametrize(
    ("removals", "least", "most"), [(0.0, 0, 0), (0.5, 80, 120), (1.0, 180, 210)]
)
def test_workq_removals_are_the_share_of_finished_jobs_deleted(tmp_path, removals, least, most):
    generate("workq", tmp_path / "log", 4000, "--ids", 3000, "--removals", removals)

    kinds = Counter(record.command for record in read_workq(tmp_path / "log"))

    finished = kinds[workq.Command.COMPLETE] + kinds[workq.Command.FAIL]
    assert finished > 100
    share = 200 * kinds[workq.Command.DELETE] / finished
    assert least <= share <= most


def test_workq_states_have_no_anomalies(tmp_path):
    generate("workq", tmp_path / "log", 5000, "--ids", 300)
    notes: list[object] = []

    states = workq_fold.replay(read_workq(tmp_path / "log"), notes.append)

    assert notes == []
    assert states


def test_the_names_and_the_start_are_as_asked_for(tmp_path):
    generate("workq", tmp_path / "log", 50, "--queue", "mail", "--start", "2031-05-06T07:08:09Z")

    (first, *_) = read_workq(tmp_path / "log")

    assert isinstance(first, workq.JobAdded)
    assert first.name == "mail"
    assert 0 <= first.created.unix_ns - 1_935_817_689_000_000_000 < 1_000_000_000


# --- kestrel ---


def test_kestrel_items_are_those_of_the_codec(tmp_path):
    generate("kestrel", tmp_path, 3000, "--segment-bytes", 50_000, "--payload-bytes", 64)

    segments = sorted(tmp_path.glob("jobs.[0-9]*"), key=lambda path: int(path.suffix[1:]))
    items = [record for path in segments for record in read(kestrel.WRITER, path)]

    assert len(segments) > 4
    assert all(path.stat().st_size <= 50_000 for path in segments)
    assert [item.item_id for item in items] == list(range(1, 3001))
    assert {len(item.data) for item in items} == {64}
    assert 200 < sum(item.expire_time_ms is not None for item in items) < 400


def test_an_item_larger_than_a_segment_has_one_to_itself(tmp_path):
    generate("kestrel", tmp_path, 4, "--segment-bytes", 100, "--payload-bytes", 500)

    assert len(list(tmp_path.glob("jobs.[0-9]*"))) == 4
    assert run("verify", tmp_path).exit_code == 0


@pytest.mark.parametrize(("readers", "names"), [(0, []), (1, [""]), (2, ["reader1", "reader2"])])
def test_kestrel_readers_have_checkpoints(readers, names, tmp_path):
    generate("kestrel", tmp_path, 1000, "--readers", readers, "--removals", 0.5, "--queue", "q")

    paths = sorted(tmp_path.glob("q.read.*"))

    assert [path.name for path in paths] == [f"q.read.{name}" for name in names]
    for path in paths:
        head, done = read(kestrel.READER, path)
        assert 350 <= head.item_id <= 500
        assert all(head.item_id < item_id <= 1000 for item_id in done.item_ids)


# --- what is there already ---


def test_a_log_that_is_there_is_left_alone(tmp_path):
    log = write_ztick(tmp_path / "log", job("precious"))
    generate("workq", tmp_path / "workq", 5)
    generate("kestrel", tmp_path / "kestrel", 5)
    before = {path: contents(path) for path in tmp_path.iterdir()}

    for dialect, path in [
        ("ztick", log),
        ("workq", tmp_path / "workq"),
        ("kestrel", tmp_path / "kestrel"),
    ]:
        assert_one_line_error(run("generate", dialect, path, "--records", 9), 2, "--force")

    assert {path: contents(path) for path in tmp_path.iterdir()} == before


def test_force_replaces_the_log_and_nothing_else(tmp_path):
    generate("kestrel", tmp_path, 500, "--segment-bytes", 5000, "--readers", 3)
    generate("kestrel", tmp_path, 5, "--queue", "other")
    (tmp_path / "notes.txt").write_text("keep me")

    generate("kestrel", tmp_path, 5, "--force")

    names = sorted(path.name for path in tmp_path.iterdir())
    assert (tmp_path / "notes.txt").read_text() == "keep me"
    assert len([name for name in names if name.startswith("jobs.1")]) == 1
    assert [name for name in names if name.startswith("jobs.read")] == ["jobs.read."]
    assert [name for name in names if name.startswith("other.read")] == ["other.read."]


def test_force_replaces_the_compacted_files_of_ztick_too(tmp_path):
    write_ztick(tmp_path / "log", job("a"))
    write_ztick(tmp_path / "log.compressed", job("b"))

    generate("ztick", tmp_path / "log", 5, "--force")

    assert not (tmp_path / "log.compressed").exists()


def test_force_does_not_replace_a_log_in_use(tmp_path):
    log = write_ztick(tmp_path / "log", job("a"))
    before = log.read_bytes()
    lock = DISK.lock(str(tmp_path / "log.lock"))

    result = run("generate", "ztick", log, "--records", 5, "--force")

    lock.release()
    assert_one_line_error(result, 1, "another process")
    assert log.read_bytes() == before


# --- errors ---


@pytest.mark.parametrize(
    ("dialect", "options", "words"),
    [
        ("ztick", ("--readers", 2), ("--readers", "ztick")),
        ("ztick", ("--payload-bytes", 2), ("--payload-bytes",)),
        ("ztick", ("--segment-bytes", 200), ("--segment-bytes",)),
        ("workq", ("--rules", 2), ("--rules", "workq")),
        ("kestrel", ("--ids", 2), ("--ids", "kestrel")),
        ("kestrel", ("--queue", "a.b"), ("a.b",)),
        ("workq", ("--queue", "a b"), ("a b",)),
        ("workq", ("--start", "1969-01-01"), ("--start", "1970")),
    ],
)
def test_what_cannot_be_made_is_refused(dialect, options, words, tmp_path):
    result = run("generate", dialect, tmp_path / "log", "--records", 1, *options)

    assert_one_line_error(result, 2, *words)
    assert list(tmp_path.iterdir()) == []


def test_the_kind_of_path_must_fit(tmp_path):
    file = tmp_path / "file"
    file.touch()

    assert_one_line_error(run("generate", "ztick", tmp_path, "--records", 1), 1, "a directory")
    assert_one_line_error(run("generate", "workq", file, "--records", 1), 1, "a file")


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    class Full:
        path = ""

        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device", "log")

    monkeypatch.setattr(RealDisk, "open_append", lambda self, path: Full())

    result = run("generate", "ztick", tmp_path / "log", "--records", 5)

    assert_one_line_error(result, 1, "No space left on device: log")


def test_quiet_says_nothing(tmp_path):
    result = run("generate", "ztick", tmp_path / "log", "--records", 5, "--quiet")

    assert (result.exit_code, result.output) == (0, "")


def test_text_says_what_was_made(tmp_path):
    result = run("generate", "ztick", tmp_path / "log", "--records", 1, "--rules", 0)

    size = (tmp_path / "log").stat().st_size
    assert result.stdout == f"{tmp_path / 'log'}: 1 record, {size} bytes in 1 file (ztick)\n"


def test_ctrl_c_while_generating_ends_with_130(tmp_path):
    path = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-mjourneyman", "generate", "kestrel", "--records=999999999", path],
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        while not list(tmp_path.glob("log/jobs.*")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        complaint = process.stderr.read()

    assert process.returncode == 130
    assert complaint == b""


@pytest.mark.parametrize(
    ("dialect", "path"), [("ztick", "logfile"), ("workq", "cmdlog"), ("kestrel", "journal")]
)
def test_without_a_path_the_log_is_made_under_the_original_s_name(
    dialect, path, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert run("generate", dialect, "--records", "20").exit_code == 0
    assert run("verify", path).exit_code == 0

"""Engines of a past moment: both ways of loading agree, also on logs that grow or are damaged."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from journeyman.columnar import chunks
from journeyman.engines.sorted_set import StillSorting
from journeyman.engines.workq.browsing import BrowseJobs, BrowseQueues
from journeyman.engines.ztick.browsing import PageJobs
from journeyman.folds import workq as folds
from journeyman.formats import ztick
from journeyman.formats.workq import CODEC
from journeyman.logs.ledger import FileTimes
from journeyman.logs.sealing import read_file, read_whole
from journeyman.protocols.workq.commands import InspectJob
from journeyman.protocols.workq.replies import JobMissing
from journeyman.servers.http.past import child, engines
from journeyman.servers.http.past.engines import PastScheduleEngines, PastWork
from tests.support.cli_commands import run

NEVER_IN_BULK = 1 << 40
WORDS = ("ready", "completed", "dead", "ready", "leased")  # by folds.workq.JobState


def generate(directory: Path, seed: int, dialect: str = "workq") -> None:
    done = run("generate", dialect, directory, "--records", 3000, "--seed", seed)
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("past") / "log"
    generate(found, 5)
    return found


@pytest.fixture(params=[0, NEVER_IN_BULK], ids=["in bulk", "record by record"])
def loading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "BULK_BYTES", request.param)


def records_of(files: list[str]) -> list[Any]:
    items = (item for path in files for item in read_file(CODEC, Path(path).read_bytes()))
    return [item.record for item in items if hasattr(item, "record")]


def jobs_of(past: PastWork, at_ns: int) -> dict[bytes, tuple[str, str, int]]:
    jobs = past.at(at_ns).summaries()
    return {job.job_id: (job.queue, job.state, job.created_ns) for job in jobs}


def folded(records: list[Any], at_ns: int) -> dict[bytes, tuple[str, str, int]]:
    """By the reference fold, of the records of then."""
    states = folds.replay(each for each in records if each.logged.unix_ns <= at_ns)
    jobs = {job_id: folds.visible(state, at_ns) for job_id, state in states.items()}
    return {
        job_id: (
            job.added.name,
            folds.queue_of(job, at_ns) or WORDS[job.state],
            job.added.created.unix_ns,
        )
        for job_id, job in jobs.items()
        if job is not None
    }


@pytest.mark.parametrize("times_go_back", [False, True])
def test_a_moment_is_the_fold_of_the_records_of_then(
    directory: Path,
    tmp_path: Path,
    times_go_back: bool,
    monkeypatch: pytest.MonkeyPatch,
    loading: None,
):
    monkeypatch.setattr(chunks, "MAX_RECORDS", 100)  # with many borders between chunks
    shutil.copytree(directory, tmp_path / "log")
    if times_go_back:  # then the records of a moment are not the first ones
        generate(tmp_path / "other", 6)
        (more,) = (tmp_path / "other").glob("*.log")
        more.rename(tmp_path / "log" / "000000002.log")
    files = sorted(map(str, (tmp_path / "log").glob("*.log")))
    records = records_of(files)
    times = [record.logged.unix_ns for record in records]
    first_ns, last_ns = min(times), max(times)
    past = PastWork(str(tmp_path / "log"), "")
    for at_ns in (first_ns - 1, *(first_ns + (last_ns - first_ns) * n // 4 for n in range(5))):
        expected = folded(records, at_ns)
        assert jobs_of(past, at_ns) == expected
        counts = past.counts(at_ns, "")
        assert sum(sum(states.values()) for states in counts.values()) == len(expected)
    assert len(expected) > 100
    before = folded(records, first_ns)
    changes = past.changes(first_ns, last_ns, 100_000, "")
    changed = {
        job_id
        for job_id in expected.keys() | before.keys()
        if expected.get(job_id, (None,) * 3)[1] != before.get(job_id, (None,) * 3)[1]
    }
    assert {job_id for job_id, *_ in changes["jobs"]} == changed
    assert changes["changed"] == len(changed)
    assert past.changes(first_ns, last_ns, 5, "none")["jobs"] == []


def test_a_log_that_grows_is_read_again_only_where_it_matters(
    directory: Path, tmp_path: Path, loading: None
):
    (source,) = directory.glob("*.log")
    data = source.read_bytes()
    records = records_of([str(source)])
    last_ns = max(record.logged.unix_ns for record in records)
    middle_ns = records[500].logged.unix_ns
    growing = tmp_path / source.name
    growing.write_bytes(data[: len(data) // 2 + 7])  # a record is in flight
    past = PastWork(str(tmp_path), "")
    then = past.at(middle_ns)
    assert jobs_of(past, middle_ns) == folded(records, middle_ns)
    with growing.open("ab") as file:
        file.write(data[len(data) // 2 + 7 :])
    assert past.at(middle_ns) is then  # that moment was over
    assert jobs_of(past, last_ns) == folded(records, last_ns)
    assert past.at(last_ns) is past.at(last_ns)


def test_a_log_that_was_cleaned_is_read_again(directory: Path, tmp_path: Path, loading: None):
    (source,) = directory.glob("*.log")
    data = source.read_bytes()
    records = records_of([str(source)])
    last_ns = max(record.logged.unix_ns for record in records)
    (tmp_path / source.name).write_bytes(data)
    past = PastWork(str(tmp_path), "")
    assert jobs_of(past, last_ns) == folded(records, last_ns)
    kept = records[: len(records) // 2]
    (tmp_path / "rewritten").write_bytes(CODEC.header + b"".join(map(CODEC.encode, kept)))
    (tmp_path / "rewritten").rename(tmp_path / source.name)
    assert jobs_of(past, last_ns) == folded(kept, last_ns)


def test_a_damaged_log_is_read_past_its_damage(directory: Path, tmp_path: Path, loading: None):
    shutil.copytree(directory, tmp_path / "log")
    (path,) = (tmp_path / "log").glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    records = records_of([str(path)])
    last_ns = max(record.logged.unix_ns for record in records)
    found = jobs_of(PastWork(str(tmp_path / "log"), ""), last_ns)
    assert found == folded(records, last_ns)
    assert len(found) > 100


def test_commands_are_answered_for_one_namespace(directory: Path):
    log = str(directory)
    records = records_of(sorted(map(str, directory.glob("*.log"))))
    last_ns = max(record.logged.unix_ns for record in records)
    queues = child.ask_work(log, "", last_ns, BrowseQueues(limit=500), "").queues
    name = queues[0].name
    jobs = child.ask_work(log, "", last_ns, BrowseJobs(queue=name, limit=3), "").jobs
    assert [job.queue for job in jobs] == [name] * 3
    look = InspectJob(jobs[0].job_id)
    assert child.ask_work(log, "", last_ns, look, name).jobs[0] == jobs[0]
    assert isinstance(child.ask_work(log, "", last_ns, look, "other."), JobMissing)
    assert child.ask_work(log, "", last_ns, BrowseJobs(), "other.").jobs == ()
    assert child.count_work(log, "", last_ns, "other.") == {}


def test_the_last_records_of_a_moment(directory: Path):
    (source,) = directory.glob("*.log")
    entries = [item for item in read_file(CODEC, source.read_bytes()) if hasattr(item, "record")]
    middle_ns = entries[500].record.logged.unix_ns
    known = [item.offset for item in entries if item.record.logged.unix_ns <= middle_ns]
    found = PastWork(str(directory), "").last(middle_ns, 7)
    assert found == [(str(source), offset) for offset in known[: -7 - 1 : -1]]


def test_the_schedule_ends_with_the_last_mark_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loading: None
):
    generate(tmp_path / "schedule.log", 7, "ztick")
    path = tmp_path / "schedule.log"
    data = path.read_bytes()
    offsets = [found.offset for found in read_file(ztick.CODEC, data)]
    ends = (offsets[100], offsets[1500], offsets[2700])
    known = {str(path): FileTimes(ends, (10, 20, 30), None)}
    monkeypatch.setattr(engines, "times_of", lambda *_: known)
    past = PastScheduleEngines(str(path), "")
    for at_ns, end in ((5, 0), (10, ends[0]), (25, ends[1]), (30, ends[2])):
        records = [item.record for item in read_whole(ztick.CODEC, data[:end])]
        expected: dict[str, ztick.JobSet] = {}
        for record in records:
            if isinstance(record, ztick.JobSet):
                expected[record.identifier] = record
            elif isinstance(record, ztick.JobRemoved):
                expected.pop(record.identifier, None)
        reply: Any = StillSorting()
        while isinstance(reply, StillSorting):
            reply = past.at(at_ns).decide(PageJobs(limit=10_000), at_ns).reply
        assert {name: (status, time_ns) for name, status, time_ns in reply.jobs} == {
            name: (job.status, job.execution_ns) for name, job in expected.items()
        }
        assert sum(past.counts(at_ns, "").values()) == len(expected)
    assert len(expected) > 50
    assert past.counts(30, "no such job") == {}

"""Logs at a moment: the compiled fold and the reference agree, also about logs that grow."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from journeyman.columnar.workq import decode
from journeyman.formats import ztick
from journeyman.logs.ledger import FileTimes
from journeyman.logs.sealing import read_file
from journeyman.servers.http.past import child, schedule
from journeyman.servers.http.past.child import Past
from journeyman.servers.http.past.columns import ColumnLog
from journeyman.servers.http.past.moments import Damaged, PlainLog
from journeyman.servers.http.past.schedule import PlainSchedule
from journeyman.servers.http.past.schedule_columns import ColumnSchedule
from tests.support.cli_commands import run

EVERYTHING = ("", "", 0)


def generate(directory: Path, seed: int, dialect: str = "workq") -> None:
    done = run("generate", dialect, directory, "--records", 3000, "--seed", seed)
    assert done.exit_code == 0, done.output


def jobs_at(log: Any, moment_ns: int) -> list[Any]:
    return [job for _, job in log.at(moment_ns).find(*EVERYTHING)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("past") / "log"
    generate(found, 5)
    return found


@pytest.mark.parametrize("times_go_back", [False, True])
def test_both_folds_say_the_same_at_every_moment(
    directory: Path, tmp_path: Path, times_go_back: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(decode, "MAX_RECORDS", 100)  # with many borders between chunks
    files = sorted(map(str, directory.glob("*.log")))
    if times_go_back:  # then the records of a moment are not the first ones
        generate(tmp_path, 6)
        files += map(str, tmp_path.glob("*.log"))
    plain, columns = PlainLog(), ColumnLog()
    assert plain.grow(files) == columns.grow(files)
    first_ns, last_ns = plain.span()
    assert columns.span() == (first_ns, last_ns)
    moments = [first_ns - 1, *(first_ns + (last_ns - first_ns) * part // 4 for part in range(5))]
    for moment_ns in moments:
        expected, found = plain.at(moment_ns), columns.at(moment_ns)
        assert list(found.find(*EVERYTHING)) == list(expected.find(*EVERYTHING))
        assert found.counts() == expected.counts()
        for queue, state in (("", "dead"), ("none", ""), (next(iter(expected.counts()), ""), "")):
            assert list(found.find(queue, state, 3)) == list(expected.find(queue, state, 3))
        assert columns.last(moment_ns, 7) == plain.last(moment_ns, 7)
        before = (plain.at(moments[2]), columns.at(moments[2]))
        for prefix in ("", "j", "none"):
            changed, rows = expected.changes(before[0], 10_000, prefix)
            assert found.changes(before[1], 10_000, prefix)[0] == changed
            same = found.changes(before[1], 10_000, prefix)[1]
            assert sorted(map(str, same)) == sorted(map(str, rows))
            of_prefix = ("", "", 2, prefix)
            assert list(found.find(*of_prefix)) == list(expected.find(*of_prefix))
        for job in jobs_at(plain, moment_ns)[:3]:
            assert found.job(job.job_id) == expected.job(job.job_id) == job
    assert len(plain.at(last_ns)) > 100
    assert columns.at(first_ns - 1).job(b"x" * 16) is None


@pytest.mark.parametrize("bulk_bytes", [0, 1 << 40])
def test_what_is_appended_is_read_and_earlier_moments_are_kept(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bulk_bytes: int
):
    monkeypatch.setattr(child, "BULK_BYTES", bulk_bytes)
    (source,) = directory.glob("*.log")
    data = source.read_bytes()
    whole = PlainLog()
    whole.grow([str(source)])
    _, last_ns = whole.span()
    middle_ns = whole._records[500][1].logged.unix_ns
    growing = tmp_path / source.name
    growing.write_bytes(data[: len(data) // 2 + 7])  # a record is in flight
    past = Past(str(tmp_path))
    then = past.at(middle_ns)
    assert [job for _, job in then.find(*EVERYTHING)] == jobs_at(whole, middle_ns)
    with growing.open("ab") as file:
        file.write(data[len(data) // 2 + 7 :])
    assert past.at(middle_ns) is then
    assert past.span()[1] == last_ns
    assert [job for _, job in past.at(last_ns).find(*EVERYTHING)] == jobs_at(whole, last_ns)
    # A batch that was cut off again, with another in its place: nothing of the first is left.
    end = whole._records[2000][0]
    other_end = whole._records[2600][0]
    growing.write_bytes(data[:other_end])
    past.at(last_ns)
    growing.write_bytes(data[:end] + data[other_end:])
    cut = PlainLog()
    cut.grow([str(growing)])
    assert [job for _, job in past.at(last_ns).find(*EVERYTHING)] == jobs_at(cut, last_ns)


def test_columns_leave_a_damaged_log_to_the_reference(directory: Path, tmp_path: Path):
    shutil.copytree(directory, tmp_path / "log")
    (path,) = (tmp_path / "log").glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged):
        ColumnLog().grow([str(path)])
    plain = PlainLog()
    plain.grow([str(path)])
    past = Past(str(tmp_path / "log"))
    _, last_ns = past.span()
    assert len(past.at(last_ns)) == len(plain.at(last_ns)) > 100


def test_a_page_has_the_records_of_its_jobs(directory: Path, monkeypatch: pytest.MonkeyPatch):
    past = Past(str(directory))
    _, last_ns = past.span()
    dead = [job.job_id for _, job in past.at(last_ns).find("", "dead", 0)]

    def walked(limit: int) -> list[bytes]:
        seen: list[bytes] = []
        begin: int | None = 0
        while begin is not None:
            rows, begin = past.page(last_ns, "", "dead", "", "", begin, limit)
            seen += [job.job_id for job, added, _ in rows if added.job_id == job.job_id]
        return seen

    assert walked(7) == dead
    assert dead
    whole = str(uuid.UUID(bytes=dead[0]))
    assert [job.job_id for job, _, _ in past.page(last_ns, "", "", whole, "", 0, 5)[0]] == dead[:1]
    assert past.page(last_ns, "", "ready", "", "x", 0, 5) == ([], None)
    found = past.job(last_ns, dead[0])
    assert found is not None
    assert found[1].job_id == dead[0]
    changes = past.change(last_ns, last_ns, 10)
    assert (changes["changed"], changes["jobs"]) == (0, [])
    monkeypatch.setattr(child, "SEARCH_S", -1.0)  # each page ends after one job
    assert walked(7) == dead


def test_both_readings_of_the_schedule_say_the_same(tmp_path: Path):
    generate(tmp_path / "schedule.log", 7, "ztick")
    data = (tmp_path / "schedule.log").read_bytes()
    offsets = [found.offset for found in read_file(ztick.CODEC, data)]
    half, most = offsets[1500], offsets[2700]
    times = FileTimes((100, half, most), (10, 20, 30), None)
    plain, columns = PlainSchedule(), ColumnSchedule()
    for log in (plain, columns):
        log.add(data[:most], times)
    assert columns.span() == plain.span() == (10, 30)
    everything = ("", "", "", False, 0, 10_000)
    for moment_ns in (5, 10, 25, 30):
        expected, found = plain.at(moment_ns), columns.at(moment_ns)
        assert found.page(*everything) == expected.page(*everything)
        assert found.counts("") == expected.counts("")
        jobs = expected.page(*everything)[0]
        for name, *_ in jobs[:2]:
            asked = (name[:-2], "planned", name[3:5], True, 1, 5)
            assert found.page(*asked) == expected.page(*asked)
            assert found.counts(name[:-2]) == expected.counts(name[:-2])
            assert found.job(name) == expected.job(name)
    assert len(plain.at(30).page(*everything)[0]) > 50
    assert columns.at(30).job("none") is None
    with pytest.raises(Damaged):
        ColumnSchedule().add(data[: most - 3], times)


def test_a_schedule_that_grows_keeps_its_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    log = tmp_path / "schedule.log"
    jobs = [ztick.JobSet(f"a.{n}", n, ztick.Status.PLANNED) for n in range(4)]
    data = [ztick.CODEC.encode(job) for job in jobs]
    log.write_bytes(data[0] + data[1])
    ends = (len(data[0]), len(data[0] + data[1]), len(b"".join(data)))
    known = {str(log): FileTimes(ends[:2], (10, 20), None)}
    read: list[int] = []

    def times(*_: object) -> Any:
        read.append(1)
        return known

    monkeypatch.setattr(schedule, "times_of", times)
    past = schedule.ScheduleMoments(str(log))

    def names(moment_ns: int) -> list[str]:
        rows, _ = past.schedule_page(str(tmp_path), moment_ns, "", "", "", False, 0, 9)
        return [row[0] for row in rows]

    assert names(15) == ["a.0"]
    assert names(25) == ["a.0", "a.1"]
    log.write_bytes(b"".join(data))
    known[str(log)] = FileTimes(ends, (10, 20, 24), None)
    count = len(read)
    assert names(15) == ["a.0"]
    assert len(read) == count  # kept
    assert names(25) == ["a.0", "a.1", "a.2", "a.3"]
    assert past.schedule_counts(str(tmp_path), 15, "a.") == {"planned": 1}
    assert past.schedule_job(str(tmp_path), 15, "a.1") is None

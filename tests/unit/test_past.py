"""The work queue at a moment: the compiled fold and the reference fold tell the same."""

from __future__ import annotations

import uuid
from pathlib import Path

from journeyman.servers.http.past_child import ColumnLog, Past, PlainLog
from tests.support.cli_commands import run


def generate(directory: Path, seed: int) -> None:
    done = run("generate", "workq", directory, "--records", 3000, "--seed", seed)
    assert done.exit_code == 0, done.output


def test_both_folds_tell_the_same_at_every_moment(tmp_path: Path):
    directory = tmp_path / "log"
    generate(directory, 5)
    files = sorted(map(str, directory.glob("*.log")))
    plain, columns = PlainLog(files), ColumnLog(files)
    first_ns, last_ns = plain.span()
    assert columns.span() == (first_ns, last_ns)
    moments = [first_ns - 1, *(first_ns + (last_ns - first_ns) * part // 4 for part in range(5))]
    for moment_ns in moments:
        expected = sorted(plain.at(moment_ns), key=lambda job: job.job_id)
        assert sorted(columns.at(moment_ns), key=lambda job: job.job_id) == expected
    assert len(plain.at(last_ns)) > 100


def test_a_page_has_the_records_of_its_jobs(tmp_path: Path):
    directory = tmp_path / "log"
    generate(directory, 6)
    past = Past(str(directory))
    _, last_ns = past.span()
    seen: list[bytes] = []
    begin: int | None = 0
    while begin is not None:
        rows, begin = past.page(last_ns, "", "dead", "", "", begin, 7)
        seen += [job.job_id for job, added, _ in rows if added.job_id == job.job_id]
    dead = [job.job_id for job in past.at(last_ns) if job.state == "dead"]
    assert seen == dead
    assert seen
    whole = str(uuid.UUID(bytes=dead[0]))
    assert [job.job_id for job, _, _ in past.page(last_ns, "", "", whole, "", 0, 5)[0]] == dead[:1]
    changes = past.change(last_ns, last_ns, 10)
    assert (changes["changed"], changes["jobs"]) == (0, [])

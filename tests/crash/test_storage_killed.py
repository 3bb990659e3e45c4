"""A process that writes is killed again and again: what it was told is there, and all fits."""

from __future__ import annotations

import subprocess
import sys
from uuid import UUID

import pytest

from journeyman.formats.keyspace.values import JobRecord
from journeyman.storage import Storage, Upsert
from journeyman.storage.checking import find_problems
from tests.support.crash.copies import copy_files

# Jobs go in, change and go, by two threads; what was acknowledged is a line.
PROGRAM = """
import os, sys, threading
from uuid import UUID
from journeyman.formats.keyspace.values import JobRecord
from journeyman.storage import RemoveJob, SetStatus, Storage, Upsert

engine, directory, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
storage = Storage.open(engine, directory)

def job(number):
    uuid = UUID(int=number)
    return JobRecord(uuid, f"q:{uuid}", "q", "new", number * 1000, number)

def write(lane):
    for number in range(first + lane, 10**9, 2):
        storage.apply([Upsert(job(number)), Upsert(job(number + 10**9))])
        operations = [SetStatus(UUID(int=number), "active"), RemoveJob(UUID(int=number + 10**9))]
        storage.apply(operations)
        os.write(1, b"%d\\n" % number)

for lane in (0, 1):
    threading.Thread(target=write, args=(lane,)).start()
"""
KILLS = 6
STRIDE = 1_000_000


@pytest.mark.parametrize("engine", ["rocksdb", "sqlite"])
def test_nothing_acknowledged_is_lost_and_everything_fits_after_each_kill(engine, tmp_path):
    directory = tmp_path / "store"
    acknowledged: set[int] = set()
    for kill in range(KILLS):
        program = [sys.executable, "-c", PROGRAM, engine, str(directory), str(kill * STRIDE)]
        with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(20 + 37 * kill)]
            process.kill()
            lines += process.stdout.readlines()
        acknowledged |= {int(line) for line in lines if line.endswith(b"\n")}
        with Storage.open(engine, str(directory)) as storage:
            with storage.backend.view() as view:
                assert list(find_problems(view)) == []
            for number in acknowledged:
                job = storage.get_job(UUID(int=number))
                assert job is not None
                assert job.status == "active"
                assert storage.get_job(UUID(int=number + 10**9)) is None
            active = storage.count("q", "active")
            assert active >= len(acknowledged)
            assert len(storage.list_jobs("q", "active", page=active, size=1).jobs) == 1
    assert len(acknowledged) > 20 * KILLS


def test_a_copy_of_the_files_between_two_commits_is_a_store(tmp_path):
    """Each commit is in the files when apply returns, not in the memory of the process."""
    for engine in ("rocksdb", "sqlite"):
        directory = tmp_path / engine
        with Storage.open(engine, str(directory)) as storage:
            for number in range(1, 8):
                uuid = UUID(int=number)
                job = JobRecord(uuid, f"q:{uuid}", "q", "new", number, number)
                storage.apply([Upsert(job)])
                target = tmp_path / f"{engine}-{number}"
                copy_files(directory, target)
                with Storage.open(engine, str(target)) as copy, copy.backend.view() as view:
                    assert copy.count("q", "new") == number
                    assert list(find_problems(view)) == []

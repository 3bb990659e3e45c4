"""Logs of the originals, and what was refused by them, are handed back so that they load there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from journeyman.cli.handover import hand_over
from journeyman.folds import workq as workq_fold
from journeyman.folds import ztick as ztick_fold
from journeyman.formats import workq, ztick
from journeyman.formats.framing import scan
from journeyman.logs.catalog import WORKQ, ZTICK, Log
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.testing import ManualClock
from tests.support import ztick_original
from tests.support.simulated_disk import SimulatedDisk
from tests.support.workq_original import replay_all

pytestmark = pytest.mark.usefixtures("kind_of_disk")

DATA = Path(__file__).parent / "data"
PATH, CMDLOG = "/data/log", "/data/cmdlog"
ZTICK_LOGS = sorted(path.stem for path in (DATA / "ztick").glob("*.log"))
WORKQ_LOGS = sorted(path.parent.name for path in (DATA / "workq").glob("*/description.json"))
# What no history of these jobs can be: a record of a newer version, and values that it refuses.
STILL_REFUSED = {"x-unknown-type", "x-invalid-name", "x-invalid-ttr"}


@pytest.mark.parametrize("name", ZTICK_LOGS)
def test_what_is_read_here_of_a_schedule_is_loaded_by_the_original(name):
    disk = SimulatedDisk()
    disk.plant(PATH, (DATA / "ztick" / f"{name}.log").read_bytes())

    result = hand_over(disk, ManualClock(), Log(ZTICK, PATH, (), whole=True), {})

    assert result.is_safe(accept=False)
    loaded = ztick_original.load(disk.read_bytes(PATH))
    with ZtickLog.open(disk, ManualClock(), PATH) as log:
        assert loaded == ztick_fold.replay(entry.record for entry in log.entries())


@pytest.mark.parametrize("name", WORKQ_LOGS)
def test_what_is_read_here_of_a_work_queue_is_loaded_by_the_original(name):
    disk = SimulatedDisk()
    for path in (DATA / "workq" / name / "cmdlog").iterdir():
        disk.plant(f"{CMDLOG}/{path.name}", path.read_bytes())
    described = json.loads((DATA / "workq" / name / "description.json").read_text())
    clock = ManualClock(described["now_ns"])
    with WorkqLog.open(disk, clock, CMDLOG) as log:
        before = workq_fold.replay(entry.record for entry in log.entries())

    result = hand_over(disk, clock, Log(WORKQ, CMDLOG, (), whole=True), {}, accept=True)

    assert result.is_safe(accept=True) is (name not in STILL_REFUSED)
    records: list[workq.Record] = []
    for path, data in sorted(disk.files().items()):
        if path.endswith(".log"):
            entries, ending = scan(workq.CODEC, data)
            assert ending.clean
            records += [entry.record for entry in entries]
    after = workq_fold.replay(records)
    jobs = {key: each for key, each in before.items() if isinstance(each, workq_fold.FoldedJob)}
    for job in jobs.values():
        job.owed_timeouts = 0
    assert {k: v for k, v in after.items() if isinstance(v, workq_fold.FoldedJob)} == jobs
    if name not in STILL_REFUSED:
        now_ns = clock.now_ns()
        assert set(replay_all(records, now_ns)) >= {
            key for key, job in jobs.items() if workq_fold.visible(job, now_ns)
        }


LOADED = sorted(path.name.partition(".")[0] for path in (DATA / "ztick").glob("*.loaded.txt"))


@pytest.mark.parametrize("name", LOADED)
def test_the_model_loads_the_jobs_that_the_original_loaded(name):
    text = (DATA / "ztick" / f"{name}.loaded.txt").read_text().partition("-- LISTRULES")[0]
    rows = [line.split(" ") for line in text.splitlines() if line.startswith("q ")]
    answered = {(row[1], int(row[3])) for row in rows if len(row) == 4}
    loaded = ztick_original.load((DATA / "ztick" / f"{name}.log").read_bytes())
    jobs = {(r.identifier, r.execution_ns) for r in loaded.values() if isinstance(r, ztick.JobSet)}
    assert jobs == answered

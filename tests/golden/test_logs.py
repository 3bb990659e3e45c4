"""Whole logs of the originals: opened, compacted, cleaned and retired here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from journeyman.folds import workq as workq_fold
from journeyman.folds import ztick as ztick_fold
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.framing import scan
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog, compact_offline
from journeyman.testing import ManualClock
from tests.support.departures import expected_here
from tests.support.simulated_disk import SimulatedDisk
from tests.support.unsealed import without_seals

pytestmark = pytest.mark.usefixtures("kind_of_disk")

DATA = Path(__file__).parent / "data"

# -- ztick -----------------------------------------------------------------------------------

LOG = "/data/logfile"
ZTICK = sorted(path.stem for path in (DATA / "ztick").glob("*.log"))


def ztick_bytes(name: str) -> bytes:
    return (DATA / "ztick" / f"{name}.log").read_bytes()


def ztick_disk(**files: str) -> SimulatedDisk:
    """``active``, ``to_compress`` and ``compressed``, each a golden file."""
    disk = SimulatedDisk()
    for role, name in files.items():
        disk.plant(LOG if role == "active" else f"{LOG}.{role}", ztick_bytes(name))
    return disk


def opened_ztick(disk: SimulatedDisk) -> ZtickLog:
    return ZtickLog.open(disk, ManualClock(), LOG)


def schedule_of(log: ZtickLog) -> ztick_fold.FoldedSchedule:
    return ztick_fold.schedule(ztick_fold.replay(entry.record for entry in log.entries()))


def test_compaction_writes_byte_for_byte_what_the_original_compacts_to():
    disk = ztick_disk(active="b_sets_removes_resets")
    with ZtickLog.open(disk, ManualClock(), LOG, seal=False) as log:
        log.compact()
    assert disk.read_bytes(f"{LOG}.compressed") == ztick_bytes("d1_compressed")
    assert disk.read_bytes(LOG) == b""


def test_what_the_original_compacted_is_loaded_though_itself_it_forgets_it():
    disk = ztick_disk(active="d2_active_after_compression", compressed="d1_compressed")
    with opened_ztick(disk) as log:
        jobs, rules = schedule_of(log)
    alone, _ = scan(ztick.CODEC, ztick_bytes("d2_active_after_compression"))
    assert {entry.record.identifier for entry in alone} < {*jobs, *rules}
    compacted, _ = scan(ztick.CODEC, ztick_bytes("d1_compressed"))
    assert {entry.record.identifier for entry in compacted} <= {*jobs, *rules}


def test_a_compaction_that_the_original_left_is_loaded_and_finished():
    disk = ztick_disk(active="d2_active_after_compression", to_compress="d3_to_compress_input")
    with opened_ztick(disk) as log:
        records = [entry.record for entry in log.entries()]
    left, _ = scan(ztick.CODEC, ztick_bytes("d3_to_compress_input"))
    active, _ = scan(ztick.CODEC, ztick_bytes("d2_active_after_compression"))
    states = ztick_fold.replay(entry.record for entry in (*left, *active))
    assert ztick_fold.replay(records) == states
    assert not disk.exists(f"{LOG}.to_compress")
    kept = without_seals(ztick.CODEC, disk.read_bytes(f"{LOG}.compressed"))
    assert len(kept) < len(ztick_bytes("d3_to_compress_input"))


def test_a_job_and_a_rule_of_one_name_both_survive_unlike_in_the_original():
    disk = ztick_disk(active="d5_same_id_input")
    with opened_ztick(disk) as log:
        before = schedule_of(log)
        log.compact()
        assert schedule_of(log) == before
    kept, _ = scan(ztick.CODEC, disk.read_bytes(f"{LOG}.compressed"))
    originals, _ = scan(ztick.CODEC, ztick_bytes("d6_same_id_compressed"))
    assert {entry.record for entry in originals} < {entry.record for entry in kept}
    assert "same" in before.jobs
    assert "same" in before.rules


@pytest.mark.parametrize("name", ZTICK)
def test_a_log_handed_back_holds_in_one_clean_file_all_that_could_be_read(name):
    disk = ztick_disk(active=name)
    with opened_ztick(disk) as log:
        states = ztick_fold.replay(entry.record for entry in log.entries())
    compact_offline(disk, LOG)
    entries, ending = scan(ztick.CODEC, disk.read_bytes(LOG))
    assert ending.clean
    assert [entry.record for entry in entries] == list(states.values())


def test_records_that_the_original_glued_to_a_torn_one_are_saved():
    with opened_ztick(ztick_disk(active="e4_torn_then_appended")) as log:
        jobs, _ = schedule_of(log)
        assert not log.recovery.clean
    assert {"after.0", "after.1", "after.2"} <= set(jobs)
    assert "torn.3" not in jobs


# -- workq -----------------------------------------------------------------------------------

CMDLOG = "/data/cmdlog"
WORKQ = sorted(path.parent.name for path in (DATA / "workq").glob("*/description.json"))


def workq_disk(name: str) -> SimulatedDisk:
    disk = SimulatedDisk()
    for path in (DATA / "workq" / name / "cmdlog").iterdir():
        disk.plant(f"{CMDLOG}/{path.name}", path.read_bytes())
    return disk


def described(name: str) -> Any:
    return json.loads((DATA / "workq" / name / "description.json").read_text())


def opened_workq(disk: SimulatedDisk, **options: Any) -> WorkqLog:
    return WorkqLog.open(disk, ManualClock(), CMDLOG, **options)


def workq_records(log: WorkqLog) -> list[workq.Record]:
    return [entry.record for entry in log.entries()]


def living(log: WorkqLog, as_of_ns: int) -> dict[str, workq_fold.FoldedJob]:
    states = workq_fold.replay(workq_records(log))
    return {
        str(UUID(bytes=key)): job
        for key, state in states.items()
        if (job := workq_fold.visible(state, as_of_ns)) is not None
    }


@pytest.mark.parametrize("name", WORKQ)
def test_every_log_opens_and_stays_clean(name):
    disk = workq_disk(name)
    with opened_workq(disk) as log:
        records = workq_records(log)
    expected = [record for segment in described(name)["segments"] for record in segment["records"]]
    assert len(records) >= len(expected)
    with opened_workq(disk) as log:
        assert log.recovery.clean
        assert workq_records(log) == records


def test_segments_are_filled_as_the_original_fills_them():
    theirs = workq_disk("b-segments")
    with opened_workq(theirs) as log:
        records = workq_records(log)
    ours = SimulatedDisk()
    with opened_workq(ours, segment_bytes=400) as log:
        for record in records:
            log.append([record])
    assert ours.files() == theirs.files()
    assert len(ours.files()) == 5 + 2


def test_cleaning_does_not_bring_a_deleted_job_back_as_the_original_does():
    before, after = described("c-live-0-before"), described("c-live-1-after")
    now_ns, deleted_id = after["now_ns"], before["deleted_id"]
    with opened_workq(workq_disk("c-live-1-after")) as log:
        assert deleted_id in living(log, now_ns), "the original brings it back"
    with opened_workq(workq_disk("c-live-0-before")) as log:
        expected = living(log, now_ns)
        report = log.clean(now_ns, thorough=True)
        assert report.rewritten == 3
        # No less goes than with the original: the add it keeps stays as well, so does its delete.
        assert report.records_dropped == 8
        assert living(log, now_ns) == expected
        assert deleted_id not in expected
        # Once the delete has settled, both go.
        assert log.clean(now_ns + 60 * 10**9, thorough=True).records_dropped == 2
        assert living(log, now_ns) == expected


def test_only_the_segment_that_is_wholly_expired_goes_at_once():
    name = "c-clean-0-before"
    disk = workq_disk(name)
    now_ns = described(name)["now_ns"]
    with opened_workq(disk) as log:
        expected = living(log, now_ns + 10**10)
        report = log.clean(now_ns + 10**10)
        assert (report.removed, report.rewritten) == (1, 0)
        assert not disk.exists(f"{CMDLOG}/000000005.log")
        assert living(log, now_ns + 10**10) == expected


@pytest.mark.parametrize(
    "name", ["a-all-types", "b-segments", "c-clean-0-before", "f-never-expires"]
)
def test_cleaning_all_that_may_go_changes_no_job(name):
    disk = workq_disk(name)
    now_ns = described(name)["now_ns"]
    with opened_workq(disk) as log:
        expected = living(log, now_ns)
        assert set(expected) == {job["id"] for job in described(name)["state_after_replay"]}
        log.clean(now_ns, thorough=True)
        assert living(log, now_ns) == expected


# -- kestrel ---------------------------------------------------------------------------------

SPOOL = "/data/spool"
FOLDERS = sorted(path.parent.name for path in (DATA / "kestrel").glob("q*/case.json"))
ROTATIONS = json.loads((DATA / "kestrel" / "rotation.json").read_text())["cases"]


def kestrel_case(name: str) -> tuple[SimulatedDisk, str, Any]:
    disk = SimulatedDisk()
    files = [p for p in (DATA / "kestrel" / name).iterdir() if p.name != "case.json"]
    for path in files:
        disk.plant(f"{SPOOL}/{path.name}", path.read_bytes())
    queue = files[0].name.partition(".")[0]
    case = json.loads((DATA / "kestrel" / name / "case.json").read_text())
    return disk, queue, expected_here(name, case["expect"])


@pytest.mark.parametrize(
    "case", ROTATIONS, ids=lambda case: f"{case['max']}-{case['item_bytes'][0]}"
)
def test_items_fall_into_the_segments_they_fall_into_with_the_original(case):
    disk = SimulatedDisk()
    with KestrelLog.open(
        disk, ManualClock(), SPOOL, "jobs", segment_bytes=case["max"], seal=False
    ) as journal:
        for size in case["item_bytes"]:
            journal.put(bytes(size))
        found = [list(range(s.first_id, s.last_id + 1)) for s in journal.segments]
    assert found == case["files"]
    for path, data in disk.files().items():
        assert "read" in path or len(data) <= case["max"]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_queue_opens_as_it_should(name):
    disk, queue, expected = kestrel_case(name)
    with KestrelLog.open(disk, ManualClock(), SPOOL, queue) as journal:
        assert journal.tail == expected.get("tail", 8000)
        assert journal.recovery.clean
        if order := expected.get("order") or expected.get("writer_files"):
            assert [s.path.rpartition("/")[2] for s in journal.segments] == order
        assert set(journal.readers) == set(expected["readers"])
        for reader_name, place in expected["readers"].items():
            reader = journal.readers[reader_name]
            assert reader.head == place["head"]
            assert sorted(reader.done) == place.get("done", [])
            items = (item.item_id for item in journal.items(reader.head))
            assert list(reader.undelivered(items)) == place.get("deliver", [])
    left = {path.rpartition("/")[2] for path in disk.files()}
    assert not left & set(expected.get("deleted_at_open", []))
    assert left >= set(expected.get("ignored", []))


@pytest.mark.parametrize("name", FOLDERS)
def test_the_next_id_is_above_all_that_the_files_have_seen(name):
    """As expected of the originals' folders, but for one whose readers are ahead of the items."""
    disk, queue, expected = kestrel_case(name)
    with KestrelLog.open(disk, ManualClock(), SPOOL, queue) as journal:
        ahead = {"q04_head_in_future": 404}
        assert journal.next_id == ahead.get(name, expected.get("next_id", 8001))


def test_segments_go_as_they_go_with_the_original():
    disk, queue, expected = kestrel_case("q11_fanout")
    with KestrelLog.open(disk, ManualClock(), SPOOL, queue) as journal:
        assert journal.retain() == [f"{SPOOL}/{name}" for name in expected["erased_by_checkpoint"]]


def test_the_checkpoint_of_a_new_queue_is_that_of_the_original():
    disk = SimulatedDisk()
    KestrelLog.open(disk, ManualClock(), SPOOL, "jobs", seal=False).close()
    golden = DATA / "kestrel" / "r06_spec_new_queue" / "jobs.read."
    assert disk.read_bytes(f"{SPOOL}/jobs.read.") == golden.read_bytes()


def test_a_checkpoint_is_written_as_the_original_writes_it():
    golden = (DATA / "kestrel" / "r05_spec_checkpoint" / "jobs.read.").read_bytes()
    entries, _ = scan(kestrel.READER, golden)
    disk = SimulatedDisk()
    disk.plant(f"{SPOOL}/jobs.read.", golden)
    disk.plant(f"{SPOOL}/jobs.1", kestrel.WRITER.header + put(1) + put(99_999))
    with KestrelLog.open(disk, ManualClock(), SPOOL, "jobs", seal=False) as journal:
        reader = journal.readers[""]
        journal.checkpoint("", reader)
    assert disk.read_bytes(f"{SPOOL}/jobs.read.") == golden
    assert len(entries) == 2


def put(item_id: int) -> bytes:
    return kestrel.WRITER.encode(kestrel.ItemPut(item_id, 0, None, 0, b""))

"""The folds against logs of the originals, and what the originals make of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from journeyman.folds import Anomaly, AnomalyKind, kestrel, workq, ztick
from journeyman.formats import kestrel as kestrel_format
from journeyman.formats import workq as workq_format
from journeyman.formats import ztick as ztick_format
from journeyman.formats.framing import scan
from tests.support.departures import expected_here

DATA = Path(__file__).parent / "data"

# -- ztick -----------------------------------------------------------------------------------

# The original compacts by bare identifier, so here a job and a rule of one name destroy each other.
SAME_ID = "d5_same_id_input"
ZTICK = sorted(path.stem for path in (DATA / "ztick").glob("*.log"))
COMPACTED = [name for name in ZTICK if name != SAME_ID]
LOADED = [name for name in ZTICK if (DATA / "ztick" / f"{name}.loaded.txt").exists()]


def ztick_records(name: str) -> list[ztick_format.Record]:
    entries, _ = scan(ztick_format.CODEC, (DATA / "ztick" / f"{name}.log").read_bytes())
    return [entry.record for entry in entries]


def in_words(record: ztick_format.Record) -> dict[str, Any]:
    """A record as ``ztick dump --format json`` prints it."""
    if isinstance(record, ztick_format.JobSet):
        return {
            "type": "set",
            "identifier": record.identifier,
            "execution": record.execution_ns,
            "status": record.status.word,
        }
    assert isinstance(record, ztick_format.RuleSet)
    runner = record.runner
    fields = {name: getattr(runner, name) for name in runner.__dataclass_fields__}
    fields = {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}
    return {
        "type": "rule_set",
        "identifier": record.identifier,
        "pattern": record.pattern,
        "runner": {"type": type(runner).__name__.lower(), **fields},
    }


@pytest.mark.parametrize("name", COMPACTED)
def test_ztick_states_in_order_are_the_log_that_the_original_compacts_to(name):
    lines = (DATA / "ztick" / f"{name}.compact.jsonl").read_text().splitlines()
    states = ztick.replay(ztick_records(name))
    assert [in_words(state) for state in states.values()] == [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", LOADED)
def test_ztick_schedule_is_what_the_original_loads(name):
    text = (DATA / "ztick" / f"{name}.loaded.txt").read_text()
    jobs, rules = ztick.schedule(ztick.replay(ztick_records(name)))
    # Jobs that were due have run by the time the original was asked: their status is another.
    listed = re.findall(r"^q (\S+) \w+ (-?\d+)$", text, re.MULTILINE)
    assert sorted((job.identifier, str(job.execution_ns)) for job in jobs.values()) == listed
    assert sorted(rules) == re.findall(r"^l (\S+) \S+ \w+ .*$", text, re.MULTILINE)
    assert f"loaded {len(jobs)} jobs, {len(rules)} rules" in text


def test_a_job_and_a_rule_of_one_name_survive_compaction_together():
    states = ztick.replay(ztick_records(SAME_ID))
    assert list(states) == [("job", "same"), ("rule", "same"), ("job", "keep"), ("job", "gone")]


@pytest.mark.parametrize("name", ZTICK)
def test_no_log_of_the_ztick_server_holds_an_orphan(name):
    notes: list[Anomaly] = []
    ztick.replay(ztick_records(name), notes.append)
    assert notes == []


# -- workq -----------------------------------------------------------------------------------

WORKQ = sorted(path.parent.name for path in (DATA / "workq").glob("*/description.json"))
DESCRIBED = {
    name: json.loads((DATA / "workq" / name / "description.json").read_text()) for name in WORKQ
}
# Where the original is wrong, or gives up: what is read instead, and what is reported.
RACED = "x-complete-before-add"
REPLAYED = [n for n in WORKQ if DESCRIBED[n]["replay_error"] is None and n != RACED]
REFUSED = {
    "x-dup-add": ([AnomalyKind.REPEATED_ADD], "Duplicate job", 0, 0),
    "x-invalid-name": ([AnomalyKind.UNUSABLE_VALUE], "Invalid Name", 0, 0),
    "x-invalid-ttr": ([AnomalyKind.UNUSABLE_VALUE], "Invalid TTR", 0, 0),
    "x-start-after-complete": ([AnomalyKind.START_AFTER_FINISH], "Job already processed", 1, 0),
    "x-start-start": ([AnomalyKind.START_WHILE_LEASED], "Job already leased", 4, 2),
}
BROKEN = [n for n in WORKQ if DESCRIBED[n]["fault"] is not None]


def workq_records(name: str) -> list[workq_format.Record]:
    """All records up to the first fault."""
    records: list[workq_format.Record] = []
    for path in sorted((DATA / "workq" / name / "cmdlog").glob("*.log")):
        entries, ending = scan(workq_format.CODEC, path.read_bytes())
        records += [entry.record for entry in entries]
        if not ending.clean:
            break
    return records


def as_described(job: workq.FoldedJob, now_ns: int) -> dict[str, Any]:
    added = job.added
    return {
        "id": str(UUID(bytes=added.job_id)),
        "cmd": added.command.word,
        "name": added.name,
        "ttr": added.ttr_ms,
        "ttl": added.ttl_ms,
        "priority": added.priority,
        "max_attempts": added.max_attempts,
        "max_fails": added.max_fails,
        "payload_hex": added.payload.hex(),
        "time_ns": None if added.time is None else added.time.unix_ns,
        "created_ns": added.created.unix_ns,
        "state": int(job.state),
        "attempts": job.attempts,
        "fails": job.fails,
        "result_hex": None if job.result is None else job.result.hex(),
        "queue": workq.queue_of(job, now_ns),
    }


def listing(records: list[workq_format.Record], now_ns: int) -> list[dict[str, Any]]:
    states = workq.replay(records).values()
    jobs = [job for state in states if (job := workq.visible(state, now_ns)) is not None]
    return [as_described(job, now_ns) for job in sorted(jobs, key=workq.queue_order)]


def replayed_with_notes(name: str) -> tuple[workq.State, list[AnomalyKind]]:
    """The one job of a small log."""
    notes: list[Anomaly] = []
    (state,) = workq.replay(workq_records(name), notes.append).values()
    return state, [note.kind for note in notes]


def test_every_golden_log_of_workq_is_accounted_for():
    assert len(REPLAYED) == 12
    assert sorted([*REPLAYED, RACED, *REFUSED, *BROKEN]) == WORKQ


@pytest.mark.parametrize("name", REPLAYED)
def test_workq_jobs_are_those_of_the_original_in_the_same_order(name):
    described = DESCRIBED[name]
    theirs = described["state_after_replay"]
    ours = listing(workq_records(name), described["now_ns"])
    # Theirs have time and created in words as well.
    assert ours == [
        {k: v for k, v in job.items() if k not in {"time", "created"}} for job in theirs
    ]


def test_a_job_completed_before_its_add_does_not_come_back():
    job, kinds = replayed_with_notes(RACED)
    assert isinstance(job, workq.FoldedJob)
    assert (job.state, job.attempts, job.result) == (workq.JobState.COMPLETED, 1, b"r")
    assert kinds == [AnomalyKind.ORPHAN] * 2 + [AnomalyKind.ADOPTED_ORPHAN] * 2
    assert DESCRIBED[RACED]["state_after_replay"][0]["state"] == workq.JobState.NEW  # the original


@pytest.mark.parametrize("name", REFUSED)
def test_a_log_that_the_original_refuses_is_read_and_reported(name):
    kinds, message, state, attempts = REFUSED[name]
    assert DESCRIBED[name]["replay_error"] == message
    job, reported = replayed_with_notes(name)
    assert isinstance(job, workq.FoldedJob)
    assert (job.state, job.attempts) == (state, attempts)
    assert reported == kinds
    assert workq.visible(job, DESCRIBED[name]["now_ns"]) is job


@pytest.mark.parametrize(
    "name", ["d-truncated-crc", "d-truncated-payload", "d-truncated-time", "e-crc-flipped-last"]
)
def test_a_log_that_ends_in_a_fault_is_read_up_to_it(name):
    whole = DESCRIBED["d-truncated-at-boundary"]
    assert listing(workq_records(name), whole["now_ns"]) == listing(
        workq_records(whole["dir"]), whole["now_ns"]
    )


def test_orphans_make_no_job_and_are_reported():
    state, kinds = replayed_with_notes("x-orphans")
    records = workq_records("x-orphans")
    # The delete stays, should its add still come, and so does what follows the expire.
    assert state == workq.Orphans([records[2], *records[4:]])  # type: ignore[list-item]
    assert kinds == [AnomalyKind.ORPHAN] * 6
    assert workq.without_orphans(state) is None


def test_what_run_leaves_in_the_log_is_reported_and_forgotten():
    notes: list[Anomaly] = []
    states = workq.replay(workq_records("a-all-types"), notes.append)
    assert [note.kind for note in notes] == [AnomalyKind.ORPHAN] * 4
    assert all(isinstance(state, workq.FoldedJob) for state in states.values())


@pytest.mark.parametrize("name", WORKQ)
def test_a_log_of_snapshots_reads_as_the_log_itself(name):
    states = workq.replay(workq_records(name))
    compacted = [record for state in states.values() for record in workq.snapshot(state)]
    assert workq.replay(compacted) == states


# -- kestrel ---------------------------------------------------------------------------------

QUEUES = sorted(path.parent.name for path in (DATA / "kestrel").glob("q*/case.json"))
EXPECTED = {
    name: expected_here(
        name, json.loads((DATA / "kestrel" / name / "case.json").read_text())["expect"]
    )
    for name in QUEUES
}


def kestrel_records(name: str, file: str) -> list[kestrel_format.Record]:
    codec = kestrel_format.READER if ".read." in file else kestrel_format.WRITER
    entries, ending = scan(codec, (DATA / "kestrel" / name / file).read_bytes())
    assert ending.clean
    return [entry.record for entry in entries]


class Folder:
    """A queue's files, folded; the names are told apart by rules that are not the fold's."""

    def __init__(self, name: str) -> None:
        files = sorted(path.name for path in (DATA / "kestrel" / name).iterdir())
        names = [f for f in files if re.fullmatch(r"\w+\.(\d+|read\.\w*)", f)]
        segments = {f: kestrel.replay(kestrel_records(name, f)) for f in names if "read" not in f}
        self.first_ids = {min(items): f for f, items in segments.items()}
        self.order = [self.first_ids[first] for first in sorted(self.first_ids)]
        self.ids = [item_id for f in self.order for item_id in segments[f]]
        self.readers = {
            f.split(".", 2)[2]: kestrel.fold_reader(kestrel_records(name, f))
            for f in names
            if "read" in f
        }
        self.view = kestrel.open_queue(self.ids, self.readers)


@pytest.mark.parametrize("name", QUEUES)
def test_queue_ends_where_it_is_expected_to(name):
    expected = EXPECTED[name]
    view = Folder(name).view
    assert view.tail == expected.get("tail", 8000)
    assert view.next_id == expected.get("next_id", 8001)


@pytest.mark.parametrize("name", QUEUES)
def test_readers_stand_where_they_are_expected_and_get_what_is_left(name):
    folder = Folder(name)
    assert set(folder.view.readers) == set(EXPECTED[name]["readers"])
    for reader_name, expected in EXPECTED[name]["readers"].items():
        reader = folder.view.readers[reader_name]
        assert reader.head == expected["head"]
        assert sorted(reader.done) == expected.get("done", [])
        assert list(reader.undelivered(folder.ids)) == expected.get("deliver", [])


@pytest.mark.parametrize(
    ("name", "key"), [("q01_segments", "order"), ("q06_names", "writer_files")]
)
def test_segments_stand_in_the_order_of_their_ids(name, key):
    assert Folder(name).order == EXPECTED[name][key]


def test_segments_that_all_readers_have_passed_may_go():
    folder = Folder("q11_fanout")
    retired = folder.view.retired(sorted(folder.first_ids))
    assert [folder.first_ids[first] for first in retired] == EXPECTED["q11_fanout"][
        "erased_by_checkpoint"
    ]


def test_the_default_reader_yields_to_named_ones():
    assert "test.read." in EXPECTED["q06_names"]["deleted_at_open"]
    assert kestrel.DEFAULT_READER not in Folder("q06_names").view.readers


@pytest.mark.parametrize(
    ("name", "head", "done"),
    [
        ("r01_spec_read_head", 511, set()),
        ("r02_spec_read_done", 0, {10, 20, 30}),
        ("r03_spec_done_before_head", 65536, {65538}),
        ("r04_spec_unknown_command", 16384, set()),
        ("r05_spec_checkpoint", 123, {125, 130}),
        ("r06_spec_new_queue", 0, set()),
        ("r13_repeated", 10, {12, 14}),
        ("r14_header_only", 0, set()),
    ],
)
def test_checkpoint_is_folded_to_head_and_finished_ids(name, head, done):
    assert kestrel.fold_reader(kestrel_records(name, "jobs.read.")) == kestrel.Reader(head, done)


@pytest.mark.parametrize("name", ["r05_spec_checkpoint", "r06_spec_new_queue", "r11_head_done"])
def test_snapshot_of_a_checkpoint_is_the_file_that_the_original_wrote(name):
    records = kestrel_records(name, "jobs.read.")
    assert list(kestrel.snapshot_reader(kestrel.fold_reader(records))) == records


def test_reader_records_in_a_writer_file_are_passed_over_and_reported():
    case = json.loads((DATA / "kestrel" / "w25_read_records_in_writer" / "case.json").read_text())
    described = case["files"][0]
    notes: list[Anomaly] = []
    records = kestrel_records("w25_read_records_in_writer", described["name"])
    items = kestrel.replay(records, notes.append)
    words = [record["command"] for record in described["records"]]
    assert list(items) == [r["item_id"] for r in described["records"] if r["command"] == "PUT"]
    assert [note.kind for note in notes] == [AnomalyKind.MISPLACED_RECORD] * (
        len(words) - words.count("PUT")
    )
    assert notes

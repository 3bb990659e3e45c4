"""Records of a newer writer are not damage: kept, shown, and stepped over by every reader."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from journeyman.clock import SystemClock
from journeyman.columnar.kestrel import decode as kestrel_columns
from journeyman.columnar.workq import decode as workq_columns
from journeyman.columnar.workq.fold import events_and_adds
from journeyman.columnar.workq.fold import fold as fold_in_bulk
from journeyman.disk import RealDisk
from journeyman.engines.workq.loading import WorkqLoader
from journeyman.errors import EncodeError, StringOverflow
from journeyman.folds import Anomaly, AnomalyKind
from journeyman.folds import kestrel as kestrel_fold
from journeyman.folds import workq as workq_fold
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.timed_frame import Instant, write_frame, write_time
from journeyman.formats.workq import Command, NewerCommand, UnknownCommand
from journeyman.logs.recovery import recover_file
from journeyman.logs.segments import Position
from journeyman.logs.workq.cleaning import Cleaner, read_segment
from journeyman.logs.ztick.log import ZtickLog
from journeyman.servers.core import bulk_loading
from journeyman.servers.core.bulk_loading import WORKQ_READER, LogLoading
from tests.support.bulk_here import read_here
from tests.support.cli_commands import (
    NOW_NS,
    added,
    event,
    put,
    rows,
    run,
    write_segment,
    write_workq,
)
from tests.support.columnar_twins import JOURNAL, WORKQ, Twins
from tests.support.loaded_engines import load_work_queue
from tests.support.spark.pieces import expected_items, items_of, log_file, options_of, pieces_of

DAY_NS = 86_400_000_000_000


def newer(number: int, at_ns: int = NOW_NS, command: int = 9) -> UnknownCommand:
    job_id = event(number, Command.DELETE).job_id
    return UnknownCommand(Instant(at_ns), job_id, NewerCommand(command), b"what it says")


def without_id(size: int, command: int) -> UnknownCommand:
    """A record that has only ``size`` bytes where the others have an id; 0: its type alone."""
    part = bytes(range(1, size + 1)).ljust(workq.ID_BYTES, b"\0")
    return UnknownCommand(Instant(NOW_NS), part, NewerCommand(command), b"", workq.ID_BYTES - size)


# Before the add, in every state of a job, behind its end, and of a job that is not known.
LIFE: list[workq.Record] = [
    newer(1),
    added(1),
    newer(1, command=200),
    event(1, Command.START_ATTEMPT, at_ns=NOW_NS + 1),
    newer(1),
    added(2),
    event(2, Command.START_ATTEMPT, at_ns=NOW_NS + 2),
    event(2, Command.TIMEOUT_ATTEMPT, at_ns=NOW_NS + 3),
    newer(2),
    added(3),
    event(3, Command.DELETE, at_ns=NOW_NS + 4),
    newer(3),
    newer(4, command=0),
    *(without_id(size, command=size + 9) for size in (0, 1, 8, 15)),
    added(5),
    without_id(0, command=9),
]
KNOWN = [record for record in LIFE if not isinstance(record, UnknownCommand)]

PUT_WORDS = b"\4\0\0\0" + bytes(32)
NEWER_PUT = kestrel.UnknownCommand(0x89, PUT_WORDS, b"item")
QUEUE: list[kestrel.Record] = [put(1), NEWER_PUT, put(2), NEWER_PUT]


@pytest.mark.parametrize("size", range(16))
def test_a_record_of_a_newer_writer_may_have_no_id(size: int):
    payload = bytes((100, *range(1, size + 1)))
    data = write_frame(write_time(Instant(NOW_NS)), payload)
    entry = workq.CODEC.decode(data, 0)
    assert entry is not None
    assert (entry.record, entry.length) == (without_id(size, 100), len(data))
    assert workq.CODEC.encode(entry.record) == data


def test_a_known_command_must_have_an_id():
    data = write_frame(write_time(Instant(NOW_NS)), bytes((Command.DELETE, 1, 2)))
    with pytest.raises(StringOverflow):
        workq.CODEC.decode(data, 0)


@pytest.mark.parametrize(
    "record",
    [
        UnknownCommand(Instant(NOW_NS), bytes(16), NewerCommand(9), b"body", 16),
        UnknownCommand(Instant(NOW_NS), b"\1" * 16, NewerCommand(9), b"", 1),
        UnknownCommand(Instant(NOW_NS), bytes(16), NewerCommand(9), b"", 17),
    ],
)
def test_what_would_be_read_as_another_record_is_not_written(record: UnknownCommand):
    with pytest.raises(EncodeError):
        workq.CODEC.encode(record)


def test_the_fold_of_workq_steps_over_them_and_says_so():
    notes: list[Anomaly] = []
    assert workq_fold.replay(LIFE, notes.append) == workq_fold.replay(KNOWN)
    unknown = [note for note in notes if note.kind is AnomalyKind.UNKNOWN_COMMAND]
    assert len(unknown) == len(LIFE) - len(KNOWN)
    assert all(isinstance(note.records[0], UnknownCommand) for note in unknown)


def test_the_engine_loads_the_same_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_workq(tmp_path / "log", LIFE) / "000000001.log"
    plain = load_work_queue(KNOWN, now_ns=NOW_NS)
    assert dict(plain._state.jobs) == dict(load_work_queue(LIFE, now_ns=NOW_NS)._state.jobs)
    monkeypatch.setattr(bulk_loading, "read", read_here)
    loading = LogLoading(
        RealDisk(), workq.CODEC, WORKQ_READER, lambda: WorkqLoader(now_ns=NOW_NS), bulk_bytes=0
    )
    assert loading.add_all([str(path)]) is not None
    assert dict(loading.loader.finish()._state.jobs) == dict(plain._state.jobs)
    entries, report = recover_file(RealDisk(), workq.CODEC, str(path))
    assert report.clean
    assert [entry.record for entry in entries] == LIFE


def test_the_fold_in_bulk_steps_over_them():
    def states(records: Sequence[workq.Record]) -> list[list[int]]:
        data = workq.HEADER + b"".join(map(workq.CODEC.encode, records))
        batches = [chunk.batch for chunk in workq_columns.iter_batches(data)]
        whole = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        events, adds = events_and_adds(whole, 0)
        found = fold_in_bulk(events, adds, lambda _: pytest.fail("nothing to read again"))
        return sorted(row[:1] + row[3:5] for row in found.jobs.tolist())

    assert states(LIFE) == states(KNOWN)
    assert len(states(LIFE)) == 3


@pytest.mark.parametrize(
    ("twins", "data"),
    [
        (WORKQ, workq.HEADER + b"".join(map(workq.CODEC.encode, LIFE))),
        (JOURNAL, kestrel.WRITER.header + b"".join(map(kestrel.WRITER.encode, QUEUE))),
    ],
    ids=["workq", "kestrel"],
)
def test_spark_reads_them_as_rows_wherever_the_file_is_cut(twins: Twins, data: bytes, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(data)
    file = log_file(path, twins)
    expected = expected_items(twins, data, file)
    assert len(expected) == len(LIFE if twins is WORKQ else QUEUE)
    for cut in range(0, len(data), 5):
        assert items_of(pieces_of(file, [cut]), options_of(twins)) == expected


def test_dump_and_verify_show_them(tmp_path: Path):
    log = write_workq(tmp_path / "log", [added(1), newer(1, command=77)])
    segment = write_segment(tmp_path / "queue" / "q.1", *QUEUE)

    (_, unknown) = rows(run("dump", "--json", log))
    text = run("dump", log)
    items = rows(run("dump", "--json", segment))

    assert (unknown["cmd"], unknown["code"]) == ("unknown", 77)
    assert bytes.fromhex(unknown["body_hex"]) == b"what it says"
    assert "unknown command 77 " in text.stdout
    assert [item["command"] for item in items] == ["PUT", "UNKNOWN", "PUT", "UNKNOWN"]
    for path in (log, segment):
        assert run("verify", path).exit_code == 0
        assert run("dump", path).stderr == ""


def test_the_fold_of_kestrel_steps_over_them():
    notes: list[Anomaly] = []
    items = kestrel_fold.replay(QUEUE, notes.append)
    assert list(items) == [1, 2]
    assert [note.kind for note in notes] == 2 * [AnomalyKind.UNKNOWN_COMMAND]
    data = kestrel.WRITER.header + b"".join(map(kestrel.WRITER.encode, QUEUE))
    (chunk,) = kestrel_columns.iter_batches(data)
    kinds = chunk.batch.column("kind").to_pylist()
    assert kinds == [kestrel_columns.PUT, kestrel_columns.UNKNOWN_PUT] * 2


def test_cleaning_keeps_what_a_newer_writer_says_of_jobs_that_live_or_are_not_known(tmp_path):
    over = added(1, ttl_ms=1)
    first: list[workq.Record] = [over, newer(1), added(2, ttl_ms=10 * 86_400_000), newer(2)]
    log = write_workq(tmp_path / "log", [*first, newer(3)], [added(4)])
    paths = [str(log / f"00000000{n}.log") for n in (1, 2)]
    disk = RealDisk()

    end = Position(paths[1], disk.size(paths[1]))
    report = Cleaner(disk).clean(paths[:1], end, NOW_NS + DAY_NS, thorough=True)

    assert report.records_dropped == 2
    kept: list[Any] = [entry.record for entry in read_segment(disk, paths[0])]
    assert kept == [*first[2:], newer(3)]
    assert all(a.logged.unix_ns <= b.logged.unix_ns for a, b in pairwise(kept))


def test_a_rule_of_a_newer_schedule_is_set_aside_and_costs_no_other_record(tmp_path):
    known = ztick.RuleSet("known", "a.", ztick.Shell("x"))
    rule = ztick.CODEC.encode(ztick.RuleSet("newer", "b.", ztick.Shell("x")))
    unknown = rule[:-4] + b"\x63" + rule[-3:]  # runner 99
    path = tmp_path / "log"
    path.write_bytes(ztick.CODEC.encode(known) + unknown + ztick.CODEC.encode(known))

    log = ZtickLog.open(RealDisk(), SystemClock(), str(path))
    kept = [entry.record for entry in log.entries()]
    log.close()

    assert kept == [known, known]
    (aside,) = (tmp_path / "quarantine").iterdir()
    assert aside.read_bytes() == unknown

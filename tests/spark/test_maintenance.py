"""Compacting and cleaning on Spark: the state stays, the rest goes, nothing is left half done."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from journeyman.cli import journeyman
from journeyman.errors import LogError
from journeyman.folds import kestrel as kestrel_fold
from journeyman.folds import workq as workq_fold
from journeyman.folds import ztick as ztick_fold
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.framing import Codec, scan
from journeyman.formats.seals import SealKind, make_seal
from journeyman.formats.timed_frame import Instant
from journeyman.logs.segments import workq_segments
from journeyman.spark.maintenance import clean, compact, compaction, holding
from tests.support.spark.stream_driver import (
    open_kestrel,
    open_workq,
    open_ztick,
    put_items,
    set_jobs,
)
from tests.support.unsealed import scan_records
from tests.support.workq_logs import (
    added,
    as_of,
    completed,
    deleted,
    event,
    expired,
    job_id,
    started,
)


def records_in(codec: Codec[Any], *paths: Path) -> list[Any]:
    found = []
    for path in paths:
        entries, ending = (scan_records if codec.seals else scan)(codec, path.read_bytes())
        assert ending.clean
        found += [entry.record for entry in entries]
    return found


def write_ztick(path: Path, seed: int, count: int = 400) -> None:
    """All three files, with jobs and rules set, changed and removed across them."""
    chance = random.Random(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".compressed", ".to_compress", ""):
        records: list[ztick.Record] = []
        for _ in range(count):
            name = f"job.{chance.randrange(60)}"
            if chance.random() < 0.2:
                records.append(ztick.JobRemoved(name))
            elif chance.random() < 0.1:
                records.append(ztick.RuleSet(name, "job.", ztick.Direct("/bin/true", ("é", ""))))
            elif chance.random() < 0.05:
                records.append(ztick.RuleRemoved(name))
            else:
                status = ztick.Status(chance.randrange(4))
                records.append(ztick.JobSet(name, chance.getrandbits(60), status))
        data = b"".join(map(ztick.CODEC.encode, records))
        Path(f"{path}{suffix}").write_bytes(data)


def test_ztick_logs_of_many_hosts_are_compacted_in_log_order_at_once(spark, tmp_path):
    paths = [tmp_path / f"host={host}" / "logfile" for host in "abc"]
    expected = {}
    for seed, path in enumerate(paths):
        write_ztick(path, seed)
        files = [Path(f"{path}{suffix}") for suffix in (".compressed", ".to_compress", "")]
        expected[path] = ztick_fold.replay(records_in(ztick.CODEC, *files))
    with open_ztick(paths[2]):  # in use: left alone, the others are not
        outcomes = compact(spark, "ztick", [str(tmp_path)])
    assert [bool(outcome.error) for outcome in outcomes] == [False, False, True]
    assert "is in use" in str(outcomes[2].error)
    for path, outcome in zip(paths[:2], outcomes[:2], strict=True):
        assert outcome.changed
        assert outcome.records_before == 1200
        assert outcome.bytes_after == path.stat().st_size < outcome.bytes_before
        assert sorted(each.name for each in path.parent.iterdir()) == ["logfile", "logfile.lock"]
        records = records_in(ztick.CODEC, path)
        assert len(records) == outcome.records_after
        # One record a key, in the order in which the log had them last.
        assert list(ztick_fold.replay(records).items()) == list(expected[path].items())
        assert len({ztick_fold.key_of(record) for record in records}) == len(records)


def test_a_damaged_log_is_left_alone(spark, tmp_path):
    path = tmp_path / "logfile"
    write_ztick(path, 7)
    damaged = path.read_bytes()[:100] + b"\xff" * 50 + path.read_bytes()[150:]
    path.write_bytes(damaged)
    (outcome,) = compact(spark, "ztick", [str(path)])
    assert "is damaged" in str(outcome.error)
    assert path.read_bytes() == damaged
    assert not list(tmp_path.glob("_*"))


def test_a_result_of_another_state_is_not_published(spark, tmp_path, monkeypatch):
    path = tmp_path / "logfile"
    write_ztick(path, 8)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    whole = compaction.write_compacted
    monkeypatch.setattr(
        compaction,
        "write_compacted",
        lambda tables, staged, seals: whole(
            {**tables, "rules": tables["rules"].limit(0)}, staged, seals=seals
        ),
    )
    (outcome,) = compact(spark, "ztick", [str(path)])
    assert "hold another state: rules" in str(outcome.error)
    after = {each.name: each.read_bytes() for each in tmp_path.iterdir() if each.suffix != ".lock"}
    assert after == before


def test_a_torn_tail_is_put_aside_and_the_rest_compacted(spark, tmp_path):
    path = tmp_path / "logfile"
    record = ztick.CODEC.encode(ztick.JobSet("a", 1, ztick.Status.PLANNED))
    path.write_bytes(record + record + record[:-2])
    (outcome,) = compact(spark, "ztick", [str(path)])
    assert outcome.error is None
    assert path.read_bytes() == record
    assert [each.read_bytes() for each in (tmp_path / "quarantine").iterdir()] == [record[:-2]]


def test_a_batch_that_is_not_whole_is_put_aside_and_the_rest_compacted(spark, tmp_path):
    path = tmp_path / "logfile"
    with open_ztick(path) as log:
        set_jobs(log, *range(5))
    assert ztick.CODEC.seals is not None
    seal = ztick.CODEC.seals.size
    record = ztick.CODEC.encode(ztick.JobSet("cut.short", 1, ztick.Status.PLANNED))
    whole = path.read_bytes()[:-seal]
    batch = make_seal(ztick.CODEC.seals, SealKind.BLOCK, 7, len(whole), record) + record[:-1]
    path.write_bytes(whole + batch)  # a crash: neither all of a batch nor a stop
    (outcome,) = compact(spark, "ztick", [str(path)])
    assert outcome.error is None
    assert {each.identifier for each in records_in(ztick.CODEC, path)} == {
        f"job.{number}" for number in range(5)
    }
    assert [each.read_bytes() for each in (tmp_path / "quarantine").iterdir()] == [batch]


def assert_flipped_bits_are_noticed(codec: Codec[Any], path: Path) -> None:
    """By ``verify``, wherever they stand between the opening and the closing seal."""
    assert codec.seals is not None
    whole = path.read_bytes()
    begin = codec.check_header(whole) + codec.seals.size
    end = len(whole) - codec.seals.size
    for at in [*range(begin, end, (end - begin) // 12), end - 1]:
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 4,)) + whole[at + 1 :])
        assert CliRunner().invoke(journeyman, ["verify", str(path), "-q"]).exit_code == 1, at
    path.write_bytes(whole)
    assert CliRunner().invoke(journeyman, ["verify", str(path), "-q"]).exit_code == 0


def test_a_sealed_ztick_log_stays_sealed(spark, tmp_path):
    path = tmp_path / "logfile"
    with open_ztick(path) as log:
        set_jobs(log, *range(5000))
        log.compact()
        set_jobs(log, *range(2500, 5001))
    (outcome,) = compact(spark, "ztick", [str(path)])
    assert (outcome.error, outcome.records_after) == (None, 5001)
    assert len(records_in(ztick.CODEC, path)) == 5001
    seals = len(scan(ztick.CODEC, path.read_bytes())[0]) - 5001
    assert seals == 3 + path.stat().st_size // (64 * 1024)  # one for each block, opening, closing
    assert_flipped_bits_are_noticed(ztick.CODEC, path)
    with open_ztick(path) as log:
        assert log.recovery.clean
        assert sum(1 for _ in log.entries()) == 5001


# --- workq ---


def write_workq(directory: Path) -> list[workq.Record]:
    """Every state that a snapshot tells apart, deletes after rotation, orphans, reused ids."""
    records: list[workq.Record] = []
    fail = workq.Command.FAIL
    timeout = workq.Command.TIMEOUT_ATTEMPT
    for base in range(0, 200, 20):
        records += [added(base + n, base, ttl_s=10_000) for n in range(17)]
        records += [added(base + 17, base, ttl_s=1), added(base + 18, base, due_s=base + 500)]
        records += [started(base + n, base + 1) for n in range(2, 12)]
        records += [completed(base + 3, base + 2), completed(base + 12, base + 2)]
        records += [workq.JobFinished(instant_at(base + 2), job_id(base + 4), fail, b"why")]
        for _ in range(2):
            records += [event(timeout, base + 5, base + 3), started(base + 5, base + 4)]
        records += [event(timeout, base + 6, base + 3), event(timeout, base + 9, base + 3)]
        records += [started(base + 7, base + 3)]  # a lease that another start cut off
        records += [deleted(base + 8, base + 5), expired(base + 10, base + 5)]
        records += [deleted(base + 13, base + 5), added(base + 13, base + 9, ttl_s=10_000)]
        records += [event(timeout, base + 19, base + 3)]  # an orphan
    with open_workq(directory, 2000) as log:
        for record in records:
            log.append([record])
    return records


def instant_at(seconds: float) -> Instant:
    return Instant(as_of(seconds), 60)


def test_a_cleaned_workq_log_holds_the_jobs_that_exist_and_no_other(spark, tmp_path):
    records = write_workq(tmp_path)
    moment = as_of(300)
    states = workq_fold.replay(records)
    living = {k: s for k, s in states.items() if workq_fold.visible(s, moment) is not None}
    gone = {job_id(base + n) for base in range(0, 200, 20) for n in (8, 10, 17, 19)}

    (outcome,) = clean(spark, [str(tmp_path)], as_of_ns=moment)

    assert outcome.error is None
    assert outcome.changed
    names = workq_segments([path.name for path in tmp_path.iterdir()])
    left = records_in(workq.CODEC, *(tmp_path / name for name in names))
    assert workq_fold.replay(left) == living
    assert gone.isdisjoint(record.job_id for record in left)
    assert len(left) == outcome.records_after < outcome.records_before == len(records)
    assert left == [r for state in living.values() for r in workq_fold.snapshot(state)]
    assert not list(tmp_path.glob("_*"))
    (again,) = clean(spark, [str(tmp_path)], as_of_ns=moment)
    assert (again.changed, again.error) == (False, None)
    with open_workq(tmp_path) as log:  # and a server goes on with it
        assert log.recovery.clean
        log.append([added(999)])


def test_of_a_workq_log_without_a_living_job_an_empty_one_is_left(spark, tmp_path):
    with open_workq(tmp_path) as log:
        log.append([added(1), deleted(1, 1)])
    (outcome,) = clean(spark, [str(tmp_path)], as_of_ns=as_of(100))
    assert outcome.changed
    assert (tmp_path / "000000001.log").read_bytes() == workq.HEADER


# --- kestrel ---


def test_of_a_kestrel_queue_goes_what_every_reader_has_finished(spark, tmp_path):
    with open_kestrel(tmp_path, segment_bytes=400) as journal:
        put_items(journal, *range(60))
        journal.add_reader("slow")
        journal.add_reader("fast")
        journal.checkpoint("slow", kestrel_fold.Reader(31, {33}))
        journal.checkpoint("fast", kestrel_fold.Reader(50))
        segments = [Path(segment.path) for segment in journal.segments]
    with open_kestrel(tmp_path, "other") as other:
        put_items(other, *range(5))
        before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if "other" in p.name}
        outcomes = compact(spark, "kestrel", [str(tmp_path)], queue="jobs")
        after = {p.name: p.read_bytes() for p in tmp_path.iterdir() if "other" in p.name}
        assert after == before
    (outcome,) = outcomes
    assert outcome.error is None
    assert outcome.changed
    left = [path for path in segments if path.exists()]
    assert 0 < len(left) < len(segments)
    items = records_in(kestrel.WRITER, *left)
    assert [item.item_id for item in items] == list(range(32, 61))
    assert items[0].data == b"item 31"
    with open_kestrel(tmp_path) as journal:
        assert {n: (r.head, r.done) for n, r in journal.readers.items()} == {
            "slow": (31, {33}),
            "fast": (50, set()),
        }
        assert journal.recovery.clean
        assert journal.next_id == 61
    border = left[0]
    assert records_in(kestrel.WRITER, border) == items[: len(records_in(kestrel.WRITER, border))]
    assert_flipped_bits_are_noticed(kestrel.WRITER, border)


def test_of_a_queue_without_a_reader_nothing_goes(spark, tmp_path):
    with open_kestrel(tmp_path, segment_bytes=100) as journal:
        put_items(journal, *range(20))
    (tmp_path / "jobs.read.").unlink()
    before = {path.name for path in tmp_path.iterdir()}
    (outcome,) = compact(spark, "kestrel", [str(tmp_path)])
    assert (outcome.changed, outcome.error) == (False, None)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_differences_are_counted_as_a_multiset(spark):
    one = spark.createDataFrame([("a", 1), ("a", 1), ("b", None)], "name string, n int")
    other = spark.createDataFrame([("a", 1), ("b", None)], "name string, n int")
    assert holding.differences(one, one, ["name", "n"]).count() == 0
    with pytest.raises(LogError, match="is missing from"):
        holding.check_same("log", "table", one, other, ["name", "n"])

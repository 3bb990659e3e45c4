"""Streams over live logs, driven as Spark drives them but without a session: each step by hand.

What Spark itself adds (its checkpoint, Parquet, kill -9) is in test_streams_killed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from journeyman.disk import RealDisk
from journeyman.errors import LogError, UsageError
from journeyman.folds.kestrel import Reader
from journeyman.formats.framing import scan
from journeyman.formats.ztick import CODEC
from journeyman.formats.ztick.codec import is_reserved
from journeyman.logs.ztick.log import compact_offline
from journeyman.spark.data_sources import full_schema
from journeyman.spark.maintenance.cleaning import publish_workq
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.streams import LogStreamReader
from tests.support.spark.stream_driver import (
    Query,
    job_names,
    keys,
    let_the_file_clock_tick,
    open_kestrel,
    open_workq,
    open_ztick,
    put_items,
    remove_jobs,
    set_jobs,
    ztick_bytes,
)
from tests.support.workq_logs import added, as_of, deleted, job_id

MORE_THAN_A_BLOCK = 4_000  # jobs: compaction seals about 64 KiB at a time


def held_links(directory: Path) -> list[str]:
    held = directory / "_held"
    return sorted(name for name in os.listdir(held) if name.isdecimal()) if held.exists() else []


# --- ztick: growth and compaction ---


def test_each_record_comes_once_as_the_log_grows(tmp_path):
    with open_ztick(tmp_path / "logfile") as log:
        query = Query("ztick", tmp_path / "logfile")
        assert query.poll() == []
        set_jobs(log, 1, 2)
        assert keys(query.poll()) == job_names(1, 2)
        set_jobs(log, 3)
        assert keys(query.poll()) == job_names(3)
        assert query.poll() == []


def test_rows_are_those_of_the_batch_source(tmp_path):
    with open_ztick(tmp_path / "logfile") as log:
        set_jobs(log, 1, 2)
        remove_jobs(log, 1)
        query = Query("ztick", tmp_path / "logfile")
        rows = query.poll()
    assert [row["kind"] for row in rows] == ["set", "set", "remove"]
    assert {row["_log"] for row in rows} == {str(tmp_path / "logfile")}
    assert {row["_file"] for row in rows} == {str(tmp_path / "logfile")}
    written, _ = scan(CODEC, (tmp_path / "logfile").read_bytes())
    offsets = [each.offset for each in written if not is_reserved(each.record.identifier)]
    assert [row["_offset"] for row in rows] == offsets
    assert [row["_position"] for row in rows] == offsets


def test_a_compaction_between_two_looks_loses_and_repeats_nothing(tmp_path):
    with open_ztick(tmp_path / "logfile") as log:
        query = Query("ztick", tmp_path / "logfile")
        set_jobs(log, 1, 2)
        query.poll()
        set_jobs(log, 2, 3)  # written, not yet seen, and then folded away
        remove_jobs(log, 1)
        log.compact()
        set_jobs(log, 4)
        assert keys(query.poll()) == job_names(2, 3, 1, 4)
        assert query.poll() == []
        positions = [row["_position"] for row in query.rows]
        assert positions == sorted(positions)


@pytest.mark.parametrize("step", ["renamed", "begun anew", "folded", "removed"])
def test_every_step_of_a_compaction_can_be_looked_at(tmp_path, step):
    path = tmp_path / "logfile"
    path.write_bytes(ztick_bytes(1, 2))
    query = Query("ztick", path)
    query.poll()
    path.write_bytes(ztick_bytes(1, 2, 3))
    to_compress, compressed = tmp_path / "logfile.to_compress", tmp_path / "logfile.compressed"
    path.rename(to_compress)
    expected = job_names(3)
    if step != "renamed":
        path.write_bytes(ztick_bytes(4))
        expected += job_names(4)
    if step in ("folded", "removed"):
        compressed.write_bytes(ztick_bytes(1, 2, 3))
    if step == "removed":
        to_compress.unlink()
    assert keys(query.restarted().poll()) == expected
    if step == "renamed":
        path.write_bytes(ztick_bytes(4))
        assert keys(query.poll()) == job_names(4)


def test_a_new_stream_reads_what_was_compacted_first(tmp_path):
    with open_ztick(tmp_path / "logfile") as log:
        set_jobs(log, 1, 2, 3)
        remove_jobs(log, 2)
        log.compact()
        set_jobs(log, 4)
        query = Query("ztick", tmp_path / "logfile")
        rows = query.poll()
    assert keys(rows) == job_names(1, 3, 4)
    assert [row["_segment"] for row in rows] == [0, 0, 1]


def test_compacted_history_that_is_still_being_read_is_held(tmp_path):
    with open_ztick(tmp_path / "logfile") as log:
        set_jobs(log, *range(MORE_THAN_A_BLOCK))
        log.compact()
        set_jobs(log, MORE_THAN_A_BLOCK)
        query = Query("ztick", tmp_path / "logfile", maxBytesPerTrigger="100")
        while not query.rows:  # a batch ends at a seal, and the first seal has no rows before it
            assert query.plan()
            query.run()
        assert len(query.rows) < MORE_THAN_A_BLOCK
        set_jobs(log, 3)
        log.compact()  # replaces what is being read
        set_jobs(log, MORE_THAN_A_BLOCK + 1)
        query.restarted().poll()
    assert keys(query.rows) == job_names(*range(MORE_THAN_A_BLOCK + 1), 3, MORE_THAN_A_BLOCK + 1)


def test_two_compactions_between_two_looks_are_lost_history(tmp_path):
    with open_ztick(tmp_path / "logfile") as log:
        set_jobs(log, 1)
        query = Query("ztick", tmp_path / "logfile")
        query.poll()
        set_jobs(log, 2)
        log.compact()
        let_the_file_clock_tick(tmp_path)
        set_jobs(log, 3)
        log.compact()
        set_jobs(log, 4)
        with pytest.raises(LogError, match=r"history was lost: .*onLostHistory=continue"):
            query.poll()
        forgiving = Query("ztick", tmp_path / "logfile", onLostHistory="continue")
        forgiving.offsets, forgiving.done = list(query.offsets), len(query.offsets)
        rows = forgiving.poll()
    # What the link kept is there, what went unseen is one row that says so.
    assert keys([row for row in rows if row["kind"] != "damage"]) == job_names(2, 4)
    assert [row["_damage"] for row in rows if row["kind"] == "damage"] == [
        "lost: files behind segment 0 were compacted before they were seen"
    ]


def test_without_links_a_compaction_unseen_is_lost_history(tmp_path):
    with open_ztick(tmp_path / "logfile") as log:
        set_jobs(log, 1)
        query = Query("ztick", tmp_path / "logfile", holdFiles="false")
        query.poll()
        assert not (tmp_path / "_held").exists()
        log.compact()
        set_jobs(log, 2)
        with pytest.raises(LogError, match="compacted unread"):
            query.poll()


def test_links_go_when_nothing_needs_them(tmp_path):
    with open_ztick(tmp_path / "logfile") as log:
        set_jobs(log, 1)
        query = Query("ztick", tmp_path / "logfile")
        for number in range(2, 6):
            log.compact()
            set_jobs(log, number)
            query.poll()
        assert query.plan() is False
        inode = str((tmp_path / "logfile").stat().st_ino)
        set_jobs(log, 9)
        query.poll()
        assert held_links(tmp_path) == [inode]


def test_streams_of_one_log_share_links_and_let_go_by_themselves(tmp_path):
    with open_ztick(tmp_path / "logfile") as log:
        set_jobs(log, 1)
        slow, fast = (Query("ztick", tmp_path / "logfile") for _ in range(2))
        slow.poll()
        fast.poll()
        log.compact()
        set_jobs(log, 2)
        for number in (3, 4):
            fast.poll()
            set_jobs(log, number)
        fast.poll()
        assert keys(slow.poll()) == job_names(2, 3, 4)
        # Two compactions that slow has not seen: fast letting go of files hides nothing.
        log.compact()
        set_jobs(log, 5)
        fast.poll()
        let_the_file_clock_tick(tmp_path)
        log.compact()
        set_jobs(log, 6)
        fast.poll()
        set_jobs(log, 7)
        fast.poll()
        assert keys(fast.rows) == job_names(1, 2, 3, 4, 5, 6, 7)
        with pytest.raises(LogError, match="history was lost"):
            slow.poll()


# --- what is not whole, not there, not the same ---


def test_a_torn_tail_waits_for_the_rest(tmp_path):
    path = tmp_path / "logfile"
    whole = ztick_bytes(1, 2)
    path.write_bytes(whole[:-3])
    query = Query("ztick", path)
    assert keys(query.poll()) == job_names(1)
    assert query.poll() == []
    path.write_bytes(whole + ztick_bytes(3))
    assert keys(query.poll()) == job_names(2, 3)


@pytest.mark.parametrize("how", ["cut", "replaced", "written over"])
def test_a_file_that_is_no_longer_what_was_read_is_an_error(tmp_path, how):
    path = tmp_path / "logfile"
    path.write_bytes(ztick_bytes(1, 2, 3))
    query = Query("ztick", path)
    query.poll()
    if how == "cut":
        path.write_bytes(ztick_bytes(1, 2))
    elif how == "replaced":
        path.unlink()
        path.write_bytes(ztick_bytes(7, 8, 9, 10))
    else:
        path.write_bytes(ztick_bytes(1, 2, 9, 10))
    with pytest.raises(LogError, match=r"was cut|replaced"):
        query.poll()


def test_a_replaced_log_is_read_anew_if_that_was_asked_for_and_says_what_was_lost(tmp_path):
    path = tmp_path / "logfile"
    path.write_bytes(ztick_bytes(1, 2, 3))
    query = Query("ztick", path, onLostHistory="continue")
    query.poll()
    path.unlink()
    path.write_bytes(ztick_bytes(7, 8))
    rows = query.poll()
    assert sorted(row["kind"] for row in rows) == ["damage", "set", "set"]
    (lost,) = [row["_damage"] for row in rows if row["kind"] == "damage"]
    assert "another program replaced the log" in lost
    assert query.poll() == []


def copied(directory: Path) -> None:
    """All files as they would be on another disk: the same names and bytes, no hard links."""
    aside = directory.with_name("aside")
    shutil.copytree(directory, aside)  # before the others go, so that no inode is used again
    shutil.rmtree(directory)
    aside.rename(directory)


def test_a_stream_goes_on_when_a_schedule_is_moved_to_another_disk(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with open_ztick(data / "logfile") as log:
        query = Query("ztick", data / "logfile")
        set_jobs(log, 1, 2)
        assert keys(query.poll()) == job_names(1, 2)
        set_jobs(log, 3)  # not read before it moves
    copied(data)
    assert keys(query.poll()) == job_names(3)
    with open_ztick(data / "logfile") as log:
        set_jobs(log, 4)
        assert keys(query.poll()) == job_names(4)
        log.compact()
        set_jobs(log, 5)
        assert keys(query.poll()) == job_names(5)


def test_a_stream_goes_on_when_queues_are_moved_to_another_disk(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    with open_workq(data, segment_bytes=200) as log:
        query = Query("workq", data)
        log.append([added(number) for number in range(1, 4)])
        assert len(query.poll()) == 3
        for number in range(4, 8):  # several segments that were not read
            log.append([added(number)])
    copied(data)
    assert len(query.poll()) == 4
    assert query.poll() == []


def test_a_stream_goes_on_when_logs_are_fetched_again_and_again(tmp_path):
    """As rsync does it: each changed file is written anew and renamed into place."""
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()

    def fetch() -> None:
        for path in there.glob("*.log"):
            copy = here / path.name
            if not copy.exists() or copy.read_bytes() != path.read_bytes():
                copy.with_suffix(".new").write_bytes(path.read_bytes())
                copy.with_suffix(".new").rename(copy)

    with open_workq(there, segment_bytes=300) as log:
        fetch()
        query = Query("workq", here, onLostHistory="continue")
        for number in range(1, 20):
            log.append([added(number)])
            fetch()
            (row,) = query.poll()
            assert row["kind"] == "add"
    assert len(held_links(here)) <= 2  # what this batch and the last one read


@pytest.mark.parametrize("has_read_all", [True, False])
def test_a_stream_goes_on_when_its_log_is_compacted_offline(tmp_path, has_read_all):
    path = tmp_path / "logfile"
    with open_ztick(path) as log:
        set_jobs(log, 1, 2)
        query = Query("ztick", path)
        assert keys(query.poll()) == job_names(1, 2)
        set_jobs(log, 2, 3)
        unread = [] if has_read_all else job_names(2, 3)
        if has_read_all:
            query.poll()
    for _ in range(2):
        compact_offline(RealDisk(), str(path))
    with open_ztick(path) as log:
        set_jobs(log, 4)
        assert keys(query.poll()) == [*unread, *job_names(4)]
        log.compact()
        set_jobs(log, 5)
        assert keys(query.poll()) == job_names(5)
    compact_offline(RealDisk(), str(path))
    assert query.poll() == []


def test_a_stream_goes_on_when_its_log_is_compacted_from_its_own_directory(tmp_path, monkeypatch):
    """The compaction knows the log by a relative path, which means nothing to the stream."""
    path = tmp_path / "logs" / "logfile"
    path.parent.mkdir()
    with open_ztick(path) as log:
        set_jobs(log, 1, 2)
        query = Query("ztick", path)
        query.poll()
    monkeypatch.chdir(path.parent)
    compact_offline(RealDisk(), path.name)
    monkeypatch.chdir("/")
    with open_ztick(path) as log:
        set_jobs(log, 3)
    assert keys(query.poll()) == job_names(3)


def test_a_stream_without_links_says_what_an_offline_compaction_took(tmp_path):
    path = tmp_path / "logfile"
    (tmp_path / "_held").mkdir()  # another stream holds files here
    with open_ztick(path) as log:
        set_jobs(log, 1)
        query = Query("ztick", path, holdFiles="false", onLostHistory="continue")
        query.poll()
        seen = path.stat().st_size
        set_jobs(log, 2)
    whole = path.stat().st_size
    compact_offline(RealDisk(), str(path))
    (lost,) = query.poll()
    assert f"bytes {seen} to {whole} of " in lost["_damage"]
    assert query.poll() == []


def test_a_stream_goes_on_when_its_queue_is_cleaned_or_compacted_on_spark(tmp_path):
    """What ``pipeline clean`` and ``pipeline compact`` publish, without the rest of them."""
    directory = tmp_path / "cmdlog"
    with open_workq(directory) as log:
        log.append([added(1)])
        query = Query("workq", directory)
        query.poll()
    staged = tmp_path / "staged"
    staged.write_bytes((directory / "000000001.log").read_bytes())
    inside = directory / "new"
    staged.rename(inside)
    publish_workq(RealDisk(), str(directory), [str(inside)])
    assert query.poll() == []
    with open_workq(directory) as log:
        log.append([deleted(1, 3)])
        assert [row["kind"] for row in query.poll()] == ["delete"]


def test_damage_in_the_middle_does_not_take_a_torn_tail_with_it(tmp_path):
    path = tmp_path / "logfile"
    whole = ztick_bytes(1) + bytes(50) + ztick_bytes(2, 3, 4)
    path.write_bytes(whole[:-5])
    query = Query("ztick", path)
    assert [row["kind"] for row in query.poll()] == ["set", "damage", "set", "set"]
    path.write_bytes(whole)
    assert keys(query.poll()) == job_names(4)


def test_damage_is_a_row_and_what_is_appended_behind_it_is_read(tmp_path):
    path = tmp_path / "logfile"
    path.write_bytes(ztick_bytes(1) + b"\xff" * 40)
    query = Query("ztick", path)
    rows = query.poll()
    assert [row["kind"] for row in rows] == ["set", "damage"]
    assert rows[1]["_damage"].startswith("corrupt")
    assert rows[1]["_corrupt_record"] == b"\xff" * 40
    with path.open("ab") as file:
        file.write(ztick_bytes(2))
    assert keys(query.poll()) == job_names(2)


def test_an_entry_with_bad_content_is_one_damage_row(tmp_path):
    path = tmp_path / "logfile"
    entry = bytearray(ztick_bytes(2))
    entry[4] = 9  # a type that there is not
    path.write_bytes(ztick_bytes(1) + entry + ztick_bytes(3))
    kinds = [row["kind"] for row in Query("ztick", path).poll()]
    assert kinds == ["set", "damage", "set"]


# --- workq ---


def test_segments_are_followed_one_after_another(tmp_path):
    with open_workq(tmp_path) as log:
        query = Query("workq", tmp_path, payloads="true")
        for number in range(30):
            log.append([added(number)])
            if number % 7 == 0:
                query.poll()
        query.poll()
    assert len(list(tmp_path.glob("*.log"))) > 5
    assert [row["job_id"] for row in query.rows] == [job_id(n) for n in range(30)]
    assert query.rows[3]["payload"] == b"payload of 3"
    segments = [row["_segment"] for row in query.rows]
    assert segments == sorted(segments)
    assert set(segments) == set(range(segments[-1] + 1))


def test_a_segment_cleaned_before_it_was_read_is_read_from_its_link(tmp_path):
    with open_workq(tmp_path) as log:
        log.append([added(1, ttl_s=5)])
        query = Query("workq", tmp_path)
        query.poll()
        for number in range(2, 9):
            log.append([added(number, ttl_s=5)])
        # Seen, but not read: two records a batch.
        query = _limited(query, "workq", tmp_path, "150")
        assert query.plan()
        query.run()
        log.clean(as_of(3600), thorough=True)
        assert len(list(tmp_path.glob("*.log"))) == 1
        query.restarted().poll()
    assert [row["job_id"] for row in query.rows] == [job_id(n) for n in range(1, 9)]


def test_segments_cleaned_before_they_were_seen_are_lost_history(tmp_path):
    with open_workq(tmp_path) as log:
        log.append([added(1, ttl_s=5)])
        query = Query("workq", tmp_path)
        query.poll()
        for number in range(2, 30):
            log.append([added(number, ttl_s=5)])
        log.clean(as_of(3600), thorough=True)
        with pytest.raises(LogError, match=r"segment \d+ was removed unread"):
            query.poll()


def test_deletes_follow_their_adds(tmp_path):
    with open_workq(tmp_path) as log:
        query = Query("workq", tmp_path)
        log.append([added(1), added(2), deleted(1, 3)])
        assert [row["kind"] for row in query.poll()] == ["add", "add", "delete"]


# --- kestrel ---


def test_queues_are_logs_of_their_own_and_new_ones_join(tmp_path):
    with open_kestrel(tmp_path) as jobs:
        put_items(jobs, *range(12))
        query = Query("kestrel", tmp_path, payloads="true")
        query.poll()
        with open_kestrel(tmp_path, "mail") as mail:
            put_items(mail, 1, 2)
            put_items(jobs, 12)
            query.poll()
    items = [row for row in query.rows if row["queue"] == "jobs"]
    assert [row["item_id"] for row in items] == list(range(1, 14))
    assert [row["data"] for row in query.rows if row["queue"] == "mail"] == [b"item 1", b"item 2"]
    assert {row["kind"] for row in query.rows} == {"PUT"}
    assert {row["reader"] for row in query.rows} == {None}


def test_retired_segments_that_were_seen_are_read_and_others_are_lost_history(tmp_path):
    with open_kestrel(tmp_path) as journal:
        put_items(journal, *range(3))
        query = Query("kestrel", tmp_path)
        query.poll()
        put_items(journal, *range(3, 6))
        query.poll()
        put_items(journal, *range(6, 8))  # in the segment that is known
        put_items(journal, *range(8, 30))
        journal.checkpoint("", Reader(29))
        journal.retain()
        with pytest.raises(LogError, match=r"items \d+ to \d+ were removed unread"):
            query.poll()
        forgiving = _limited(query, "kestrel", tmp_path, None, onLostHistory="continue")
        forgiving.poll()
    ids = [row["item_id"] for row in forgiving.rows if row["kind"] == "PUT"]
    assert ids == sorted(set(ids))
    assert ids[-1] == 30
    assert [row["kind"] for row in forgiving.rows].count("damage") == 1


# --- many logs ---


def test_hosts_are_columns_and_new_hosts_join(tmp_path):
    for host in "ab":
        (tmp_path / f"host={host}").mkdir()
        (tmp_path / f"host={host}" / "logfile").write_bytes(ztick_bytes(1))
    query = Query("ztick", tmp_path)
    assert sorted(row["host"] for row in query.poll()) == ["a", "b"]
    (tmp_path / "host=c").mkdir()
    (tmp_path / "host=c" / "logfile").write_bytes(ztick_bytes(2, 3))
    assert [(row["host"], row["key"]) for row in query.poll()] == [("c", "job.2"), ("c", "job.3")]


def test_a_log_that_is_gone_is_an_error_unless_missing_files_are_ignored(tmp_path):
    for host in "ab":
        (tmp_path / f"host={host}").mkdir()
        (tmp_path / f"host={host}" / "logfile").write_bytes(ztick_bytes(1))
    query = Query("ztick", tmp_path)
    query.poll()
    for path in (tmp_path / "host=b").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(LogError, match="the log is gone"):
        query.poll()
    ignoring = _limited(query, "ztick", tmp_path, None, ignoreMissingFiles="true")
    with (tmp_path / "host=a" / "logfile").open("ab") as file:
        file.write(ztick_bytes(2))
    assert keys([row for row in ignoring.poll() if row["kind"] != "damage"]) == job_names(2)


# --- admission ---


def test_a_batch_holds_no_more_bytes_than_allowed_unless_one_entry_does(tmp_path):
    (tmp_path / "logfile").write_bytes(ztick_bytes(*range(50)))
    size = len(ztick_bytes(10))
    query = Query("ztick", tmp_path / "logfile", maxBytesPerTrigger=str(5 * size + 3))
    query.poll()
    lengths = [sum(row["_length"] for row in batch) for batch in query.batches]
    assert max(lengths) <= 5 * size + 3
    assert len(lengths) == 10
    assert keys(query.rows) == job_names(*range(50))
    tiny = Query("ztick", tmp_path / "logfile", maxBytesPerTrigger="1")
    tiny.poll()
    assert [len(batch) for batch in tiny.batches] == [1] * 50


def test_spark_may_ask_for_all_whatever_the_options_say(tmp_path):
    (tmp_path / "logfile").write_bytes(ztick_bytes(*range(50)))
    query = Query("ztick", tmp_path / "logfile", maxBytesPerTrigger="100")
    assert query.plan(ReadAllAvailable())
    assert len(query.run()) == 50


def test_no_log_starves_beside_one_that_always_has_more(tmp_path):
    for host, count in (("a", 40), ("b", 3)):
        (tmp_path / f"host={host}").mkdir()
        (tmp_path / f"host={host}" / "logfile").write_bytes(ztick_bytes(*range(count)))
    query = Query("ztick", tmp_path, maxBytesPerTrigger="60")
    for _ in range(3):
        assert query.plan()
        query.run()
    assert {row["host"] for row in query.rows} == {"a", "b"}


def test_available_now_ends_at_what_was_there(tmp_path):
    path = tmp_path / "logfile"
    path.write_bytes(ztick_bytes(*range(20)))
    query = Query("ztick", path)
    reader: Any = query.reader
    reader.prepareForTriggerAvailableNow()
    limit = ReadMaxBytes(100)
    while query.plan(limit):
        query.run()
        with path.open("ab") as file:
            file.write(ztick_bytes(99))
    assert keys(query.rows) == job_names(*range(20))
    assert len(query.batches) > 3
    reader = query.restarted().reader
    reader.prepareForTriggerAvailableNow()
    added_meanwhile = len(query.batches)
    while query.plan(limit):
        query.run()
    assert keys(query.rows) == job_names(*range(20), *[99] * added_meanwhile)


# --- where a stream begins, and begins again ---


def test_latest_begins_behind_what_there_is_and_survives_a_crash_of_the_first_batch(tmp_path):
    path = tmp_path / "logfile"
    path.write_bytes(ztick_bytes(1, 2))
    query = Query("ztick", path, startingOffsets="latest")
    assert query.plan() is False
    path.write_bytes(ztick_bytes(1, 2, 3))
    assert query.plan()
    # The driver dies before it ran the batch. Spark then asks anew where the stream began.
    path.write_bytes(ztick_bytes(1, 2, 3, 4))
    query.restarted()
    query._first = query.reader.initialOffset()
    assert keys(query.run()) == job_names(3)
    assert keys(query.poll()) == job_names(4)


def test_a_batch_run_again_reads_the_same_bytes_whatever_became_of_the_files(tmp_path):
    with open_ztick(tmp_path / "logfile") as log:
        set_jobs(log, 1, 2)
        query = Query("ztick", tmp_path / "logfile")
        assert query.plan()
        set_jobs(log, 3)
        log.compact()
        set_jobs(log, 4)
        first = query.restarted().run()
        assert keys(first) == job_names(1, 2)
        assert query.restarted().run() == first
        assert {row["_file"] for row in first} == {str(tmp_path / "logfile")}


def test_one_batch_is_cut_into_pieces_for_parallel_tasks(tmp_path):
    (tmp_path / "logfile").write_bytes(ztick_bytes(*range(200)))
    query = Query("ztick", tmp_path / "logfile", splitBytes="1000")
    assert query.plan()
    parts = query.reader.partitions(query._first, query.offsets[-1])
    assert len(parts) > 4
    assert keys(query.run()) == job_names(*range(200))


@pytest.mark.parametrize("option", ["asOf", "reduce"])
def test_options_that_only_a_read_can_meet_are_refused(tmp_path, option):
    (tmp_path / "logfile").write_bytes(ztick_bytes(1))
    values = {"asOf": "logfile:10", "reduce": "latest"}
    options = {"path": str(tmp_path / "logfile")}
    schema = full_schema(SourceOptions.parse("ztick", options))
    with pytest.raises(UsageError, match=option):
        LogStreamReader("ztick", {**options, option: values[option]}, schema)


def test_offsets_of_another_version_are_refused(tmp_path):
    (tmp_path / "logfile").write_bytes(ztick_bytes(1))
    query = Query("ztick", tmp_path / "logfile")
    query.poll()
    query.offsets[-1]["version"] = 99
    with pytest.raises(UsageError, match="version 99"):
        query.poll()


def _limited(query: Query, dialect: str, path: Path, limit: str | None, **options: str) -> Query:
    """The same query, gone on with under other options."""
    if limit is not None:
        options["maxBytesPerTrigger"] = limit
    other = Query(dialect, path, **options)
    other.offsets, other.done = list(query.offsets), query.done
    other.rows = list(query.rows)
    return other

"""Which log a path means: by content, by name, or by asking."""

from __future__ import annotations

import pytest

from journeyman.cli.errors import warn
from journeyman.errors import UsageError
from journeyman.formats import ztick
from journeyman.logs.catalog import KESTREL, WORKQ, ZTICK, Log
from journeyman.logs.detection import LogFinder, relist
from tests.support.cli_commands import (
    DISK,
    GOLDEN,
    added,
    job,
    put,
    write_checkpoint,
    write_segment,
    write_workq,
    write_ztick,
)


def find(*paths: object, dialect: str | None = None, queue: str | None = None) -> list[Log]:
    return LogFinder(DISK, warn).find([str(path) for path in paths], dialect=dialect, queue=queue)


def find_one(*paths: object, dialect: str | None = None, queue: str | None = None) -> Log:
    (log,) = find(*paths, dialect=dialect, queue=queue)
    return log


def names(log: Log) -> list[str]:
    return [file.name for file in log.files]


def test_a_link_to_nowhere_in_place_of_indexes_is_ignored_and_said(tmp_path, capsys):
    write_segment(tmp_path / "jobs.1", put(1))
    (tmp_path / ".index").symlink_to("nowhere")
    assert names(find_one(tmp_path)) == ["jobs.1"]
    assert ".index is not a directory and is ignored" in capsys.readouterr().err


# --- files ---


@pytest.mark.parametrize("path", sorted((GOLDEN / "ztick").glob("*.log")), ids=lambda p: p.stem)
def test_golden_ztick_logs_are_told_by_their_first_bytes(path):
    assert find_one(path).dialect == ZTICK


@pytest.mark.parametrize(
    "path", sorted((GOLDEN / "workq").glob("*/cmdlog/*.log")), ids=lambda p: p.parent.parent.name
)
def test_golden_workq_segments_are_told_even_when_damaged(path):
    assert find_one(path).dialect == WORKQ


@pytest.mark.parametrize(
    "path",
    [p for p in sorted((GOLDEN / "kestrel").glob("*/*.*")) if p.suffix not in (".json", ".md")],
    ids=lambda p: f"{p.parent.name}/{p.name}",
)
def test_golden_kestrel_files_are_told_even_when_damaged(path):
    assert find_one(path).dialect == KESTREL


def test_content_goes_before_the_name(tmp_path):
    path = write_ztick(tmp_path / "jobs.1", job("a"))

    assert find_one(path).dialect == ZTICK


def test_a_workq_segment_is_told_under_any_name(tmp_path):
    directory = write_workq(tmp_path, [added(1)])
    copy = tmp_path / "copy"
    copy.write_bytes((directory / "000000001.log").read_bytes())

    assert find_one(copy).dialect == WORKQ


def test_a_kestrel_file_under_a_foreign_name_is_told_by_its_magic(tmp_path):
    writer = write_segment(tmp_path / "saved", put(1))
    reader = write_checkpoint(tmp_path / "saved-reader", 3)

    assert find_one(writer).files[0].reader is None
    assert find_one(reader).files[0].reader is not None


def test_a_ztick_log_whose_beginning_is_damaged_is_still_told(tmp_path):
    path = write_ztick(tmp_path / "log", *(job(f"job.{n}") for n in range(5)))
    path.write_bytes(b"\xff" * 9 + path.read_bytes())

    assert find_one(path).dialect == ZTICK


def test_a_torn_first_ztick_entry_is_still_told(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(ztick.CODEC.encode(job("a"))[:6])

    assert find_one(path).dialect == ZTICK


def test_an_empty_file_is_an_empty_ztick_log_unless_its_name_says_otherwise(tmp_path):
    for name, dialect in [("log", ZTICK), ("000000001.log", WORKQ), ("jobs.17", KESTREL)]:
        (tmp_path / name).touch()
        assert find_one(tmp_path / name).dialect == dialect


def test_the_dialect_may_be_given(tmp_path):
    path = tmp_path / "notes"
    path.write_text("nothing of the kind")

    for dialect in (ZTICK, WORKQ, KESTREL):
        assert find_one(path, dialect=dialect).dialect == dialect
    with pytest.raises(UsageError, match="--dialect"):
        find(path)


def test_a_queue_needs_a_directory(tmp_path):
    path = write_segment(tmp_path / "jobs.1", put(1))

    with pytest.raises(UsageError, match="--queue needs a directory"):
        find(path, queue="jobs")


# --- several paths ---


def test_files_of_one_workq_directory_are_one_log_in_order(tmp_path):
    directory = write_workq(tmp_path, [added(1)], [added(2)], [added(3)])
    first, second, third = sorted(directory.glob("*.log"))

    log = find_one(third, first, second, first)

    assert names(log) == [first.name, second.name, third.name]
    assert not log.whole


def test_files_of_one_kestrel_queue_are_one_log_segments_first(tmp_path):
    paths = [
        write_checkpoint(tmp_path / "jobs.read.a", 0),
        write_segment(tmp_path / "jobs.100", put(3)),
        write_segment(tmp_path / "jobs.9", put(1)),
    ]

    assert names(find_one(*paths)) == ["jobs.9", "jobs.100", "jobs.read.a"]


def test_ztick_files_are_logs_of_their_own(tmp_path):
    first = write_ztick(tmp_path / "a", job("a"))
    second = write_ztick(tmp_path / "b", job("b"))

    assert [log.where for log in find(second, first)] == [str(second), str(first)]


def test_a_directory_and_a_file_in_it_are_the_whole_log(tmp_path):
    directory = write_workq(tmp_path, [added(1)], [added(2)])

    log = find_one(directory / "000000002.log", directory)

    assert log.whole
    assert names(log) == ["000000001.log", "000000002.log"]


# --- directories ---


def test_a_directory_of_segments_is_a_workq_log(tmp_path):
    directory = write_workq(tmp_path, [added(1)], [added(2)])
    (directory / "000000001.log.rw").touch()
    (directory / "0000001.log").touch()

    log = find_one(directory)

    assert (log.dialect, names(log)) == (WORKQ, ["000000001.log", "000000002.log"])


def test_an_empty_workq_log_is_told_by_its_lock(tmp_path):
    (tmp_path / "append.lock").touch()

    assert find_one(tmp_path).dialect == WORKQ
    assert find_one(tmp_path).files == ()


def test_each_queue_of_a_directory_is_a_kestrel_log(tmp_path):
    write_segment(tmp_path / "b.2", put(1))
    write_segment(tmp_path / "a.10", put(2))
    write_segment(tmp_path / "a.9", put(1))
    write_checkpoint(tmp_path / "a.read.x", 0)
    (tmp_path / "a.read.x~~5").touch()

    first, second = find(tmp_path)

    assert (first.queue, names(first)) == ("a", ["a.9", "a.10", "a.read.x"])
    assert (second.queue, names(second)) == ("b", ["b.2"])
    assert names(find_one(tmp_path, queue="b")) == ["b.2"]
    with pytest.raises(UsageError, match="its queues: a, b"):
        find(tmp_path, queue="c")


def test_old_files_of_any_kind_do_not_make_a_directory_kestrel_s(tmp_path):
    write_ztick(tmp_path / "logfile", job("a"))
    (tmp_path / "notes.1").write_text("an old version")

    assert find_one(tmp_path).dialect == ZTICK


def test_a_directory_with_one_ztick_log_means_that_log(tmp_path):
    path = write_ztick(tmp_path / "schedule", job("a"))
    write_ztick(tmp_path / "schedule.compressed", job("b"))
    (tmp_path / "schedule.lock").touch()
    (tmp_path / "README").write_text("about this directory")

    assert find_one(tmp_path).where == str(path)


def test_a_ztick_log_may_have_only_its_compacted_file(tmp_path):
    write_ztick(tmp_path / "schedule.compressed", job("b"))

    log = relist(DISK, find_one(tmp_path / "schedule"), compacted=True)

    assert names(log) == ["schedule.compressed"]
    assert find_one(tmp_path).where == str(tmp_path / "schedule")


def test_among_several_ztick_logs_one_must_be_named_unless_it_has_the_default_name(tmp_path):
    write_ztick(tmp_path / "one", job("a"))
    write_ztick(tmp_path / "two", job("a"))

    with pytest.raises(UsageError, match="one, two"):
        find(tmp_path)

    write_ztick(tmp_path / "logfile", job("a"))
    assert find_one(tmp_path).where == str(tmp_path / "logfile")


def test_a_directory_of_two_dialects_asks_for_one(tmp_path):
    write_workq(tmp_path, [added(1)])
    write_segment(tmp_path / "jobs.1", put(1))

    with pytest.raises(UsageError, match="workq and of kestrel: choose with --dialect"):
        find(tmp_path)
    assert find_one(tmp_path, dialect=WORKQ).dialect == WORKQ
    assert find_one(tmp_path, queue="jobs").dialect == KESTREL


@pytest.mark.parametrize("dialect", [ZTICK, WORKQ, KESTREL])
def test_a_directory_without_a_log_of_the_dialect_given_is_refused(tmp_path, dialect):
    with pytest.raises(UsageError, match=str(tmp_path)):
        find(tmp_path, dialect=dialect)


# --- whole logs ---


def test_commands_that_change_a_log_refuse_a_part_of_it(tmp_path):
    directory = write_workq(tmp_path / "workq", [added(1)])
    segment = write_segment(tmp_path / "kestrel" / "jobs.1", put(1))
    compressed = write_ztick(tmp_path / "ztick" / "log.compressed", job("a"))

    for part, whole in [
        (directory / "000000001.log", directory),
        (segment, segment.parent),
        (compressed, tmp_path / "ztick" / "log"),
    ]:
        with pytest.raises(UsageError, match=f"part of a log: give .*{whole.name}"):
            LogFinder(DISK, warn).find_whole(str(part))

"""Options of the sources: every one typed, checked, and never silently left out."""

from __future__ import annotations

import pickle

import pytest

from journeyman.errors import UsageError
from journeyman.moments import parse_moment
from journeyman.spark.source.options import AsOfPosition, SourceOptions

SECOND = 1_000_000_000


def parse(dialect: str = "workq", **options: str) -> SourceOptions:
    return SourceOptions.parse(dialect, {"path": "/logs", **options})


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("mode", "failfast", "mode", "FAILFAST"),
        ("mode", "DropMalformed", "mode", "DROPMALFORMED"),
        ("columnNameOfCorruptRecord", "bad", "corrupt_record", "bad"),
        ("pathGlobFilter", "*.log", "path_glob_filter", "*.log"),
        ("recursiveFileLookup", "true", "recursive", True),
        ("ignoreMissingFiles", "TRUE", "ignore_missing_files", True),
        ("maxBytesPerTrigger", "10m", "max_bytes_per_trigger", 10 << 20),
        ("asOf", "1970-01-02", "as_of_ns", 86_400 * SECOND),
        ("asOf", "1700000000123456789", "as_of_ns", 1_700_000_000_123_456_789),
        ("asOf", "000000003.log:4096", "as_of_position", AsOfPosition("000000003.log", 4096)),
        ("asOf", "s3://b/log:8", "as_of_position", AsOfPosition("s3://b/log", 8)),
        ("kinds", "add, complete", "kinds", frozenset({"add", "complete"})),
        ("startTime", "1970-01-01 00:00:01.5", "start_ns", SECOND * 3 // 2),
        ("endTime", "1970-01-01T01:00:00.000000001+01:00", "end_ns", 1),
        ("payloads", "true", "payloads", True),
        ("splitBytes", "64mb", "split_bytes", 64 << 20),
        ("splitBytes", "1GiB", "split_bytes", 1 << 30),
        ("splitBytes", "100", "split_bytes", 100),
        ("minPartitions", "3", "min_partitions", 3),
        ("reduce", "events", "reduce", "events"),
        ("salvage", "true", "salvage", True),
        ("damageOnly", "true", "damage_only", True),
        ("startingOffsets", "Latest", "starting_offsets", "latest"),
        ("onLostHistory", "continue", "on_lost_history", "continue"),
        ("holdFiles", "false", "hold_files", False),
    ],
)
def test_each_option_in_any_case(name, text, field, value):
    for spelt in (name, name.lower(), name.upper()):
        assert getattr(parse(**{spelt: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mode", "LENIENT"),
        ("columnNameOfCorruptRecord", ""),
        ("recursiveFileLookup", "yes"),
        ("ignoreMissingFiles", "1"),
        ("maxBytesPerTrigger", "-1"),
        ("asOf", "soon"),
        ("asOf", "file:"),
        ("kinds", ","),
        ("kinds", "set"),
        ("startTime", "2026-13-01"),
        ("endTime", ""),
        ("payloads", ""),
        ("splitBytes", "64x"),
        ("splitBytes", "0"),
        ("minPartitions", "two"),
        ("startingOffsets", "newest"),
    ],
)
def test_a_malformed_value_is_an_error_that_names_the_option(name, text):
    with pytest.raises(UsageError, match=name):
        parse(**{name: text})


def test_an_unknown_option_names_the_nearest_known_one():
    with pytest.raises(UsageError, match=r"no option 'splitByte': did you mean splitBytes\?"):
        parse(splitByte="1")
    with pytest.raises(UsageError, match=r"did you mean pathGlobFilter\?"):
        parse(pathGlobFilters="*")
    with pytest.raises(UsageError, match=r"no option 'xyzzy': there are path, paths, mode, "):
        parse(xyzzy="1")


def test_paths_come_as_one_or_as_a_json_list():
    assert SourceOptions.parse("ztick", {"path": "/a"}).paths == ("/a",)
    assert SourceOptions.parse("ztick", {"PATHS": '["/a", "/b"]'}).paths == ("/a", "/b")


@pytest.mark.parametrize("given", [{}, {"path": ""}, {"paths": "[]"}, {"paths": "/a"}])
def test_no_path_is_an_error(given):
    with pytest.raises(UsageError, match="path"):
        SourceOptions.parse("ztick", given)


@pytest.mark.parametrize("name", ["startTime", "endTime", "asOf"])
def test_records_without_time_may_be_asked_for_one(name):
    assert parse("ztick", **{name: "2026-01-01"}).has_moment  # a ledger may know


def test_a_position_may_be_asked_for_in_a_log_without_times():
    assert parse("ztick", asOf="logfile:7").as_of_position == AsOfPosition("logfile", 7)


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(UsageError, match="queue is for kestrel"):
        parse("workq", queue="jobs")
    with pytest.raises(UsageError, match="name is taken"):
        parse("workq", columnNameOfCorruptRecord="name")
    with pytest.raises(UsageError, match="no option 'seams'"):
        parse("workq", seams="true")
    with pytest.raises(UsageError, match="no option 'pushFilters'"):
        parse("workq", pushFilters="true")


def test_the_corrupt_column_is_there_in_permissive_mode_only():
    assert parse().corrupt_column == "_corrupt_record"
    assert parse(mode="FAILFAST").corrupt_column is None
    assert parse(mode="DROPMALFORMED").corrupt_column is None


def test_options_are_picklable_and_small():
    options = parse(kinds="add", asOf="000000001.log:3")
    assert pickle.loads(pickle.dumps(options)) == options
    assert len(pickle.dumps(options)) < 1000


def test_a_moment_keeps_nine_digits():
    assert parse_moment("1970-01-01T00:00:00.123456789Z") == 123_456_789
    assert parse_moment("1969-12-31T23:59:59.999999999Z") == -1

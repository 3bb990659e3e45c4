"""Partitions: coarse, even, in order, cheap to plan; and memory stays flat as files grow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource

from journeyman.formats.ztick import JobSet
from journeyman.logs.catalog import Log, LogFile
from journeyman.logs.indexes import Index, Mark
from journeyman.spark.files import find_source_logs
from journeyman.spark.source import piece_reader, splits
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.pieces import LogPartition, Piece
from journeyman.spark.source.splits import MAX_SPLIT_BYTES, MIN_SPLIT_BYTES, plan_partitions
from journeyman.units import MIB
from tests.support.columnar_twins import ZTICK
from tests.support.spark.pieces import expected_items, items_of, log_file
from tests.support.specimens import ZTICK as SPECIMEN


def log_of(*sizes: int, name: str = "/log") -> Log:
    files = [
        LogFile(
            "ztick",
            f"{name}/{at}",
            size=size,
            modified_ns=0,
            identity=at,
            segment=at,
            is_last=at == len(sizes) - 1,
        )
        for at, size in enumerate(sizes)
    ]
    return Log("ztick", name, tuple(files))


def plan(*logs: Log, **options: object) -> list[LogPartition]:
    given = {name: str(value) for name, value in options.items()}
    parsed = SourceOptions.parse("ztick", {"path": "/", "minPartitions": "2", **given})
    return plan_partitions(logs, parsed)


def pieces(partitions: list[LogPartition]) -> list[Piece]:
    return [piece for partition in partitions for piece in partition.pieces]


def sizes(partitions: list[LogPartition]) -> list[int]:
    return [sum(p.end - p.begin for p in partition.pieces) for partition in partitions]


def assert_covers(partitions: list[LogPartition], *logs: Log) -> None:
    """Every byte of every file once, in order."""
    found = pieces(partitions)
    for log in logs:
        for file in log.files:
            own = [piece for piece in found if piece.file == file]
            if file.size:
                assert own[0].begin == 0
                assert own[-1].end == file.size
            assert all(one.end == two.begin for one, two in pairwise(own))
    order = [(piece.context.log, piece.context.segment, piece.begin) for piece in found]
    assert order == sorted(order)


def test_a_log_of_middle_size_gets_one_partition_a_core():
    log = log_of(100 * MIB)
    partitions = plan(log)
    assert sizes(partitions) == [50 * MIB, 50 * MIB]
    assert_covers(partitions, log)


def test_a_small_log_is_one_partition():
    log = log_of(MIN_SPLIT_BYTES // 2, 100, 200)
    partitions = plan(log)
    assert len(partitions) == 1
    assert_covers(partitions, log)


def test_a_huge_file_is_cut_into_equal_parts_within_the_limit(monkeypatch):
    monkeypatch.setattr(piece_reader, "first_boundary", lambda piece, _: piece.begin + 5)
    log = log_of(10 * 1024 * MIB + 7)
    partitions = plan(log)
    assert len(partitions) == 41
    assert max(sizes(partitions)) <= MAX_SPLIT_BYTES
    assert max(sizes(partitions)) - min(sizes(partitions)) < 10


def test_a_reducer_gets_larger_splits():
    assert len(plan(log_of(1000 * MIB), reduce="latest")) == 2
    assert len(plan(log_of(1000 * MIB))) == 4


def test_a_size_that_was_asked_for_is_kept_to():
    log = log_of(1000 * MIB)
    partitions = plan(log, reduce="latest", splitBytes="100m")
    assert max(sizes(partitions)) <= 100 * MIB
    assert_covers(partitions, log)


def test_many_small_files_share_partitions_evenly():
    log = log_of(*[MIB] * 640)
    partitions = plan(log)
    assert len(partitions) < 10
    assert max(sizes(partitions)) < 2 * min(sizes(partitions))
    assert_covers(partitions, log)


@pytest.mark.parametrize("files", [3, 7, 38])
def test_segments_of_a_log_become_one_partition_a_core(files):
    log = log_of(*[16 * MIB] * files)
    partitions = plan(log, reduce="latest")
    assert len(partitions) == 2
    assert_covers(partitions, log)


def test_skew_is_evened_out():
    logs = [log_of(900 * MIB, *[1000] * 50), log_of(*[3 * MIB] * 20, name="/other")]
    partitions = plan(*logs)
    assert max(sizes(partitions)) < 1.6 * sum(sizes(partitions)) / len(partitions)
    assert_covers(partitions, *logs)


def test_empty_files_are_not_opened():
    assert plan(log_of(0, 0)) == []


def test_split_bytes_is_kept_to():
    log = log_of(1000, 90)
    partitions = plan(log, splitBytes=100)
    assert max(piece.end - piece.begin for piece in pieces(partitions)) <= 100
    assert len(partitions) in (10, 11)
    assert_covers(partitions, log)


def test_the_default_number_of_cores_is_that_of_the_machine(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    options = SourceOptions.parse("ztick", {"path": "/"})
    assert len(plan_partitions([log_of(500 * MIB)], options)) == 5


def test_buckets_grow_with_the_log_and_are_the_same_in_all_of_it():
    (small,) = plan(log_of(100))
    assert small.pieces[0].context.buckets == 1
    large = pieces(plan(log_of(100 * MIB, 1)))
    assert {piece.context.buckets for piece in large} == {16}


def test_planning_reads_no_file_that_its_readers_can_walk(monkeypatch):
    monkeypatch.setattr(piece_reader, "first_boundary", None)
    assert {piece.anchor for piece in pieces(plan(log_of(1000 * MIB)))} == {0}


def test_a_file_at_a_uri_is_not_walked_through(monkeypatch):
    monkeypatch.setattr(piece_reader, "first_boundary", None)
    monkeypatch.setattr(splits, "index_of", lambda _: None)
    found = pieces(plan(log_of(1000, name="s3://bucket/log"), splitBytes=250))
    assert [(piece.begin, piece.end, piece.anchor) for piece in found] == [(0, 1000, 0)]


def test_a_file_at_a_uri_is_cut_at_the_marks_of_its_index(monkeypatch):
    marks = tuple(Mark(at * MIB, at, 0) for at in range(1, 21))
    index = Index(21 * MIB, 21, None, None, marks)
    monkeypatch.setattr(piece_reader, "first_boundary", None)
    monkeypatch.setattr(splits, "index_of", lambda _: index)
    found = pieces(plan(log_of(40 * MIB, name="s3://bucket/log"), splitBytes=10 * MIB))
    assert [piece.begin // MIB for piece in found] == [0, 10, 20]
    assert found[-1].end == 40 * MIB
    assert all(piece.proof is not None for piece in found[1:])


def test_a_part_in_which_nothing_begins_is_left_out(monkeypatch):
    monkeypatch.setattr(splits, "MAX_WALK_BYTES", 0)
    monkeypatch.setattr(piece_reader, "first_boundary", lambda piece, _: max(piece.begin, 760))
    found = pieces(plan(log_of(1000), splitBytes=250))
    assert [(piece.begin, piece.end) for piece in found] == [(0, 250), (760, 1000)]


@pytest.mark.parametrize("walk_bytes", [0, 40, 100, 10**9])
@pytest.mark.parametrize("split_bytes", [1, 7, 50, 300])
def test_anchors_of_the_planner_change_no_row(tmp_path, monkeypatch, walk_bytes, split_bytes):
    monkeypatch.setattr(splits, "MAX_WALK_BYTES", walk_bytes)
    data = SPECIMEN.encode(SPECIMEN.records(20)) + b"\xff\xff\xff\xff damage"
    path = tmp_path / "log"
    path.write_bytes(data)
    given = {"path": str(path), "splitBytes": str(split_bytes)}
    options = SourceOptions.parse("ztick", given)
    found = items_of(pieces(plan_partitions(find_source_logs(options), options)), options)
    assert found == expected_items(ZTICK, data, log_file(path, ZTICK))


MEASURE = """
import resource, sys
from journeyman.spark.files import find_source_logs
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.splits import plan_partitions
from journeyman.spark.data_sources import LogReader, full_schema

def read(path):
    options = SourceOptions.parse("ztick", {"path": path, "splitBytes": "100m"})
    reader = LogReader(options, full_schema(options))
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

read(sys.argv[1])
before = peak_mib()
rows = read(sys.argv[2])
print(rows, peak_mib() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path):
    """200 MB after 40 MB: what is held are a few batches, not the file."""
    jobs = [record for record in SPECIMEN.records(100_000) if isinstance(record, JobSet)]
    block = SPECIMEN.encode(jobs)
    small, large = tmp_path / "small", tmp_path / "large"
    for path, size in ((small, 40_000_000), (large, 200_000_000)):
        with path.open("wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
    command = [sys.executable, "-c", MEASURE, str(small), str(large)]
    # One arena of the allocator: else it keeps more, the more cores there are.
    environment = os.environ | {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    found = subprocess.check_output(command, text=True, env=environment)
    rows, grown_mib = map(int, found.split())
    assert rows > 5_000_000
    assert grown_mib < 150  # what the allocator keeps; the file is 200


IMPORTS = """
import sys
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.data_sources import LogReader, full_schema

def heavy():
    return [name for name in ("numpy", "pyarrow", "numba", "pandas") if name in sys.modules]

given = {"path": sys.argv[1], "splitBytes": "20"}
schema = full_schema(SourceOptions.parse("ztick", given))
print(heavy())
for more in {"reduce": "latest"}, {}:
    options = SourceOptions.parse("ztick", {**given, **more})
    partitions = LogReader(options, full_schema(options)).partitions()
    assert len(partitions) > 3
print(heavy())
assert [batch for part in partitions for batch in LogReader(options, schema).read(part)]
print(heavy())
"""


def test_each_process_of_a_read_imports_only_what_it_needs(tmp_path):
    """Finding, planning and reading are processes of their own, and imports most of their time."""
    jobs = [record for record in SPECIMEN.records(9) if isinstance(record, JobSet)]
    (tmp_path / "log").write_bytes(SPECIMEN.encode(jobs))
    command = [sys.executable, "-c", IMPORTS, str(tmp_path / "log")]
    found, planned, done = map(json.loads, _lines(command))
    assert found == []
    assert planned == []
    assert done == ["numpy", "pyarrow", "numba"]


def test_looking_for_formats_imports_no_client():
    """Spark imports every ``pyspark_*`` module in each process that looks a format up."""
    found = "[m for m in sys.modules if m.startswith('journeyman.client')]"
    code = f"import sys, pyspark_journeyman; print({found})"
    assert _lines([sys.executable, "-c", code]) == ["[]"]


def _lines(command: list[str]) -> list[str]:
    return subprocess.check_output(command, text=True).replace("'", '"').splitlines()


@pytest.mark.parametrize("name", ["ztick", "workq", "kestrel", "journeyman"])
def test_a_module_of_this_name_lets_spark_find_the_format(name):
    source = import_module(f"pyspark_{name}").DefaultSource
    assert source.name() == name
    assert issubclass(source, DataSource)


def test_a_window_is_small():
    assert piece_reader.WINDOW_BYTES <= 16 * MIB

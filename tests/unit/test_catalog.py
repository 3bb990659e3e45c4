"""Which files are read, as which logs, in which order; on local disks and on others."""

from __future__ import annotations

import json
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pytest
from pyarrow import fs

from journeyman.errors import LogError, UsageError
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.kestrel import READER_MAGIC, WRITER_MAGIC
from journeyman.logs.catalog import (
    KESTREL,
    WORKQ,
    ZTICK,
    Log,
    LogFile,
    expand,
    glob_pattern,
    partition_columns,
)
from journeyman.logs.indexes import INDEX_DIRECTORY
from journeyman.spark import files
from journeyman.spark.files import absolute, filesystem_of, find_source_logs
from journeyman.spark.source.options import SourceOptions


def make(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def logs(dialect: str, *paths: Path | str, **options: str) -> list[Log]:
    given = {"paths": json.dumps([str(path) for path in paths]), **options}
    return find_source_logs(SourceOptions.parse(dialect, given))


def shown(found: list[Log], root: Path) -> dict[str, list[str]]:
    """Log -> file names, relative to the root."""
    cut = len(str(root)) + 1
    return {log.name[cut:]: [file.path[cut:] for file in log.files] for log in found}


def test_a_ztick_log_is_its_active_file_and_what_compaction_left_beside_it(tmp_path):
    make(tmp_path, "a", "a.compressed", "a.to_compress", "a.lock", "a.compressed.tmp", "b")
    expected = ["a.compressed", "a.to_compress", "a"]
    assert shown(logs("ztick", tmp_path), tmp_path) == {"a": expected, "b": ["b"]}
    assert shown(logs("ztick", tmp_path / "a"), tmp_path) == {"a": expected}
    assert shown(logs("ztick", f"{tmp_path}/*"), tmp_path) == {"a": expected, "b": ["b"]}


def test_a_companion_of_a_ztick_log_named_by_itself_is_read_alone(tmp_path):
    make(tmp_path, "a", "a.compressed")
    assert shown(logs("ztick", tmp_path / "a.compressed"), tmp_path) == {"a": ["a.compressed"]}


def test_a_ztick_log_without_active_file_is_found_by_its_name(tmp_path):
    make(tmp_path, "a.compressed")
    assert shown(logs("ztick", tmp_path / "a"), tmp_path) == {"a": ["a.compressed"]}


def test_the_default_name_of_the_original_stands_for_the_directory(tmp_path):
    make(tmp_path, "logfile", "logfile.compressed", "other")
    expected = {"logfile": ["logfile.compressed", "logfile"]}
    assert shown(logs("ztick", tmp_path), tmp_path) == expected


def test_workq_segments_are_ordered_by_number_and_other_files_left_alone(tmp_path):
    make(tmp_path, "000000010.log", "000000002.log", "append.lock", "notes.log", "1.log")
    found = logs("workq", tmp_path)
    assert shown(found, tmp_path.parent) == {
        tmp_path.name: [f"{tmp_path.name}/000000002.log", f"{tmp_path.name}/000000010.log"]
    }
    assert [file.segment for file in found[0].files] == [0, 1]
    assert [file.is_last for file in found[0].files] == [False, True]


def test_segments_named_one_by_one_are_one_log(tmp_path):
    make(tmp_path, "000000001.log", "000000002.log", "000000003.log")
    found = logs("workq", tmp_path / "000000003.log", tmp_path / "000000001.log")
    assert [Path(file.path).name for log in found for file in log.files] == [
        "000000001.log",
        "000000003.log",
    ]


def test_each_kestrel_queue_is_a_log_with_its_readers_behind_its_segments(tmp_path):
    make(
        tmp_path,
        "q.9",
        "q.10",
        "q.read.b",
        "q.read.",
        "q.lock",
        "z.5",
        "archive~q.1",
        "q.read.a~~1",
    )
    found = logs("kestrel", tmp_path)
    assert shown(found, tmp_path) == {
        "q": ["q.9", "q.10", "q.read.", "q.read.b"],
        "z": ["z.5"],
    }
    assert [file.reader for file in found[0].files] == [None, None, "", "b"]
    assert [file.is_last for file in found[0].files] == [False, True, False, False]
    assert {file.queue for file in found[0].files} == {"q"}
    assert shown(logs("kestrel", tmp_path, queue="z"), tmp_path) == {"z": ["z.5"]}


def test_a_checkpoint_under_a_foreign_name_is_known_by_its_first_bytes(tmp_path):
    (tmp_path / "saved").write_bytes(READER_MAGIC)
    (tmp_path / "items").write_bytes(WRITER_MAGIC)
    found = logs("kestrel", tmp_path / "saved", tmp_path / "items")
    assert [(log.files[0].queue, log.files[0].reader) for log in found] == [
        ("items", None),
        ("saved", "saved"),
    ]


def test_hidden_temporary_and_quarantined_files_are_no_logs(tmp_path):
    make(tmp_path, "log", ".log", "_log", "log~~recovering", "quarantine/log", "log.runs/1.jsonl")
    for recursive in ("false", "true"):
        found = logs("ztick", tmp_path, recursiveFileLookup=recursive)
        assert shown(found, tmp_path) == {"log": ["log"]}


def test_the_indexes_that_the_server_keeps_beside_its_queues_are_no_queues(tmp_path):
    indexes = [f"{INDEX_DIRECTORY}/q.1", f"{INDEX_DIRECTORY}/q.2.new"]
    make(tmp_path, "q.1", "q.2", "q.read.a", "q.lock", "deep/r.1", *indexes)
    for paths in ((tmp_path,), (f"{tmp_path}/*",)):
        found = logs("kestrel", *paths, recursiveFileLookup="true")
        assert shown(found, tmp_path) == {"q": ["q.1", "q.2", "q.read.a"], "deep/r": ["deep/r.1"]}


def test_hosts_become_a_column(tmp_path):
    make(tmp_path, "host=a/000000001.log", "host=b%20c/zone=1/000000001.log", "plain/000000001.log")
    for path in (tmp_path, f"{tmp_path}/host=*"):
        found = logs("workq", path)
        assert shown(found, tmp_path) == {
            "host=a": ["host=a/000000001.log"],
            "host=b%20c/zone=1": ["host=b%20c/zone=1/000000001.log"],
        }
        assert [dict(log.partitions) for log in found] == [
            {"host": "a"},
            {"host": "b c", "zone": "1"},
        ]
        assert partition_columns(found) == ["host", "zone"]
    (null,) = logs("workq", _made(tmp_path / "n" / "host=__HIVE_DEFAULT_PARTITION__"))
    assert dict(null.partitions) == {"host": None}


def _made(directory: Path) -> Path:
    make(directory, "000000001.log")
    return directory


def test_recursive_lookup_goes_everywhere_and_makes_no_columns(tmp_path):
    make(tmp_path, "a/b/000000001.log", "host=x/000000001.log", ".h/000000001.log")
    found = logs("workq", tmp_path, recursiveFileLookup="true")
    assert shown(found, tmp_path) == {
        "a/b": ["a/b/000000001.log"],
        "host=x": ["host=x/000000001.log"],
    }
    assert partition_columns(found) == []


def test_path_glob_filter_looks_at_names(tmp_path):
    make(tmp_path, "000000001.log", "000000002.log", "000000013.log")
    found = logs("workq", tmp_path, pathGlobFilter="*{1,3}.log")
    assert [Path(file.path).name for file in found[0].files] == ["000000001.log", "000000013.log"]


def test_the_same_file_by_two_paths_is_read_once(tmp_path):
    make(tmp_path, "000000001.log")
    (log,) = logs("workq", tmp_path, f"{tmp_path}/*", tmp_path / "000000001.log", f"{tmp_path}/")
    assert len(log.files) == 1


def test_what_does_not_exist_is_an_error_unless_said_to_be_no_matter(tmp_path):
    with pytest.raises(UsageError, match="gone does not exist"):
        logs("workq", tmp_path / "gone")
    with pytest.raises(UsageError, match="does not exist"):
        logs("workq", f"{tmp_path}/*.log")
    assert logs("workq", tmp_path / "gone", ignoreMissingFiles="true") == []


def test_a_directory_without_a_log_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no workq log at"):
        logs("workq", tmp_path)


def test_relative_paths_and_file_uris_become_absolute(tmp_path, monkeypatch):
    make(tmp_path, "d/000000001.log")
    monkeypatch.chdir(tmp_path)
    assert absolute("file:///a/b") == "/a/b"
    assert absolute("file:/a") == "/a"
    assert absolute("s3://bucket/x") == "s3://bucket/x"
    assert logs("workq", "d") == logs("workq", f"file://{tmp_path}/d")


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("*", "abc", "a/b"),
        ("a?c", "abc", "ac"),
        ("[ab]x", "bx", "cx"),
        ("[^ab]x", "cx", "ax"),
        ("[!ab]x", "cx", "bx"),
        ("{ab,c*}.log", "cde.log", "abc.log"),
        ("a.b", "a.b", "axb"),
        ("a,b", "a,b", "a"),
    ],
)
def test_globs_are_those_of_hadoop(glob, yes, no):
    assert glob_pattern(glob).fullmatch(yes)
    assert not glob_pattern(glob).fullmatch(no)


def test_a_glob_that_is_none_is_refused():
    with pytest.raises(UsageError, match="is not a glob"):
        glob_pattern("{a")


def test_globs_reach_over_several_directories(tmp_path):
    make(tmp_path, "h1/log/000000001.log", "h2/log/000000001.log", "h3/other/000000001.log")
    assert [
        found.path[len(str(tmp_path)) :]
        for found in expand(filesystem_of("/"), f"{tmp_path}/h*/log")
    ] == [
        "/h1/log",
        "/h2/log",
    ]
    assert len(logs("workq", f"{tmp_path}/h?/log/*.log")) == 2


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A filesystem of pyarrow that is not the local one, for ``arrow://here``."""
    inner = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    made = files.Remote(inner, "arrow://here", None)
    monkeypatch.setattr(files, "_remote", {"arrow://here": made}.__getitem__)
    return tmp_path


def test_a_filesystem_of_pyarrow_is_listed_globbed_and_read_in_ranges(remote):
    make(remote, "host=a/000000001.log", "host=b/000000001.log")
    (remote / "host=a" / "000000001.log").write_bytes(b"0123456789")
    found = logs("workq", "arrow://here/host=*")
    assert [file.path for log in found for file in log.files] == [
        "arrow://here/host=a/000000001.log",
        "arrow://here/host=b/000000001.log",
    ]
    assert found[0].files[0].size == 10
    assert found[0].files[0].modified_ns is not None
    path = found[0].files[0].path
    assert filesystem_of(path).read_at(path, 3, 4) == b"3456"
    assert filesystem_of("arrow://here/x").find("arrow://here/none") is None
    with pytest.raises(FileNotFoundError):
        filesystem_of("arrow://here/x").open("arrow://here/none")


def test_what_pyarrow_does_not_know_is_opened_by_fsspec():
    memory = fsspec.filesystem("memory")
    memory.pipe("/logs/host=a/000000001.log", b"0123456789")
    try:
        (log,) = logs("workq", "memory://logs")
        (file,) = log.files
        assert file.path == "memory://logs/host=a/000000001.log"
        assert (file.size, dict(log.partitions)) == (10, {"host": "a"})
        assert filesystem_of(file.path).read_at(file.path, 8, 100) == b"89"
    finally:
        memory.rm("/logs", recursive=True)


def test_a_scheme_that_nobody_knows_is_an_error():
    with pytest.raises(UsageError, match="nosuch://x cannot be opened"):
        logs("workq", "nosuch://x/y")


def test_a_directory_in_the_middle_of_a_change_is_not_read(tmp_path):
    make(tmp_path, "000000001.log", "_publication.json")
    with pytest.raises(LogError, match="cut short"):
        logs("workq", tmp_path)


@pytest.mark.parametrize(
    ("file", "codec"),
    [
        (LogFile(ZTICK, "/log/file"), ztick.CODEC),
        (LogFile(WORKQ, "/log/file"), workq.CODEC),
        (LogFile(KESTREL, "/log/file"), kestrel.WRITER),
        (LogFile(KESTREL, "/log/file", "a reader"), kestrel.READER),
    ],
    ids=lambda value: value.dialect if isinstance(value, LogFile) else "",
)
def test_every_file_knows_what_judges_its_bytes(file, codec):
    assert file.codec is codec

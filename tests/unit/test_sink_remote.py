"""Writes to a filesystem that is not local: parts are copied to their places, then old files go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from journeyman.formats import kestrel, workq, ztick
from journeyman.spark import files
from journeyman.spark.sinks import dialects
from journeyman.spark.sinks.log_sink import SinkOptions
from journeyman.spark.sinks.parts import write_parts

ROOT = "store://bucket"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is reached as store://bucket, and as nothing else."""
    filesystem = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(files, "_remote", {ROOT: files.Remote(filesystem, ROOT, None)}.__getitem__)
    return tmp_path


@pytest.fixture
def write() -> Callable[..., None]:
    def run(dialect: str, *tasks: dict[str, list[Any]], overwrite: bool = False) -> None:
        columns = ["n", *(tasks[0] if tasks else [])]
        given = {"path": f"{ROOT}/log", "orderBy": "n"}
        options = SinkOptions.parse(dialect, given, columns)
        messages = []
        for partition, task in enumerate(tasks):
            rows = len(next(iter(task.values())))
            batch = pa.RecordBatch.from_pydict({"n": [partition] * rows, **task})
            staging = f"{ROOT}/log/_temporary-1-000000000000"
            if dialect == "ztick":
                staging = f"{ROOT}/_temporary-1-000000000000"
            messages.append(write_parts(options, staging, partition, iter([batch])))
        dialects.commit_remotely(options, overwrite, f"{ROOT}/_temporary-1-000000000000", messages)
        if dialect != "ztick":
            dialects.abort_remotely(f"{ROOT}/log/_temporary-1-000000000000")

    return run


def removal(name: str) -> bytes:
    return ztick.CODEC.encode(ztick.JobRemoved(name))


def removals(*names: str) -> dict[str, list[Any]]:
    return {"kind": ["remove"] * len(names), "identifier": list(names)}


def test_a_ztick_log_is_one_file_that_grows_or_is_replaced(bucket, write):
    write("ztick", removals("a"), removals("b", "c"))
    assert (bucket / "log").read_bytes() == removal("a") + removal("b") + removal("c")
    write("ztick", removals("d"))
    assert (bucket / "log").read_bytes().endswith(removal("c") + removal("d"))
    (bucket / "log.compressed").write_bytes(removal("old"))
    write("ztick", removals("e"), overwrite=True)
    assert (bucket / "log").read_bytes() == removal("e")
    assert [path.name for path in bucket.iterdir()] == ["log"]


def test_a_workq_log_gets_segments_and_loses_the_old_ones_when_overwritten(bucket, write):
    deleted = {"kind": ["delete"], "job_id": [bytes(16)], "logged_ns": [1]}
    write("workq", deleted, deleted)
    write("workq", deleted)
    found = sorted((bucket / "log").iterdir())
    assert [path.name for path in found] == [f"{n:09d}.log" for n in (1, 2, 3)]
    assert all(path.read_bytes().startswith(workq.HEADER) for path in found)
    write("workq", overwrite=True)
    (only,) = (bucket / "log").iterdir()
    assert (only.name, only.read_bytes()) == ("000000001.log", workq.HEADER)


def test_kestrel_queues_get_segments_and_checkpoints(bucket, write):
    def rows(item_id: int, reader: str | None = None) -> dict[str, list[Any]]:
        row: dict[str, Any] = {"kind": "READ_HEAD" if reader else "PUT", "queue": "jobs"}
        row |= {"reader": reader, "item_id": item_id, "add_time_ms": 1, "error_count": 0}
        return {name: [value] for name, value in row.items()}

    write("kestrel", rows(1), rows(2), rows(1, "one"))
    write("kestrel", rows(3), rows(4, "one"), rows(5, "one"))
    segments = sorted((bucket / "log").glob("jobs.[0-9]*"))
    assert len(segments) == 3
    assert all(path.read_bytes().startswith(kestrel.WRITER.header) for path in segments)
    heads = [kestrel.READER.encode(kestrel.ReadHead(number)) for number in (4, 5)]
    checkpoint = bucket / "log" / "jobs.read.one"
    assert checkpoint.read_bytes() == kestrel.READER.header + b"".join(heads)
    write("kestrel", rows(9), overwrite=True)
    assert len(list((bucket / "log").iterdir())) == 1

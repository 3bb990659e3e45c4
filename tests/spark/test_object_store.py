"""Every command on logs in a bucket, on a cluster of two workers: the answers of local files.

With JOURNEYMAN_WHOLE_MATRIX=1, as `make proof` runs it, each of a bucket and a directory, on a
cluster and on this machine, and further forms of the commands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyarrow import fs
from pyarrow.parquet import read_table

from journeyman.data_directory import (
    KESTREL_DIRECTORY,
    LEDGER_DIRECTORY,
    SCHEDULE_LOG,
    WORKQ_DIRECTORY,
)
from journeyman.disk import RealDisk
from journeyman.formats import ledger, workq
from journeyman.formats.ztick import Status
from journeyman.logs.ztick.run_history import encode_run
from journeyman.testing import ManualClock
from tests.support.cli_commands import run
from tests.support.marked_schedule import MarkedSchedule
from tests.support.object_store import object_store
from tests.support.spark import written_logs
from tests.support.spark.cluster import standalone_cluster
from tests.support.spark.histories import busy_log
from tests.support.spark.written_logs import put, write_kestrel, write_workq

ROOT = Path(__file__).parents[2]
BUCKET = "logs"
MATRIX = [("bucket", "cluster")]
IS_WHOLE = bool(os.environ.get("JOURNEYMAN_WHOLE_MATRIX"))
if IS_WHOLE:
    MATRIX += [("bucket", "local[2]"), ("directory", "cluster"), ("directory", "local[2]")]
RECORDS = busy_log(7)
WORKER = "a worker of the ledger"
ATTEMPTS = "SELECT dialect, count(*) AS n, count(started_ns) AS started FROM attempts GROUP BY ALL"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The data directory of a server, and when half of its schedule was written."""
    data = tmp_path_factory.mktemp("server") / "data"
    server = MarkedSchedule(RealDisk(), ManualClock(), str(data))
    half = server.batch("a", "b")
    server.batch("b", "c")
    server.batch("b", status=Status.EXECUTED)
    server.stop()
    runs = data / f"{SCHEDULE_LOG}.runs"
    runs.mkdir()
    (runs / "1700000000000.jsonl").write_bytes(
        encode_run(written_logs.run("b", 0, 1, 2)) + b'{"job":"torn","sta'
    )
    write_workq(data / WORKQ_DIRECTORY, RECORDS)
    leased = next(each for each in RECORDS if each.command == workq.Command.START_ATTEMPT)
    noted = ledger.AttemptsBegun(leased.logged, WORKER, {str(UUID(bytes=leased.job_id)): 1})
    with max((data / LEDGER_DIRECTORY).glob("*.ledger")).open("ab") as file:
        file.write(ledger.CODEC.encode(noted))
    items = [put(number, number) for number in range(1, 9)]
    write_kestrel(data / KESTREL_DIRECTORY, "mail", [items[:4], items[4:]], {"r": (2, ())})
    return data, half


Commands = dict[str, list[str]]  # by what a command is for


def answers_on(logs: str, half: int) -> Commands:
    """Commands that answer on stdout."""
    json_ = ["--format", "json"]
    early = ["--as-of", "1970-01-01T00:00:00Z"]
    return {
        "replay": ["replay", logs, "--payloads"],
        "replay to a time": ["replay", f"{logs}/{SCHEDULE_LOG}", "--as-of", str(half)],
        "history": ["history", logs, *json_],
        "sql": ["sql", logs, "-e", ATTEMPTS, *json_],
        "audit": ["audit", logs, *early, *json_],
        "redrive": ["redrive", f"{logs}/{WORKQ_DIRECTORY}", *json_],
        **_further(lag=["history", f"{logs}/{KESTREL_DIRECTORY}", "--view", "lag", *json_]),
    }


def writes(logs: str, output: str, here: Path) -> Commands:
    """Commands that write tables, and some that read these again; ``here`` is a directory."""
    lake, parquet = ["--lake", f"{output}/lake"], f"{output}/parquet"
    in_files = ["history", logs, "--format", "csv", "--output", f"{output}/history"]
    early = ["--as-of", "1970-01-01T00:00:00Z"]
    return {
        "replay to files": ["replay", logs, "--output", f"{output}/replayed"],
        "history to files": in_files,
        "report": ["report", logs, "--output", f"{here}/report.html"],
        "parquet": [
            *("convert", f"{logs}/{WORKQ_DIRECTORY}", "--to", "parquet", "--output", parquet)
        ],
        "restored log": ["convert", parquet, "--to", "log", "--output", f"{here}/restored"],
        "archive": ["archive", logs, "--output", f"{output}/archive"],
        "ingest": ["ingest", logs, *lake, "--host", "a"],
        "stream": ["stream", f"{logs}/{WORKQ_DIRECTORY}"],
        "sql of the lake": ["sql", *lake, "-e", ATTEMPTS, "--format", "json"],
        "tables of the lake": ["lake", "tables", *lake],
        **_further(
            history_again=[*in_files, "--force"],
            counts=["sql", logs, "-e", ATTEMPTS, "--format", "json", "-o", f"{output}/counts"],
            lake_history=["history", *lake, "--format", "json"],
            lake_report=["report", *lake, "--output", f"{here}/lake.html"],
            lake_audit=["audit", *lake, "--where", "severity <> 'serious'", *early],
            lake_redrive=["redrive", *lake, "--dialect", "workq"],
        ),
    }


def _further(**commands: list[str]) -> Commands:
    """Return commands of the whole matrix, none without it."""
    return commands if IS_WHOLE else {}


@pytest.fixture(scope="module")
def bucket(
    data: tuple[Path, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, str], fs.S3FileSystem]]:
    """The environment of a store that has the logs, and the store."""
    with object_store(BUCKET) as environment:
        environment["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
        address = environment["AWS_ENDPOINT_URL"]
        store = fs.S3FileSystem(
            access_key="key", secret_key="secret", region="us-east-1", endpoint_override=address
        )
        fs.copy_files(str(data[0]), f"{BUCKET}/data", fs.LocalFileSystem(), store)
        yield environment, store


@pytest.fixture(scope="module")
def master(
    bucket: tuple[dict[str, str], fs.S3FileSystem], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    environment, _ = bucket
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), environment=environment) as address:
        yield address


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(("place", "where"), MATRIX)
def test_every_command_reads_logs_and_writes_tables(data, bucket, master, tmp_path, place, where):
    here, half = data
    environment, store = bucket
    there, output = str(here), str(tmp_path / "out")
    if place == "bucket":
        there, output = f"s3://{BUCKET}/data", f"s3://{BUCKET}/output-{where}"
    asked = answers_on(there, half)
    commands = asked | writes(there, output, tmp_path)
    address = master if where == "cluster" else where
    said = dict(
        zip(commands, run_commands(address, [*commands.values()], environment), strict=True)
    )
    if place == "bucket":
        inner = output.removeprefix("s3://")
        fs.copy_files(inner, str(tmp_path / "out"), store, fs.LocalFileSystem())
    for name, words in answers_on(str(here), half).items():
        expected = run("pipeline", *words, "--quiet")
        assert expected.exit_code == 0, expected.output
        lines = sorted(said[name].replace(there, str(here)).splitlines())
        assert lines == sorted(expected.stdout.splitlines()), name
        assert lines, name
    attempts = _rows(said["sql"])
    assert {"dialect": "ztick", "n": 4, "started": 1} in attempts  # its run is known
    in_lake = [row for row in attempts if row["dialect"] != "kestrel"]
    assert _rows(said["sql of the lake"]) == in_lake
    assert "silver/attempts" in said["tables of the lake"]
    assert WORKER in said["history"]
    streamed = dict(line.split() for line in said["stream"].splitlines())
    assert streamed == {
        word: str(n) for word, n in Counter(record.command.word for record in RECORDS).items()
    }
    assert len(_lines(tmp_path / "out" / "history")) == 1 + sum(row["n"] for row in attempts)
    for table in ("ztick.jobs", "workq.jobs", "kestrel.items"):
        assert read_table(str(tmp_path / "out" / "replayed" / table)).num_rows > 0
        assert (tmp_path / "out" / "replayed" / table / "_SUCCESS").exists()
    restored = tmp_path / "restored" / "000000001.log"
    assert restored.read_bytes() == (here / WORKQ_DIRECTORY / "000000001.log").read_bytes()
    archived = [path.parent.name for path in (tmp_path / "out" / "archive").rglob("*.parquet")]
    assert len(archived) >= 3
    assert all(name.startswith("day=") for name in archived)
    assert there in (tmp_path / "report.html").read_text()
    if IS_WHOLE:
        assert len(said["lake_history"].splitlines()) == sum(row["n"] for row in attempts)
        assert f"{output}/lake" in (tmp_path / "lake.html").read_text()
        assert _rows("\n".join(_lines(tmp_path / "out" / "counts"))) == attempts


def run_commands(master: str, commands: list[list[str]], environment: dict[str, str]) -> list[str]:
    program = "tests.support.spark.pipeline_program"
    done = subprocess.run(
        [sys.executable, "-m", program, master, *map(json.dumps, commands)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: list[str] = json.loads(done.stdout.splitlines()[-1])
    return said


def _rows(text: str) -> list[dict[str, Any]]:
    return sorted(map(json.loads, text.splitlines()), key=str)


def _lines(directory: Path) -> list[str]:
    """Of all files, each once: every file begins with the header."""
    parts = [path for path in directory.iterdir() if path.name.startswith("part-")]
    return sorted({line for path in parts for line in path.read_text().splitlines()})

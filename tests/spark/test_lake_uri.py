"""A lake in a bucket, beside one in a directory that was filled from the same logs: the same rows,
whatever was killed in between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from journeyman.columnar import read_table
from journeyman.columnar.delta import storage_options
from journeyman.errors import JourneymanError, UsageError
from journeyman.servers.http.past.child import lake_days
from journeyman.spark.files import remote_of
from journeyman.spark.lakes import delta, storage, upkeep, work
from journeyman.spark.lakes.ingest import ingest
from journeyman.spark.lakes.layout import SNAPSHOTS, TABLES
from journeyman.spark.lakes.storage import Lake, change_lake, open_lake
from tests.support.cli_commands import assert_one_line_error, run
from tests.support.object_store import object_store
from tests.support.report_counts import count_workq
from tests.support.spark.histories import busy_log
from tests.support.spark.local_work import Killed, kill_after, session, spread_here
from tests.support.spark.written_logs import put, write_kestrel, write_workq

ROOT = Path(__file__).parents[2]
BUCKET = "lakes"
WHEN = {"_ingested_at", "found_at", "observed_at"}  # the lake looked: not the same in two lakes
READERS = "silver/readers"


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with object_store(BUCKET) as found, pytest.MonkeyPatch.context() as patch:
        found["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
        for name, value in found.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(autouse=True)
def no_java(monkeypatch):
    """Workers of the session of this lane know no store."""
    monkeypatch.setattr(work, "spread", spread_here)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Where there is no lake yet."""
    return f"s3://{BUCKET}/{tmp_path.name}/lake"


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes do not meet on this machine, as if each was on its own."""
    monkeypatch.setattr(storage, "_lock_path", lambda _: None)


def rows_of(lake: Lake, table: str) -> list[str]:
    names = [name for name in TABLES[table].schema.names if name not in WHEN]
    return sorted(map(repr, lake.read_arrow(table, columns=names).to_pylist()))


def assert_same_rows(uri: str, directory: str) -> None:
    for table in TABLES:
        if table != SNAPSHOTS:
            assert rows_of(open_lake(uri), table) == rows_of(open_lake(directory), table)


def keys_in(table: pa.Table) -> list[str]:
    return sorted(map(str, table["key"].to_pylist()))


def objects_below(uri: str) -> set[str]:
    return {
        path
        for path in remote_of(uri).sizes_below(uri)
        if path.endswith(".parquet") and "/_delta_log/" not in path and SNAPSHOTS not in path
    }


def files_that_count(uri: str) -> set[str]:
    lake = open_lake(uri)
    return {file.path for table in TABLES if table != SNAPSHOTS for file in lake.files(table)}


def test_rows_are_those_of_a_lake_in_a_directory(uri, tmp_path):
    records, items = busy_log(3), [put(number, 7_000 * number) for number in range(1, 9)]
    half, directory = len(records) // 2, str(tmp_path / "lake")
    for parts in ([records[:half]], [records[:half], records[half:]]):
        logs = {"workq": [write_workq(tmp_path / "workq", *parts)]}
        logs["kestrel"] = [str(tmp_path / "kestrel")]
        write_kestrel(tmp_path / "kestrel", "jobs", [items[: 4 * len(parts)]], {"mail": (1, ())})
        for lake in (directory, uri):
            assert set(ingest(session, lake, logs, host="a").files) == {
                "bronze/workq",
                "bronze/kestrel",
            }
        assert_same_rows(uri, directory)
    assert ingest(session, uri, logs, host="a").files == {}
    # Others read it by its own logs.
    found = DeltaTable(f"{uri}/silver/jobs", storage_options=storage_options()).to_pyarrow_table()
    assert keys_in(found) == keys_in(read_table(f"{directory}/silver/jobs")) != []
    assert read_table(f"{uri}/silver/attempts").num_rows == len(count_workq(records).tries)
    assert lake_days(uri, 100) == lake_days(directory, 100) != []


# test_lake_snapshots.py kills a lake in a directory after each of them.
STEPS = range(1, 10) if os.environ.get("JOURNEYMAN_WHOLE_MATRIX") else (5,)


@pytest.mark.parametrize("steps", STEPS)
def test_an_ingest_that_is_killed_is_finished_by_the_next(uri, tmp_path, steps):
    """After so many commits of tables and snapshots."""
    records = busy_log(4, jobs=20)
    logs = {"workq": [write_workq(tmp_path / "workq", records)]}
    directory = str(tmp_path / "lake")
    ingest(session, directory, logs, host="a")
    with pytest.MonkeyPatch.context() as patch:
        kill_after(patch, steps)
        with pytest.raises(Killed):
            ingest(session, uri, logs, host="a")
    ingest(session, uri, logs, host="a")
    assert_same_rows(uri, directory)
    bronze = read_table(f"{uri}/bronze/workq").sort_by("_position")
    assert bronze["logged_ns"].to_pylist() == [record.logged.unix_ns for record in records]
    with change_lake(uri) as lake:
        upkeep.vacuum(lake, 0)
    assert objects_below(uri) == files_that_count(uri) != set()


def readers(head: int) -> pa.Table:
    row = {
        "log": "l",
        "queue": "q",
        "reader": "r",
        "items_behind": 0,
        "bytes_behind": 0,
        "head": head,
        "host": "a",
        "date": date(2026, 11, 17),
        "observed_at": datetime(2026, 11, 17, tzinfo=UTC),
    }
    return pa.Table.from_pylist([row], delta.nullable_schema_of(READERS))


def heads(uri: str) -> list[str]:
    return sorted(map(str, open_lake(uri).read_arrow(READERS)["head"].to_pylist()))


@pytest.mark.usefixtures("elsewhere")
def test_of_two_that_change_a_lake_the_first_to_commit_wins(uri):
    with change_lake(uri) as mine:
        mine.write(READERS, readers(1))
        with change_lake(uri) as other:
            other.write(READERS, readers(2))
            other.commit(complete=True)
        with pytest.raises(JourneymanError, match="another process has changed this lake"):
            mine.commit(complete=True)
    assert heads(uri) == ["2"]
    with change_lake(uri) as lake:
        lake.write(READERS, readers(3))
        lake.commit(complete=True)
    assert heads(uri) == ["2", "3"]


def test_a_second_process_on_this_machine_is_refused_at_once(uri):
    with (
        change_lake(uri),
        pytest.raises(JourneymanError, match="another process is changing this lake"),
        change_lake(uri),
    ):
        pass


def test_what_cannot_be_a_lake_is_said_so(uri, tmp_path):
    log = write_workq(tmp_path / "workq", busy_log(1, jobs=2))
    words = ("pipeline", "ingest", log, "--lake")
    assert_one_line_error(run(*words, f"s3://no-such-bucket-{tmp_path.name}/lake"), 1)
    assert_one_line_error(run(*words, "memory://lake"), 1)
    with pytest.raises(UsageError, match="there is no lake"):
        open_lake(uri)
    with pytest.raises(UsageError, match="no Delta table"):
        read_table(f"{uri}/silver/jobs")


def test_a_lake_is_looked_after(uri, tmp_path):
    records = busy_log(5, jobs=12)
    half = len(records) // 2
    for parts in ([records[:half]], [records[:half], records[half:]]):
        logs = {"workq": [write_workq(tmp_path / "workq", *parts)]}
        ingest(session, uri, logs, host="a")
    victim = records[0].job_id
    with change_lake(uri) as lake:
        gone = upkeep.forget(session, lake, [str(UUID(bytes=victim))])
        assert gone == sum(record.job_id == victim for record in records)
        assert upkeep.optimize(session, lake) > 0
    assert objects_below(uri) == files_that_count(uri)
    kept = [record for record in records if record.job_id != victim]
    assert read_table(f"{uri}/bronze/workq").num_rows == len(kept)
    assert read_table(f"{uri}/silver/attempts").num_rows == len(count_workq(kept).tries)
    with change_lake(uri) as lake:
        assert upkeep.retain(lake, {"silver/attempts": 1}) > 0
    assert read_table(f"{uri}/silver/attempts").num_rows == 0
    assert objects_below(uri) == files_that_count(uri) != set()

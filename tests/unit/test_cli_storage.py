"""``journeyman storage``: checks that find every kind of damage, rebuilding, logs in and out."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from journeyman.formats.keyspace.keys import (
    COUNTERS,
    JOBS,
    LISTINGS,
    QUEUE_TIMES,
    STATUS_FIFO,
    STATUSES,
    prefix_range,
)
from journeyman.formats.keyspace.values import JobRecord, QueueRecord
from journeyman.formats.workq import CODEC, Command
from journeyman.storage import Storage, Upsert
from tests.support.cli_commands import (
    NOW_NS,
    added,
    assert_one_line_error,
    event,
    run,
    write_workq,
)

FAR_NS = 4_000_000_000 * 10**9
TTL_MS = 2**45
COUNT = 200  # a few marks of the listing, and several reads of a scan


@pytest.fixture(params=["rocksdb", "sqlite"])
def engine(request) -> str:
    return str(request.param)


@pytest.fixture
def place(engine, tmp_path) -> list[str]:
    return ["storage", "--engine", engine, "--path", str(tmp_path / "store")]


@pytest.fixture
def opened(engine, tmp_path):
    return lambda: Storage.open(engine, str(tmp_path / "store"))


def record(number: int, status: str = "waiting", queue: str = "mail") -> JobRecord:
    uuid = UUID(int=number)
    return JobRecord(uuid, f"{queue}:{uuid}", queue, status, NOW_NS + number, NOW_NS)


@pytest.fixture
def filled(opened):
    with opened() as storage:
        storage.apply([Upsert(record(number)) for number in range(COUNT)])
        storage.replace_queues([QueueRecord(None, "mail", None, True, "active")])
    return opened


# -- check and rebuild ---------------------------------------------------------------------------


def test_a_store_that_is_right_says_so(filled, place):
    done = run(*place, "check")
    assert (done.exit_code, done.stdout) == (0, "all is right\n")
    assert run(*place, "check", "--json").stdout == ""


@pytest.mark.parametrize(
    "prefix", [STATUSES, STATUS_FIFO, QUEUE_TIMES, LISTINGS, COUNTERS], ids=str
)
@pytest.mark.parametrize("damage", ["lost", "changed", "left behind"])
def test_every_kind_of_damage_is_found_and_mended(filled, place, prefix, damage):
    with filled() as storage:
        with storage.backend.view() as view:
            key, value = next(view.scan(*prefix_range(prefix)))
        if damage == "lost":
            storage.backend.delete(key)
        elif damage == "changed":
            other = value[:-1] + bytes([value[-1] ^ 1])
            storage.backend.write({key: other if prefix != LISTINGS else None})
        else:
            storage.backend.write({key[:-5] + bytes([key[-5] ^ 1]) + key[-4:]: value, key: value})
    found = run(*place, "check")
    assert found.exit_code == 1, found.stdout
    assert "rebuild" in found.stdout.splitlines()[-1]
    assert run(*place, "rebuild").stdout == f"{COUNT} jobs indexed again\n"
    assert run(*place, "check").stdout == "all is right\n"
    with filled() as storage:
        assert storage.count("mail", "waiting") == COUNT
        assert len(storage.list_jobs("mail", "waiting", page=COUNT // 50).jobs) == 50


def test_a_record_that_cannot_be_read_is_named_and_stays(filled, place):
    with filled() as storage:
        storage.backend.put(JOBS + str(UUID(int=7)).encode(), b"{}")
    keys = {
        row["key"]
        for row in map(json.loads, run(*place, "check", "--json").stdout.split("\n")[:-1])
    }
    assert f"v1:j:{UUID(int=7)}" in keys
    done = run(*place, "rebuild")
    assert done.stdout == f"{COUNT - 1} jobs indexed again; 1 cannot be read and are in no index\n"
    again = run(*place, "check", "--json")
    assert again.exit_code == 1
    assert [json.loads(line)["key"] for line in again.stdout.splitlines()] == [
        f"v1:j:{UUID(int=7)}"
    ]


def test_problems_are_bounded_unless_all_are_asked_for(filled, place):
    with filled() as storage, storage.backend.view() as view:
        keys = [key for key, _ in view.scan(*prefix_range(STATUSES))]
        storage.backend.write(dict.fromkeys(keys))
    assert len(run(*place, "check").stdout.splitlines()) == 102
    assert len(run(*place, "check", "--all").stdout.splitlines()) == COUNT + 1


def test_a_store_of_another_program_must_be_rebuilt_first(opened, place, tmp_path):
    with opened() as storage:
        backend = storage.backend
        storage.upsert_job_record(record(1))
        backend.delete(b"v1:storage:schema")
    refused = run(*place, "export", tmp_path / "x")
    assert_one_line_error(refused, 1, "storage rebuild")
    assert run(*place, "rebuild").exit_code == 0
    with opened() as storage:
        assert storage.count("mail", "waiting") == 1


def test_a_newer_store_is_refused(opened, place, tmp_path):
    with opened() as storage:
        storage.backend.put(b"v1:storage:schema", (3).to_bytes(8, "big"))
    assert_one_line_error(run(*place, "export", tmp_path / "x"), 1, "schema 3")


@pytest.mark.parametrize("command", ["check", "rebuild"])
def test_a_store_that_is_not_there_is_not_made(place, command, tmp_path):
    assert_one_line_error(run(*place, command), 2, "no store at")
    assert not (tmp_path / "store").exists()


def test_settings_that_cannot_be_are_one_line_and_exit_code_2(tmp_path):
    for words, said in (
        (["--set", "storage.engine=leveldb"], "expected one of rocksdb"),
        (["--set", "storage.mode=fast"], "low_space, high_throughput"),
        (["--set", "storage.cache_capacity=1"], "from 1048576"),
        (["--engine", "memory"], "keeps nothing"),
    ):
        assert_one_line_error(run("storage", *words, "check"), 2, said)


# -- import and export ---------------------------------------------------------------------------


def work_log(directory: Path) -> Path:
    late = replace(
        added(5, ttl_ms=TTL_MS),
        command=Command.SCHEDULE,
        time=replace(added(5).created, unix_ns=FAR_NS),
        payload=b'{"to": [1e3]}',
        priority=-7,
    )
    records = [added(number, ttl_ms=TTL_MS) for number in range(5)]
    records[1] = replace(records[1], payload=b"\xff\x00", max_attempts=3)
    return write_workq(
        directory,
        [*records, late, event(1, Command.START_ATTEMPT), event(2, Command.START_ATTEMPT)],
        [
            event(2, Command.TIMEOUT_ATTEMPT),
            event(3, Command.DELETE),
            added(9, at_ns=10**18, ttl_ms=1),
        ],
    )


def test_a_parquet_file_brings_a_store_back(filled, place, tmp_path):
    path = tmp_path / "store.parquet"
    done = run(*place, "export", path)
    assert (done.exit_code, done.stderr) == (0, f"{path}: {4 * COUNT + 2} keys exported\n")
    table = pq.read_table(path)
    jobs = [row for row in table.to_pylist() if row["key"].startswith(JOBS)]
    assert [row["status"] for row in jobs] == ["waiting"] * COUNT
    assert {row["queue"] for row in table.to_pylist()} == {"mail", None}
    keys = [row["key"] for row in table.to_pylist()]
    assert keys == sorted(keys)
    assert_one_line_error(run(*place, "export", path), 2, "already exists: give another path")
    other = ("storage", "--engine", "sqlite", "--path", tmp_path / "other")
    assert run(*other, "import", path, path).stderr.endswith(f"{2 * COUNT} jobs imported\n")
    assert run(*other, "check").stdout == "all is right\n"
    again = tmp_path / "again.parquet"
    assert run(*other, "export", again).exit_code == 0
    assert pq.read_table(again) == table


def test_what_is_no_parquet_file_of_a_store_is_refused(place, opened, tmp_path):
    (tmp_path / "text").write_text("no Parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other")
    for name in ("text", "other"):
        said = "not a Parquet file of a store"
        assert_one_line_error(run(*place, "import", tmp_path / name), 2, said)


def test_records_that_cannot_be_read_are_named_and_left_out(place, opened, tmp_path):
    rows = [(b"v1:j:x", b"{}"), (b"v1:j:" + str(UUID(int=1)).encode(), b"{"), (b"v1:q:a", b"1")]
    keys, values = zip(*rows, strict=True)
    pq.write_table(pa.table({"key": keys, "value": values}), tmp_path / "rows")
    done = run(*place, "import", tmp_path / "rows")
    assert done.exit_code == 0
    assert done.stderr.count("left out: ") == 3
    assert "0 jobs imported" in done.stderr


# -- the index of a log ----------------------------------------------------------------------------


def test_a_log_is_followed_to_its_end_and_from_there_on(tmp_path):
    log = work_log(tmp_path / "data" / "workq")
    place = ("storage", "--engine", "sqlite", "--set", f"data.directory={tmp_path / 'data'}")
    done = run(*place, "follow", "--once")
    assert done.exit_code == 0
    assert re.search(r"the store is at 000000002\.log:\d+\n", done.stdout)
    assert "the store is rebuilt from the log: it has no position in the log" in done.stderr
    again = run(*place, "follow", "--once")
    assert (again.stdout, again.stderr) == (done.stdout, "")
    counts = run(*place, "list").stdout.split()
    assert counts[:3] == ["1", added(1).name, "active"]
    with (log / "000000002.log").open("ab") as file:
        file.write(CODEC.encode(event(1, Command.DELETE)))
    assert run(*place, "follow", "--once").stderr == ""
    assert "active" not in run(*place, "list").stdout
    listed = run(*place, "list", "--status", "waiting")
    assert "as of the log at 000000002.log:" in listed.stdout.splitlines()[-1]


def test_a_rebuild_keeps_the_archive_and_drops_what_the_log_does_not_have(tmp_path):
    log = work_log(tmp_path / "data" / "workq")
    data, kept = f"data.directory={tmp_path / 'data'}", "storage.retention_ms=3000000000000"
    place = ("storage", "--engine", "sqlite", "--set", data, "--set", kept)
    assert run(*place, "follow", "--once").exit_code == 0
    before = run(*place, "list", "--status", "failed").stdout
    assert len(before.splitlines()) == 2  # its TTL has ended
    shutil.rmtree(log)
    write_workq(log, [added(7, ttl_ms=TTL_MS)])
    done = run(*place, "rebuild")
    assert done.exit_code == 0
    assert "1 job of " in done.stdout
    assert run(*place, "check").stdout == "all is right\n"
    after = run(*place, "list", "--status", "failed").stdout
    assert after.splitlines()[:-1] == before.splitlines()[:-1]
    assert len(run(*place, "list", "--status", "waiting", "--json").stdout.splitlines()) == 2


def test_without_a_log_there_is_nothing_to_follow(tmp_path):
    place = ("storage", "--engine", "sqlite", "--path", tmp_path / "store")
    said = "there is no command log at"
    log = f"workq.cmdlog_path={tmp_path / 'none'}"
    assert_one_line_error(run(*place, "--set", log, "follow"), 2, said)


@pytest.mark.parametrize("command", ["rebuild", "import"])
def test_what_must_be_alone_is_refused_beside_a_server(filled, place, tmp_path, command):
    pq.write_table(pa.table({"key": [b"k"], "value": [b"v"]}), tmp_path / "x")
    with filled() as storage:
        storage.backend.be_alone()
        done = run(*place, command, *([tmp_path / "x"] if command == "import" else []))
    assert done.exit_code in (1, 2)
    assert re.fullmatch(r"journeyman: error: [^\n]+\n", done.stderr)
    assert run(*place, "check").exit_code == 0

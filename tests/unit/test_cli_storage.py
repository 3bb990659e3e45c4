"""``journeyman storage``: checks that find every kind of damage, rebuilding, logs in and out."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from journeyman.cli.storage import importing
from journeyman.folds import workq as workq_fold
from journeyman.folds.keyspace import id_of
from journeyman.formats.keyspace import file
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
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobEvent, JobFinished, Record, pack_max_fails
from journeyman.formats.ztick import RuleSet, Shell
from journeyman.storage import RemoveJob, Storage, Upsert
from tests.support.cli_commands import (
    NOW_NS,
    added,
    assert_one_line_error,
    event,
    job,
    job_id,
    put,
    rows,
    run,
    write_checkpoint,
    write_segment,
    write_workq,
    write_ztick,
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
    refused = run(*place, "export", tmp_path / "x", "--to", "ztick")
    assert_one_line_error(refused, 1, "storage rebuild")
    assert run(*place, "rebuild").exit_code == 0
    with opened() as storage:
        assert storage.count("mail", "waiting") == 1


def test_a_newer_store_is_refused(opened, place, tmp_path):
    with opened() as storage:
        storage.backend.put(b"v1:storage:schema", (2).to_bytes(8, "big"))
    assert_one_line_error(run(*place, "export", tmp_path / "x", "--to", "ztick"), 1, "schema 2")


@pytest.mark.parametrize("command", ["check", "rebuild"])
def test_a_store_that_is_not_there_is_not_made(place, command, tmp_path):
    assert_one_line_error(run(*place, command), 2, "no store at")
    assert not (tmp_path / "store").exists()


def test_settings_that_cannot_be_are_one_line_and_exit_code_2(tmp_path):
    for words, said in (
        (["--set", "storage.engine=sled"], "expected one of rocksdb"),
        (["--set", "storage.mode=fast"], "low_space, high_throughput"),
        (["--set", "storage.cache_capacity=1"], "from 1048576"),
        (["--engine", "memory"], "keeps nothing"),
    ):
        assert_one_line_error(run("storage", *words, "check"), 2, said)


# -- import and export ---------------------------------------------------------------------------


def entries(path: Path) -> dict[bytes, bytes]:
    data, at, found = path.read_bytes(), len(file.HEADER), {}
    while (entry := file.CODEC.decode(data, at)) is not None:
        found[entry.record.key] = entry.record.value
        at = entry.end
    assert list(found) == sorted(found)
    return found


def test_a_keyspace_file_brings_a_store_back(filled, place, tmp_path, engine):
    target = tmp_path / "all.jmkv"
    assert run(*place, "export", target, "--to", "keyspace").exit_code == 0
    assert len(entries(target)) == COUNT * 4 + 2
    other = ["storage", "--engine", engine, "--path", str(tmp_path / "other")]
    done = run(*other, "import", target)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"{COUNT} jobs imported\n")
    assert run(*other, "check").exit_code == 0
    run(*other, "export", tmp_path / "again.jmkv", "--to", "keyspace")
    assert (tmp_path / "again.jmkv").read_bytes() == target.read_bytes()


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


@pytest.mark.parametrize("pass_bytes", [10**9, 100])
def test_a_work_queue_goes_in_and_comes_out_again(opened, place, tmp_path, monkeypatch, pass_bytes):
    monkeypatch.setattr(importing, "PASS_BYTES", pass_bytes)
    log = work_log(tmp_path / "log")
    done = run(*place, "import", log)
    losses = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert [(row["key"], row["reason"]) for row in losses] == [
        (job_id(9).hex(), "its TTL has ended")
    ]
    with opened() as storage:
        counts = {c.status: c.count for c in storage.queue_status_counts("work")}
        assert counts == {"waiting": 3, "active": 1, "delayed": 1}
        assert [queue.name for queue in storage.load_queues().queues] == ["work"]
    assert run(*place, "check").exit_code == 0
    assert run(*place, "export", tmp_path / "out", "--to", "workq").stdout == ""
    before = {row["id"]: row for row in rows(run("dump", "--compact", "--json", log))}
    after = {row["id"]: row for row in rows(run("dump", "--compact", "--json", tmp_path / "out"))}
    assert len(after) == 5
    for uuid, row in after.items():
        assert {k: v for k, v in row.items() if k != "logged"} == {
            k: v for k, v in before[uuid].items() if k != "logged"
        }


def test_a_schedule_goes_in_and_comes_out_again(opened, place, tmp_path):
    log = write_ztick(
        tmp_path / "logfile",
        RuleSet("mail", "mail.", Shell("true")),
        job("mail.17", FAR_NS),
        job("other", 5),
        replace(job("mail.old"), status=job("x").status.__class__.EXECUTED),
    )
    done = run(*place, "import", log)
    assert {json.loads(line)["key"] for line in done.stdout.splitlines()} == {"mail", "mail.old"}
    with opened() as storage:
        found = storage.get_job(id_of("mail.17"))
        assert found is not None
        assert (found.queue, found.status, found.payload) == ("mail", "delayed", '"mail.17"')
        assert storage.count("default", "waiting") == 1
    run(*place, "export", tmp_path / "out", "--to", "ztick")
    lines = run("dump", "--compact", tmp_path / "out").stdout.splitlines()
    assert sorted(line.split()[1] for line in lines) == ["mail.17", "other"]


def test_queues_of_items_go_in_and_come_out_again(opened, place, tmp_path):
    queue = tmp_path / "queues"
    items = [put(number, b"item %d" % number) for number in range(1, 6)]
    write_segment(queue / "orders.1", *items)
    write_checkpoint(queue / "orders.read.a", 2, 4)
    done = run(*place, "import", queue)
    assert done.stderr == "2 jobs imported\n"
    reasons = [json.loads(line)["reason"] for line in done.stdout.splitlines()]
    assert reasons.count("every reader has finished it") == 3
    with opened() as storage:
        assert storage.count("orders", "waiting") == 2
    run(*place, "export", tmp_path / "out", "--to", "kestrel")
    found = rows(run("dump", "--compact", "--json", tmp_path / "out"))
    assert sorted(base64.b64decode(row["data_b64"]) for row in found if "data_b64" in row) == [
        b"item 3",
        b"item 5",
    ]


def test_importing_twice_changes_nothing(opened, place, tmp_path):
    log = work_log(tmp_path / "log")
    run(*place, "import", log)
    run(*place, "export", tmp_path / "one", "--to", "keyspace")
    run(*place, "import", log)
    run(*place, "export", tmp_path / "two", "--to", "keyspace")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_damage_in_a_keyspace_file_is_left_out_and_told(filled, place, tmp_path, engine):
    target = tmp_path / "all.jmkv"
    run(*place, "export", target, "--to", "keyspace")
    data = bytearray(target.read_bytes())
    data[30] ^= 1
    target.write_bytes(data)
    other = ["storage", "--engine", engine, "--path", str(tmp_path / "other")]
    done = run(*other, "import", target)
    assert done.exit_code == 0
    assert "left out" in done.stderr
    assert f"{COUNT - 1} jobs imported" in done.stderr


def test_a_path_that_is_taken_is_refused(filled, place, tmp_path):
    for name in ("x", "x.partial"):
        (tmp_path / name).write_text("mine")
        assert_one_line_error(run(*place, "export", tmp_path / "x", "--to", "ztick"), 2, name)
        (tmp_path / name).unlink()


@pytest.mark.parametrize("command", [["rebuild"], ["import", "x"]])
def test_what_must_be_alone_is_refused_beside_a_server(filled, place, tmp_path, command):
    write_ztick(tmp_path / "x", job("a"))
    with filled() as storage:
        storage.backend.be_alone()
        words = [str(tmp_path / "x") if word == "x" else word for word in command]
        done = run(*place, *words)
    assert done.exit_code in (1, 2)
    assert re.fullmatch(r"journeyman: error: [^\n]+\n", done.stderr)
    assert run(*place, "check").exit_code == 0


@pytest.mark.parametrize(
    ("target", "count"), [("ztick", 5000), ("kestrel", 5000), ("workq", 5000), ("ztick", 5)]
)
def test_export_whose_reader_goes_away_fails_and_leaves_nothing_behind(
    opened, place, tmp_path, target, count
):
    """It notices on its way, or, where there is little to say, at the end."""
    with opened() as storage:
        storage.apply([Upsert(record(n, "completed", queue="not a name")) for n in range(count)])
    command = [sys.executable, "-m", "journeyman", *place, "export"]
    read, write = os.pipe()
    os.close(read)  # as `head` does when it has seen enough
    done = subprocess.run(
        [*command, str(tmp_path / "out"), "--to", target],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert done.returncode == 1
    assert re.fullmatch(r"journeyman: error: stdout was closed [^\n]+\n", done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_delay_before_a_retry_goes_out_and_comes_back(opened, place, tmp_path):
    delayed = replace(added(1, ttl_ms=TTL_MS), max_fails=pack_max_fails(3, 60_000))
    lives: dict[int, list[Record]] = {
        1: [event(1, Command.START_ATTEMPT), event(1, Command.TIMEOUT_ATTEMPT, at_ns=NOW_NS + 77)],
        2: [
            JobFinished(Instant(NOW_NS + 9), job_id(2), Command.FAIL, b"why", hidden=True),
            JobEvent(Instant(NOW_NS + 9), job_id(2), Command.TIMEOUT_ATTEMPT, hidden=True),
        ],
        3: [event(3, Command.TIMEOUT_ATTEMPT, at_ns=NOW_NS + 5)],
    }
    records: list[Record] = [replace(delayed, job_id=job_id(number)) for number in lives]
    records += [record for life in lives.values() for record in life]
    log = write_workq(tmp_path / "log", records)
    assert run(*place, "import", log).exit_code == 0
    with opened() as storage:
        before = list(storage.all_jobs())
        assert [json.loads(job.extra[0][1])["timed_out_ns"] for job in before] == [
            *(NOW_NS + 77, NOW_NS + 9, NOW_NS + 5)
        ]
    assert run(*place, "export", tmp_path / "out", "--to", "workq").exit_code == 0
    with opened() as storage:
        storage.apply([RemoveJob(job.job_uuid) for job in before])
    assert run(*place, "import", tmp_path / "out").exit_code == 0
    with opened() as storage:
        assert list(storage.all_jobs()) == before


def test_what_the_fold_of_a_log_is_in_parts_is_the_fold():
    """What importing in passes rests on."""
    records = [added(n, ttl_ms=TTL_MS) for n in range(50)]
    whole = workq_fold.replay(records)
    parts = [
        workq_fold.replay(r for r in records if importing._in_part(r.job_id, (part, 7)))
        for part in range(7)
    ]
    assert {k: v for part in parts for k, v in part.items()} == whole
    assert all(len(part) < 50 for part in parts)

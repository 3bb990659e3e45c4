"""Commands on logs in PostgreSQL: each says the same as on a copy of the logs in files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from journeyman.cli import doctor
from journeyman.disk import disk_of, examination
from journeyman.disk.examination import DatabaseFacts
from journeyman.disk.postgres import PostgresDisk
from tests.support.cli_commands import run
from tests.support.servers.database_process import DatabaseProcess

FAR_AWAY_NS = 4_000_000_000_000_000_000


@pytest.fixture
def server(data_address: str, tmp_path: Path):
    """A server with something in every log, stopped."""
    server = DatabaseProcess(tmp_path / "server", data_address)
    server.start(wait=False)
    server.wait_for_answer()
    with server.schedule() as schedule, server.work() as work, server.fan_out() as fan_out:
        for number in range(30):
            assert schedule.ask(f"r SET job.{number % 10} {FAR_AWAY_NS}") == "r OK"
            job = work.add("mail", b"payload %d" % number)
            if number % 2:
                leased = work.lease("mail")
                assert leased is not None
                assert work.finish(leased.job_id, b"done") == "+OK"
            assert fan_out.put("items", f"{number}") == "STORED"
            del job
        assert fan_out.get("items") == b"0"
        assert schedule.ask('r TIMETABLE SET nightly cron "0 2 * * *" run shell "true"') == "r OK"
    yield server
    if server.is_running:
        server.kill()


@pytest.fixture
def places(server: DatabaseProcess, data_address: str, tmp_path: Path) -> tuple[str, str]:
    """The database, and a copy of it in files."""
    assert server.stop() == 0
    copy = tmp_path / "copy"
    _copy(PostgresDisk(data_address), data_address, copy)
    return data_address, str(copy)


def _copy(disk: PostgresDisk, address: str, target: Path) -> None:
    target.mkdir()
    for name, facts in disk.scan(address).items():
        if facts.is_dir:
            _copy(disk, f"{address}/{name}", target / name)
        else:
            (target / name).write_bytes(disk.read_bytes(f"{address}/{name}"))
    disk.database.close()


def both(places: tuple[str, str], *words: str) -> str:
    """Run a command on the database and on the copy; the output that both have."""
    outputs = []
    for place in places:
        done = run(*(word.format(place) for word in words))
        assert done.exit_code == 0, done.output
        outputs.append(done.stdout.replace(place, "PLACE"))
    assert outputs[0] == outputs[1]
    return outputs[0]


def test_dump_and_verify_say_the_same(places):
    records = both(places, "dump", "--json", "{}")
    assert len(records.splitlines()) > 90
    assert "nightly" in records
    both(places, "dump", "--json", "--compact", "{}")
    verified = json.loads(both(places, "verify", "--json", "{}", "--as-of", str(FAR_AWAY_NS)))
    assert verified["clean"]
    assert len(verified["logs"]) == 4


def test_compact_and_clean_leave_the_same_state(places):
    before = both(places, "dump", "--json", "--compact", "{}")
    for place in places:
        assert run("compact", f"{place}/schedule.log").exit_code == 0
        assert run("clean", f"{place}/workq").exit_code == 0
    assert both(places, "dump", "--json", "--compact", "{}") == before
    assert len(both(places, "dump", "--json", "{}/schedule.log").splitlines()) == 11


def test_a_log_in_use_is_not_changed(server, data_address):
    refused = run("compact", f"{data_address}/schedule.log")
    assert refused.exit_code == 1
    assert "another process has this log open for writing" in refused.stderr
    assert run("dump", f"{data_address}/schedule.log").exit_code == 0


def test_damage_is_found_and_repaired_alike(places):
    address, copy = places
    log = Path(copy, "workq", "000000001.log")
    data = bytearray(log.read_bytes())
    data[200:204] = b"\xff" * 4
    log.write_bytes(data)
    with psycopg.connect(address, autocommit=True) as connection:
        disk = disk_of(address)
        identity = disk.stat(f"{address}/workq/000000001.log").identity
        connection.execute("DELETE FROM journeyman_bytes WHERE file = %s", (identity,))
        connection.execute(
            "INSERT INTO journeyman_bytes(file, at, data) VALUES (%s, 0, %s)",
            (identity, bytes(data)),
        )
    outputs = []
    for place in places:
        found = run("verify", "--json", f"{place}/workq", "--as-of", str(FAR_AWAY_NS))
        assert found.exit_code == 1
        outputs.append(found.stdout.replace(place, "PLACE"))
        assert run("repair", f"{place}/workq").exit_code == 0
    assert outputs[0] == outputs[1]
    assert json.loads(both(places, "verify", "--json", "{}/workq", "--as-of", str(FAR_AWAY_NS)))[
        "clean"
    ]


def test_backups_are_taken_of_databases_and_restored_into_them(
    server, data_address, tmp_path, postgres_port
):
    vault = str(tmp_path / "vault")
    words = ("--set", f"data.directory={data_address}")
    assert run("backup", vault, *words).exit_code == 0
    assert server.stop() == 0
    assert run("backup", vault, *words).exit_code == 0
    again = run("backup", vault, *words)
    assert re.search(r" 0 of them new", again.stdout)
    before = run("dump", "--json", "--compact", data_address).stdout
    files = str(tmp_path / "files")
    assert run("restore", vault, "--data", files).exit_code == 0
    assert run("dump", "--json", "--compact", files).stdout == before
    refused = run("restore", vault, "--data", data_address)
    assert refused.exit_code == 2
    assert "is not empty" in refused.stderr
    with psycopg.connect(data_address, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA restored")
    restored = f"{data_address}?options=-csearch_path%3Drestored"
    done = run("restore", vault, "--data", restored)
    assert done.exit_code == 0, done.stderr
    assert run("dump", "--json", "--compact", restored).stdout == before


def test_generate_writes_into_a_database(data_address):
    words = ("--records", "200", "--seed", "1", "--quiet")
    assert run("generate", "workq", f"{data_address}/made/workq", *words).exit_code == 0
    found = json.loads(run("verify", "--json", f"{data_address}/made/workq").stdout)
    assert sum(log["records"] for log in found["logs"]) == 200


def test_doctor_examines_the_database(server, data_address):
    def findings(address: str) -> list[tuple[str, str]]:
        done = run("doctor", "--json", "--set", f"data.directory={address}")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return [(row["level"], row["said"]) for row in rows if row["about"] == "database"]

    known, no_sync, no_replica = findings(data_address)
    assert known[0] == doctor.OK
    assert "a server is active, epoch 1" in known[1]
    assert no_sync[0] == doctor.BAD
    assert "fsync" in no_sync[1]
    assert no_replica[0] == doctor.NOTE
    assert server.stop() == 0
    assert "no server is active, epoch 1" in findings(data_address)[0][1]
    ((level, said),) = findings("postgresql://127.0.0.1:1/db")
    assert level == doctor.BAD
    assert "does not answer" in said


def test_doctor_says_what_a_database_must_not_be(monkeypatch):
    good = DatabaseFacts(
        version="16.1", version_number=160001, syncs=True, has_replica=True,
        is_replica_away=False, keeps_sessions=True, epoch=1, is_taken=True,
    )  # fmt: skip
    bad: dict[str, tuple[Any, str, str]] = {
        "version_number": (130014, doctor.BAD, "PostgreSQL 14 or later is needed"),
        "syncs": (False, doctor.BAD, "a power cut loses data"),
        "has_replica": (False, doctor.NOTE, "acknowledged work is lost with this database"),
        "is_replica_away": (True, doctor.BAD, "a server would end"),
        "keeps_sessions": (False, doctor.BAD, "a pooler changes sessions"),
    }
    monkeypatch.setattr(doctor, "_look_at_logs", lambda *_: ())

    def findings(facts: DatabaseFacts) -> list[doctor.CheckResult]:
        monkeypatch.setattr(examination, "examine", lambda _: facts)
        return list(doctor._look_at_database("postgresql://host/db", verify_all=False))

    assert [found.level for found in findings(good)] == [doctor.OK]
    for name, (value, level, said) in bad.items():
        _, found = findings(replace(good, **{name: value}))
        assert found.level == level
        assert said in found.said


def test_a_pooler_that_changes_sessions_is_recognized(data_address, monkeypatch):
    """Also one that no one else uses, so that a client always gets the session that it had."""
    assert examination.examine(data_address).keeps_sessions
    idle = [psycopg.connect(data_address, autocommit=True) for _ in range(2)]

    class Pooled:
        """A connection to a pooler: a session only for the time of a statement or transaction."""

        def __init__(self) -> None:
            self.kept: list[psycopg.Connection] = []

        def __enter__(self) -> Pooled:
            return self

        def __exit__(self, *_: object) -> None:
            """The sessions stay."""

        def execute(self, query: str) -> psycopg.Cursor:
            session = (self.kept or idle)[-1]
            return session.execute(query)

        @contextmanager
        def transaction(self) -> Iterator[None]:
            self.kept.append(idle.pop())
            yield
            idle.append(self.kept.pop())

    monkeypatch.setattr(examination, "connect", lambda _: Pooled())
    assert not examination.examine(data_address).keeps_sessions
    for session in idle:
        session.close()


def test_ledger_and_log_of_a_batch_are_one_commit(server, data_address):
    """A flush every half second may fall between the two once, but not every time."""
    names = [f"timetable-{number}" for number in range(10)]
    with server.schedule() as schedule:
        for name in names:
            assert (
                schedule.ask(f'r TIMETABLE SET {name} cron "0 2 * * *" run shell "true"') == "r OK"
            )
    with psycopg.connect(data_address, autocommit=True) as connection:
        commits = [commits_with(connection, name) for name in names]
    assert all(by_log.keys() == {"ledger", None} for by_log in commits)
    assert any(by_log["ledger"] == by_log[None] for by_log in commits)


def commits_with(connection: psycopg.Connection, text: str) -> dict[str | None, str]:
    """Return the transactions that wrote this text, by the directory of the log."""
    found = connection.execute(
        "SELECT convert_from(d.name, 'UTF8'), b.xmin::text FROM journeyman_bytes b"
        " JOIN journeyman_file f ON f.id = b.file"
        " LEFT JOIN journeyman_file d ON d.id = f.parent"
        " WHERE position(%s IN b.data) > 0",
        (text.encode(),),
    ).fetchall()
    return dict(found)


def test_files_and_databases_are_not_read_together(data_address, tmp_path):
    refused = run("dump", data_address, str(tmp_path))
    assert refused.exit_code == 2
    assert "cannot be read together" in refused.stderr

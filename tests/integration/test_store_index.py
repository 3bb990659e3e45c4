"""The store of a real server: kept by a process of its own, killed, asked over HTTP, refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk, disk_of
from journeyman.errors import StorageError
from journeyman.folds.keyspace import is_archived, record_of_workq
from journeyman.folds.workq import visible
from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.workq import CODEC
from journeyman.logs.damage import Damage, read_past_damage
from journeyman.logs.holders import names_of_holders
from journeyman.servers.index.follower import Follower
from journeyman.storage import Storage
from journeyman.storage.checking import find_problems
from journeyman.storage.index import JobLife
from tests.support.servers.database_process import DatabaseProcess
from tests.support.servers.http_client import ask
from tests.support.servers.workq_process import WorkqClient, WorkqProcess

ROUNDS = 40


def settings_of(tmp_path: Path, engine: str, place: str) -> dict[str, object]:
    return {
        "data.directory": tmp_path / "data",
        "workq.cmdlog_path": tmp_path / "data" / "workq",
        "workq.cmdlog_seg_size": 4000,
        "workq.cmdlog_clean_int": 200,
        "storage.engine": engine,
        "storage.path": place,
        "log.level": "info",
    }


def follower_pid(server: WorkqProcess) -> int | None:
    """The process that keeps the store of a server."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if b"journeyman.servers.index.child" in words and parent == server.process.pid:
                return int(entry.name)
    return None


def kill_follower(server: WorkqProcess) -> None:
    found: list[int] = []

    def is_there() -> bool:
        pid = follower_pid(server)
        found.extend([] if pid is None else [pid])
        return pid is not None

    server.wait_until(is_there, "the process that keeps the store")
    os.kill(found[-1], signal.SIGKILL)


def load(client: WorkqClient, lives: int) -> None:
    """Jobs in every state, some of which end within the test."""
    for number in range(ROUNDS):
        client.add("waiting", b"x" * 20, ttl=200 if number % 4 == 0 else 600_000)
        done = client.add("done")
        client.finish(done, b"result")
        client.add("leased", flags="-max-fails=3")
        leased = client.lease("leased")
        assert leased is not None
        if number % 3 == 0:
            client.finish(leased.job_id, b"no", command="fail")
        if number % 5 == 0:
            assert client.ask(f"delete {done}") == "+OK"
    client.ask(f"pause queue{lives}")


def opened(engine: str, place: str, server: WorkqProcess) -> Storage:
    """Once the process that kept it has seen that its server is gone."""
    stores: list[Storage] = []

    def is_free() -> bool:
        try:
            storage = Storage.open(engine, place)
        except StorageError:
            return False
        try:
            storage.backend.be_alone()
        except StorageError:
            storage.close()
            return False
        stores.append(storage)
        return True

    server.wait_until(is_free, "the store")
    return stores[0]


def rows_of_log(directory: Path, as_of_ns: int) -> dict[object, JobRecord]:
    lives: dict[bytes, JobLife] = {}
    for path in sorted(directory.glob("*.log")):
        for item in read_past_damage(CODEC, path.read_bytes()):
            if not isinstance(item, Damage):
                lives.setdefault(item.record.job_id, JobLife()).apply(item.record)
    rows: dict[object, JobRecord] = {}
    for life in lives.values():
        job = visible(life.state, as_of_ns)
        if job is not None:
            row = record_of_workq(job, as_of_ns, life.timed_out_ns)
            rows[row.job_uuid] = row
    return rows


def assert_index_of_log(storage: Storage, tmp_path: Path, say: Callable[[str], None]) -> int:
    """Follow to the end; how many rows are in the archive."""
    log = tmp_path / "data" / "workq"
    follower = Follower(
        RealDisk(),
        SystemClock(),
        storage,
        str(log),
        ledger=str(tmp_path / "data" / "ledger"),
        retention_ms=10**9,
        say=say,
    )
    while follower.step():
        pass
    live, archived = {}, 0
    for row in storage.all_jobs():
        assert isinstance(row, JobRecord)
        if is_archived(row):
            archived += 1
        else:
            live[row.job_uuid] = row
    assert live == rows_of_log(log, follower.position.clock_ns)
    with storage.backend.view() as view:
        assert [str(problem) for problem in find_problems(view)] == []
    return archived


@pytest.mark.parametrize("engine", ["sqlite", "rocksdb", "postgres"])
def test_kills_leave_the_store_the_index_of_the_log(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
):
    place = str(tmp_path / "data" / "store")
    if engine == "postgres":
        place = request.getfixturevalue("address")
    settings = settings_of(tmp_path, engine, place)
    for lives in range(2):
        with WorkqProcess(tmp_path, settings=settings) as server, server.worker() as client:
            load(client, lives)
            kill_follower(server)
            load(client, lives)
            server.wait_for_line("it is started again in")
            server.kill()
    said: list[str] = []
    with opened(engine, place, server) as storage:
        archived = assert_index_of_log(storage, tmp_path, said.append)
        states = {queue.name: queue.state for queue in storage.load_queues().queues}
    assert said == []  # it went on from where it was
    assert archived > 10
    assert (states["queue0"], states["queue1"], states["waiting"]) == ("paused", "paused", "active")
    who = names_of_holders(RealDisk(), str(tmp_path / "data" / "workq"))
    assert who == [f"store {'postgres' if engine == 'postgres' else place}"]


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_the_store_is_asked_over_http(tmp_path: Path, engine: str):
    settings = settings_of(tmp_path, engine, str(tmp_path / "store"))
    settings |= {"http.listen": "127.0.0.1:0"}
    with WorkqProcess(tmp_path, settings=settings) as server, server.worker() as client:
        place = tmp_path / "store" if engine == "sqlite" else engine
        server.wait_for_line(f"opening the store: {engine}")
        server.wait_for_line(f"opened the store: {engine} at {place}")
        ids = [client.add("mail", b"%d" % number) for number in range(3)]
        client.finish(ids[0], b"\xff")

        def counts() -> dict[str, int]:
            status, found = ask(server, "GET", "/v1/work/archive/counts?queue=mail")
            assert status == 200
            assert found["position"] is None or found["position"].startswith("00000000")
            return {each["status"]: each["count"] for each in found["counts"]}

        server.wait_until(lambda: counts() == {"completed": 1, "waiting": 2}, "the counts")
        status, page = ask(server, "GET", "/v1/work/archive?status=waiting&queue=mail&limit=1")
        assert (status, [job["id"] for job in page["jobs"]]) == (200, ids[1:2])
        more = f"/v1/work/archive?status=waiting&limit=1&queue=mail&cursor={page['next']}"
        assert [job["payload"] for job in ask(server, "GET", more)[1]["jobs"]] == ["2"]
        by_number = ask(server, "GET", "/v1/work/archive?status=waiting&queue=mail&limit=1&page=2")
        assert by_number[1]["jobs"][0]["id"] == ids[2]
        status, job = ask(server, "GET", f"/v1/work/archive/{ids[0]}")
        assert (status, job["status"], job["result_base64"]) == (200, "completed", "/w==")
        assert ask(server, "GET", f"/v1/work/archive/{ids[0][:-1]}f")[0] == 404
        assert ask(server, "GET", "/v1/work/archive?status=waiting&cursor=zz")[0] == 400
        assert ask(server, "GET", "/v1/work/archive?status=waiting&page=2")[0] == 400
        assert server.stop() == 0


def test_without_a_store_there_is_none_to_ask(tmp_path: Path):
    settings = {"http.listen": "127.0.0.1:0"}
    with WorkqProcess(tmp_path, settings=settings) as server:
        status, problem = ask(server, "GET", "/v1/work/archive/counts")
        assert status == 404
        assert "service_off" in str(problem)
        assert follower_pid(server) is None


def test_a_store_that_cannot_be_opened_ends_the_start_before_any_port_opens(tmp_path: Path):
    place = tmp_path / "store"
    place.write_text("not a directory")
    server = WorkqProcess(tmp_path, settings=settings_of(tmp_path, "sqlite", str(place)))
    assert server.start(wait=False).wait() == 2
    assert any("failed to create storage data directory" in line for line in server.lines)
    assert not any("listen" in line for line in server.lines)


def test_a_store_that_another_has_ends_the_start(tmp_path: Path):
    place = str(tmp_path / "store")
    with Storage.open("sqlite", place) as storage:
        storage.backend.be_alone()
        server = WorkqProcess(tmp_path, settings=settings_of(tmp_path, "sqlite", place))
        assert server.start(wait=False).wait() == 2
    assert any("storage:" in line for line in server.lines)
    assert not any("listen" in line for line in server.lines)


def test_a_log_in_a_database_is_followed(tmp_path: Path, data_address: str):
    store = str(tmp_path / "store")
    settings = {"storage.engine": "sqlite", "storage.path": store}
    with DatabaseProcess(tmp_path / "server", data_address, settings=settings) as server:
        server.wait_for_answer()
        with server.work() as client:
            for number in range(20):
                job_id = client.add("done")
                if number % 2:
                    client.finish(job_id)

        def counts() -> dict[str, int]:
            _, found = ask(server, "GET", "/v1/work/archive/counts?queue=done")
            return {each["status"]: each["count"] for each in found["counts"]}

        server.wait_until(lambda: counts() == {"completed": 10, "waiting": 10}, "the counts")
        server.stop()
    assert not any("it is started again" in line for line in server.lines)
    log = f"{data_address}/workq"
    assert names_of_holders(disk_of(log), log) == [f"store {store}"]


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def test_no_process_log_or_answer_shows_a_password(
    tmp_path: Path, data_address: str, monkeypatch: pytest.MonkeyPatch
):
    """Neither that of the logs' database, nor that in the address of the store."""
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    server = DatabaseProcess(tmp_path / "server", data_address)
    store = data_address.replace("journeyman@", "journeyman:hunter2@")
    server._config = f'[storage]\nengine = "postgres"\npath = "{store}"\n'
    with server:
        server.wait_for_answer()
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        answers = [
            ask(server, "GET", path)
            for path in (
                f"/v1/work/jobs?at={moment}",  # starts the process of the past
                "/v1/summaries?by=queue",  # and that of figures over time
                "/v1/work/archive/counts",
                "/v1/settings",
                "/v1/log/files",
            )
        ]
        assert {status for status, _ in answers} == {200}
        commands = [
            Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(server.process.pid)
        ]
        for helper in ("past.child", "series.child", "index.child"):
            assert any(helper.encode() in command for command in commands), helper
        assert not any(b"hunter2" in command for command in commands)
        assert "hunter2" not in repr(answers)
        server.stop()
    assert not any("hunter2" in line for line in server.lines)

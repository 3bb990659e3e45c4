"""What the disk in PostgreSQL promises beyond the contract of all disks."""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from journeyman.clock import SystemClock
from journeyman.disk import NotWritten, checked_address, disk_of
from journeyman.disk import database as database_module
from journeyman.disk import postgres as postgres_module
from journeyman.disk.guard import Guard, _has_ended
from journeyman.disk.postgres import PIECE_BYTES, PostgresDisk
from journeyman.engines.kestrel.messages import AddReader, Append
from journeyman.errors import LogError, LogFull, LogPoisoned, UsageError
from journeyman.formats.kestrel import ItemPut
from journeyman.logs.appender import Appender, SyncPolicy
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.segments import ZtickPlan
from journeyman.servers.kestrel.persistence import KestrelLogs
from tests.support.servers.link import Link

_FULL = """
    CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$;
    CREATE TRIGGER full_disk BEFORE INSERT ON journeyman_bytes
        FOR EACH ROW EXECUTE FUNCTION full_disk()"""


@pytest.fixture
def disk(data_address: str) -> Iterator[PostgresDisk]:
    disk = PostgresDisk(data_address)
    disk.prepare()
    yield disk
    disk.close()


@pytest.fixture
def database(data_address: str, disk: PostgresDisk) -> Iterator[psycopg.Connection]:
    """Another client of the same database; the tables are there."""
    del disk
    with psycopg.connect(data_address, autocommit=True) as connection:
        yield connection


def appended(disk: PostgresDisk, path: str, data: bytes) -> None:
    file = disk.open_append(path)
    file.write(data)
    file.sync()
    file.close()


def seen(path: str) -> bytes:
    """The file as another process sees it."""
    disk = PostgresDisk(path)
    try:
        return disk.read_bytes(path)
    finally:
        disk.close()


def test_a_full_database_refuses_an_append_and_the_log_goes_on(disk, database, data_address):
    log = Appender(disk, SystemClock(), ZtickPlan(f"{data_address}/log"))
    log.append([b"first,"])
    database.execute(_FULL)
    with pytest.raises(LogFull):
        log.append([b"refused"])
    assert log.poisoned is None
    database.execute("DROP TRIGGER full_disk ON journeyman_bytes")
    log.append([b"second"])
    log.close()
    assert seen(f"{data_address}/log") == b"first,second"


def test_a_writer_that_was_replaced_commits_nothing_more(disk, data_address):
    first = Guard(disk.database)
    assert first.take()
    disk.guard = first
    log = Appender(disk, SystemClock(), ZtickPlan(f"{data_address}/log"))
    log.append([b"acknowledged,"])
    other = PostgresDisk(data_address)
    refused = Guard(other.database)
    assert not refused.take()
    refused.release()
    assert first._session is not None
    first._session.execute("SELECT pg_advisory_unlock_all()")  # as when the session is lost
    second = Guard(other.database)
    assert second.take(5.0)
    with pytest.raises(LogPoisoned, match="another server has taken over"):
        log.append([b"too late"])
    changes: list[Callable[[], object]] = [
        lambda: disk.make_dirs(f"{data_address}/directory"),
        lambda: disk.rename(f"{data_address}/log", f"{data_address}/renamed"),
        lambda: disk.remove(f"{data_address}/log"),
        lambda: disk.open_append(f"{data_address}/new"),
    ]
    for change in changes:
        with pytest.raises(OSError, match="another server has taken over"):
            change()
    appended(other, f"{data_address}/log", b"of the next")
    assert other.read_bytes(f"{data_address}/log") == b"acknowledged,of the next"
    second.release()
    other.close()


def test_an_epoch_that_is_another_s_ends_the_lease(disk, data_address):
    guard, lost = Guard(disk.database), threading.Event()
    guard.on_lost = lambda _: lost.set()
    assert guard.take()
    assert guard.lost is None
    with psycopg.connect(data_address, autocommit=True) as connection:
        connection.execute("UPDATE journeyman_directory SET epoch = epoch + 1")
    assert lost.wait(30)
    assert not guard.is_valid
    guard.release()


def test_a_session_that_was_ended_is_taken_again_by_the_same_server(disk, data_address):
    guard = Guard(disk.database)
    assert guard.take()
    first = guard._identity
    with psycopg.connect(data_address, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", (first[0],))
    deadline = time.monotonic() + 30
    while guard._identity == first or not guard.is_valid:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert guard.lost is None
    guard.release()


def test_a_server_has_ended_when_all_that_it_advertised_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as open_port, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        refused, accepted = list(bound.getsockname()), list(open_port.getsockname())
        other = {"machine": "another one", "process": [1, "0"]}
        assert _has_ended({**other, "addresses": [refused]})
        assert not _has_ended({**other, "addresses": [refused, accepted]})
        assert not _has_ended({**other, "addresses": []})


def test_addresses_are_advertised_when_the_ports_are_open(disk, database, data_address):
    guard = Guard(disk.database, [("192.0.2.1", 5678), ("127.0.0.1", 9922)])
    assert guard.take()

    def advertised() -> object:
        (server,) = database.execute("SELECT server FROM journeyman_directory").fetchone()
        return json.loads(server)["addresses"]

    assert advertised() == []
    guard.advertise()
    assert advertised() == [["192.0.2.1", 5678]]
    guard.release()


def test_a_question_that_is_not_answered_ends(data_address, postgres_port, monkeypatch):
    monkeypatch.setattr(database_module, "ANSWER_S", 0.1)
    monkeypatch.setattr(database_module, "DEADLINE_S", 0.1)
    with Link(postgres_port) as link:
        disk = PostgresDisk(data_address.replace(f":{postgres_port}/", f":{link.port}/"))
        disk.prepare()
        assert disk.list_dir(data_address) == []
        link.stall()
        with pytest.raises(OSError, match="connection") as caught:
            disk.list_dir(data_address)
        assert caught.value.errno == errno.ETIMEDOUT
        disk.database.close()


def test_a_stop_does_not_wait_for_a_database_that_does_not_answer(data_address, postgres_port):
    with Link(postgres_port) as link:
        disk = PostgresDisk(data_address.replace(f":{postgres_port}/", f":{link.port}/"))
        disk.prepare()
        guard = Guard(disk.database)
        assert guard.take()
        link.stall()
        releasing = threading.Thread(target=guard.release, daemon=True)
        releasing.start()
        releasing.join(60)
        assert not releasing.is_alive()
        disk.database.close()


def test_a_log_whose_end_was_lost_gets_no_hole(disk, database, data_address):
    """A replica that was behind has become the server: acknowledged bytes are missing there."""
    file = disk.open_append(f"{data_address}/log")
    for data in (b"one,", b"two,"):
        file.write(data)
        file.sync()
    database.execute("DELETE FROM journeyman_bytes WHERE at = 4")
    file.write(b"three")
    with pytest.raises(OSError, match="ends at byte 4, not at byte 8") as caught:
        file.sync()
    assert not isinstance(caught.value, NotWritten)
    assert seen(f"{data_address}/log") == b"one,"


def test_nothing_is_appended_to_a_file_that_was_lost(disk, database, data_address):
    """The same replica has not even its name: the bytes would be found by no one."""
    file = disk.open_append(f"{data_address}/log")
    database.execute("DELETE FROM journeyman_file")
    file.write(b"one")
    with pytest.raises(OSError, match="does not exist any more") as caught:
        file.sync()
    assert not isinstance(caught.value, NotWritten)


def test_an_error_after_a_lost_answer_does_not_mean_that_nothing_was_written(
    disk, database, data_address, monkeypatch
):
    """The first try was committed and its answer lost; the second one finds the disk full."""
    file = disk.open_append(f"{data_address}/log")
    try_change = database_module.Database._try_change

    def lose_answer(self, statement, values):
        monkeypatch.undo()
        try_change(self, statement, values)
        database.execute(_FULL.replace("BEFORE INSERT", "BEFORE INSERT OR UPDATE"))
        raise psycopg.OperationalError("connection reset by peer")

    file.write(b"one")
    monkeypatch.setattr(database_module.Database, "_try_change", lose_answer)
    with pytest.raises(OSError, match="No space left on device") as caught:
        file.sync()
    assert not isinstance(caught.value, NotWritten)
    assert seen(f"{data_address}/log") == b"one"


def test_a_full_database_is_no_reason_to_give_up_a_log_that_is_synced_later(
    disk, database, data_address
):
    path = f"{data_address}/log"
    log = Appender(disk, SystemClock(), ZtickPlan(path), sync=SyncPolicy.OS)
    log.append([b"kept"])
    database.execute(_FULL)
    with pytest.raises(LogError, match="not synced yet: No space left on device") as caught:
        log.sync()
    assert not isinstance(caught.value, LogPoisoned)
    database.execute("DROP TRIGGER full_disk ON journeyman_bytes")
    log.append([b", and more"])
    log.sync()
    assert seen(path) == b"kept, and more"
    log.close()


def test_an_append_is_taken_back_while_other_bytes_wait_for_a_full_database(
    disk, database, data_address
):
    path = f"{data_address}/log"
    log = Appender(disk, SystemClock(), ZtickPlan(path), sync=SyncPolicy.OS)
    log.append([b"kept"])
    database.execute(_FULL)
    with pytest.raises(LogFull):
        log.append([b"taken back"], sync=True)
    database.execute("DROP TRIGGER full_disk ON journeyman_bytes")
    log.append([b", and more"], sync=True)
    assert seen(path) == b"kept, and more"
    log.close()


def test_the_same_bytes_sent_again_are_there_once(disk, database, data_address):
    """The answer to a commit was lost, and the commit was not."""
    file = disk.open_append(f"{data_address}/log")
    file.write(b"one,")
    file.sync()
    call = "SELECT journeyman_append(NULL, ARRAY[%s], ARRAY[4::bigint], ARRAY['two'::bytea])"
    identity = disk.stat(f"{data_address}/log").identity
    database.execute(call, (identity,))
    database.execute(call, (identity,))
    file.write(b"two")
    file.sync()
    file.close()
    assert seen(f"{data_address}/log") == b"one,two"


def test_after_a_flush_of_unknown_outcome_nothing_is_synced(disk, data_address, monkeypatch):
    """The thread that flushes has lost the database: a later sync must not succeed without it."""
    file = disk.open_append(f"{data_address}/log")
    file.write(b"one,")
    file.sync()
    with monkeypatch.context() as patch:
        patch.setattr(database_module, "DEADLINE_S", 0)  # the first error is the last
        disk.database.hang_up()
        file.write(b"two,")
        with pytest.raises(OSError, match="Errno 110"):
            disk.flush()
    with pytest.raises(OSError, match="Errno 110"):
        file.sync()
    file.write(b"three")
    with pytest.raises(OSError, match="Errno 110"):
        file.sync()
    with pytest.raises(OSError, match="Errno 110"):
        file.truncate(4)
    assert seen(f"{data_address}/log") == b"one,"


def test_connections_that_were_ended_are_replaced(disk, database, data_address):
    file = disk.open_append(f"{data_address}/log")
    for number in range(5):
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND datname = current_database()"
        )
        file.write(b"%d," % number)
        file.sync()
    assert disk.read_bytes(f"{data_address}/log") == b"0,1,2,3,4,"


def test_one_sync_makes_durable_what_was_written_to_any_file(disk, database, data_address):
    first, second = (disk.open_append(f"{data_address}/{name}") for name in "ab")
    first.write(b"first")
    second.write(b"second")
    second.sync()
    (transactions,) = database.execute(
        "SELECT count(DISTINCT xmin::text) FROM journeyman_bytes"
    ).fetchone()
    assert transactions == 1
    assert seen(f"{data_address}/a") == b"first"


def test_items_of_many_queues_are_one_commit(disk, database, data_address):
    """And if it fails, none of them is stored."""
    logs = KestrelLogs(disk, SystemClock(), f"{data_address}/kestrel", waits_for_sync=True)
    logs.open_all()
    queues = [f"q{number}" for number in range(40)]
    logs.write([AddReader(queue, "", 0, False, 1) for queue in queues])
    next_id = 0

    def write() -> None:
        nonlocal next_id
        next_id += 1
        logs.write([Append(queue, ItemPut(next_id, 1, None, 0, b"item")) for queue in queues])

    write()  # what stands before the first item of a journal is written as well
    database.execute("CREATE TABLE before AS SELECT file, at FROM journeyman_bytes")
    write()
    (pieces, transactions) = database.execute(
        "SELECT count(*), count(DISTINCT xmin::text) FROM journeyman_bytes"
        " WHERE (file, at) NOT IN (SELECT file, at FROM before)"
    ).fetchone()
    assert (pieces, transactions) == (40, 1)
    database.execute(_FULL)
    with pytest.raises(LogFull):
        write()
    database.execute("DROP TRIGGER full_disk ON journeyman_bytes")
    write()
    logs.close()
    for queue in queues:
        found = KestrelLog.open(disk, SystemClock(), f"{data_address}/kestrel", queue)
        items = found.read_after(0, max_items=9, max_bytes=99)
        assert [item.item_id for item in items] == [1, 2, 4]
        found.close()


def test_other_processes_see_what_was_flushed(disk, data_address):
    file = disk.open_append(f"{data_address}/log")
    file.write(b"not synced")
    assert seen(f"{data_address}/log") == b""
    disk.flush()
    assert seen(f"{data_address}/log") == b"not synced"


def test_small_pieces_are_merged_and_the_bytes_stay_the_same(disk, database, data_address):
    path = f"{data_address}/log"
    file = disk.open_append(path)
    piece = bytes(range(256)) * 400
    for _ in range(30):
        file.write(piece)
        file.sync()
    disk._merge_all()
    (rows,) = database.execute("SELECT count(*) FROM journeyman_bytes").fetchone()
    assert 30 * len(piece) // PIECE_BYTES <= rows < 15
    file.write(b"end")
    file.sync()
    assert disk.read_bytes(path) == piece * 30 + b"end"
    middle = 17 * len(piece) - 5
    assert disk.read_at(path, middle, 10) == (piece * 30)[middle : middle + 10]
    file.truncate(12 * len(piece) + 1)
    assert disk.read_bytes(path) == piece * 12 + piece[:1]


def test_removed_files_stay_for_those_who_read_them_and_then_go(disk, database, data_address):
    path = f"{data_address}/log"
    appended(disk, path, b"bytes")
    file = disk.open_read(path)
    disk.remove(path)
    disk.purge()
    assert file.read_at(0, 9) == b"bytes"
    database.execute("UPDATE journeyman_file SET gone = gone - interval '2 minutes'")
    disk.purge()
    with pytest.raises(OSError, match="Stale") as caught:
        file.read_at(0, 9)
    assert caught.value.errno == errno.ESTALE
    assert database.execute("SELECT count(*) FROM journeyman_bytes").fetchone() == (0,)


def test_a_long_view_is_read_in_pieces(disk, data_address, monkeypatch):
    monkeypatch.setattr(postgres_module, "IN_MEMORY_BYTES", 1000)
    monkeypatch.setattr(postgres_module, "READ_BYTES", 700)
    data = bytes(range(256)) * 50
    appended(disk, f"{data_address}/log", data)
    view = disk.view(f"{data_address}/log")
    assert bytes(view) == data
    assert view.readonly


def test_two_directories_in_two_schemas_of_one_database(data_address):
    with psycopg.connect(data_address, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA other")
    other_address = f"{data_address}?options=-csearch_path%3Dother"
    disk, other = PostgresDisk(data_address), PostgresDisk(other_address)
    appended(disk, f"{data_address}/log", b"one")
    appended(other, f"{other_address}/log", b"other")
    assert disk.read_bytes(f"{data_address}/log") == b"one"
    lock = disk.lock(f"{data_address}/lock")
    other.lock(f"{other_address}/lock").release()
    lock.release()
    disk.close()
    other.close()


def test_a_database_that_no_server_has_used_is_an_empty_directory(data_address):
    disk = disk_of(data_address)
    assert disk.list_dir(data_address) == []
    assert not disk.exists(f"{data_address}/workq")


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:secret@host/db",
        "postgresql://me@host/db?password=secret",
        "postgresql://me@host/db?sslpassword=secret",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_shown(address):
    with pytest.raises(UsageError, match="PGPASSFILE") as caught:
        checked_address(address)
    assert "secret" not in str(caught.value)


def test_slashes_in_parameters_are_escaped():
    written = "postgresql:///db?host=/var/run/postgresql"
    assert checked_address(written) == "postgresql:///db?host=%2Fvar%2Frun%2Fpostgresql"


def test_a_statement_that_arrives_late_finds_its_session_ended(data_address, postgres_port):
    """A stalled link may deliver what was sent again long ago, and cut off since."""
    with Link(postgres_port) as link:
        disk = PostgresDisk(data_address.replace(f":{postgres_port}/", f":{link.port}/"))
        path = f"{disk.database.address}/log"
        file = disk.open_append(path)
        file.write(b"one,")
        file.sync()
        assert disk.database._writer is not None
        session = disk.database._writer.info.backend_pid
        link.stall()
        file.write(b"two")
        syncing = threading.Thread(target=file.sync)
        syncing.start()
        while disk.database.waiting_since_ns is None:
            time.sleep(0.001)
        time.sleep(0.1)  # for the statement to be under way; if it is not, the test proves less
        disk.database.parameters["port"] = str(postgres_port)
        disk.database.hang_up()
        syncing.join()
        file.truncate(4)
        with psycopg.connect(data_address, autocommit=True) as connection:
            there = connection.execute("SELECT pid FROM pg_stat_activity").fetchall()
        assert (session,) not in there  # nothing that the link still holds can be carried out
        link.resume()
        assert seen(f"{data_address}/log") == b"one,"
        disk.close()

"""A PostgreSQL that goes away and comes back, under the store and under a real server."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from journeyman.errors import StorageError, StorageLocked, StorageUnavailable
from journeyman.storage import postgres as postgres_module
from journeyman.storage.postgres import PostgresBackend
from tests.support.servers.services import PostgresService

COMMIT = b"COMMIT"
READ_ONLY = "-SERVER-ERROR Read-only mode triggered by cmdlog circuit breaker"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresService]:
    """One of its own: tests stop it, and start it again."""
    service = PostgresService(tmp_path_factory.mktemp("lost") / "postgres")
    service.start()
    yield service
    service.stop()


@pytest.fixture
def database(server: PostgresService, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of its own for every test."""
    name = f"lost_{abs(hash(request.node.name))}"
    with connected(server) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield name
    with connected(server) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def connected(server: PostgresService) -> psycopg.Connection:
    return psycopg.connect(address_of(server.port, "postgres"), autocommit=True)


def address_of(port: int, database: str) -> str:
    return f"host=127.0.0.1 port={port} user=journeyman dbname={database}"


@pytest.fixture
def address(server: PostgresService, database: str) -> str:
    return address_of(server.port, database)


def cut_all_connections(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"  # it waits until then
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )


# -- the store ------------------------------------------------------------------------------------


def test_idle_connections_that_were_cut_are_not_noticed(address: str):
    backend = PostgresBackend(address)
    backend.be_alone()
    backend.put(b"a", b"1")
    assert backend.get(b"a") == b"1"
    cut_all_connections(address)
    backend.put(b"b", b"2")
    second = PostgresBackend(address)
    with pytest.raises(StorageLocked):  # the lock was taken again
        second.be_alone()
    second.close()
    cut_all_connections(address)
    assert backend.get(b"b") == b"2"
    backend.close()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_server_that_restarts_refuses_meanwhile_and_loses_nothing(
    server: PostgresService, address: str, how: int
):
    backend = PostgresBackend(address)
    backend.be_alone()
    backend.put(b"a", b"1")
    server.halt(how)
    with pytest.raises(StorageUnavailable, match="postgres: "):
        backend.put(b"b", b"2")
    with pytest.raises(StorageUnavailable):
        backend.get(b"a")
    server.resume()
    assert backend.get(b"a") == b"1"
    assert backend.get(b"b") is None
    backend.put(b"b", b"2")
    assert backend.get(b"b") == b"2"
    backend.close()


def test_connection_cut_inside_a_turn_changes_nothing(address: str):
    backend = PostgresBackend(address)
    with pytest.raises(StorageUnavailable), backend.turn() as turn:  # noqa: PT012
        assert turn.get(b"a") is None
        cut_all_connections(address)
        turn.commit({b"a": b"1"})
    assert backend.get(b"a") is None
    backend.put(b"a", b"2")
    assert backend.get(b"a") == b"2"
    backend.close()


def test_another_that_was_alone_meanwhile_is_the_end(address: str):
    backend = PostgresBackend(address)
    backend.be_alone()
    cut_all_connections(address)
    other = PostgresBackend(address)
    other.be_alone()
    with pytest.raises(StorageLocked, match="took this database over"):
        backend.put(b"a", b"1")
    other.close()
    with pytest.raises(StorageLocked, match="took this database over"):
        backend.put(b"a", b"1")
    assert backend.get(b"a") is None
    backend.close()


def test_server_that_has_not_noticed_its_loss_cannot_write(address: str):
    """Its connection lives, and so, it believes, does its lock: only the epoch says otherwise."""
    backend = PostgresBackend(address)
    backend.be_alone()
    backend.put(b"a", b"1")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("UPDATE journeyman_epoch SET epoch = epoch + 1")
    for _ in range(2):
        with pytest.raises(StorageLocked, match="took this database over"):
            backend.put(b"a", b"2")
    assert backend.get(b"a") == b"1"
    backend.close()


def test_turn_that_raises_keeps_the_lock(address: str):
    backend = PostgresBackend(address)
    backend.be_alone()
    with pytest.raises(ZeroDivisionError), backend.turn():
        _ = 1 / 0
    other = PostgresBackend(address)
    with pytest.raises(StorageLocked):
        other.be_alone()
    other.close()
    backend.close()


class CommitCutter:
    """A proxy that cuts the first connection that commits, when it is told to: before the server
    has the commit, or before the client has the answer. Later ones pass, unless it is shut."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.cut: str | None = None  # "request" or "answer"
        self.shuts = False  # and lets nobody in afterwards
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            self._ends += (client, server)
            committing = threading.Event()
            for source, sink in ((client, server), (server, client)):
                passing = threading.Thread(
                    target=self._pass_on, args=(source, sink, client, committing), daemon=True
                )
                self._threads.append(passing)
                passing.start()

    def _pass_on(
        self,
        source: socket.socket,
        sink: socket.socket,
        client: socket.socket,
        committing: threading.Event,
    ) -> None:
        try:
            while data := source.recv(65536):
                if source is client and COMMIT in data and self.cut is not None:
                    if self.shuts:
                        self._server.shutdown(socket.SHUT_RDWR)
                    cut, self.cut = self.cut, None
                    if cut == "request":
                        break
                    committing.set()
                elif source is not client and committing.is_set():
                    break
                sink.sendall(data)
        except OSError:
            pass
        with suppress(OSError):  # the server keeps its end: it notices nothing
            client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()


@pytest.fixture
def cutter(server: PostgresService) -> Iterator[CommitCutter]:
    proxy = CommitCutter(server.port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("cut", ["request", "answer"])
def test_commit_that_was_not_answered_is_asked_about(cutter: CommitCutter, database: str, cut: str):
    backend = PostgresBackend(address_of(cutter.port, database))
    backend.be_alone()
    backend.put(b"a", b"1")
    cutter.cut = cut
    if cut == "answer":
        backend.put(b"b", b"2")
    else:
        with pytest.raises(StorageUnavailable):
            backend.put(b"b", b"2")
    assert backend.get(b"b") == (b"2" if cut == "answer" else None)
    backend.put(b"c", b"3")
    assert backend.get(b"c") == b"3"
    backend.close()


def test_commit_that_nobody_can_be_asked_about_is_an_error_of_its_own(
    cutter: CommitCutter, database: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres_module, "_OUTCOME_S", 1)
    backend = PostgresBackend(address_of(cutter.port, database))
    cutter.cut, cutter.shuts = "answer", True
    with pytest.raises(StorageError, match="whether the last commit was done is unknown") as found:
        backend.put(b"a", b"1")
    assert type(found.value) is StorageError
    backend.close()

"""A worker behind a task: its modules are not gone through again, and Java is answered at once."""

from __future__ import annotations

import gc
import socket
import sys

import pytest

from journeyman.spark import worker_daemon


@pytest.fixture(autouse=True)
def _nothing_counted_out():
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.fixture
def new_worker(monkeypatch):
    monkeypatch.setattr(worker_daemon, "_tasks_done", 0)
    monkeypatch.setattr(worker_daemon, "_pyspark_task", lambda _sock, _authenticated: 0)


@pytest.mark.usefixtures("new_worker")
def test_what_a_worker_has_imported_is_counted_out_after_its_first_tasks():
    here, there = socket.socketpair()
    with here, there:
        assert gc.get_freeze_count() == 0
        assert worker_daemon.do_task(here, True) == 0
        assert gc.get_freeze_count() > 1000
        for _ in range(worker_daemon._SETTLING):
            worker_daemon.do_task(here, True)
        gc.unfreeze()
        worker_daemon.do_task(here, True)
        assert gc.get_freeze_count() == 0  # what comes later may become garbage


def test_what_pyspark_answers_is_answered(monkeypatch):
    asked = []

    def task(sock: socket.socket, authenticated: bool) -> int:
        asked.append((sock, authenticated))
        return 7

    monkeypatch.setattr(worker_daemon, "_pyspark_task", task)
    here, there = socket.socketpair()
    with here, there:
        assert worker_daemon.do_task(here, False) == 7
        assert asked == [(here, False)]


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of Linux")
def test_what_java_sends_is_acknowledged_at_once(monkeypatch):
    found = []

    def task(sock: socket.socket, _authenticated: bool) -> int:
        found.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
        return 0

    monkeypatch.setattr(worker_daemon, "_pyspark_task", task)
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as here:
        here.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        worker_daemon.do_task(here, True)
    assert found == [1]

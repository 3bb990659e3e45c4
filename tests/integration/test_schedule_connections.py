"""Connections that are many, slow, idle, half open, or treated badly on the way."""

from __future__ import annotations

import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.schedule_process import LineClient, ScheduleProcess
from tests.support.servers.stalling_proxy import StallingProxy

FAR_NS = 4_000_000_000_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ScheduleProcess]:
    with ScheduleProcess(
        tmp_path_factory.mktemp("connections"), limits__unsent_bytes=65536
    ) as running:
        yield running


def resident_bytes(server: ScheduleProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def test_pipelined_commands_share_syncs(server):
    with server.client() as client:
        for _ in range(20):
            client.send(*(f"r{n} SET pipe.{n} {FAR_NS}" for n in range(100)))
            assert [client.read_line() for _ in range(100)] == [f"r{n} OK" for n in range(100)]


def test_a_flood_of_commands_is_answered_completely_and_in_order(server):
    count = 20_000
    with server.client() as client:
        sender = threading.Thread(
            target=client.send, args=[f"r{n} GET flood.{n % 7}" for n in range(count)]
        )
        sender.start()
        for number in range(count):
            answer = client.read_line()
            assert answer is not None
            assert answer.startswith(f"r{number} ERROR not_found ")
        sender.join()


def test_a_client_that_never_reads_costs_little_and_blocks_nobody(server):
    with server.client() as setup:
        setup.send(*(f"r SET fat.{'y' * 300}.{n} {FAR_NS}" for n in range(3000)))
        for _ in range(3000):
            assert setup.read_line() == "r OK"
    before = resident_bytes(server)
    deaf = [server.client() for _ in range(10)]
    try:
        for client in deaf:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.socket.settimeout(0.2)
            try:
                for _ in range(2000):  # each answer is a megabyte
                    client.send("q QUERY fat.", "s STAT")
            except TimeoutError:
                pass  # the server has stopped reading, as it should
        with server.client() as other:
            for number in range(50):
                assert other.ask(f"r SET other.{number} {FAR_NS}") == "r OK"
        assert resident_bytes(server) - before < 60 * 1024 * 1024
    finally:
        for client in deaf:
            client.close()


def test_a_slow_reader_gets_everything(server):
    with server.client() as client:
        for number in range(500):
            client.ask(f"r SET slow.{number:04d}.{'z' * 100} {FAR_NS}")
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.send("q QUERY slow.", f"r SET slow.end {FAR_NS}", "g GET slow.end")
        time.sleep(0.3)
        assert len(client.read_list("q")) == 500
        assert client.read_line() == "r OK"
        assert client.read_line() == f"g OK planned {FAR_NS}"


def test_a_list_shows_the_moment_it_was_asked_for(server):
    with server.client() as client, server.client() as other:
        for number in range(300):
            client.ask(f"r SET moment.{number:03d}.{'z' * 300} {FAR_NS}")
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.send("q QUERY moment.")
        assert client.read_line()
        for number in range(300):
            other.ask(f"r REMOVE moment.{number:03d}.{'z' * 300}")
        assert len(client.read_list("q")) == 299


def test_bytes_in_any_pieces_mean_the_same(server):
    with StallingProxy(server.port, largest=3) as proxy, LineClient(proxy.port) as client:
        for number in range(100):
            client.send(f'r{number} SET "split {number}" {FAR_NS}', f'g GET "split {number}"')
        for number in range(100):
            assert client.read_line() == f"r{number} OK"
            assert client.read_line() == f"g OK planned {FAR_NS}"


def test_a_stalling_network_delays_only_its_own_client(server):
    with (
        StallingProxy(server.port, largest=2, pause_s=0.02) as proxy,
        LineClient(proxy.port) as slow,
        server.client() as fast,
    ):
        slow.send(f"r SET stalled {FAR_NS}")
        for number in range(100):
            assert fast.ask(f"r SET fast.{number} {FAR_NS}") == "r OK"
        assert slow.read_line() == "r OK"


@pytest.mark.parametrize("cut_after", [1, 10, 100, 1000])
def test_a_cut_connection_leaves_whole_commands_only(server, cut_after):
    names = [f"cut.{cut_after}.{number}" for number in range(100)]
    with StallingProxy(server.port, largest=50, cut_after=cut_after) as proxy:
        client = LineClient(proxy.port)
        answered = 0
        try:
            client.send(*(f"r SET {name} {FAR_NS}" for name in names))
            while client.socket.recv(1):
                answered += 1
        except OSError:
            pass
        client.close()
    with server.client() as check:
        held = [name for name in names if check.ask(f"g GET {name}").startswith("g OK")]
    assert held == names[: len(held)]
    assert len(held) >= answered // len("r OK\n")


def test_ten_thousand_idle_connections_cost_little(tmp_path):
    idle_count = open_files_allowed(10_000)
    with ScheduleProcess(tmp_path, database__persistence="memory") as server:
        before = resident_bytes(server)
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(idle_count)]
        try:
            for number in range(50):
                assert server.ask(f"r SET job.{number} {FAR_NS}") == "r OK"
            server.wait_until(
                lambda: int(server.stat()["connections"]) == idle_count + 1, "all are counted"
            )
            assert resident_bytes(server) - before < 40_000 * idle_count + 10_000_000
        finally:
            for each in idle:
                each.close()
        server.wait_until(lambda: server.stat()["connections"] == "1", "all are gone")
        assert server.stop() == 0


def open_files_allowed(wanted: int) -> int:
    """So many sockets, or as many as this system lets one process have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return wanted if most == resource.RLIM_INFINITY else min(wanted, most - 1000)


def is_answered(server: ScheduleProcess) -> bool:
    with server.client() as client:
        try:
            client.send("r GET x")
        except OSError:
            return False
        return client.read_line() is not None


def test_too_many_connections_are_refused_and_come_back(tmp_path):
    with ScheduleProcess(tmp_path, limits__connections=3, log__level="debug") as server:
        clients = [server.client() for _ in range(3)]
        for client in clients:
            assert client.ask("r GET x").startswith("r ERROR")
        with server.client() as one_more:
            assert one_more.read_line() is None
        clients.pop().close()
        server.wait_for_line(r"DEBUG client connected client=127\.0\.0\.1:\d+")
        server.wait_for_line(r"DEBUG client disconnected client=127\.0\.0\.1:\d+")
        server.wait_until(lambda: is_answered(server), "there is room again")
        for client in clients:
            client.close()


def test_connections_that_only_open_do_not_delay_a_stop(tmp_path):
    with ScheduleProcess(tmp_path) as server:
        clients = [server.client() for _ in range(20)]
        clients[0].send_bytes(b"r SET never.finish")
        server.wait_until(lambda: server.stat()["connections"] == "21", "all are there")
        assert server.stop() == 0
        for client in clients:
            assert client.read_line() is None
            client.close()

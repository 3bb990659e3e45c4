"""Connections of the fan-out queues: who waits, who leaves, who misbehaves."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from journeyman.servers.kestrel import metrics as facts
from journeyman.units import MIB
from tests.support.servers.fanout_process import FanOutClient, FanOutProcess

LITTLE_KEPT = f"""
from journeyman.servers.kestrel import session
session.MAX_KEPT_BYTES = {4 * MIB}
from journeyman.cli import main
main()
"""
VERSION = f"VERSION {facts.VERSION}\r\n".encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FanOutProcess]:
    settings = {"kestrel.sync": "os", "kestrel.window_bytes": 4 * MIB}
    with FanOutProcess(tmp_path_factory.mktemp("fanout"), settings=settings) as running:
        yield running
        assert not [line for line in running.lines if "unexpected" in line]


def resident_bytes(server: FanOutProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def peak_bytes(server: FanOutProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def connections(client: FanOutClient) -> int:
    return int(client.stats()["curr_connections"])


def send_in_background(client: FanOutClient, *parts: bytes) -> threading.Thread:
    """What the server does not read shall not hold up the test."""

    def send() -> None:
        try:
            for part in parts:
                client.send(part)
        except OSError:
            return  # closed in the middle of it: that is what is tested

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("leave", ["close", "reset", "half_close"])
@pytest.mark.parametrize("ahead", ["", "version\r\n" * 50])
def test_who_leaves_while_it_waits_takes_no_item(server: FanOutProcess, leave: str, ahead: str):
    with server.reader() as client:
        server.wait_until(lambda: connections(client) == 1, "those of other tests are gone")
        waiting = server.reader()
        waiting.send(f"get left/t=60000\r\n{ahead}")
        server.wait_until(lambda: client.stats().get("queue_left_waiters") == "1", "it waits")
        if leave == "reset":
            linger = struct.pack("ii", 1, 0)
            waiting.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            waiting.close()
        else:
            getattr(waiting, leave)()
        server.wait_until(lambda: connections(client) == 1, "it is gone")
        assert client.put("left", b"x") == "STORED"
        assert client.get("left") == b"x"
        waiting.close()


def test_commands_before_the_end_of_input_are_answered(server: FanOutProcess):
    with server.reader() as client:
        client.send("set half 0 0 2\r\nhi\r\nget half\r\nget half/t=60000\r\nversion\r\n")
        client.half_close()
        said = b"STORED\r\nVALUE half 0 2\r\nhi\r\nEND\r\n"
        assert client.read_to_the_end() == said + b"END\r\n" + VERSION  # nobody waits on


def test_what_is_open_can_be_confirmed_before_the_end_of_input(server: FanOutProcess):
    with server.reader() as client:
        client.send("set sure 0 0 1\r\nx\r\nget sure/open\r\nget no/t=60000\r\nconfirm sure 1\r\n")
        client.half_close()
        said = b"STORED\r\nVALUE sure 0 1\r\nx\r\nEND\r\nEND\r\nEND\r\n"
        assert client.read_to_the_end() == said
    with server.reader() as client:
        assert client.get("sure") is None


def test_end_of_input_inside_an_item_stores_nothing(server: FanOutProcess):
    with server.reader() as client:
        client.send("set torn 0 0 10\r\nabc")
        client.half_close()
        assert client.read_to_the_end() == b""
    with server.reader() as client:
        assert client.get("torn") is None


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"x" * 1_100_000,
        b"get " + b"q" * 5000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
        b"set q 0 0 99999999999999999999\r\n",
        b"set q 0 0 -1\r\n",
    ],
    ids=["http", "endless line", "long name", "tls", "huge size", "negative size"],
)
def test_what_is_no_kestrel_ends_the_connection(server: FanOutProcess, sent: bytes):
    with server.reader() as client:
        sender = send_in_background(client, sent)
        said = client.read_to_the_end()
        sender.join()
    # A reset may overtake the answer where much was left unread.
    assert said in (b"", b"CLIENT_ERROR\r\n")
    assert said.count(b"\r\n") <= 1


def test_item_over_the_format_is_passed_over(server: FanOutProcess):
    size = 20 * MIB
    with server.reader() as client:
        begin = resident_bytes(server)
        client.send(f"set over 0 0 {size}\r\n")
        for _ in range(size // MIB):
            client.send(b"flush_all\r\n" * (MIB // 11) + b"x" * (MIB % 11))
        client.send(b"\r\nversion\r\n")
        assert client.read_line() == "NOT_STORED"
        assert client.read_line().encode() + b"\r\n" == VERSION
        assert resident_bytes(server) - begin < size // 2


def test_promised_items_take_no_memory_until_they_come(server: FanOutProcess):
    begin = resident_bytes(server)
    clients = [server.reader() for _ in range(50)]
    for client in clients:
        client.send(f"set promised 0 0 {16 * MIB}\r\nonly a little")
    with server.reader() as other:
        server.wait_until(lambda: connections(other) >= 50)
        assert other.ask("version") == VERSION.decode().strip()
    assert resident_bytes(server) - begin < 50 * MIB
    for client in clients:
        client.close()


def test_items_that_never_get_whole_are_bounded_for_all_together(tmp_path: Path):
    with FanOutProcess(tmp_path, program=LITTLE_KEPT) as server:
        clients = [server.reader() for _ in range(8)]
        senders = [
            send_in_background(client, b"set q 0 0 %d\r\n" % (2 * MIB), bytes(MIB))
            for client in clients
        ]
        for sender in senders:
            sender.join()
        with server.reader() as other:
            server.wait_until(lambda: connections(other) <= 5, "some are turned away")
            assert other.put("p", bytes(100_000)) == "STORED"
            turned_away = 9 - connections(other)
            for client in clients:
                send_in_background(client, bytes(MIB) + b"\r\n").join()
                with suppress(OSError):
                    client.half_close()
            answers = [client.read_to_the_end() for client in clients]
            stored = answers.count(b"STORED\r\n")
            assert stored == 8 - turned_away
            assert stored > 0
            # What they kept is free again.
            assert other.put("q", bytes(3 * MIB)) == "STORED"
        for client in clients:
            client.close()


def test_ten_thousand_commands_in_one_go(server: FanOutProcess):
    puts = b"".join(b"set pipe 0 0 5\r\n%05d\r\n" % number for number in range(10_000))
    with server.reader() as client:
        sender = send_in_background(client, puts)
        assert client.read_exactly(8 * 10_000) == b"STORED\r\n" * 10_000
        sender.join()
        sender = send_in_background(client, b"get pipe\r\n" * 10_001)
        want = b"".join(b"VALUE pipe 0 5\r\n%05d\r\nEND\r\n" % n for n in range(10_000))
        assert client.read_exactly(len(want) + 5) == want + b"END\r\n"
        sender.join()


def test_one_who_does_not_fetch_gets_no_more_and_holds_up_nobody(server: FanOutProcess):
    item = bytes(MIB)
    with server.reader() as client:
        for _ in range(100):
            assert client.put("heavy", item) == "STORED"
        begin = peak_bytes(server)
        with server.reader() as slow:
            sender = send_in_background(slow, b"get heavy\r\n" * 1000)
            sender.join()
            server.wait_until(lambda: int(client.stats()["queue_heavy_items"]) < 100, "it is read")
            seen = 0
            while seen != (left := int(client.stats()["queue_heavy_items"])):
                seen = left
                time.sleep(0.2)  # as long as anything is still given to the slow one
            assert left > 50
            assert client.put("quick", b"x") == "STORED"
            assert client.get("quick") == b"x"
            assert peak_bytes(server) - begin < 60 * MIB
            # It fetches after all, and is given everything in its order.
            block = b"VALUE heavy 0 %d\r\n%b\r\nEND\r\n" % (MIB, item)
            for _ in range(100):
                assert slow.read_exactly(len(block)) == block
            assert slow.read_exactly(5 * 900) == b"END\r\n" * 900
        assert client.get("heavy") is None


def test_one_who_does_not_fetch_can_leave(server: FanOutProcess):
    item = bytes(MIB)
    with server.reader() as client:
        for _ in range(20):
            client.put("abandoned", item)
        server.wait_until(lambda: connections(client) == 1, "those of other tests are gone")
        slow = server.reader()
        # One item is open at a time: to open a second one is an error that closes the connection.
        slow.send(b"get abandoned/open\r\n" + b"get abandoned/close/open\r\n" * 10)
        server.wait_until(lambda: connections(client) == 2)
        slow.close()
        server.wait_until(lambda: connections(client) == 1, "it is gone")
        server.wait_until(lambda: client.stats()["queue_abandoned_open_transactions"] == "0")
        assert client.get("abandoned/t=10000") == item


def test_many_figures_are_asked_for_at_once(server: FanOutProcess):
    with server.reader() as client, server.reader() as other:
        for number in range(100):
            client.put(f"figures-{number}", b"x")
        begin = peak_bytes(server)
        sender = send_in_background(client, b"stats\r\n" * 500)
        sender.join()
        assert other.ask("version") == VERSION.decode().strip()
        assert peak_bytes(server) - begin < 60 * MIB
        client.half_close()
        assert client.read_to_the_end().count(b"STAT uptime ") == 500


def test_one_byte_at_a_time(server: FanOutProcess):
    with server.reader() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"set drip 0 0 3\r\nabc\r\nget drip\r\n":
            client.send(bytes([byte]))
        assert client.read_line() == "STORED"
        assert client.read_item() == b"abc"


def test_waiting_command_holds_up_only_its_own_connection(server: FanOutProcess):
    with server.reader() as waiting, server.reader() as client:
        waiting.send("get hold/t=60000\r\nversion\r\n")
        assert client.ask("version") == VERSION.decode().strip()
        client.put("hold", b"x")
        assert waiting.read_item() == b"x"
        assert waiting.read_line() == VERSION.decode().strip()


def test_too_many_connections_are_refused(tmp_path: Path):
    with FanOutProcess(tmp_path, limits__connections=2) as server:
        with server.reader() as one, server.reader() as two:
            assert one.ask("version") == two.ask("version")
            with server.reader() as three:
                assert three.read_to_the_end() == b""
        server.wait_until(lambda: any("too many are open" in line for line in server.lines))


def test_stop_lets_those_who_wait_go(tmp_path: Path):
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        client.send("set q 0 0 1\r\nx\r\nget q/open\r\nget other/t=60000\r\n")
        assert client.read_line() == "STORED"
        assert client.read_item() == b"x"
        assert server.stop() == 0
        assert client.read_to_the_end() == b"END\r\n"
    with FanOutProcess(tmp_path) as server, server.reader() as client:
        assert client.get("q") == b"x"  # what was open came back

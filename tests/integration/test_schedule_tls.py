"""TLS: versions, chain, clients that do not speak it, and half-closed ones."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.schedule_process import LineClient, ScheduleProcess

DATA = Path(__file__).parent / "data"
FAR_NS = 4_000_000_000_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ScheduleProcess]:
    with ScheduleProcess(
        tmp_path_factory.mktemp("tls"),
        controller__tls_cert=DATA / "server_chain.pem",
        controller__tls_key=DATA / "server_key.pem",
        limits__handshake_timeout_ms=60_000,  # a test may be slow to shake hands
    ) as running:
        yield running


def trusting() -> ssl.SSLContext:
    """Knows the root alone, so the server must send the certificate between."""
    return ssl.create_default_context(cafile=str(DATA / "root.pem"))


def encrypted(server: ScheduleProcess) -> LineClient:
    return LineClient(server.port, tls=trusting())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_spoken(server, version):
    context = trusting()
    context.minimum_version = context.maximum_version = version
    with LineClient(server.port, tls=context) as client:
        assert client.ask(f"r1 SET tls.1 {FAR_NS}") == "r1 OK"
        assert client.ask("r2 GET tls.1") == f"r2 OK planned {FAR_NS}"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_older_versions_are_refused(server):
    context = trusting()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        LineClient(server.port, tls=context)


def test_stat_tells(server):
    with encrypted(server) as client:
        client.send("s STAT")
        assert "tls_enabled 1" in client.read_list("s")


def test_a_plaintext_client_is_closed_and_nobody_else_is_harmed(server):
    with encrypted(server) as other:
        with LineClient(server.port) as client:
            client.send("r1 STAT")
            # What comes before the end, if anything, is an alert and no answer.
            assert b"OK" not in drain(client.socket)
        assert other.ask("r GET none").startswith("r ERROR not_found")


def test_a_client_that_never_shakes_hands_is_closed(tmp_path):
    with (
        ScheduleProcess(
            tmp_path,
            controller__tls_cert=DATA / "server_chain.pem",
            controller__tls_key=DATA / "server_key.pem",
            limits__handshake_timeout_ms=100,
        ) as server,
        LineClient(server.port) as client,
    ):
        assert drain(client.socket) == b""


def test_connections_without_a_handshake_count_against_the_limit(tmp_path):
    with ScheduleProcess(
        tmp_path,
        controller__tls_cert=DATA / "server_chain.pem",
        controller__tls_key=DATA / "server_key.pem",
        limits__connections=3,
        limits__handshake_timeout_ms=60_000,
    ) as server:
        silent = [LineClient(server.port) for _ in range(3)]
        with LineClient(server.port) as one_more:
            assert drain(one_more.socket) == b""
        server.wait_for_line("too many are open")
        for each in silent:
            each.close()
        server.wait_until(lambda: can_ask(server), "there is room again")


def can_ask(server: ScheduleProcess) -> bool:
    try:
        with encrypted(server) as client:
            return client.ask("r GET x").startswith("r ERROR not_found")
    except (ssl.SSLError, ConnectionError):
        return False


def test_long_answers_and_many_commands(server):
    with encrypted(server) as client:
        client.send(*(f"r SET long.{'x' * 200}.{number} {FAR_NS}" for number in range(2000)))
        for _ in range(2000):
            assert client.read_line() == "r OK"
        client.send("q QUERY long.", "q2 GET nothing")
        assert len(client.read_list("q")) == 2000
        assert client.read_line() == 'q2 ERROR not_found job "nothing" does not exist'


def test_answers_still_arrive_after_the_client_said_goodbye(server):
    """`echo ... | openssl s_client` and the like: input ends before the answers are there."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trusting().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(outgoing.read())
                incoming.write(raw.recv(65536))
        tls.write("".join(f"r{n} SET bye.{n} {FAR_NS}\n" for n in range(20)).encode())
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()  # puts close_notify behind the commands
        raw.sendall(outgoing.read())
        received = drain(raw)
    incoming.write(received)
    incoming.write_eof()
    answers = read_rest(tls)
    assert answers == "".join(f"r{n} OK\n" for n in range(20)).encode()


@pytest.mark.parametrize(
    ("cert", "key"),
    [
        ("server_chain.pem", "other_key.pem"),
        ("server_key.pem", "server_key.pem"),
        ("missing.pem", "server_key.pem"),
        ("server_chain.pem", "missing.pem"),
    ],
)
def test_a_wrong_certificate_is_an_error_of_one_line(tmp_path, cert, key):
    process = ScheduleProcess(
        tmp_path, controller__tls_cert=DATA / cert, controller__tls_key=DATA / key
    ).start(wait=False)
    with process:
        assert process.wait() == 2
    (line,) = (line for line in process.lines if line.startswith("journeyman: error: "))
    assert "tls_" in line


def drain(raw: socket.socket) -> bytes:
    data = b""
    while True:
        try:
            piece = raw.recv(65536)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def read_rest(tls: ssl.SSLObject) -> bytes:
    data = b""
    while True:
        try:
            piece = tls.read(65536)
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return data
        if not piece:
            return data
        data += piece

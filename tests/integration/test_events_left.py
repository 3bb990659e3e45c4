"""Clients of event streams and lists that leave at once: no error of the server."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from tests.support.servers.http_client import ask
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess

CLIENTS = 200
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


@pytest.mark.parametrize("path", ["/v1/events", "/v1/log/tail", "/console/events", "/jobs"])
def test_client_that_leaves_at_once_is_no_error(tmp_path: Path, path: str):
    with ScheduleProcess(tmp_path, settings=ALL_SERVICES) as server:
        assert ask(server, "PUT", "/jobs/a", {"execution": 4_000_000_000_000_000_000})[0] == 200
        for number in range(CLIENTS):
            with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as client:
                client.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
                if number % 2:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        assert ask(server, "GET", "/v1/ready")[0] == 200
        assert server.stop() == 0
        assert [line for line in server.lines if " ERROR " in line] == []

"""The fan-out queues over a real socket: every command, and what it is answered with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.fanout_process import FanOutClient, FanOutProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FanOutProcess]:
    with FanOutProcess(tmp_path_factory.mktemp("fanout"), config=CONFIG) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture
def client(server: FanOutProcess) -> Iterator[FanOutClient]:
    with server.reader() as connected:
        yield connected


CONFIG = """
[kestrel]
sweep_interval_ms = 20
[kestrel.queue.many]
max_open = 3
[kestrel.queue.small]
max_item_bytes = 4
max_items = 2
[kestrel.queue.old]
expire_to = "attic"
[kestrel.queue.poison]
max_errors = 2
errors_to = "dead"
"""


def test_put_and_get(client: FanOutClient):
    assert client.put("plain", b"hello") == "STORED"
    client.send(b"get plain\r\n")
    assert client.read_exactly(29) == b"VALUE plain 0 5\r\nhello\r\nEND\r\n"
    assert client.get("plain") is None


def test_items_are_binary(client: FanOutClient):
    data = bytes(range(256)) + b"\r\nEND\r\nset x 0 0 1\r\n"
    assert client.put("binary", data) == "STORED"
    assert client.get("binary") == data

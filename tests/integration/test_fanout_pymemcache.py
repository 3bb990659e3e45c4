"""pymemcache, a memcached client that nobody here wrote, talks to the fan-out queues.

Kestrel knows no ``noreply``, so the client is told not to use it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError, MemcacheServerError, MemcacheUnknownError

from journeyman.servers.kestrel.metrics import VERSION
from tests.support.servers.fanout_process import FanOutProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FanOutProcess]:
    with FanOutProcess(tmp_path_factory.mktemp("fanout")) as running:
        yield running


def connect(server: FanOutProcess) -> Client:
    return Client(("127.0.0.1", server.fanout_port), default_noreply=False, timeout=30)


@pytest.fixture
def client(server: FanOutProcess) -> Iterator[Client]:
    connected = connect(server)
    yield connected
    connected.close()


def test_set_and_get(client: Client):
    assert client.set("jobs", b"first")
    assert client.set("jobs", b"\x00second\r\n", expire=60)
    assert client.get("jobs") == b"first"
    assert client.get("jobs") == b"\x00second\r\n"
    assert client.get("jobs") is None


def test_many_are_put_in_one_go(client: Client):
    assert client.set_many({"many-a": b"1", "many-b": b"2"}) == []
    assert client.get("many-a") == b"1"
    assert client.get("many-b") == b"2"


def test_large_item(client: Client):
    data = bytes(range(256)) * 4096 * 8
    assert client.set("large", data)
    assert client.get("large") == data
    assert not client.set("large", bytes(16 * 1024 * 1024 + 1))  # beyond the journal's format
    assert client.get("large") is None


def test_readers(client: Client):
    assert client.get("feed+one") is None
    assert client.get("feed+two") is None
    assert client.set("feed", b"news")
    assert client.get("feed+one") == b"news"
    assert client.get("feed+two") == b"news"


def test_open_confirm_and_abort_by_raw_commands(client: Client, server: FanOutProcess):
    client.set("open", b"x")
    taken = b"VALUE open 0 1\r\nx\r\n"
    assert client.raw_command("get open/open", end_tokens="END\r\n") == taken
    assert client.raw_command("get open/abort", end_tokens="END\r\n") == b""
    assert client.raw_command("get open/open", end_tokens="END\r\n") == taken
    assert client.raw_command("confirm open 1") == b"END"
    other = connect(server)
    assert other.get("open") is None
    other.close()


def test_delete_and_flush(client: Client):
    client.set("gone", b"x")
    assert client.delete("gone")
    assert client.get("gone") is None
    client.set("gone", b"y")
    assert client.raw_command("flush gone") == b"END"
    assert client.get("gone") is None
    client.set("gone", b"z")
    client.flush_all()
    assert client.get("gone") is None


def test_version_and_stats(server: FanOutProcess, client: Client):
    assert client.version() == VERSION.encode()
    client.set("counted", b"abc")
    server.wait_until(lambda: client.stats()[b"curr_connections"] == 1, "the others are closed")
    figures = client.stats()
    assert figures[b"queue_counted_items"] == 1
    assert figures[b"queue_counted_bytes"] == 3


def test_errors_are_those_that_the_client_knows(client: Client):
    with pytest.raises(MemcacheClientError):
        client.get("no.such.name")
    with pytest.raises(MemcacheServerError):
        client.get("feed")  # it has named readers
    with pytest.raises((MemcacheClientError, MemcacheUnknownError)):
        client.incr("jobs", 1)
    assert client.set("jobs", b"after")  # it has connected again
    assert client.get("jobs") == b"after"


def test_quit(client: Client):
    assert client.set("q", b"x")
    client.quit()
    assert client.get("q") == b"x"

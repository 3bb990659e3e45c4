"""The client of the fan-out queues, with the real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from journeyman.client import KestrelClient, errors
from tests.support.servers.fanout_process import FanOutProcess


def test_two_readers_across_a_restart(tmp_path: Path):
    data = bytes(range(256)) * 1000
    with FanOutProcess(tmp_path) as server, KestrelClient(port=server.fanout_port) as client:
        assert client.get("orders", reader="billing") is None
        assert client.get("orders", reader="audit") is None
        assert client.put("orders", data)
        assert client.open("orders", reader="billing") == data
        with pytest.raises(errors.Refused):
            client.open("orders", reader="billing")  # one may be open; this ends the connection
        assert client.open("orders", reader="billing", wait_ms=10_000) == data
        client.confirm("orders", reader="billing")
        assert client.peek("orders", reader="audit") == data
        assert server.stop() == 0
    with FanOutProcess(tmp_path) as server, KestrelClient(port=server.fanout_port) as client:
        assert client.get("orders", reader="billing") is None
        assert client.open("orders", reader="audit") == data
        client.abort("orders", reader="audit")
        assert client.get("orders", reader="audit") == data
        assert client.stats()["queue_orders+audit_items"] == "0"
        client.put("orders", b"x", expiry_s=60)
        client.flush("orders")
        assert client.get("orders", reader="billing") is None
        client.delete("orders")
        assert "queue_orders+audit_items" not in client.stats()
